"""Upkeep of the cache folders beside the reads: free space, a short index, and the scrub.

The scrub reads what was stored, a frame at a time, and compares it with its digest; a bad frame
becomes a miss, is counted, and is fetched again when a reader asks for it. It has a rate of its
own and a thread of its own, and stands still while a folder is not healthy: a reader waits for at
most the one frame that the disk is reading. Digests of frames are read from the index, they are
not kept in memory.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from hubspoke import wire
from hubspoke.adapters.disk_health import Disk, DiskSlow
from hubspoke.adapters.disk_threads import DiskThreads
from hubspoke.core.fetches import Punch
from hubspoke.core.frames import StoredFrame
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.page_codes import IS_LOCAL
from hubspoke.core.spoke import SpokeCore
from hubspoke.spoke.filler import Filler

log = logging.getLogger(__name__)

SCRUB_BATCH = 1_024  # slots of the index read at once: 24 KiB
TIDY_BATCH = 256  # files looked at in one call, 10 us each
CALL_S = 10.0  # writing a long index anew takes a second
CLOSE_S = 3.0

T = TypeVar("T")
CapacityOf = Callable[[Sequence[Path]], int]


class Upkeep:
    """Two endless walks, to be cancelled; touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        filler: Filler,
        scrub_bytes_per_second: float,
        interval_s: float,
        capacity_of: CapacityOf | None = None,
    ) -> None:
        """capacity_of: bytes that some of the folders can have together; None: as at start."""
        self.scrubbed_bytes = 0
        self._core = core
        self._filler = filler
        self._rate = scrub_bytes_per_second
        self._interval_s = interval_s
        self._capacity_of = capacity_of
        self._sized_for = list(filler.disks.disks)
        self._lost: set[Disk] = set()
        self._threads: dict[tuple[str, Disk | None], DiskThreads] = {}

    async def close(self) -> None:
        """End the calls under way; the walks are cancelled before."""
        await asyncio.gather(*(t.close(CLOSE_S) for t in self._threads.values()))

    async def _call(self, what: str, disk: Disk | None, work: Callable[[], T]) -> T:
        """A call of a disk, on a thread that waits for no other disk. DiskSlow if it hangs."""
        name = f"{what} {disk.root if disk else 'folders'}"
        threads = self._threads.setdefault((what, disk), DiskThreads(name, 1))
        if threads.pending:
            raise DiskSlow(f"{name}: the last call has not ended")
        future = threads.submit(work)
        done, _ = await asyncio.wait({future}, timeout=CALL_S)
        if not done:
            raise DiskSlow(f"{name}: no end after {CALL_S:g} s")
        return future.result()

    async def keep_space(self) -> None:
        """Follow the disks: see `look`."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    async def look(self) -> None:
        """Make the cache as large as the folders allow that can be read now: a shortage is a
        smaller capacity at once. What lies in a lost one is neither counted nor evicted."""
        cache, disks = self._core.cache, self._filler.disks
        there = [disk for disk in disks.disks if disk.health.readable]
        rooms = [await self._tend(disk) for disk in there]
        if there != self._sized_for:
            await self._resize(there)
        for disk in disks.disks:
            lost = disk not in there
            if lost == (disk in self._lost):
                continue
            (self._lost.add if lost else self._lost.remove)(disk)
            for obj in [cache.objects[n] for n in disks.numbers(disk) if n in cache.objects]:
                (cache.away.add if lost else cache.away.remove)(obj)
                if not lost:
                    cache.freed(obj)
        known = [room for room in rooms if room is not None]
        # Objects are spread over the folders: the fullest says what all can take.
        dropped = cache.bound(min(known) * len(known) if known else cache.capacity)
        self._filler.punch([Punch(*run) for run in dropped])

    async def _tend(self, disk: Disk) -> int | None:
        """Returns the room there is; None if it cannot be told."""
        try:
            await self._call("upkeep", disk, disk.store.compact)
            if disk.health.writable:
                self._filler.free(disk, disk.owed())
                disk.drop_again()
            return await self._call("upkeep", disk, disk.store.room)
        except OSError as e:
            log.debug("no upkeep now folder=%s error=%s", disk.root, e)
            return None

    async def _resize(self, there: list[Disk]) -> None:
        """Other folders than before can be read."""
        capacity_of = self._capacity_of
        roots = [disk.root for disk in there if disk.root is not None]
        if capacity_of is None or not roots:
            self._sized_for = there
            return
        try:
            capacity = await self._call("capacity", None, lambda: capacity_of(roots))
        except OSError as e:
            log.debug("cache not resized error=%s", e)
            return
        self._core.cache.resize(capacity)
        self._sized_for = there
        log.info("cache resized folders=%d bytes=%d", len(there), capacity)

    async def scrub(self) -> None:
        """Walk through all folders again and again."""
        while True:
            for disk in self._filler.disks.disks:
                try:
                    await self._tidy(disk)
                    await self._walk(disk)
                except OSError as e:
                    log.debug("scrub interrupted folder=%s error=%s", disk.root, e)
            await asyncio.sleep(self._interval_s)

    async def _tidy(self, disk: Disk) -> None:
        """Give back what takes space and is not in the book: what a killed process wrote and did
        not record, or recorded as dropped and did not punch. So it begins right after a start."""
        cache, disks = self._core.cache, self._filler.disks
        for numbers in _batches(list(cache.objects)):
            objects = [cache.objects[n] for n in numbers if n in cache.objects]
            known = {
                o.number: (o.resident - o.flying) * PAGE_BYTES
                for o in objects
                if disks.of(o.number) is disk
            }
            if not known or not disk.health.writable:
                continue
            taken = await self._call("scrub", disk, partial(disk.store.allocated, known))
            self._filler.free(disk, taken)

    async def _walk(self, disk: Disk) -> None:
        place, store = 0, disk.store
        while True:
            if not disk.health.writable:
                return
            frames, place = await self._call(
                "scrub", disk, partial(store.stored, place, SCRUB_BATCH)
            )
            for number, page, pages, digest in frames:
                await self._check(disk, number, page, pages, digest)
            if not place:
                return

    async def _check(self, disk: Disk, number: int, page: int, pages: int, digest: int) -> None:
        cache = self._core.cache
        obj = cache.objects.get(number)
        last = page + pages
        if obj is None or obj.dead or last > len(obj.pages):
            return
        if not obj.pages.all(page, last, IS_LOCAL):
            return  # dropped since, all or in part
        offset, length = page * PAGE_BYTES, obj.range_bytes(page, last)
        cache.pin(obj, page, last)
        try:
            data = await self._call(
                "scrub", disk, lambda: disk.store.read_through(number, offset, length)
            )
        finally:
            cache.unpin(obj, page, last)
            self._filler.drop(cache.reap(obj))
        self.scrubbed_bytes += length
        if wire.digest(data) == digest:
            self._core.verified(obj, StoredFrame(offset, length, digest), good=True)
        elif self._filler.waiters.needed(number, page, last):
            pass  # who reads it now finds out by itself, and counts on what was there
        elif not obj.dead and obj.pages.all(page, last, IS_LOCAL):
            log.warning("corrupt frame found by scrub object=%s offset=%d", obj.name, offset)
            self._filler.owe(obj, self._core.spoiled(obj, page, last))
        await asyncio.sleep(length / self._rate)


def _batches(numbers: list[int]) -> Iterator[list[int]]:
    each = iter(numbers)
    while batch := list(islice(each, TIDY_BATCH)):
        yield batch
