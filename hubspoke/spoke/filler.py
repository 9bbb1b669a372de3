"""Fills the cache: carries out the core's requests, writes what comes, wakes who waits.

Fetches belong to this object and to no reader. Whatever happens to a request, its pages and its
lane are settled; a page is called present only when its frame has passed its digest and is
written. A frame that is not written, or not soon, goes to its readers from memory:

    frame -> digest -> folder takes it? -- no ---------------------> readers
                            | yes
                            v
                         written within STORE_WAIT_S? -- no -------> readers; settled when the
                            | yes                                    write has ended
                            v
                         present, readers read the file
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby

from hubspoke import wire
from hubspoke.adapters.disk_health import Disk, DiskSlow, Writing
from hubspoke.adapters.disks import Disks
from hubspoke.adapters.malloc import give_back
from hubspoke.core.cache import CachedObject
from hubspoke.core.ids import PAGE_BYTES, ReadState, page_span
from hubspoke.core.scheduler import Fetch, Punch
from hubspoke.core.spoke import SpokeCore
from hubspoke.errors import CorruptFrame, HubBusy, HubSpokeError, HubUnavailable
from hubspoke.ports import Clock, HubLink
from hubspoke.spoke.waiters import Need, Waiters

log = logging.getLogger(__name__)

# A reader never waits longer than this for a write: memory has the bytes. Page-cache writes of
# 256 KiB take 0.1 ms, so a healthy disk is not passed by.
STORE_WAIT_S = 0.03
# What is only warmed goes at the disk's pace: passed by, it would cross the WAN again.
UNHURRIED_WAIT_S = 0.25
UNHURRIED_STEP_S = 0.005
# A hub that is busy is asked six times in this time; readers then fail, or ask again themselves.
BUSY_RETRY_S = 3.0
BUSY_PAUSE_S = 0.05
# The rest waits for a disk that is behind, not for one that hangs: readers whose bytes come behind
# these on the lane wait with them.
BEHIND_WAIT_S = 0.1

OnFrames = Callable[[Sequence[wire.Frame]], Awaitable[None]]
OnRange = Callable[[int, HubSpokeError | None], None]


class Filler:
    """Between core, hub link and block store; touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        link: HubLink,
        disks: Disks,
        clock: Clock,
        spoke_id: str,
    ) -> None:
        self.waiters = Waiters()
        self.disks = disks
        disks.events.recovered = self._recovered
        self._core = core
        self._link = link
        self._clock = clock
        self._spoke_id = spoke_id
        self._fetches: set[asyncio.Task[None]] = set()
        self._unsettled: dict[int, dict[int, bytes]] = {}  # frames whose write takes long
        self._closing = False

    async def load(self) -> None:
        """Read the block store's index. Raises ConfigError."""
        cache = self._core.cache
        for o in await self.disks.load():
            cache.restore(o.number, o.name, o.version, o.size, o.frames)
        if not all(disk.opened for disk in self.disks.disks):
            cache.skip_numbers()
        # The index and its arrays: 60 bytes for each frame, and never needed again.
        give_back()

    async def close(self) -> None:
        """Give up what is under way; who waits is told."""
        self._closing = True
        for task in self._fetches:
            task.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)
        self.waiters.fail_all(HubUnavailable("the spoke is stopping"))
        await self.disks.close()

    def ask(self, obj: CachedObject, offset: int, length: int) -> bool:
        """Demand what is missing of a range, for the cache; False if it has no room for it or
        no folder takes it."""
        if self.disks.for_fill(obj.number) is None:
            return False
        punched = self._core.demand(obj, offset, length)
        if punched is None:
            return False
        self.punch(punched)
        self.dispatch()
        return True

    def ask_past(self, obj: CachedObject, runs: list[tuple[int, int]]) -> None:
        """Demand page runs for the readers that wait for them, past the cache."""
        for first, last in runs:
            self._core.passing(obj, first, last)
        self.dispatch()

    def need(self, obj: CachedObject, first: int, last: int) -> Need:
        """Register a reader's need of pages, until `needed`. What it waits for stays in the cache
        until all of it is there: the first block could go again before the last has come."""
        need = Need(obj.number, first, last)
        self.waiters.add(need)
        self._core.cache.pin(obj, first, last)
        for offset, data in self._unsettled.get(obj.number, {}).items():
            if need.overlaps(*page_span(offset, len(data))):
                need.hold(offset, data)
        return need

    def needed(self, obj: CachedObject, need: Need) -> None:
        """The reader has its pages, or is gone."""
        self.waiters.remove(need)
        self._core.cache.unpin(obj, need.first, need.last)
        self.drop(self._core.cache.reap(obj))

    def fills(self, number: int | None) -> bool:
        """Whether frames of the object, or of a new one, would be stored now."""
        return self.disks.for_fill(number) is not None

    def dispatch(self) -> None:
        if self._closing or self._core.scheduler.idle:
            return
        fetches, punched = self._core.dispatch(self._clock.now())
        self.punch(punched)
        loop = asyncio.get_running_loop()
        for fetch in fetches:
            task = loop.create_task(self._run(fetch))
            self._fetches.add(task)
            task.add_done_callback(self._fetches.discard)

    async def _run(self, fetch: Fetch) -> None:
        """Carry out one request; whatever happens, its pages and its lane are settled."""
        delivered = 0

        async def on_frames(frames: Sequence[wire.Frame]) -> None:
            nonlocal delivered
            await self._store(fetch, frames)
            delivered += sum(len(data) for _, data in frames)
            if self._core.scheduler.wants(fetch.lane, self._clock.now()):
                self.dispatch()

        def on_range(index: int, error: HubSpokeError | None) -> None:
            if error is not None:
                self._range_failed(fetch, index, error)
            self._core.closed(fetch, index)

        error: HubSpokeError = HubUnavailable("the fetch was given up")
        try:
            await self._fetch(fetch, on_frames, on_range)
        except HubSpokeError as e:
            error = e
            log.debug("fetch failed number=%d error=%s", fetch.number, e)
        finally:
            left = [fetch.ranges[i] for i in fetch.open_ranges]
            self.drop(self._core.finished(fetch, delivered, self._clock.now()))
            for r in left:
                self.waiters.fail(r.obj.number, r.first, r.last, error)
            self.dispatch()

    async def _fetch(self, fetch: Fetch, on_frames: OnFrames, on_range: OnRange) -> None:
        """Ask again while the hub refuses to begin, for a while: its bound is on what runs at the
        same time, and its fetches end within a round trip or two. The lane rests meanwhile."""
        until, pause = self._clock.now() + BUSY_RETRY_S, BUSY_PAUSE_S
        while True:
            try:
                return await self._link.fetch(
                    fetch.lane.index, self._request(fetch), on_frames, on_range
                )
            except HubBusy as e:
                if self._clock.now() + pause > until:
                    raise
                log.debug("fetch refused number=%d pause_s=%g error=%s", fetch.number, pause, e)
                await asyncio.sleep(pause)
                pause *= 2

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

    async def _store(self, fetch: Fetch, frames: Sequence[wire.Frame]) -> None:
        """Check, write, then tell the core: in this order, so that present means written."""
        for (obj, stored), of_one in groupby(frames, lambda frame: _place(fetch, frame)):
            part = list(of_one)
            self._hand(obj, part, self.waiters.wanted)
            if not stored:
                self._pass_by(fetch, obj, part)
                continue
            await self._disk_takes(fetch, obj, part)
            try:
                writing = self.disks.write(obj, part)
            except DiskSlow:
                self._pass_by(fetch, obj, part)
                continue
            await self._written(fetch, obj, writing)

    async def _written(self, fetch: Fetch, obj: CachedObject, writing: Writing) -> None:
        # One that stalls already would be waited for again at every batch of the lane.
        disk = self.disks.of(obj.number)
        stalled = disk is not None and disk.stalled(STORE_WAIT_S)
        await asyncio.wait({writing.ended}, timeout=0 if stalled else STORE_WAIT_S)
        frames = writing.frames
        if not writing.ended.done():
            self._check(obj, frames)
            self._written_later(fetch, obj, writing)
            self._hand(obj, frames, self.waiters.needed)
            return
        if writing.written:
            self._arrived(fetch, obj, frames[: writing.written])
        error = writing.ended.exception()
        if isinstance(error, OSError):
            self._pass_by(fetch, obj, frames[writing.written :])
        elif error is not None:
            raise error

    def _check(self, obj: CachedObject, frames: Sequence[wire.Frame]) -> None:
        for header, data in frames:
            wire.check_digest(header, data, str(obj.name))

    def _hand(
        self,
        obj: CachedObject,
        frames: Sequence[wire.Frame],
        who: Callable[[int, int, int], bool],
    ) -> list[wire.Frame]:
        """Give frames that readers want now to them, from memory. Returns the others.

        who: of the waiters' questions, whether anybody like that wants the pages.
        """
        left: list[wire.Frame] = []
        for header, data in frames:
            if who(obj.number, *page_span(header.offset, len(data))):
                wire.check_digest(header, data, str(obj.name))
                self.waiters.hand(obj.number, header.offset, data)
            else:
                left.append((header, data))
        if len(left) < len(frames):
            self.wake(obj)
        return left

    async def _disk_takes(
        self, fetch: Fetch, obj: CachedObject, frames: Sequence[wire.Frame]
    ) -> None:
        """Wait a while for a disk that is behind: what passes it by would cross the WAN again.
        Readers have their bytes meanwhile, and the lane's window holds the hub back."""
        until = self._clock.now() + (UNHURRIED_WAIT_S if fetch.warm else BEHIND_WAIT_S)
        left = list(frames)
        while self._clock.now() < until:
            takes = self.fills(obj.number) if fetch.warm else not self.disks.behind(obj.number)
            if takes:
                return
            left = self._hand(obj, left, self.waiters.hurried)
            await asyncio.sleep(UNHURRIED_STEP_S)

    def _arrived(self, fetch: Fetch, obj: CachedObject, frames: Sequence[wire.Frame]) -> None:
        now = self._clock.now()
        for index, offset, length, encoded in _spans(frames):
            self._core.arrived(fetch, index, offset, length, encoded, now)
        # Who came while they were being written may not want to read the disk.
        self._hand(obj, frames, self.waiters.wanted)
        self.wake(obj)

    def _pass_by(self, fetch: Fetch, obj: CachedObject, frames: Sequence[wire.Frame]) -> None:
        """To the readers, and nowhere else."""
        self._check(obj, frames)
        now = self._clock.now()
        for index, offset, length, encoded in _spans(frames):
            self._core.passed(fetch, index, offset, length, encoded, now)
        self._hand(obj, frames, self.waiters.needed)

    def _written_later(self, fetch: Fetch, obj: CachedObject, writing: Writing) -> None:
        """The readers have the frames; their pages stay in flight, and counted, until the disk
        has said what became of them."""
        now = self._clock.now()
        unsettled = self._unsettled.setdefault(obj.number, {})
        for header, data in writing.frames:
            self._core.delivered(fetch, len(data), header.payload_bytes, now)
            unsettled[header.offset] = data

        def settle(_: asyncio.Future[None]) -> None:
            held = self._unsettled.get(obj.number, {})
            for i, (header, data) in enumerate(writing.frames):
                held.pop(header.offset, None)
                good = i < writing.written
                index, offset = header.range_index, header.offset
                self._core.settled(fetch, index, offset, len(data), good=good)
            if not held:
                self._unsettled.pop(obj.number, None)
            self.wake(obj)
            self.drop(self._core.cache.reap(obj))

        writing.ended.add_done_callback(settle)

    def wake(self, obj: CachedObject) -> None:
        """Tell the readers of an object who have all they need, in memory or in the cache."""
        state = self._core.cache.state
        self.waiters.wake(obj.number, lambda a, b: state(obj, a, b) is ReadState.HIT)

    # -- effects ------------------------------------------------------------------------------

    def punch(self, punched: list[Punch]) -> None:
        """Free bytes that the core has dropped, before anything is written there again."""
        for p in punched:
            self.disks.punch(p.obj.number, p.offset, p.length)

    def punch_pages(self, obj: CachedObject, runs: list[tuple[int, int]]) -> None:
        """The same for runs of pages."""
        for a, b in runs:
            self.disks.punch(obj.number, a * PAGE_BYTES, (b - a) * PAGE_BYTES)

    def owe(self, obj: CachedObject, runs: list[tuple[int, int]]) -> None:
        """Free these pages when no reader has them any more."""
        disk = self.disks.of(obj.number)
        if disk is None:
            return
        for a, b in runs:
            disk.owe(obj.number, a * PAGE_BYTES, (b - a) * PAGE_BYTES)
        self.free(disk, disk.owed())

    def free(self, disk: Disk, taken: Iterable[tuple[int, int, int]]) -> None:
        """Give back what of (object, offset, length) on the disk the book neither has nor awaits.
        What a reader still has is owed."""
        cache = self._core.cache
        for number, offset, length in taken:
            obj = cache.objects.get(number)
            if obj is None or self.disks.of(number) is not disk:
                continue
            span = page_span(offset, length)
            for first, last in cache.pins.unused(obj, *span):
                disk.punch(number, first * PAGE_BYTES, (last - first) * PAGE_BYTES)
            if cache.pins.any(obj, *span):
                disk.owe(number, offset, length)

    def _recovered(self, disk: Disk) -> None:
        self.free(disk, disk.owed())

    def drop(self, objects: list[CachedObject]) -> None:
        """Remove the files of objects that the core has dropped."""
        for o in objects:
            self.disks.drop(o.number)


def _place(fetch: Fetch, frame: wire.Frame) -> tuple[CachedObject, bool]:
    """Whose a frame is, and whether for the cache. Raises CorruptFrame."""
    header, data = frame
    r = fetch.ranges[header.range_index]
    if header.offset < r.offset or header.offset + len(data) > r.offset + r.length:
        raise CorruptFrame(f"{r.obj.name}: frame at {header.offset} outside of its range")
    return r.obj, r.stored


def _spans(frames: Sequence[wire.Frame]) -> Iterator[tuple[int, int, int, int]]:
    """(range, offset, length, bytes on the wire) of frames that join together."""
    index, offset, end, encoded = -1, 0, 0, 0
    for header, data in frames:
        if header.range_index != index or header.offset != end:
            if index >= 0:
                yield index, offset, end - offset, encoded
            index, offset, encoded = header.range_index, header.offset, 0
        end = header.offset + len(data)
        encoded += header.payload_bytes
    if index >= 0:
        yield index, offset, end - offset, encoded
