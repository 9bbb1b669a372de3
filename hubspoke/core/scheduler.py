"""What to ask of the hub next, on which connection, in which order.

Demand goes first and may use every lane; prefetch goes by deadline and leaves some lanes free;
warming takes what is left.
Pages are asked for once: the cache's page states are the single-flight. A demand for pages that
are queued as a prefetch takes them over; for pages that are in flight it only waits.

One request carries many ranges. What is wanted is dealt in units, in order of need, each to the
lane that will deliver it first. In slow start units are small and double like the windows, so that
every lane's first bytes are the ones needed first. A lane gets its next request when half of what
it was asked for is there: it never waits for a round trip with nothing to carry.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from operator import attrgetter

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.eviction.by_item import Wanted
from hubspoke.core.fetches import Fetch, FetchedRange, Punch
from hubspoke.core.hands import UNIT_BYTES_MAX, Hand, head
from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES, TrafficClass
from hubspoke.core.pacing import Lane, PacingConfig, take_s
from hubspoke.core.page_codes import IS_NOT_FLYING, IS_QUEUED, IS_UNASKED, PAGES_PER_BLOCK
from hubspoke.core.warm import BESIDE_S, WarmQueue, lanes_for

RANGES_PER_REQUEST_MAX = 256
UNIT_SHARE = 8  # of what is wanted, so that several lanes carry what is not long


class Scheduler:
    """Queues of wanted pages and the lanes; `dispatch` turns them into requests."""

    def __init__(self, cache: Cache, config: PacingConfig, first_number: int = 1) -> None:
        # A restarted spoke must not use a number again that its former self may still have under
        # way at the hub, so the numbers start from the time.
        self.config = config
        self.lanes = [Lane(i) for i in range(config.lanes)]
        self.prefetch_bytes_in_flight = 0
        self.prefetch_bytes_queued = 0
        self.gave_up = False  # a prefetch, for lack of room; cleared by who wants to know
        self.warm = WarmQueue(cache)
        self._warming: Counter[int] = Counter()  # requests of it, by lane
        self._others_at = float("-inf")  # when something else was last under way
        self._cache = cache
        self._demand: deque[FetchedRange] = deque()
        self._prefetch: list[tuple[float, int, FetchedRange]] = []
        self._tie = 0
        self._next_number = first_number
        self._owed: list[Punch] = []  # of a demand that found no room after all
        self._under_way = 0  # bytes, on all lanes
        self._passing: dict[int, set[int]] = {}  # pages on their way to readers, not to the cache

    def demand(self, obj: CachedObject, first: int, last: int) -> list[Punch] | None:
        """A reader needs the pages now. Pages in flight are left alone.

        Returns: what must be punched first; None if the cache has no room for them even after
        dropping all that may go.
        """
        assert not obj.dead, obj.name
        runs = self._not_passing(obj, obj.runs(first, last, IS_UNASKED))
        need = sum(b - a for a, b in runs) * PAGE_BYTES
        punched: list[Punch] = []
        if self._cache.room < need:
            # What is there of the range must not be what makes room for the rest.
            self._cache.pin(obj, first, last)
            punched = self._reserve(need, Wanted(obj, first, True))
            self._cache.unpin(obj, first, last)
        if self._cache.room < need:
            self._owed += punched
            return None
        punched, self._owed = self._owed + punched, []
        for a, b in runs:
            self._cache.fly(obj, a, b)
            self._demand.append(FetchedRange(obj, a, b))
        return punched

    def passing(self, obj: CachedObject, first: int, last: int) -> None:
        """Readers need the pages now, whatever the cache has of them, and it shall not keep
        them. Pages that are on their way in either manner are left alone: single flight."""
        on_way = self._passing.setdefault(obj.number, set())
        for a, b in self._not_passing(obj, obj.runs(first, last, IS_NOT_FLYING)):
            on_way.update(range(a, b))
            self._demand.append(FetchedRange(obj, a, b, stored=False))

    def _not_passing(self, obj: CachedObject, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        on_way = self._passing.get(obj.number)
        if not on_way:
            return runs
        left: list[tuple[int, int]] = []
        for a, b in runs:
            for p in (p for p in range(a, b) if p not in on_way):
                if left and left[-1][1] == p and p > a:
                    left[-1] = (left[-1][0], p + 1)
                else:
                    left.append((p, p + 1))
        return left

    def passed(self, obj: CachedObject, first: int, last: int) -> None:
        """Pages that were passing have come, or will not."""
        on_way = self._passing.get(obj.number)
        if on_way is not None:
            on_way.difference_update(range(first, last))
            if not on_way:
                del self._passing[obj.number]

    def prefetch(self, obj: CachedObject, first: int, last: int, deadline: float) -> bool:
        """Queue absent pages to be there by `deadline`; returns whether there are any."""
        if not self._cache.queue(obj, first, last):
            return False
        self._tie += 1
        wanted = FetchedRange(obj, first, last)
        heapq.heappush(self._prefetch, (deadline, self._tie, wanted))
        self.prefetch_bytes_queued += wanted.length
        return True

    def _reserve(self, need: int, wanted: Wanted) -> list[Punch]:
        if self._cache.room >= need:
            return []
        return [Punch(o, a, n) for o, a, n in self._cache.make_room(need, wanted)]

    def dispatch(self, now: float) -> tuple[list[Fetch], list[Punch]]:
        """Requests to send now on lanes that have room, and what to punch before them."""
        fetches: list[Fetch] = []
        punched, self._owed = self._owed, []
        if self._demand:
            fetches += self._deal(self._next_demand, self.lanes, TrafficClass.DEMAND, now)
        if self._prefetch and not self._demand:
            fetches += self._deal(
                lambda pages: self._next_prefetch(pages, punched, now),
                self._prefetch_lanes(),
                TrafficClass.PREFETCH,
                now,
            )
        if self.warm.ready and not (self._demand or self._prefetch):
            fetches += self._dispatch_warm(punched, now)
        return fetches, punched

    @property
    def under_way(self) -> bool:
        """Whether bytes that were asked for are still to come."""
        return self._under_way != 0

    def _prefetch_lanes(self) -> list[Lane]:
        """Lanes that carry prefetches, and more until only those kept for demand are left."""
        more = len(self.lanes) - self.config.demand_lanes
        more -= sum([lane.prefetches > 0 for lane in self.lanes])
        lanes: list[Lane] = []
        for lane in sorted(self.lanes, key=attrgetter("requests")):
            if lane.prefetches:
                lanes.append(lane)
            elif more > 0:
                more -= 1
                lanes.append(lane)
        return lanes

    def _dispatch_warm(self, punched: list[Punch], now: float) -> list[Fetch]:
        dropped: list[tuple[CachedObject, int, int]] = []

        def take(pages: int) -> FetchedRange | None:
            run = self.warm.next(min(pages, PAGES_PER_BLOCK), dropped)
            return None if run is None else FetchedRange(*run)

        lanes = lanes_for(self.lanes, self._warming, self.config, alone=self.alone(now))
        fetches = self._deal(take, lanes, TrafficClass.PREFETCH, now, warm=True)
        punched += [Punch(*run) for run in dropped]
        return fetches

    def _next_demand(self, pages: int) -> FetchedRange | None:
        if not self._demand:
            return None
        wanted = self._demand[0]
        share = (wanted.last - wanted.first) // UNIT_SHARE
        unit = head(wanted, wanted.last, min(pages, max(share, PAGES_PER_BLOCK)))
        wanted.first = unit.last
        if wanted.first == wanted.last:
            self._demand.popleft()
        return unit

    def _next_prefetch(self, pages: int, punched: list[Punch], now: float) -> FetchedRange | None:
        while self._prefetch:
            deadline, _, wanted = self._prefetch[0]
            obj = wanted.obj
            if now - deadline > self.config.overdue_s:
                self._cache.unqueue(obj, wanted.first, wanted.last)
                self.gave_up = True
            run = obj.pages.first_run(wanted.first, wanted.last, IS_QUEUED)
            if run is None:
                self._pass(wanted, wanted.last)
                continue
            self._pass(wanted, run[0])
            unit = head(wanted, run[1], min(pages, PAGES_PER_BLOCK))
            need = (unit.last - unit.first) * PAGE_BYTES
            punched += self._reserve(need, Wanted(obj, unit.first, False))
            if obj.dead or self._cache.room < need:
                # Nobody will read it, or all of the cache is needed: no prefetch now.
                self._cache.unqueue(obj, wanted.first, wanted.last)
                self.gave_up = True
                continue
            self._cache.fly(obj, unit.first, unit.last, prefetch=True)
            self._pass(wanted, unit.last)
            return unit
        return None

    def _pass(self, wanted: FetchedRange, first: int) -> None:
        """The head of the prefetch queue is settled up to the page `first`."""
        if first > wanted.first:
            self.prefetch_bytes_queued -= wanted.obj.range_bytes(wanted.first, first)
            wanted.first = first
        if first == wanted.last:
            heapq.heappop(self._prefetch)

    def _deal(
        self,
        take: Callable[[int], FetchedRange | None],
        lanes: Sequence[Lane],
        cls: TrafficClass,
        now: float,
        *,
        warm: bool = False,
    ) -> list[Fetch]:
        """Deal units in order of need, each to the lane that will have delivered it first.

        take: the next unit of at most so many pages, or None.
        """
        # Of a long want: an idle slow lane may be the last to bring it, and its reader waits.
        long = cls is TrafficClass.DEMAND and self._demand[0].length >= UNIT_SHARE * BLOCK_BYTES
        unit = UNIT_BYTES_MAX if long else 0
        # Whether a lane has room is asked when its turn comes: a miss needs one lane of all.
        hands: dict[int, Hand] = {}
        order = take_s(lanes, unit)
        heapq.heapify(order)
        while order:
            hand = hands.get(order[0][1])
            if hand is None:
                lane = self.lanes[order[0][1]]
                room = lane.room(self.config, now)
                if room < PAGE_BYTES:
                    heapq.heappop(order)
                    continue
                hand = hands[lane.index] = Hand(lane, room)
            if (run := take(hand.unit_pages())) is None:
                break
            hand.add(run)
            if hand.bytes >= hand.room or len(hand.ranges) >= RANGES_PER_REQUEST_MAX:
                heapq.heappop(order)
            else:
                heapq.heapreplace(order, (hand.lane.takes_s(hand.bytes + unit), hand.lane.index))
        return [self._fetch(hand, cls, now, warm) for hand in hands.values() if hand.ranges]

    def _fetch(self, hand: Hand, cls: TrafficClass, now: float, warm: bool) -> Fetch:
        open_ranges = set(range(len(hand.ranges)))
        fetch = Fetch(self._next_number, hand.lane, cls, hand.ranges, now, open_ranges, warm=warm)
        self._next_number += 1
        prefetch = cls is TrafficClass.PREFETCH
        hand.lane.asked(hand.bytes, prefetch=prefetch)
        self._under_way += hand.bytes
        if not warm:
            self._others_at = now
        if warm:
            self._warming[hand.lane.index] += 1
        elif prefetch:
            self.prefetch_bytes_in_flight += hand.bytes
        return fetch

    def arrived(self, fetch: Fetch, bytes_: int, now: float) -> None:
        """Bytes of a request are there."""
        fetch.arrived += bytes_
        self._under_way -= bytes_
        if fetch.warm:
            self.warm.landed(bytes_)
        fetch.lane.delivered(self.config, bytes_, now)

    def finished(self, fetch: Fetch, delivered: int, now: float) -> None:
        """The request ended, well or not."""
        if delivered > fetch.arrived:
            self.arrived(fetch, delivered - fetch.arrived, now)
        prefetch = fetch.traffic_class is TrafficClass.PREFETCH
        fetch.lane.ended(fetch.bytes - fetch.arrived, now, prefetch=prefetch)
        self._under_way -= fetch.bytes - fetch.arrived
        if not fetch.warm:
            self._others_at = now
        if fetch.warm:
            self._warming[fetch.lane.index] -= 1
            self.warm.landed(fetch.bytes - fetch.arrived)
        elif prefetch:
            self.prefetch_bytes_in_flight -= fetch.bytes

    def alone(self, now: float) -> bool:
        """Whether warming has had the path for itself for some time."""
        if now - self._others_at <= BESIDE_S:
            return False
        return sum(lane.requests for lane in self.lanes) == self._warming.total()

    def wants(self, lane: Lane, now: float) -> bool:
        """Whether the lane has room again for something that waits."""
        return not self.idle and lane.room(self.config, now) > 0

    @property
    def idle(self) -> bool:
        return not (self._demand or self._prefetch or self.warm.ready)
