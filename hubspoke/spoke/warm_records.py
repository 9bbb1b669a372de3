"""Records of warm jobs in the state folder, as facts of the replica: few, and small.

A fixed number of slots, each a fact, so that what is forgotten is written over and nothing grows;
a slot that is not written over yet brings its job back at the next start, where the bounds drop it
again. What it says is JSON with new fields only added; a record that cannot be read is left out.
"""

import json
from typing import Any

from hubspoke.ports import NamespaceStore

FORMAT = 1


class WarmRecords:
    """Slots by job."""

    def __init__(self, namespace: NamespaceStore, slots: int) -> None:
        self._namespace = namespace
        self._slots: dict[str, int] = {}
        self._count = slots

    def load(self) -> list[dict[str, Any]]:
        """What there is, in the order of the jobs' numbers; only at start."""
        found: list[tuple[int, int, dict[str, Any]]] = []
        for slot in range(self._count):
            try:
                record = json.loads(self._namespace.fact(_key(slot)) or "null")
                if record is not None and record["format"] == FORMAT:
                    found.append((int(record["number"]), slot, record))
            except (ValueError, KeyError, TypeError):
                continue
        found.sort(key=lambda each: each[0])
        self._slots = {f"w{number}": slot for number, slot, _ in found}
        return [record for _, _, record in found]

    async def put(self, job_id: str, record: dict[str, Any]) -> None:
        """Returns when it is durable. Raises StoreUnavailable."""
        slot = self._slots.get(job_id)
        if slot is None:
            slot = min(set(range(self._count)) - set(self._slots.values()))
            self._slots[job_id] = slot
        text = json.dumps({"format": FORMAT, **record}, separators=(",", ":"))
        await self._namespace.put_fact(_key(slot), text)

    def forget(self, job_id: str) -> None:
        """Its slot is free for another."""
        self._slots.pop(job_id, None)


def _key(slot: int) -> str:
    return f"warm:{slot}"
