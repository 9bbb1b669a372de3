"""Fills the cache: carries out the core's requests, writes what comes, wakes who waits.

Fetches belong to this object and to no reader. Whatever happens to a request, its pages and its
lane are settled; what becomes of the frames is storing.py's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial

from hubspoke import wire
from hubspoke.adapters.disk_health import Disk
from hubspoke.adapters.disks import Disks
from hubspoke.adapters.malloc import give_back
from hubspoke.core.cache import CachedObject
from hubspoke.core.fetches import Fetch, Punch
from hubspoke.core.ids import PAGE_BYTES, page_span
from hubspoke.core.spoke import SpokeCore
from hubspoke.errors import HubBusy, HubSpokeError, HubUnavailable
from hubspoke.ports import Clock, HubLink
from hubspoke.spoke.incoming import Running
from hubspoke.spoke.storing import Storing
from hubspoke.spoke.waiters import Need

log = logging.getLogger(__name__)

# A hub that is busy is asked six times in this time; readers then fail, or ask again themselves.
BUSY_RETRY_S = 3.0
BUSY_PAUSE_S = 0.05
# Reads in a row that are dealt together; then so many times as many, and so on: a lane takes four
# requests at a time, and in slow start carries twice as much each round trip.
TOGETHER_MIN, TOGETHER_GROWTH = 64, 4
# What is held is dealt after so long at the latest: who begins many reads may have to wait for a
# name, and each deal before its time takes one of a lane's four requests.
HELD_S = 0.1

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
        self.disks = disks
        disks.events.recovered = self._recovered
        self._core = core
        self._link = link
        self._clock = clock
        self._spoke_id = spoke_id
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._held_until = float("-inf")  # what was asked for with `later_s`
        self._asked = self._deal_at = 0  # reads in a row, and when to dispatch
        self._deals_soon = False
        self._deal_timer: asyncio.TimerHandle | None = None
        self._storing = Storing(core, disks, clock, self._start, self.dispatch)
        self.waiters = self._storing.waiters

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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.waiters.fail_all(HubUnavailable("the spoke is stopping"))
        await self.disks.close()

    def ask(
        self,
        obj: CachedObject,
        offset: int,
        length: int,
        later_s: float = 0.0,
        *,
        together: bool = False,
        held: bool = False,
    ) -> bool:
        """Demand what is missing of a range, for the cache; False if it has no room for it or
        no folder takes it. later_s: the hub need not be asked sooner. together: what else is
        demanded in this turn of the loop goes with it. held: and what is demanded until `deal`,
        which comes soon."""
        if self.disks.for_fill(obj.number) is None:
            return False
        new = self._core.unasked(obj, offset, length)
        punched = self._core.demand(obj, offset, length)
        if punched is None:
            return False
        self.punch(punched)
        if later_s:
            self._held_until = self._clock.now() + later_s
            asyncio.get_running_loop().call_later(later_s, self.dispatch)
        elif new and together:
            self._dispatch_soon(held=held)
        elif new:
            self.dispatch()
        else:
            self.dispatch_unheld()
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
        self._storing.hold(need)
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
        for fetch in fetches:
            self._start(self._run(fetch))

    def _dispatch_soon(self, *, held: bool) -> None:
        """`dispatch` when all that runs now has asked: one deal of many ranges is a request a lane,
        and each by itself was one of its own until every lane had four. Of a thousand the first
        are on their way before the last have asked, and the others follow in few requests: a
        deal each turn of the loop was four a lane, and what came behind waited for a round trip.
        """
        if not self._asked:
            self._deal_at = TOGETHER_MIN
        self._asked += 1
        if self._asked == self._deal_at:
            self._deal_at *= TOGETHER_GROWTH
            self.dispatch()
        elif held:
            if self._deal_timer is None:
                loop = asyncio.get_running_loop()
                self._deal_timer = loop.call_later(HELD_S, self._dispatch_held)
        elif not self._deals_soon:
            self._deals_soon = True
            asyncio.get_running_loop().call_soon(self.deal)

    def _dispatch_held(self) -> None:
        self._deal_timer = None
        self.dispatch()

    def deal(self) -> None:
        """What was demanded so far goes now."""
        self._asked, self._deals_soon = 0, False
        if self._deal_timer is not None:
            self._deal_timer.cancel()
            self._deal_timer = None
        self.dispatch()

    def dispatch_unheld(self) -> None:
        """`dispatch`, if nothing is held back: the prediction that follows an access at once, and
        the reader who waits for what is asked for already, would send with it what is to leave the
        first bytes of a long read alone. It goes with that, a few milliseconds later."""
        if self._clock.now() >= self._held_until:
            self.dispatch()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, fetch: Fetch) -> None:
        """Carry out one request; whatever happens, its pages and its lane are settled."""
        running = Running(fetch)
        on_frames = partial(self._storing.came, running)
        on_range = partial(self._storing.range_ended, running)
        error: HubSpokeError = HubUnavailable("the fetch was given up")
        try:
            try:
                await self._fetch(fetch, on_frames, on_range)
            except HubSpokeError as e:
                running.error = running.error or e
            # Not when it is cancelled: then nobody stores what has come.
            await running.settled()
        except HubSpokeError as e:
            error = e
            log.debug("fetch failed number=%d error=%s", fetch.number, e)
        finally:
            left = [fetch.ranges[i] for i in fetch.open_ranges]
            self.drop(self._core.finished(fetch, running.delivered, self._clock.now()))
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
        """See Storing.drop."""
        self._storing.drop(objects)

    def wake(self, obj: CachedObject, first: int, last: int) -> None:
        """See Storing.wake."""
        self._storing.wake(obj, [(first, last)])
