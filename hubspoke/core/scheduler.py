"""What to ask of the hub next, on which connection, in which order.

Demand goes first and may use every lane; prefetch goes by deadline and leaves some lanes free.
Pages are asked for once: the cache's page states are the single-flight. A demand for pages that
are queued as a prefetch takes them over; for pages that are in flight it only waits.

One request carries many ranges. A burst is dealt to the free lanes in small units, in order of
need, so that in slow start every lane's first bytes are the ones needed first.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES, TrafficClass
from hubspoke.core.pacing import Lane, PacingConfig
from hubspoke.core.page_codes import IS_QUEUED, IS_UNASKED, PAGES_PER_BLOCK

UNIT_BYTES_MIN = 32 << 10
RANGES_PER_REQUEST_MAX = 256


@dataclass(slots=True, eq=False)
class FetchedRange:
    """Pages [first, last) of one object inside a request."""

    obj: CachedObject
    first: int
    last: int

    @property
    def offset(self) -> int:
        return self.first * PAGE_BYTES

    @property
    def length(self) -> int:
        return self.obj.range_bytes(self.first, self.last)


@dataclass(slots=True, eq=False)
class Fetch:
    """One request to the hub on one lane."""

    number: int
    lane: Lane
    traffic_class: TrafficClass
    ranges: list[FetchedRange]
    sent_at: float
    open_ranges: set[int] = field(default_factory=set)

    @property
    def bytes(self) -> int:
        return sum(r.length for r in self.ranges)


@dataclass(slots=True)
class Punch:
    """Effect: these bytes are no longer in the cache; free them before writing there again."""

    obj: CachedObject
    offset: int
    length: int


class Scheduler:
    """Queues of wanted pages and the lanes; `dispatch` turns them into requests."""

    def __init__(self, cache: Cache, config: PacingConfig, first_number: int = 1) -> None:
        # A restarted spoke must not use a number again that its former self may still have under
        # way at the hub, so the numbers start from the time.
        self.config = config
        self.lanes = [Lane(i) for i in range(config.lanes)]
        self.prefetch_bytes_in_flight = 0
        self.prefetch_bytes_queued = 0
        self._cache = cache
        self._demand: deque[FetchedRange] = deque()
        self._prefetch: list[tuple[float, int, FetchedRange]] = []
        self._tie = 0
        self._next_number = first_number

    def demand(self, obj: CachedObject, first: int, last: int) -> list[Punch] | None:
        """A reader needs the pages now. Pages in flight are left alone.

        Returns: what must be punched first; None if the cache has no room for them even after
        dropping all that may go.
        """
        assert not obj.dead, obj.name
        need = obj.pages.count(first, last, IS_UNASKED) * PAGE_BYTES
        if self._cache.room < need:
            # What is there of the range must not be what makes room for the rest.
            self._cache.pin(obj, first, last)
            punched = self._reserve(need)
            self._cache.unpin(obj, first, last)
        else:
            punched = []
        if self._cache.room < need:
            return None
        for a, b in obj.runs(first, last, IS_UNASKED):
            self._cache.fly(obj, a, b)
            self._demand.append(FetchedRange(obj, a, b))
        return punched

    def prefetch(self, obj: CachedObject, first: int, last: int, deadline: float) -> int:
        """Queue absent pages to be there by `deadline`; returns the bytes queued."""
        queued = self._cache.queue(obj, first, last)
        if queued:
            self._push(deadline, FetchedRange(obj, first, last))
            self.prefetch_bytes_queued += queued
        return queued

    def _reserve(self, need: int) -> list[Punch]:
        if self._cache.room >= need:
            return []
        return [Punch(o, a, n) for o, a, n in self._cache.make_room(need)]

    def dispatch(self, now: float) -> tuple[list[Fetch], list[Punch]]:
        """Requests to send now on free lanes, and what to punch before them."""
        fetches: list[Fetch] = []
        if self._demand:
            free = [lane for lane in self.lanes if not lane.busy]
            fetches += self._deal(self._take_demand(free, now), free, TrafficClass.DEMAND, now)
        punched: list[Punch] = []
        if self._prefetch and not self._demand:
            free = [lane for lane in self.lanes if not lane.busy]
            free = free[: max(0, len(free) - self.config.demand_lanes)]
            if free:
                units, punched = self._take_prefetch(free, now)
                fetches += self._deal(units, free, TrafficClass.PREFETCH, now)
        return fetches, punched

    def _unit_bytes(self, free: list[Lane]) -> int:
        window = int(min(lane.window for lane in free))
        unit = min(max(window, UNIT_BYTES_MIN), BLOCK_BYTES)
        return unit // UNIT_BYTES_MIN * UNIT_BYTES_MIN

    def _take_demand(self, free: list[Lane], now: float) -> list[FetchedRange]:
        if not free:
            return []
        room = sum(lane.budget(self.config, now) for lane in free)
        unit = self._unit_bytes(free)
        units: list[FetchedRange] = []
        while self._demand and room > 0 and len(units) < RANGES_PER_REQUEST_MAX * len(free):
            wanted = self._demand.popleft()
            room -= wanted.length
            units += _cut(wanted.obj, wanted.first, wanted.last, unit)
        return units

    def _take_prefetch(
        self, free: list[Lane], now: float
    ) -> tuple[list[FetchedRange], list[Punch]]:
        room = sum(lane.budget(self.config, now) for lane in free)
        unit = self._unit_bytes(free)
        units: list[FetchedRange] = []
        punched: list[Punch] = []
        while (
            self._prefetch
            and room >= PAGE_BYTES
            and len(units) < RANGES_PER_REQUEST_MAX * len(free)
        ):
            deadline, _, wanted = heapq.heappop(self._prefetch)
            obj = wanted.obj
            for a, b in obj.runs(wanted.first, wanted.last, IS_QUEUED):
                self.prefetch_bytes_queued -= obj.range_bytes(a, b)
                end = min(b, a + max(0, room) // PAGE_BYTES)
                if end < b and b - end < PAGES_PER_BLOCK:
                    end = b  # a small rest is not worth another request
                length = obj.range_bytes(a, end)
                need = (end - a) * PAGE_BYTES
                punched += self._reserve(need)
                if obj.dead or self._cache.room < need:
                    # Nobody will read it, or all of the cache is needed: no prefetch now.
                    self._cache.unqueue(obj, a, b)
                    continue
                self._cache.fly(obj, a, end)
                room -= length
                units += _cut(obj, a, end, unit)
                if end < b:
                    self._push(deadline, FetchedRange(obj, end, b))
                    self.prefetch_bytes_queued += obj.range_bytes(end, b)
        return units, punched

    def _push(self, deadline: float, wanted: FetchedRange) -> None:
        self._tie += 1
        heapq.heappush(self._prefetch, (deadline, self._tie, wanted))

    def _deal(
        self, units: list[FetchedRange], free: list[Lane], cls: TrafficClass, now: float
    ) -> list[Fetch]:
        """Deal units in order of need over the lanes, the widest window first."""
        if not units:
            return []
        free.sort(key=lambda lane: -lane.window)
        hands: list[list[FetchedRange]] = [[] for _ in range(min(len(free), len(units)))]
        for i, unit in enumerate(units):
            hand = hands[i % len(hands)]
            before = hand[-1] if hand else None
            # A range stays inside one block, so that dropping a block drops whole frames.
            joins = before is not None and before.obj is unit.obj and before.last == unit.first
            if joins and unit.first % PAGES_PER_BLOCK:
                assert before is not None
                before.last = unit.last
            else:
                hand.append(unit)
        fetches = []
        for lane, hand in zip(free, hands, strict=False):
            lane.busy, lane.prefetch = True, cls is TrafficClass.PREFETCH
            fetch = Fetch(self._next_number, lane, cls, hand, now, set(range(len(hand))))
            self._next_number += 1
            if lane.prefetch:
                self.prefetch_bytes_in_flight += fetch.bytes
            fetches.append(fetch)
        return fetches

    def finished(self, fetch: Fetch, delivered: int, now: float) -> None:
        """The request ended, well or not: its lane is free."""
        lane = fetch.lane
        assert lane.busy, lane
        lane.busy = False
        lane.delivered(self.config, delivered, now)
        if lane.prefetch:
            self.prefetch_bytes_in_flight -= fetch.bytes
            lane.prefetch = False

    @property
    def idle(self) -> bool:
        return not self._demand and not self._prefetch


def _cut(obj: CachedObject, first: int, last: int, unit_bytes: int) -> list[FetchedRange]:
    """Units of at most `unit_bytes` that never cross a block."""
    unit, block = unit_bytes // PAGE_BYTES, PAGES_PER_BLOCK
    units = []
    while first < last:
        end = min(last, first + unit, (first // block + 1) * block)
        units.append(FetchedRange(obj, first, end))
        first = end
    return units
