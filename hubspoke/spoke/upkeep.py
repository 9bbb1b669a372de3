"""Upkeep of the cache folders beside the reads: free space, a short index, and the scrub.

The scrub reads what was stored, a frame at a time, and compares it with its digest; a bad frame
becomes a miss, is counted, and is fetched again when a reader asks for it. It has a rate of its
own and a thread of its own, and stands still while a folder is not healthy: a reader waits for at
most the one frame that the disk is reading. Digests of frames are read from the index, they are
not kept in memory.
"""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice

from hubspoke import wire
from hubspoke.adapters.disk_health import Disk
from hubspoke.adapters.disk_threads import DiskThreads
from hubspoke.core.frames import StoredFrame
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.page_codes import IS_LOCAL
from hubspoke.core.scheduler import Punch
from hubspoke.core.spoke import SpokeCore
from hubspoke.spoke.filler import Filler

log = logging.getLogger(__name__)

SCRUB_BATCH = 1_024  # slots of the index read at once: 24 KiB
TIDY_BATCH = 256  # files looked at in one call, 10 us each
CLOSE_S = 3.0


class Upkeep:
    """Two endless walks, to be cancelled; touched only on the loop."""

    def __init__(
        self, core: SpokeCore, filler: Filler, scrub_bytes_per_second: float, interval_s: float
    ) -> None:
        self.scrubbed_bytes = 0
        self._core = core
        self._filler = filler
        self._rate = scrub_bytes_per_second
        self._interval_s = interval_s
        self._threads = DiskThreads("upkeep", 1)
        self._scrubber = DiskThreads("scrub", 1)

    async def close(self) -> None:
        """End the calls under way; the walks are cancelled before."""
        await asyncio.gather(self._threads.close(CLOSE_S), self._scrubber.close(CLOSE_S))

    async def keep_space(self) -> None:
        """Follow the free space of the disks: a shortage is a smaller capacity at once."""
        while True:
            await asyncio.sleep(self._interval_s)
            disks = self._filler.disks.disks
            try:
                for disk in disks:
                    await self._threads.submit(disk.store.compact)
                    if disk.health.writable:
                        self._filler.free(disk, disk.owed())
                        disk.drop_again()
                rooms = [await self._threads.submit(disk.store.room) for disk in disks]
            except OSError as e:
                log.debug("no upkeep now error=%s", e)
                continue
            known = [room for room in rooms if room is not None]
            if known:
                # Objects are spread over the folders: the fullest says what all can take.
                dropped = self._core.cache.bound(min(known) * len(rooms))
                self._filler.punch([Punch(*run) for run in dropped])

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
            taken = await self._scrubber.submit(partial(disk.store.allocated, known))
            self._filler.free(disk, taken)

    async def _walk(self, disk: Disk) -> None:
        place, store = 0, disk.store
        while True:
            if not disk.health.writable:
                return
            frames, place = await self._scrubber.submit(partial(store.stored, place, SCRUB_BATCH))
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
            data = await self._scrubber.submit(
                lambda: disk.store.read_through(number, offset, length)
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
