"""What becomes of frames: checked, written, told to the core, and then who waits is woken.

    frame -> digest -> folder takes it? -- no ---------------------> readers
                            | yes
                            v
                         written within STORE_WAIT_S? -- no -------> readers; settled when the
                            | yes                                    write has ended
                            v
                         present, readers read the file

A page is called present only when its frame has passed its digest and is written. A frame that is
not written, or not soon, goes to its readers from memory.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence

from hubspoke import wire
from hubspoke.adapters.disk_health import DiskSlow, Writing
from hubspoke.adapters.disks import Disks
from hubspoke.core.cache import CachedObject
from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import ReadState, page_span
from hubspoke.core.spoke import SpokeCore
from hubspoke.errors import CorruptFrame, HubSpokeError, HubUnavailable
from hubspoke.ports import Clock
from hubspoke.spoke.incoming import Incoming, Item, Room, Running, item, spans
from hubspoke.spoke.waiters import Need, Waiters

# A reader never waits longer than this for a write: memory has the bytes. Page-cache writes of
# 256 KiB take 0.1 ms, so a healthy disk is not passed by.
STORE_WAIT_S = 0.03
# What is only warmed goes at the disk's pace: passed by, it would cross the WAN again.
UNHURRIED_WAIT_S = 0.25
# The rest waits for a disk that is behind and goes on, not for one that hangs (a write that takes
# so long): readers whose bytes come behind these on the lane wait with them.
BEHIND_WAIT_S = 1.0
HANGS_S = 0.25
BEHIND_LOOK_S = 0.05  # who comes meanwhile is given what waits
# Frames of one object go to the disk together as long as they come thick and fast.
BATCH_S, BATCH_BYTES = 0.003, 2 << 20


class Storing:
    """Between lanes, disks and waiting readers; touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        disks: Disks,
        clock: Clock,
        start: Callable[[Coroutine[None, None, None]], None],
        dispatch: Callable[[], None],
    ) -> None:
        """start: runs a task until the spoke is closed. dispatch: lanes have room again."""
        self.waiters = Waiters()
        self.disks = disks
        self._core = core
        self._clock = clock
        self._start = start
        self._dispatch = dispatch
        self._incoming: dict[int, Incoming] = {}  # by object
        self._room = Room()
        self._stored_last = (0, float("-inf"))  # object and time
        self._unsettled: dict[int, dict[int, bytes]] = {}  # frames whose write takes long

    def hold(self, need: Need) -> None:
        """Give a new reader what is in memory anyway."""
        for offset, data in self._unsettled.get(need.number, {}).items():
            if need.overlaps(*page_span(offset, len(data))):
                need.hold(offset, data)

    async def came(self, running: Running, frames: Sequence[wire.Frame]) -> None:
        """Frames of a request, in order; waits while too much is held. Raises the request's
        error."""
        if running.error is not None:
            raise running.error
        for frame in frames:
            obj, came = item(running, frame)
            self._of(obj).add(came)
            running.delivered += len(came.data)
            self._room.take(len(came.data))
        await self._room.wait()

    def range_ended(self, running: Running, index: int, error: HubSpokeError | None) -> None:
        """A range of a request has ended, behind its frames."""
        incoming = self._incoming.get(running.fetch.ranges[index].obj.number)
        if incoming is None:
            self._range_ended(running.fetch, index, error)
        else:
            incoming.end(running, index, error)

    def _range_ended(self, fetch: Fetch, index: int, error: HubSpokeError | None) -> None:
        if error is not None and index in fetch.open_ranges:
            r = fetch.ranges[index]
            self._core.failed(fetch, index)
            self.waiters.fail(r.obj.number, r.first, r.last, error)
        self._core.closed(fetch, index)

    def _blame(self, bad: Item, error: HubSpokeError) -> None:
        """A frame is not what it should be: its range fails at once, its request soon."""
        bad.running.error = bad.running.error or error
        self._range_ended(bad.running.fetch, bad.header.range_index, error)

    def _of(self, obj: CachedObject) -> Incoming:
        incoming = self._incoming.get(obj.number)
        if incoming is None:
            incoming = self._incoming[obj.number] = Incoming(obj)
            self._start(self._take(incoming))
        return incoming

    async def _take(self, incoming: Incoming) -> None:
        """Store what comes of one object, until nothing is left; all of it is settled."""
        number = incoming.obj.number
        try:
            while incoming.items or incoming.ends:
                await self._gather(incoming)
                items, ends = incoming.take()
                await self._settle(incoming.obj, items)
                for running, index, error in ends:
                    self._range_ended(running.fetch, index, error)
                    running.settle()
                now, core = self._clock.now(), self._core.scheduler
                if any(core.wants(i.running.fetch.lane, now) for i in items):
                    self._dispatch()
                self._stored_last = number, now
        finally:
            del self._incoming[number]
            items, ends = incoming.take()
            for i in items:
                self._room.give(len(i.data))
            for running in (*(i.running for i in items), *(end[0] for end in ends)):
                running.settle()

    async def _gather(self, incoming: Incoming) -> None:
        """Wait for more, if there was something just now: not with the first of something."""
        last, at = self._stored_last
        wait_s = at + BATCH_S - self._clock.now()
        if last == incoming.obj.number and wait_s > 0 and 0 < incoming.bytes < BATCH_BYTES:
            await asyncio.sleep(wait_s)

    async def _settle(self, obj: CachedObject, items: Sequence[Item]) -> None:
        stored = False
        try:
            await self._store(obj, items)
            stored = True
        finally:
            for i in items:
                if not stored:
                    self._blame(i, HubUnavailable("the fetch was given up"))
                self._room.give(len(i.data))
                i.running.settle()

    async def _store(self, obj: CachedObject, items: Sequence[Item]) -> None:
        """Check, write, then tell the core: in this order, so that present means written."""
        items = [i for i in items if i.awaited]
        self._hand(obj, items, self.waiters.wanted)
        self._pass_by(obj, [i for i in items if not i.stored])
        left = [i for i in items if i.stored and i.awaited]
        while left:
            await self._disk_takes(obj, left)
            try:
                writing = self.disks.write(obj, [i.frame for i in left])
            except DiskSlow:
                self._pass_by(obj, left)
                return
            left = await self._written(obj, left, writing)

    async def _written(
        self, obj: CachedObject, items: Sequence[Item], writing: Writing
    ) -> list[Item]:
        """Returns what is to be written again: what came behind a bad frame of another request."""
        # One that stalls already would be waited for again at every batch.
        disk = self.disks.of(obj.number)
        stalled = disk is not None and disk.stalled(STORE_WAIT_S)
        await asyncio.wait({writing.ended}, timeout=0 if stalled else STORE_WAIT_S)
        if not writing.ended.done():
            self._written_later(obj, items, writing)
            return []
        n = writing.written
        self._arrived(obj, items[:n])
        error = writing.ended.exception()
        if error is None:
            return []
        if isinstance(error, CorruptFrame):
            self._blame(items[n], error)
            return [i for i in items[n + 1 :] if i.awaited]
        if not isinstance(error, OSError):
            raise error
        self._pass_by(obj, items[n:])
        return []

    def _sound(self, obj: CachedObject, i: Item) -> bool:
        """Check a frame here and now, and fail its request if it is bad."""
        try:
            wire.check_digest(i.header, i.data, str(obj.name))
        except CorruptFrame as e:
            self._blame(i, e)
            return False
        return True

    def _hand(
        self,
        obj: CachedObject,
        items: Sequence[Item],
        who: Callable[[int, int, int], bool],
    ) -> list[Item]:
        """Give frames that readers want now to them, from memory. Returns the others.

        who: of the waiters' questions, whether anybody like that wants the pages.
        """
        left: list[Item] = []
        handed: list[Item] = []
        for i in items:
            if not who(obj.number, *i.pages):
                left.append(i)
            elif self._sound(obj, i):
                self.waiters.hand(obj.number, i.header.offset, i.data)
                handed.append(i)
        self.wake(obj, (i.pages for i in handed))
        return left

    async def _disk_takes(self, obj: CachedObject, items: Sequence[Item]) -> None:
        """Wait a while for a disk that is behind: what passes it by would cross the WAN again.
        Readers have their bytes meanwhile, and the lanes' windows hold the hub back."""
        warm = all(i.running.fetch.warm for i in items)
        until = self._clock.now() + (UNHURRIED_WAIT_S if warm else BEHIND_WAIT_S)
        left = list(items)
        while (left_s := until - self._clock.now()) > 0:
            disk = self.disks.of(obj.number)
            hangs = disk is not None and disk.stalled(HANGS_S)
            if (
                self.disks.for_fill(obj.number) is not None
                if warm
                else hangs or not self.disks.behind(obj.number)
            ):
                return
            left = self._hand(obj, left, self.waiters.hurried)
            await self.disks.moved(min(left_s, BEHIND_LOOK_S))

    def _arrived(self, obj: CachedObject, items: Sequence[Item]) -> None:
        if not items:
            return
        now = self._clock.now()
        for fetch, index, offset, length, encoded in spans(items):
            self._core.arrived(fetch, index, offset, length, encoded, now)
        # Who came while they were being written may not want to read the disk.
        self._hand(obj, items, self.waiters.wanted)
        self.wake(obj, (i.pages for i in items))

    def _pass_by(self, obj: CachedObject, items: Sequence[Item]) -> None:
        """To the readers, and nowhere else."""
        items = [i for i in items if i.awaited and self._sound(obj, i)]
        now = self._clock.now()
        for fetch, index, offset, length, encoded in spans(items):
            self._core.passed(fetch, index, offset, length, encoded, now)
        self._hand(obj, items, self.waiters.needed)

    def _written_later(self, obj: CachedObject, items: Sequence[Item], writing: Writing) -> None:
        """The readers have the frames; their pages stay in flight, and counted, until the disk
        has said what became of them."""
        now = self._clock.now()
        good = [(place, i) for place, i in enumerate(items) if self._sound(obj, i)]
        unsettled = self._unsettled.setdefault(obj.number, {})
        for _, i in good:
            self._core.delivered(i.running.fetch, len(i.data), i.header.payload_bytes, now)
            unsettled[i.header.offset] = i.data

        def settle(_: asyncio.Future[None]) -> None:
            held = self._unsettled.get(obj.number, {})
            for place, i in good:
                index, offset = i.header.range_index, i.header.offset
                held.pop(offset, None)
                written = place < writing.written
                self._core.settled(i.running.fetch, index, offset, len(i.data), good=written)
            if not held:
                self._unsettled.pop(obj.number, None)
            self.wake(obj, (i.pages for _, i in good))
            self.drop(self._core.cache.reap(obj))

        writing.ended.add_done_callback(settle)
        self._hand(obj, [i for _, i in good], self.waiters.needed)

    def wake(self, obj: CachedObject, spans: Iterable[tuple[int, int]]) -> None:
        """Pages [first, last) of an object are in memory or in the cache: tell the readers who
        have all they need."""
        state = self._core.cache.state
        now = self._clock.now()
        self.waiters.wake(obj.number, spans, lambda a, b: state(obj, a, b) is ReadState.HIT, now)

    def drop(self, objects: list[CachedObject]) -> None:
        """Remove the files of objects that the core has dropped."""
        for o in objects:
            self.disks.drop(o.number)
