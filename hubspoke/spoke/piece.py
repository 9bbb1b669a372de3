"""One reader's range of at most a block or two: from the cache if it gives it, else from the hub.

    all pages local? -- yes --> page cache, or the disk for at most READ_WAIT_S --> bytes
           | no                       | error: a miss     | slow: the hub as well
           v                          v                   v
       ask the hub for the cache (or past it, through memory) --> wait --> look again

A disk is never the reason of an error: what it does not give in time comes from the hub, and
what the hub cannot give is waited for at the disk.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hubspoke import wire
from hubspoke.adapters.disk_health import Disk, DiskSlow
from hubspoke.core.cache import CachedObject, StoredFrame
from hubspoke.core.ids import PAGE_BYTES, ReadState, page_span
from hubspoke.core.spoke import SpokeCore
from hubspoke.errors import (
    CorruptFrame,
    DeadlineExceeded,
    HubSpokeError,
    HubUnavailable,
    VersionChanged,
)
from hubspoke.ports import Clock, FileSpan
from hubspoke.spoke.filler import Filler
from hubspoke.spoke.memory import Memory
from hubspoke.spoke.waiters import Need

log = logging.getLogger(__name__)

# Up to here one read at once is cheaper than to lend the file.
COPIED_BYTES_MAX = 64 << 10
# A lent span pins its blocks for as long as its client takes; longer reads go piece by piece.
LENT_BYTES_MAX = 64 << 20
# NVMe under load answers within 10 ms; after this the hub is asked too. With the hub's own
# latency it is the most that a sick disk costs a read.
READ_WAIT_S = 0.05
# Memory comes back as fast as readers take their bytes; a wait this long is a full queue.
MEMORY_WAIT_S = 10.0


@dataclass(slots=True)
class Piece:
    """Bytes for a reader. charged: what it holds of the memory budget until it gives it back.
    turned: the cache said it had them, and they came from the hub."""

    body: bytes | FileSpan
    charged: int
    turned: bool


class Range(NamedTuple):
    """What a reader wants. deadline: on the clock. handle: whose share of the memory it takes."""

    obj: CachedObject
    offset: int
    length: int
    deadline: float
    handle: str


class Pieces:
    """Brings pieces; touched only on the loop."""

    def __init__(
        self, core: SpokeCore, filler: Filler, clock: Clock, memory: Memory, attempts: int
    ) -> None:
        self.memory = memory
        self._core = core
        self._filler = filler
        self._disks = filler.disks
        self._clock = clock
        self._attempts = attempts

    def need(self, r: Range) -> Need:
        """Register its reader, until `over`."""
        return self._filler.need(r.obj, *page_span(r.offset, r.length))

    def over(self, need: Need, r: Range) -> None:
        """The reader has its bytes, or is gone."""
        self._filler.needed(r.obj, need)
        self.memory.give(r.handle, need.charged)

    def ask(self, need: Need, r: Range) -> bool:
        """Ask for a range with others that are begun behind it; False if it is not so simple."""
        if need.held or not self._disks.readable(r.obj.number):
            return False
        offset = need.first * PAGE_BYTES
        length = r.obj.range_bytes(need.first, need.last)
        return self._filler.ask(r.obj, offset, length, together=True, held=True)

    def here(self, need: Need, r: Range) -> bytes | FileSpan | None:
        """The bytes if nothing has to be waited for."""
        if need.held or need.avoid or not self._disks.readable(r.obj.number):
            return None
        if not self._core.cache.readable(r.obj, need.first, need.last):
            return None
        return self.local(r.obj, r.offset, r.length)

    def give_back(self, piece: Piece, r: Range) -> None:
        """Nobody takes a piece."""
        self.memory.give(r.handle, piece.charged)
        if isinstance(piece.body, FileSpan):
            piece.body.release()

    async def bring(self, r: Range) -> Piece:
        """Raises HubUnavailable, CorruptFrame, DeadlineExceeded, VersionChanged, Overloaded."""
        need = self.need(r)
        try:
            return await self.bring_for(need, r, None)
        finally:
            self.over(need, r)

    async def bring_for(self, need: Need, r: Range, error: HubSpokeError | None) -> Piece:
        """`bring` for a reader that is registered. error: asking failed already, with that."""
        obj, offset, length, deadline, handle = r
        turned = False
        failures = 0
        while True:
            need.avoid = need.avoid or not self._disks.readable(obj.number)
            was_local = self._local_pages(need, obj)
            body = None
            if was_local or need.held:
                body = await self._from_cache(need, obj, offset, length, deadline, handle)
            if body is not None:
                charged, need.charged = need.charged, 0
                return Piece(body, charged, turned)
            turned = turned or was_local
            if obj.dead:
                raise VersionChanged(f"{obj.name} is no longer version {obj.version}")
            try:
                if error is not None:
                    failed, error = error, None
                    raise failed
                await self._from_hub(need, obj, deadline, handle)
            except (HubUnavailable, CorruptFrame, DeadlineExceeded) as e:
                body = await self._last_resort(need, obj, offset, length, deadline)
                if body is not None:
                    charged, need.charged = need.charged, 0
                    return Piece(body, charged, turned)
                failures += 1
                if failures >= self._attempts or self._clock.now() >= deadline:
                    raise
                log.info("fetch retried object=%s offset=%d error=%s", obj.name, offset, e)
                await asyncio.sleep(0.05 * 4**failures)
            except VersionChanged:
                # The hub has another version; its change is on the way over the feed.
                timeout_s = min(2.0, deadline - self._clock.now())
                await self._filler.waiters.next_change(obj.name, timeout_s)
                raise

    def _local_pages(self, need: Need, obj: CachedObject) -> bool:
        return not need.held and self._local(obj, need.first, need.last)

    def _local(self, obj: CachedObject, first: int, last: int) -> bool:
        return self._core.cache.state(obj, first, last) is ReadState.HIT

    # -- from the cache -----------------------------------------------------------------------

    async def _from_cache(
        self,
        need: Need,
        obj: CachedObject,
        offset: int,
        length: int,
        deadline: float,
        handle: str,
    ) -> bytes | FileSpan | None:
        """The bytes, from memory and from disk; None if some have to come from the hub."""
        lacking = need.lacking()
        if not lacking:
            return assemble(need, offset, length)
        cache = self._core.cache
        if all(cache.readable(obj, a, b) for a, b in lacking) and not need.held:
            body = self.local(obj, offset, length)
            if body is not None:
                return body
        if need.avoid or not all(self._local(obj, a, b) for a, b in lacking):
            return None
        frames = [f for a, b in lacking for f in obj.unverified_frames(a, b)]
        if frames and not await self._verified(need, obj, frames):
            return None
        unreadable = [(a, b) for a, b in lacking if not cache.readable(obj, a, b)]
        if unreadable:
            for a, b in unreadable:
                if self._local(obj, a, b):  # no frame vouches for them
                    self._lost(obj, a, b)
            return None
        if not need.held:
            body = self.local(obj, offset, length)
            if body is not None:
                return body
        if not need.charged:
            timeout_s = min(MEMORY_WAIT_S, deadline - self._clock.now())
            await self.memory.take(handle, length, timeout_s)
            need.charged = length
        return await self._from_disk(need, obj, offset, length, READ_WAIT_S)

    def local(self, obj: CachedObject, offset: int, length: int) -> bytes | FileSpan | None:
        """Readable bytes without waiting for a disk, or None."""
        disk = self._disks.of(obj.number)
        if disk is None or length > LENT_BYTES_MAX:
            return None
        if length <= COPIED_BYTES_MAX:
            return disk.read_now(obj.number, offset, length)
        lent = disk.lend_now(obj.number, offset, length)
        if lent is None:
            return None
        cache = self._core.cache
        first, last = page_span(offset, length)
        cache.pin(obj, first, last)

        def release() -> None:
            lent.release()
            cache.unpin(obj, first, last)
            self._filler.drop(cache.reap(obj))

        return FileSpan(lent.descriptor, offset, length, release)

    def copy_now(self, obj: CachedObject, offset: int, buffer: memoryview) -> bool:
        """Readable bytes into the buffer without waiting for a disk, or False."""
        disk = self._disks.of(obj.number)
        return disk is not None and disk.store.copy_now(obj.number, offset, buffer)

    async def _from_disk(
        self, need: Need, obj: CachedObject, offset: int, length: int, wait_s: float
    ) -> bytes | None:
        """Read what is not held; what cannot be read is to come from the hub."""
        disk = self._disks.of(obj.number)
        if disk is None:
            self._lost(obj, need.first, need.last)
            return None
        end = offset + length
        for first, last in need.lacking():
            a, b = max(first * PAGE_BYTES, offset), min(last * PAGE_BYTES, end)
            data = await self._read(disk, need, obj, a, b - a, wait_s)
            if data is None:
                return None
            if (a, b) == (offset, end):
                return data
            need.hold(a, data)
        return assemble(need, offset, length)

    async def _read(
        self, disk: Disk, need: Need, obj: CachedObject, offset: int, length: int, wait_s: float
    ) -> bytes | None:
        first, last = page_span(offset, length)
        cache = self._core.cache
        try:
            reading = disk.read(obj.number, offset, length)
        except DiskSlow:
            need.avoid = True
            return None
        # Pinned until the call has ended, however long that takes and whoever waits for it.
        cache.pin(obj, first, last)

        def unpin(_: "asyncio.Future[bytes]") -> None:
            cache.unpin(obj, first, last)
            self._filler.drop(cache.reap(obj))

        reading.add_done_callback(unpin)
        done, _ = await asyncio.wait({reading}, timeout=wait_s)
        if not done:
            # Now the hub is asked too, and who answers first is taken.
            need.avoid = True
            reading.add_done_callback(lambda f: self._read_late(need, obj, offset, f))
            return None
        error = reading.exception()
        if error is None:
            return reading.result()
        if not isinstance(error, OSError):
            raise error
        log.debug("cache file not read object=%s offset=%d error=%s", obj.name, offset, error)
        self._lost(obj, first, last)
        return None

    def _read_late(
        self, need: Need, obj: CachedObject, offset: int, future: "asyncio.Future[bytes]"
    ) -> None:
        if not future.cancelled() and future.exception() is None:
            data = future.result()
            need.hold(offset, data)
            self._filler.wake(obj, *page_span(offset, len(data)))

    async def _verified(self, need: Need, obj: CachedObject, frames: list[StoredFrame]) -> bool:
        """Check frames from before the start against their digests, on first touch. False: the
        disk is slow, or does not give them."""
        frames = [f for f in frames if not self._check_now(obj, f)]
        disk = self._disks.of(obj.number)
        if not frames or disk is None:
            return not frames
        checks: set[asyncio.Future[bool]] = set()
        for frame in frames:
            try:
                checking = disk.check(obj.number, frame, wire.digest)
            except DiskSlow:
                need.avoid = True
                return False
            span = page_span(frame.offset, frame.length)
            self._core.cache.pin(obj, *span)
            checking.add_done_callback(partial(self._checked, obj, frame))
            checks.add(checking)
        _, slow = await asyncio.wait(checks, timeout=READ_WAIT_S)
        need.avoid = need.avoid or bool(slow)
        return not slow

    def _checked(
        self, obj: CachedObject, frame: StoredFrame, future: "asyncio.Future[bool]"
    ) -> None:
        """A check has ended, whether or not its reader still waits."""
        good = not future.cancelled() and future.exception() is None and future.result()
        if frame in obj.unverified_frames(*page_span(frame.offset, frame.length)):
            self._filler.punch_pages(obj, self._core.verified(obj, frame, good=good))
            if not good:
                log.warning("corrupt frame object=%s offset=%d", obj.name, frame.offset)
                span = page_span(frame.offset, frame.length)
                self._filler.waiters.look_again(obj.number, *span)
        self._core.cache.unpin(obj, *page_span(frame.offset, frame.length))
        self._filler.drop(self._core.cache.reap(obj))

    def _check_now(self, obj: CachedObject, frame: StoredFrame) -> bool:
        """Check a frame that is in memory on the spot: 256 KiB take 40 us, a thread hop as much
        and its turn. A bad one is left to the disk's thread, which reads it again."""
        disk = self._disks.of(obj.number)
        data = None if disk is None else disk.read_now(obj.number, frame.offset, frame.length)
        if data is None or wire.digest(data) != frame.digest:
            return False
        self._core.verified(obj, frame, good=True)
        return True

    def _lost(self, obj: CachedObject, first: int, last: int) -> None:
        """The cache does not give the pages back: they are to be asked for by all who need them,
        also by a reader who found them here before and waits for others beside them."""
        self._filler.owe(obj, self._core.lost(obj, first, last))
        self._filler.waiters.look_again(obj.number, first, last)

    # -- from the hub -------------------------------------------------------------------------

    async def _from_hub(self, need: Need, obj: CachedObject, deadline: float, handle: str) -> None:
        """Until everything is held or local."""
        offset = need.first * PAGE_BYTES
        length = obj.range_bytes(need.first, need.last)
        if need.avoid or not self._filler.ask(obj, offset, length, together=True):
            if not need.charged:
                timeout_s = min(MEMORY_WAIT_S, deadline - self._clock.now())
                await self.memory.take(handle, length, timeout_s)
                need.charged = length
            runs = need.lacking()
            if not need.avoid:
                runs = [run for a, b in runs for run in obj.not_local(a, b)]
            self._filler.ask_past(obj, runs)
        if not need.satisfied(lambda a, b: self._local(obj, a, b)):
            await self._filler.waiters.wait(need, deadline - self._clock.now(), obj.name)

    async def _last_resort(
        self, need: Need, obj: CachedObject, offset: int, length: int, deadline: float
    ) -> bytes | None:
        """The hub does not answer: whatever is local is waited for, on a slow disk too."""
        cache, left = self._core.cache, deadline - self._clock.now()
        if left <= 0 or any(not cache.readable(obj, a, b) for a, b in need.lacking()):
            return None
        return await self._from_disk(need, obj, offset, length, left)


def assemble(need: Need, offset: int, length: int) -> bytes:
    """The bytes of a range that is held in whole."""
    whole = need.whole(offset, length)
    if whole is not None:
        return whole
    buffer = bytearray(length)
    need.fill(buffer, offset)
    return bytes(buffer)
