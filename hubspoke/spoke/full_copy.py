"""How many bytes a full copy of what the job reads would have: every folder that was read from.

Never: hold the loop for longer than a page of names, however many there are.
"""

import asyncio

from hubspoke.core.ids import ObjectName
from hubspoke.ports import NamespaceStore

FOLDERS_MAX = 1_024
ENTRIES_MAX = 100_000  # more are not added up for every report: then the sum is not known
PAGE = 250  # names between two turns of the loop: 0.5 ms


class FullCopy:
    """The folders, and their sum as of a moment of the namespace."""

    def __init__(self, namespace: NamespaceStore) -> None:
        self._namespace = namespace
        self._folders: set[tuple[str, str]] = set()
        self._latest: ObjectName | None = None
        self._known: tuple[tuple[int, int], int | None] | None = None
        self._adding = asyncio.Lock()

    def read(self, name: ObjectName) -> None:
        """An object was read: its folder counts."""
        if name is self._latest:
            return
        self._latest = name
        if len(self._folders) < FOLDERS_MAX:
            self._folders.add((name.bucket, name.key[: name.key.rfind("/") + 1]))

    def reset(self) -> None:
        """Forget what was read."""
        self._folders.clear()
        self._latest = self._known = None

    async def added_up(self) -> int | None:
        """The sum, or None: nothing was read, or the names are too many. Changes that come while
        it is added up may count or not."""
        async with self._adding:  # several that ask are told the same sum
            at = int(self._namespace.sequence), len(self._folders)
            if self._known is None or self._known[0] != at:
                self._known = at, await self._sum()
            return self._known[1]

    async def _sum(self) -> int | None:
        listed = self._namespace.listed
        total = entries = 0
        for bucket, prefix in self._outermost():
            after = ""
            while page := listed(bucket, prefix=prefix, after=after, limit=PAGE):
                total += sum(size for _, size, _, _ in page)
                entries += len(page)
                after = page[-1][0]
                if entries > ENTRIES_MAX:
                    return None
                await asyncio.sleep(0)
        return total if entries else None

    def _outermost(self) -> list[tuple[str, str]]:
        """Folders that lie in no other one of the set, so that nothing is counted twice."""
        kept: list[tuple[str, str]] = []
        for bucket, prefix in sorted(self._folders):
            if not (kept and kept[-1][0] == bucket and prefix.startswith(kept[-1][1])):
                kept.append((bucket, prefix))
        return kept
