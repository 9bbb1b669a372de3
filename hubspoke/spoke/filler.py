"""Fills the cache: carries out the core's requests, writes what comes, wakes who waits.

Fetches belong to this object and to no reader. Whatever happens to a request, its pages and its
lane are settled; a page is called present only when its frame has passed its digest and is
written.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hubspoke import wire
from hubspoke.core.cache import CachedObject, StoredFrame
from hubspoke.core.ids import page_span
from hubspoke.core.scheduler import Fetch, Punch
from hubspoke.core.spoke import SpokeCore
from hubspoke.errors import CorruptFrame, HubSpokeError, HubUnavailable, Overloaded
from hubspoke.ports import BlockStore, Clock, HubLink
from hubspoke.spoke.waiters import Waiters

log = logging.getLogger(__name__)

INLINE_BYTES = 64 << 10  # smaller frames are written on the loop: a thread hop costs more


class Filler:
    """Between core, hub link and block store; touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        link: HubLink,
        blocks: BlockStore,
        clock: Clock,
        spoke_id: str,
        threads: int,
    ) -> None:
        self.waiters = Waiters()
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="blocks")
        self._core = core
        self._link = link
        self._blocks = blocks
        self._clock = clock
        self._spoke_id = spoke_id
        self._fetches: set[asyncio.Task[None]] = set()
        self._created: set[int] = set()  # objects that have a file in the block store
        self._closing = False

    async def load(self) -> None:
        """Read the block store's index. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        for o in await loop.run_in_executor(self.pool, self._blocks.load):
            self._core.cache.restore(o.number, o.name, o.version, o.size, o.frames)
            self._created.add(o.number)

    async def close(self) -> None:
        """Give up what is under way; who waits is told."""
        self._closing = True
        for task in self._fetches:
            task.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)
        self.waiters.fail_all(HubUnavailable("the spoke is stopping"))
        self.pool.shutdown(wait=True)

    def ask(self, obj: CachedObject, offset: int, length: int) -> None:
        """Demand what is missing of a range. Raises Overloaded if the cache has no room."""
        punched = self._core.demand(obj, offset, length)
        if punched is None:
            raise Overloaded(
                f"{obj.name}: no room for {length} bytes in a cache of {self._core.cache.capacity}"
            )
        self._punch(punched)
        self.dispatch()

    async def from_disk(
        self, obj: CachedObject, first: int, last: int, offset: int, length: int
    ) -> bytes:
        cache = self._core.cache
        cache.pin(obj, first, last)
        try:
            loop = asyncio.get_running_loop()
            read = self._blocks.read
            return await loop.run_in_executor(self.pool, read, obj.number, offset, length)
        finally:
            cache.unpin(obj, first, last)
            self.drop(cache.reap(obj))

    async def verify(self, obj: CachedObject, frames: list[StoredFrame]) -> None:
        """Check frames from before the start against their digests, on first touch."""
        frames = [f for f in frames if not self._check_now(obj, f)]
        if not frames:
            return
        first = min(page_span(f.offset, f.length)[0] for f in frames)
        last = max(page_span(f.offset, f.length)[1] for f in frames)
        self._core.cache.pin(obj, first, last)
        try:
            loop = asyncio.get_running_loop()
            results = await loop.run_in_executor(self.pool, self._check, obj.number, frames)
            for frame, good in zip(frames, results, strict=True):
                self._core.verified(obj, frame, good=good)
                if not good:
                    log.warning("corrupt frame object=%s offset=%d", obj.name, frame.offset)
        finally:
            self._core.cache.unpin(obj, first, last)
            self.drop(self._core.cache.reap(obj))

    def _check_now(self, obj: CachedObject, frame: StoredFrame) -> bool:
        """Check a frame that is in memory on the spot: 256 KiB take 40 us, a thread hop as much
        and its turn. A bad one is left to `verify`, which reads it from the disk."""
        data = self._blocks.read_now(obj.number, frame.offset, frame.length)
        if data is None or wire.digest(data) != frame.digest:
            return False
        self._core.verified(obj, frame, good=True)
        return True

    def _check(self, number: int, frames: list[StoredFrame]) -> list[bool]:
        results = []
        for f in frames:
            try:
                data = self._blocks.read(number, f.offset, f.length)
            except OSError:
                results.append(False)
                continue
            results.append(wire.digest(data) == f.digest)
        return results

    def dispatch(self) -> None:
        if self._closing or self._core.scheduler.idle:
            return
        fetches, punched = self._core.dispatch(self._clock.now())
        self._punch(punched)
        loop = asyncio.get_running_loop()
        for fetch in fetches:
            task = loop.create_task(self._run(fetch))
            self._fetches.add(task)
            task.add_done_callback(self._fetches.discard)

    async def _run(self, fetch: Fetch) -> None:
        """Carry out one request; whatever happens, its pages and its lane are settled."""
        delivered = 0

        async def on_frame(header: wire.FrameHeader, data: bytes) -> None:
            nonlocal delivered
            await self._store(fetch, header, data)
            delivered += len(data)

        def on_range(index: int, error: HubSpokeError | None) -> None:
            if error is not None:
                self._range_failed(fetch, index, error)
            fetch.open_ranges.discard(index)

        error: HubSpokeError = HubUnavailable("the fetch was given up")
        try:
            await self._link.fetch(fetch.lane.index, self._request(fetch), on_frame, on_range)
        except HubSpokeError as e:
            error = e
            log.debug("fetch failed number=%d error=%s", fetch.number, e)
        finally:
            left = [fetch.ranges[i] for i in fetch.open_ranges]
            self.drop(self._core.finished(fetch, delivered, self._clock.now()))
            for r in left:
                self.waiters.fail(r.obj.number, r.first, r.last, error)
            self.dispatch()

    def _range_failed(self, fetch: Fetch, index: int, error: HubSpokeError) -> None:
        r = fetch.ranges[index]
        self._core.failed(fetch, index)
        self.waiters.fail(r.obj.number, r.first, r.last, error)

    def _request(self, fetch: Fetch) -> wire.FetchRequest:
        index: dict[int, int] = {}
        objects: list[wire.FetchObject] = []
        ranges: list[wire.FetchRange] = []
        for r in fetch.ranges:
            at = index.setdefault(r.obj.number, len(objects))
            if at == len(objects):
                name = r.obj.name
                objects.append(wire.FetchObject(name.bucket, name.key, r.obj.version))
            ranges.append(wire.FetchRange(at, r.offset, r.length))
        return wire.FetchRequest(
            self._spoke_id,
            fetch.number,
            fetch.traffic_class.value,
            objects,
            ranges,
            self._core.compress(fetch.sent_at),
        )

    async def _store(self, fetch: Fetch, header: wire.FrameHeader, data: bytes) -> None:
        """Check, write, then tell the core: in this order, so that present means written."""
        r = fetch.ranges[header.range_index]
        obj = r.obj
        if header.offset < r.offset or header.offset + len(data) > r.offset + r.length:
            raise CorruptFrame(f"{obj.name}: frame at {header.offset} outside of its range")
        try:
            if obj.number not in self._created:
                self._blocks.create(obj.number, obj.name, obj.version, obj.size)
                self._created.add(obj.number)
            if len(data) <= INLINE_BYTES:
                self._write(obj, header, data)
            else:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self.pool, self._write, obj, header, data)
        except OSError as e:
            raise HubUnavailable(f"{obj.name}: cache folder: {e}") from e
        now = self._clock.now()
        encoded = header.payload_bytes
        self._core.arrived(fetch, header.range_index, header.offset, len(data), encoded, now)
        self.waiters.wake(obj.number, self._readable(obj))

    def _readable(self, obj: CachedObject) -> Callable[[int, int], bool]:
        return lambda first, last: self._core.cache.readable(obj, first, last)

    def _write(self, obj: CachedObject, header: wire.FrameHeader, data: bytes) -> None:
        wire.check_digest(header, data, str(obj.name))
        self._blocks.write(obj.number, header.offset, data, header.digest)

    # -- effects ------------------------------------------------------------------------------

    def _punch(self, punched: list[Punch]) -> None:
        for p in punched:
            try:
                self._blocks.punch(p.obj.number, p.offset, p.length)
            except OSError as e:
                log.warning("block not freed object=%s error=%s", p.obj.name, e)

    def drop(self, objects: list[CachedObject]) -> None:
        for o in objects:
            if o.number not in self._created:
                continue
            self._created.discard(o.number)
            try:
                self._blocks.drop(o.number)
            except OSError as e:
                log.warning("cache file not removed object=%s error=%s", o.name, e)
