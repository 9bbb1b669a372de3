"""SpokeCore: one method per event, composing cache, scheduler, streams and plan.

The shell tells what happened (a read came, a frame is on disk, a lane is free) and does what is
returned (send these requests, punch these bytes). Nothing here waits, so no state can change
between a decision and its effect on the book.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hubspoke.core.accesses import Accesses
from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject, Runs
from hubspoke.core.frames import StoredFrame
from hubspoke.core.generators import blind_fill, next_object, sequential, strided
from hubspoke.core.generators.candidates import Candidate, DepthConfig, Listing
from hubspoke.core.ids import (
    PAGE_BYTES,
    ObjectEntry,
    ObjectName,
    ReadState,
    TrafficClass,
    page_span,
)
from hubspoke.core.ledger import Ledger
from hubspoke.core.pacing import PacingConfig, PathModel
from hubspoke.core.page_codes import (
    IS_ABSENT,
    IS_ASKED,
    IS_FLYING,
    IS_LOCAL,
    IS_NOT_LOCAL,
    IS_QUEUED,
    PAGES_PER_BLOCK,
)
from hubspoke.core.plan import PlanConfig, choose
from hubspoke.core.ranking import Score
from hubspoke.core.scheduler import Fetch, FetchedRange, Punch, Scheduler
from hubspoke.core.streams import Access, Pattern, Stream, StreamTable

YOUNG_ACCESSES = 16  # a stream with fewer has had no time to be recognised


@dataclass(frozen=True, slots=True)
class SpokeConfig:
    capacity: int  # bytes of cache, a hard cap
    prefetch: bool = True
    pacing: PacingConfig = field(default_factory=PacingConfig)
    depth: DepthConfig = field(default_factory=DepthConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)


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
        self.streams = StreamTable()
        self.encoded_bytes = 0
        # Whether frames of the object (None: a new one) would be stored; the shell knows the
        # disks. What would not be is not fetched in advance.
        self.fills: Callable[[int | None], bool] = lambda number: True
        self._score = score
        self._listing = listing
        self._walks = next_object.Walks()
        self._blind = blind_fill.BlindFill()
        self._replaced: set[int] = set()
        self._ending: deque[Stream] = deque(maxlen=16)  # streams that flowed over their object

    @property
    def ledger(self) -> Ledger:
        """With all reads so far counted."""
        self.accesses.count()
        return self._ledger

    # -- names --------------------------------------------------------------------------------

    def open(self, name: ObjectName, entry: ObjectEntry) -> tuple[CachedObject, list[CachedObject]]:
        """The cached object of this version, and obsolete ones that the shell must drop."""
        known = self.cache.current(name)
        obj, obsolete = self.cache.open(name, entry)
        if known is not None and known is not obj:
            self.streams.forget(known.number)
            self._replaced.add(obj.number)
        for o in obsolete:
            self._replaced.discard(o.number)
        return obj, obsolete

    def gone(self, name: ObjectName) -> list[CachedObject]:
        """The name has no object, or another version; returns what the shell must drop."""
        known = self.cache.current(name)
        if known is not None:
            self.streams.forget(known.number)
        return self.cache.forget(name)

    # -- reads --------------------------------------------------------------------------------

    def arrive(self, obj: CachedObject, offset: int, length: int) -> tuple[ReadState, str | None]:
        """State of a read on arrival and, unless it is a hit, the cause; length > 0."""
        first, last = page_span(offset, length)
        state = self.cache.state(obj, first, last)
        if state is ReadState.HIT:
            return state, None
        return state, self._cause(obj, state, first, last)

    def _cause(self, obj: CachedObject, state: ReadState, first: int, last: int) -> str:
        if state is ReadState.LATE:
            return "late_bandwidth"
        if obj.pages.any(first, last, IS_QUEUED):
            return "late_deadline"
        # A long read is judged by its first block: that is quick, and what its reader waits for.
        near = obj.runs(first, min(last, first + PAGES_PER_BLOCK), IS_NOT_LOCAL)
        if any(obj.pages.any(a, b, IS_ASKED) for a, b in near):
            return "evicted"
        if obj.number in self._replaced:
            return "invalidated"
        streams = self.streams.by_object.get(obj.number, ())
        known = any(s.accesses >= YOUNG_ACCESSES or s.chained for s in streams)
        return "not_predicted" if known else "cold_start"

    def missing(self, obj: CachedObject, offset: int, length: int) -> int:
        """Bytes of the pages under a range that are not local."""
        first, last = page_span(offset, length)
        return sum(obj.range_bytes(a, b) for a, b in obj.not_local(first, last))

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
        wasted, self.cache.counters.wasted_bytes = self.cache.counters.wasted_bytes, 0
        self.ledger.prefetch_wasted(wasted)
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
        accesses = self.accesses.drain()
        hide_s = self.config.depth.hide_s(self.path.rtt_s)
        candidates: list[Candidate] = []

        def on_new(stream: Stream) -> None:
            self._inherit(stream)
            if self.config.prefetch:
                candidates.extend(self._opened(stream, now, hide_s))

        moved = self.streams.observe(accesses, on_new)
        if not self.config.prefetch:
            return []
        for s in sorted(moved, key=lambda s: s.stream_id):
            found = self._propose(s, now, hide_s)
            candidates += found or self._fill(s, moved[s], now)
        return self._queue(candidates, now)

    def _propose(self, s: Stream, now: float, hide_s: float) -> list[Candidate]:
        depth = self.config.depth
        # Reads that had to wait although the pattern was known: the path is worse or the
        # consumer faster than believed, so look further ahead, at most once a round trip.
        grown = s.pattern in (Pattern.SEQUENTIAL, Pattern.STRIDED) and s.accesses > YOUNG_ACCESSES
        if s.waits and grown and now - s.boosted_at > hide_s:
            s.boost, s.boosted_at = min(s.boost * 1.5, depth.boost_max), now
        waited, s.waits = s.waits > 0, 0
        before = s.pattern
        found, beyond = sequential.propose(
            s, now, hide_s, depth, waited=waited, most=self._ahead_max
        )
        if before in (Pattern.SEQUENTIAL, Pattern.STRIDED) and s.pattern is not before:
            cause = f"{s.obj.name}: reads were {before.value}, are {s.pattern.value}"
            self.ledger.relearned(now, cause)
        if beyond:
            if s not in self._ending:
                self._ending.append(s)
            found += next_object.overflow(s, beyond, self._listing, hide_s)
        if not found and s.hide_bytes == 0:
            found = strided.propose(s, hide_s)
        return found

    @property
    def _outstanding(self) -> int:
        """Prefetch bytes that are asked for or about to be."""
        return self.scheduler.prefetch_bytes_in_flight + self.scheduler.prefetch_bytes_queued

    @property
    def _ahead_max(self) -> int:
        """Bytes one stream may have ahead: more of a small cache, and what is fetched for later
        would push out what is fetched for now."""
        return int(self.cache.capacity * self.config.plan.share_of_cache / 2)

    def _fill(self, s: Stream, accesses: Sequence[Access], now: float) -> list[Candidate]:
        folders = {self._blind.observe(s, a, self._listing) for a in accesses} - {None}
        outstanding = self._outstanding
        want = blind_fill.OUTSTANDING_BYTES_MIN
        rate = self.path.rate(now)
        if rate is not None and self.path.rtt_s is not None:
            want = max(want, int(2 * rate * self.path.rtt_s))
        want = min(want, int(self.cache.capacity * self.config.plan.share_of_cache))
        found: list[Candidate] = []
        for folder in folders:
            if folder is not None and want > outstanding:
                found += self._blind.propose(folder, want - outstanding, self.cache.room)
                outstanding = want
        return found

    def _opened(self, s: Stream, now: float, hide_s: float) -> list[Candidate]:
        if s.chained or s.start != 0:
            return []
        size = min(s.obj.size, next_object.WHOLE_BYTES_MAX)
        floor = self.config.depth.floor_bytes
        return self._walks.opened(s.obj.name, size, self._listing, now, hide_s, floor)

    def _inherit(self, s: Stream) -> None:
        """A stream that begins where another one's prefetch flowed over carries it on."""
        for before in self._ending:
            following = self._listing.following(before.obj.name, 1)
            if not following or following[0][0] != s.obj.name:
                continue
            if s.start > before.spread + before.hide_bytes:
                continue
            s.pattern, s.boost, s.chained = before.pattern, before.boost, before.chained + 1
            s.rate = before.rate
            s.start = 0  # the other workers' reads before this one are still to come
            return

    def _queue(self, candidates: Sequence[Candidate], now: float) -> list[CachedObject]:
        """Queue what of the candidates is absent and chosen; returns objects made obsolete."""
        obsolete: list[CachedObject] = []
        absent: list[Candidate] = []
        for c in candidates:
            obj = self.cache.current(c.name)
            if not self.fills(None if obj is None else obj.number):
                continue
            if c.entry is not None and (obj is None or obj.version != c.entry.version):
                obj, old = self.open(c.name, c.entry)
                obsolete += old
            if obj is None or obj.dead or c.offset >= obj.size:
                continue
            first, last = page_span(c.offset, min(c.length, obj.size - c.offset))
            runs = obj.runs(first, last, IS_ABSENT)
            if runs:
                start, end = runs[0][0] * PAGE_BYTES, runs[-1][1] * PAGE_BYTES
                absent.append(replace(c, offset=start, length=min(end, obj.size) - start))
        for planned in choose(
            absent,
            self._score,
            self.config.plan,
            now=now,
            outstanding_bytes=self._outstanding,
            capacity=self.cache.capacity,
        ):
            c = planned.candidate
            obj = self.cache.current(c.name)
            assert obj is not None, c.name
            self.scheduler.prefetch(obj, *page_span(c.offset, c.length), planned.deadline)
        return obsolete
