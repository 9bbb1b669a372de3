"""What a person asked to be warm: fetched behind everything that a reader needs.

Demand goes first, predicted prefetches second, warming takes what lanes are left, and few of them
while others have requests under way. It never drops anything that is still to be read, unless it
was told to; pages that nobody wants are taken when a lane is free and not before, so a read or a
prediction that wants them first simply has them.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hubspoke.core.cache import PAGES_PER_BLOCK, Cache, CachedObject
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.pacing import Lane, PacingConfig

RATE_WINDOW_S = 10.0

# What the path does not carry waits in front of the reads that come. Beside readers one and a
# half round trips' worth keep the path full: reads at 100 Mbit/s and 60 ms then take 90 to 120 ms,
# and 165 without a bound, at the same rate of warming. Alone it may be more, for hubs that think
# about small objects for longer than a round trip.
ROUND_TRIPS_BESIDE = 1.5
ROUND_TRIPS_ALONE = 4.0
IN_FLIGHT_BYTES_BESIDE = 1 << 20  # at least
IN_FLIGHT_BYTES_ALONE = 8 << 20  # at least
REFILL_BELOW = 0.75  # of the bound, so that requests are few and large
# Others have had a request within this time: a reader's next one is to be expected.
BESIDE_S = 1.0


@dataclass(slots=True, eq=False)
class WarmPiece:
    """Pages [first, last) of one object that should be local.

    forced: what is still to be read may be dropped for them.
    """

    obj: CachedObject
    first: int
    last: int
    forced: bool = False
    waiting: bool = False  # in the queue
    given_up: bool = False  # set by whoever asked for it
    refused: bool = False  # the cache has no room that may be taken

    @property
    def bytes(self) -> int:
        return self.obj.range_bytes(self.first, self.last)


class WarmQueue:
    """Pieces in the order in which they were asked for."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pieces: deque[WarmPiece] = deque()
        self._in_flight = 0
        self._in_flight_max = IN_FLIGHT_BYTES_ALONE
        self._filling = True

    def path(self, rate: float | None, rtt_s: float | None, *, alone: bool) -> None:
        """What is believed of the path: bytes a second, the round trip, and whether nobody else
        has lately used it."""
        least = IN_FLIGHT_BYTES_ALONE if alone else IN_FLIGHT_BYTES_BESIDE
        trips = ROUND_TRIPS_ALONE if alone else ROUND_TRIPS_BESIDE
        carried = 0 if rate is None or rtt_s is None else int(rate * rtt_s * trips)
        self._in_flight_max = max(carried, least)
        self._filling = self._in_flight < self._in_flight_max and self._filling
        self._refill()

    def landed(self, bytes_: int) -> None:
        """Bytes that `next` gave out have come, or will not."""
        self._in_flight -= bytes_
        self._refill()

    def _refill(self) -> None:
        self._filling |= self._in_flight < self._in_flight_max * REFILL_BELOW

    @property
    def ready(self) -> bool:
        """Whether something waits and the path has room for it."""
        return self._filling and bool(self._pieces)

    def push(self, piece: WarmPiece) -> None:
        """At the end of the queue; a piece that is in it already stays where it is."""
        piece.refused = False
        if not piece.waiting:
            piece.waiting = True
            self._pieces.append(piece)

    @property
    def empty(self) -> bool:
        return not self._pieces

    def next(
        self, pages: int, punched: list[tuple[CachedObject, int, int]]
    ) -> tuple[CachedObject, int, int] | None:
        """The next run of at most so many pages to ask of the hub, inside one block; it is in
        flight then. None if there is none, or no room that may be taken for it.

        punched: gets (object, offset, length) that must be punched before anything is written.
        """
        while self.ready:
            piece = self._pieces[0]
            obj = piece.obj
            absent = []
            if not (piece.given_up or obj.dead):
                absent = obj.absent(piece.first, piece.last)
            if absent:
                first, last = absent[0]
                last = min(last, first + pages, (first // PAGES_PER_BLOCK + 1) * PAGES_PER_BLOCK)
                need = (last - first) * PAGE_BYTES
                punched += self._cache.make_room(need, consumed_only=not piece.forced)
                if self._cache.room >= need:
                    self._cache.fly(obj, first, last)
                    self._in_flight += obj.range_bytes(first, last)
                    self._filling = self._in_flight < self._in_flight_max
                    return obj, first, last
                piece.refused = True
            self._pieces.popleft()
            piece.waiting = False
        return None


def lanes_for(
    lanes: Sequence[Lane], warming: Mapping[int, int], config: PacingConfig, *, alone: bool
) -> list[Lane]:
    """Lanes that warming may use now: those it has, then idle ones that are not kept for demand.

    warming: requests for warming under way, by lane. alone: nobody else has lately used the
    path. Beside others it gets few lanes, and never one of theirs.
    """
    mine = [lane for lane in lanes if 0 < lane.requests == warming.get(lane.index, 0)]
    idle = [lane for lane in lanes if not lane.requests]
    most = config.warm_lanes if alone else config.warm_lanes_beside
    idle = idle[: max(0, min(len(idle) - config.demand_lanes, most - len(mine)))]
    return mine[:most] + idle


class RateMeter:
    """Bytes per second over the last seconds, and what is left of the way at that rate."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._bytes = 0

    def add(self, bytes_: int, now: float) -> None:
        """Bytes that have come by `now`; memory is bounded by 100 samples a window."""
        self._bytes += bytes_
        last = self._samples[-1] if self._samples else None
        if last is None or now - last[0] >= RATE_WINDOW_S / 100:
            self._samples.append((now, self._bytes))

    def rate(self, now: float) -> float | None:
        """None until there is something to measure over."""
        while len(self._samples) > 1 and now - self._samples[1][0] >= RATE_WINDOW_S:
            self._samples.popleft()
        if not self._samples or now <= self._samples[0][0]:
            return None
        at, then = self._samples[0]
        return (self._bytes - then) / (now - at)

    def eta_s(self, left: int, now: float) -> float | None:
        """Seconds until `left` more bytes have come; None when nothing comes."""
        rate = self.rate(now)
        if left <= 0:
            return 0.0
        return left / rate if rate else None
