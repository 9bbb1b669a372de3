"""SpokeCore: one method per event, composing cache, scheduler, streams and plan.

The shell tells what happened (a read came, a frame is on disk, a lane is free) and does what is
returned (send these requests, punch these bytes). Nothing here waits, so no state can change
between a decision and its effect on the book.
"""

from collections.abc import Callable

from hubspoke.core.accesses import Accesses
from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject, Runs
from hubspoke.core.causes import cause_of
from hubspoke.core.fetches import Fetch, FetchedRange, Punch
from hubspoke.core.frames import StoredFrame
from hubspoke.core.generators.candidates import Listing
from hubspoke.core.ids import (
    ObjectEntry,
    ObjectName,
    ReadState,
    TrafficClass,
    page_span,
)
from hubspoke.core.ledger import Ledger
from hubspoke.core.pacing import PathModel
from hubspoke.core.page_codes import (
    IS_FLYING,
    IS_LOCAL,
    IS_UNASKED,
)
from hubspoke.core.prediction import Prediction
from hubspoke.core.ranking import Score
from hubspoke.core.scheduler import Scheduler
from hubspoke.core.spoke_config import SpokeConfig
from hubspoke.core.streams import Access


class SpokeCore:
    """All decisions of a spoke. Times are seconds on one monotonic clock."""

    def __init__(
        self, config: SpokeConfig, score: Score, listing: Listing, now: float, unix_ns: int
    ) -> None:
        self.config = config
        self.cache = Cache(config.capacity)
        self.scheduler = Scheduler(self.cache, config.pacing, 1 + unix_ns // 1_000)
        self.path = PathModel()
        self._ledger = Ledger(now, unix_ns)
        self.accesses = Accesses(self._ledger, self.cache.read_again)
        self.encoded_bytes = 0
        # Whether frames of the object (None: a new one) would be stored; the shell knows the
        # disks. What would not be is not fetched in advance.
        self.fills: Callable[[int | None], bool] = lambda number: True
        self.prediction = Prediction(
            config,
            self.cache,
            self.scheduler,
            self.path,
            score,
            listing,
            ledger=lambda: self.ledger,
            open_object=self.open,
            fills=lambda number: self.fills(number),
        )
        self._replaced: set[int] = set()

    @property
    def ledger(self) -> Ledger:
        """With all reads so far counted."""
        self.accesses.count()
        return self._ledger

    # -- names --------------------------------------------------------------------------------

    def open(self, name: ObjectName, entry: ObjectEntry) -> tuple[CachedObject, list[CachedObject]]:
        """The cached object of this version, and obsolete ones that the shell must drop."""
        known = self.cache.current(name)
        if known is not None and known.version == entry.version:
            return known, []
        obj, obsolete = self.cache.open(name, entry)
        if known is not None:
            self.prediction.streams.forget(known.number)
            self._replaced.add(obj.number)
        for o in obsolete:
            self._replaced.discard(o.number)
        return obj, obsolete

    def gone(self, name: ObjectName) -> list[CachedObject]:
        """The name has no object, or another version; returns what the shell must drop."""
        known = self.cache.current(name)
        if known is not None:
            self.prediction.streams.forget(known.number)
        return self.cache.forget(name)

    # -- reads --------------------------------------------------------------------------------

    def arrive(self, obj: CachedObject, offset: int, length: int) -> tuple[ReadState, str | None]:
        """State of a read on arrival and, unless it is a hit, the cause; length > 0."""
        first, last = page_span(offset, length)
        state = self.cache.state(obj, first, last)
        if state is ReadState.HIT:
            return state, None
        replaced = obj.number in self._replaced
        return state, cause_of(obj, state, first, last, self.prediction, replaced=replaced)

    def missing(self, obj: CachedObject, offset: int, length: int) -> int:
        """Bytes of the pages under a range that are not local."""
        first, last = page_span(offset, length)
        return sum(obj.range_bytes(a, b) for a, b in obj.not_local(first, last))

    def unasked(self, obj: CachedObject, offset: int, length: int) -> bool:
        """Whether some of the pages under a range are neither local nor asked for."""
        return obj.pages.first_run(*page_span(offset, length), IS_UNASKED) is not None

    def access(
        self, obj: CachedObject, offset: int, length: int, client: str, state: ReadState, now: float
    ) -> None:
        """A reader reached these bytes: accounts them and remembers the access for `predict`."""
        first, last = page_span(offset, length)
        new, used = self.cache.asked(obj, first, last)
        if new:
            self.ledger.unique(new)
        if used:
            self.ledger.prefetch_used(used)
            self.prediction.scoring.outcomes.used(obj.number, first, used, late=False)
        self.accesses.read(Access(obj, offset, length, client, now, state))

    def demand(self, obj: CachedObject, offset: int, length: int) -> list[Punch] | None:
        """Ask the hub for what is missing of a range; None if the cache has no room for it."""
        first, last = page_span(offset, length)
        return self.scheduler.demand(obj, first, last)

    def passing(self, obj: CachedObject, first: int, last: int) -> None:
        """Ask the hub for pages that go to their readers from memory and not into the cache."""
        self.scheduler.passing(obj, first, last)

    # -- fetches ------------------------------------------------------------------------------

    def dispatch(self, now: float) -> tuple[list[Fetch], list[Punch]]:
        """Requests to send now, and what to punch before sending them."""
        alone = self.scheduler.alone(now)
        self.scheduler.warm.path(self.path.rate(now), self.path.rtt_s, alone=alone)
        fetches, punched = self.scheduler.dispatch(now)
        for f in fetches:
            # Warming is no prediction: it has no accuracy.
            if f.traffic_class is TrafficClass.PREFETCH and not f.warm:
                self.ledger.prefetch_issued(f.bytes)
                for r in f.ranges:
                    self.prediction.scoring.outcomes.issued(r.obj.number, r.first, r.length)
        wasted, self.cache.counters.wasted = self.cache.counters.wasted, []
        if wasted:
            self.ledger.prefetch_wasted(sum(n for _, _, n in wasted))
            self.prediction.scoring.outcomes.wasted(wasted)
        return fetches, punched

    def compress(self, now: float) -> bool:
        """Whether frames should travel compressed: where the path is slower than the packing."""
        rate = self.path.rate(now)
        return rate is None or rate < self.config.pacing.compress_below_bytes_per_second

    def arrived(
        self, fetch: Fetch, index: int, offset: int, length: int, encoded: int, now: float
    ) -> None:
        """A frame of range `index` passed its digest and is on disk; `encoded` bytes of it
        crossed the wire."""
        r = fetch.ranges[index]
        first, last = page_span(offset, length)
        self._used_late(fetch, r.obj, first, last)
        self.cache.arrived(r.obj, first, last)
        self.delivered(fetch, length, encoded, now)

    def passed(
        self, fetch: Fetch, index: int, offset: int, length: int, encoded: int, now: float
    ) -> None:
        """A frame of range `index` passed its digest, went to its readers, and is not stored."""
        r, pages = fetch.ranges[index], page_span(offset, length)
        self._used_late(fetch, r.obj, *pages)
        self._will_not_come(r, *pages)
        self.delivered(fetch, length, encoded, now)

    def delivered(self, fetch: Fetch, length: int, encoded: int, now: float) -> None:
        """Bytes of a request have come, whatever becomes of them."""
        self.ledger.payload(fetch.traffic_class, length)
        self.encoded_bytes += encoded
        self.scheduler.arrived(fetch, length, now)
        self.path.delivered(length, now, more=self.scheduler.under_way)

    def _used_late(self, fetch: Fetch, obj: CachedObject, first: int, last: int) -> None:
        """A prefetch that a reader came to before it was here was of use all the same."""
        if fetch.traffic_class is TrafficClass.PREFETCH and not fetch.warm:
            awaited = self.cache.awaited(obj, first, last)
            if awaited:
                self.ledger.prefetch_used(awaited)
                self.prediction.scoring.outcomes.used(obj.number, first, awaited, late=True)

    def _will_not_come(self, r: FetchedRange, first: int, last: int) -> None:
        if not r.stored:
            self.scheduler.passed(r.obj, first, last)
            return
        for a, b in r.obj.runs(first, last, IS_FLYING):
            self.cache.failed(r.obj, a, b)

    def settled(self, fetch: Fetch, index: int, offset: int, length: int, *, good: bool) -> None:
        """A frame that went to its readers before it was written is now on disk, or is not."""
        obj = fetch.ranges[index].obj
        first, last = page_span(offset, length)
        self._used_late(fetch, obj, first, last)
        if good:
            self.cache.arrived(obj, first, last)
            return
        for a, b in obj.runs(first, last, IS_FLYING):
            self.cache.failed(obj, a, b)

    def lost(self, obj: CachedObject, first: int, last: int) -> Runs:
        """The disk does not give back pages that were local: they are to be fetched again.
        Returns the runs to be freed when nobody has them any more."""
        runs = obj.runs(first, last, IS_LOCAL)
        for a, b in runs:
            self.cache.failed(obj, a, b)
        return runs

    def failed(self, fetch: Fetch, index: int) -> None:
        """What has not arrived of range `index` will not."""
        r = fetch.ranges[index]
        fetch.open_ranges.discard(index)
        self._will_not_come(r, r.first, r.last)

    def closed(self, fetch: Fetch, index: int) -> None:
        """All of range `index` has come."""
        r = fetch.ranges[index]
        fetch.open_ranges.discard(index)
        if not r.stored:
            self.scheduler.passed(r.obj, r.first, r.last)

    def finished(self, fetch: Fetch, delivered: int, now: float) -> list[CachedObject]:
        """The request has ended; ranges still open have failed. Returns objects to drop."""
        for index in list(fetch.open_ranges):
            self.failed(fetch, index)
        self.scheduler.finished(fetch, delivered, now)
        dead = {id(r.obj): r.obj for r in fetch.ranges if r.obj.dead}
        return [o for obj in dead.values() for o in self.cache.reap(obj)]

    def verified(self, obj: CachedObject, frame: StoredFrame, *, good: bool) -> Runs:
        """See Cache.verified."""
        if not good:
            self.ledger.corrupt()
        return self.cache.verified(obj, frame, good=good)

    def spoiled(self, obj: CachedObject, first: int, last: int) -> Runs:
        """A frame on disk no longer has its digest: its pages are a miss. As `lost`."""
        self.cache.counters.corrupt_frames += 1
        self.ledger.corrupt()
        return self.lost(obj, first, last)

    def reset_stats(self, now: float, unix_ns: int) -> None:
        """Start all counters anew; what is cached and believed stays."""
        self.cache.forget_asked()
        self.encoded_bytes = 0
        self.ledger.reset(now, unix_ns)

    # -- prediction ---------------------------------------------------------------------------

    def predict(self, now: float) -> list[CachedObject]:
        """Drain the accesses and queue what will be read next.

        Returns: objects that opening a predicted one made obsolete, to be dropped by the shell.
        """
        return self.prediction.predict(self.accesses.drain(), now)

    def next_look(self, now: float) -> float | None:
        """When to `predict` although nobody reads; None: no need."""
        return self.prediction.next_look(now)
