"""Compares the store, or a part of it, with the log, and has settled what differs.

A scan only makes suspects: whether a name has changed, a HEAD decides when the name is its own.
Never: take a name for deleted because a scan did not show it.
"""

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubspoke.core.hub import differs
from hubspoke.core.ids import LogSequence, ObjectName, StoredObject
from hubspoke.core.namespace import bucket_name
from hubspoke.core.noticed import Part
from hubspoke.hub.changes import Work
from hubspoke.hub.index import IndexProgress, note_mounts
from hubspoke.hub.pool import each
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import NamespaceRecord, NamespaceStore, ObjectStore

log = logging.getLogger(__name__)

# Names compared between two turns of the loop: half a millisecond. A read at the hub takes several
# turns, as its bytes come from a thread.
_SLICE = 50


@dataclass(frozen=True, slots=True)
class Reconciler:
    """settle: brings the log level with the store for one name, and never raises. bucket: the same
    for a bucket. waits: whether a name is going to be looked at anyway, when it is quiet."""

    store: ObjectStore
    namespace: NamespaceStore
    settle: Callable[[ObjectName], Awaitable[bool]]
    bucket: Callable[[str], Awaitable[None]]
    waits: Callable[[ObjectName], bool]
    progress: IndexProgress
    tuning: HubTuning

    async def everything(self) -> None:
        """Buckets that came, all names, buckets that went. Raises StoreUnavailable."""
        progress, namespace = self.progress, self.namespace
        progress.state, progress.objects = "reconciling", 0
        log.info("reconciliation started entries=%d", len(namespace))
        found = await self.store.buckets()
        for bucket in sorted(set(found) - set(namespace.buckets())):
            await self.bucket(bucket)
        await self._compare(None, namespace.buckets())
        for bucket in sorted(set(namespace.buckets()) - set(found)):
            await self.bucket(bucket)
        await note_mounts(self.store, namespace)
        progress.state = "complete"
        log.info(
            "reconciliation complete objects=%d changed=%d", progress.objects, progress.changed
        )

    async def part(self, part: Part) -> None:
        """The names of a part. Raises StoreUnavailable."""
        await self._compare(part, [part.bucket])

    async def buckets(self) -> list[str]:
        """Buckets that came or went. Returns those that came: nobody has looked into them yet."""
        found = set(await self.store.buckets())
        known = set(self.namespace.buckets())
        for bucket in sorted(known - found):
            await self.part(Part(bucket, "", deep=True))
            await self.bucket(bucket)
        for bucket in sorted(found - known):
            await self.bucket(bucket)
        return sorted(found - known)

    async def _compare(self, part: Part | None, buckets: list[str]) -> None:
        """Memory: 8 bytes for each name that the log has and the scan showed."""
        until = self.namespace.sequence
        seen = array("Q")
        async for batch in self.store.scan(part):
            await each(self._differing(batch, seen), self._settle, self.tuning.reconcile_max)
            self.progress.objects += len(batch) if part is None else 0
        # In a thread, and without the interpreter's lock: a million take 15 ms.
        shown = await asyncio.to_thread(_sorted, seen)
        for bucket in buckets:
            whole = part or Part(bucket, "", deep=True)
            await each(self._gone(whole, shown, until), self._settle, self.tuning.reconcile_max)

    def _differing(
        self, batch: list[StoredObject], seen: "array[int]"
    ) -> Iterator[ObjectName | None]:
        for i, (name, entry) in enumerate(batch):
            record = self.namespace.get(name)
            if record is not None:
                seen.append(record.sequence)
            if differs(record.entry if record is not None else None, entry):
                yield name
            elif i % _SLICE == _SLICE - 1:
                yield None

    def _gone(
        self, part: Part, shown: npt.NDArray[np.uint64], until: LogSequence
    ) -> Iterator[ObjectName | None]:
        """Names of the log that no scan showed, and that are older than its start."""
        for page in self._pages(part):
            old = [r for r in page if r.sequence <= until and part.covers(r.name)]
            wanted = np.array([r.sequence for r in old], dtype=np.uint64)
            at = np.searchsorted(shown, wanted)
            at[at == len(shown)] = 0
            missing = shown[at] != wanted if len(shown) else np.ones(len(old), dtype=bool)
            for i in np.flatnonzero(missing):
                yield old[i].name
            yield None

    def _pages(self, part: Part) -> Iterator[list[NamespaceRecord]]:
        """Records of the part and, if it is not deep, one of each folder below it."""
        after = ""
        while page := self.namespace.scan(
            part.bucket, prefix=part.prefix, after=after, limit=_SLICE
        ):
            yield page
            after = page[-1].name.key
            below = after.find("/", len(part.prefix))
            if not part.deep and below >= 0:
                # Behind the folder; a name of it that sorts behind this is met and passed.
                after = max(after, after[: below + 1] + "\U0010ffff")

    async def _settle(self, name: ObjectName) -> None:
        if not self.waits(name):
            changed = await self.settle(name)
            self.progress.changed += changed


def _sorted(numbers: "array[int]") -> npt.NDArray[np.uint64]:
    return np.sort(np.frombuffer(numbers, dtype=np.uint64))


def bucket_change(store: ObjectStore, namespace: NamespaceStore, bucket: str) -> Work:
    """The change that gives the log a bucket of the store, or takes it away."""
    exists = False

    async def check(_: object) -> bool:
        nonlocal exists
        exists = bucket in await store.buckets()
        return exists != (bucket in namespace.buckets())

    async def act() -> None:
        known = set(namespace.buckets())
        await namespace.set_buckets(sorted(known | {bucket} if exists else known - {bucket}))

    return Work(bucket_name(bucket), act=act, check=check, intent=False)
