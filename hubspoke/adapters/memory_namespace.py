"""ports.NamespaceStore in dicts: for tests, the simulator, and as the plainest statement of it.

Durable for as long as the object lives; `close` keeps everything, so a test can "restart" on it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectName
from hubspoke.core.namespace import Listed, supersedes
from hubspoke.ports import Intent, NamespaceRecord


class MemoryNamespace:
    """keep_log: True at the hub, False at a spoke, as for LmdbNamespace."""

    def __init__(self, *, keep_log: bool, log_entries_max: int = 1_000_000) -> None:
        self._keep_log = keep_log
        self._log_entries_max = log_entries_max
        self._epoch: Epoch | None = None
        self._sequence = 0
        self._records: dict[ObjectName, NamespaceRecord] = {}
        self._keys: dict[str, list[str]] = {}  # by bucket, sorted
        self._loaded: dict[ObjectName, NamespaceRecord] = {}  # beside, until `adopt`
        self._log: list[Change] = []
        self._buckets: list[str] = []
        self._intents: dict[int, Intent] = {}
        self._facts: dict[str, str] = {}

    def copy(self) -> "MemoryNamespace":
        """One of its own with the same content; records are shared, they never change."""
        other = MemoryNamespace(keep_log=self._keep_log, log_entries_max=self._log_entries_max)
        other._epoch, other._sequence = self._epoch, self._sequence
        other._records = dict(self._records)
        other._keys = {bucket: list(keys) for bucket, keys in self._keys.items()}
        other._loaded = dict(self._loaded)
        other._log = list(self._log)
        other._buckets = list(self._buckets)
        other._intents = dict(self._intents)
        other._facts = dict(self._facts)
        return other

    @property
    def epoch(self) -> Epoch | None:
        return self._epoch

    @property
    def sequence(self) -> LogSequence:
        return LogSequence(self._sequence)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, name: ObjectName) -> NamespaceRecord | None:
        return self._records.get(name)

    def scan(
        self, bucket: str, *, prefix: str = "", after: str = "", limit: int
    ) -> list[NamespaceRecord]:
        assert limit > 0, limit
        keys = self._keys.get(bucket, [])
        at = max(bisect_left(keys, prefix), bisect_right(keys, after) if after else 0)
        page: list[NamespaceRecord] = []
        for key in keys[at : at + limit]:
            if not key.startswith(prefix):
                break
            page.append(self._records[ObjectName(bucket, key)])
        return page

    def listed(self, bucket: str, *, prefix: str = "", after: str = "", limit: int) -> list[Listed]:
        records = self.scan(bucket, prefix=prefix, after=after, limit=limit)
        return [record.listed() for record in records]

    def buckets(self) -> list[str]:
        return list(self._buckets)

    def fact(self, key: str) -> str | None:
        return self._facts.get(key)

    def intents(self) -> list[Intent]:
        return list(self._intents.values())

    def changes_after(self, sequence: LogSequence, limit: int) -> list[Change] | None:
        if sequence >= self._sequence:
            return []
        if not self._log or self._log[0].sequence > sequence + 1:
            return None
        start = sequence + 1 - self._log[0].sequence
        return self._log[start : start + limit]

    async def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            assert change.sequence == self._sequence + 1, (change.sequence, self._sequence)
            self._sequence += 1
            held = self._records.get(change.name)
            if change.name.key and supersedes(change.sequence, held.sequence if held else None):
                self._put(change)
            if self._keep_log:
                self._log.append(change)
        del self._log[: max(0, len(self._log) - self._log_entries_max)]

    async def begin_load(self) -> None:
        self._loaded = {}

    async def load(self, records: Sequence[NamespaceRecord]) -> None:
        for record in records:
            held = self._loaded.get(record.name)
            if supersedes(record.sequence, held.sequence if held else None):
                self._loaded[record.name] = record

    async def adopt(
        self,
        epoch: Epoch,
        sequence: LogSequence,
        *,
        buckets: Sequence[str],
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        assert epoch, sequence
        self._epoch, self._sequence = epoch, int(sequence)
        self._records, self._loaded = self._loaded, {}
        self._keys = {}
        for name in sorted(self._records):
            self._keys.setdefault(name.bucket, []).append(name.key)
        self._log.clear()
        self._buckets = sorted(buckets)
        self._facts |= facts

    async def set_buckets(self, buckets: Sequence[str]) -> None:
        self._buckets = sorted(buckets)

    async def put_fact(self, key: str, value: str) -> None:
        self._facts[key] = value

    async def put_intent(self, intent: Intent) -> None:
        self._intents[intent.intent_id] = intent

    async def drop_intent(self, intent_id: int) -> None:
        self._intents.pop(intent_id, None)

    def trouble(self) -> str | None:
        return None

    async def written(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def _put(self, change: Change) -> None:
        name = change.name
        keys = self._keys.setdefault(name.bucket, [])
        known = name in self._records
        if change.entry is None:
            if known:
                del self._records[name]
                del keys[bisect_left(keys, name.key)]
            return
        self._records[name] = NamespaceRecord(name, change.entry, change.sequence)
        if not known:
            insort(keys, name.key)
