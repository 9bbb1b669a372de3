"""From accesses to what is fetched before it is asked for: streams, generators, plan, queue.

Runs off the read path: accesses wait in a ring (`accesses`) and are looked at in batches. A
generator is one file under `generators/`; this module only asks them in turn, has their
candidates scored, and queues what of it is absent and chosen.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.epochs import Epochs
from hubspoke.core.epochs.items import folder_of
from hubspoke.core.generators import blind_fill, heads, layout, next_object, sequential, strided
from hubspoke.core.generators.candidates import Candidate, Listing
from hubspoke.core.ids import PAGE_BYTES, ObjectEntry, ObjectName, page_span
from hubspoke.core.ledger import Ledger
from hubspoke.core.pacing import PathModel
from hubspoke.core.page_codes import IS_ABSENT
from hubspoke.core.plan import choose
from hubspoke.core.ranking import Score
from hubspoke.core.scheduler import Scheduler
from hubspoke.core.scoring import Scoring
from hubspoke.core.spoke_config import SpokeConfig
from hubspoke.core.streams import Access, Pattern, Stream, StreamTable

YOUNG_ACCESSES = 16  # a stream with fewer has had no time to be recognised

Open = Callable[[ObjectName, ObjectEntry], tuple[CachedObject, list[CachedObject]]]


class Prediction:
    """What is believed of the accesses so far."""

    def __init__(
        self,
        config: SpokeConfig,
        cache: Cache,
        scheduler: Scheduler,
        path: PathModel,
        score: Score,
        listing: Listing,
        *,
        ledger: Callable[[], Ledger],
        open_object: Open,
        fills: Callable[[int | None], bool],
    ) -> None:
        """ledger: with all reads so far counted. open_object: `SpokeCore.open`. fills: whether
        frames of the object (None: a new one) would be stored."""
        self.streams = StreamTable()
        self._config = config
        self._cache = cache
        self._scheduler = scheduler
        self._path = path
        self.scoring = Scoring(score, cache, config.plan.probability_min)
        self._listing = listing
        self._ledger = ledger
        self._open = open_object
        self._fills = fills
        self._walks = next_object.Walks()
        self.epochs = Epochs(listing, cache)
        self.layouts = layout.Layouts(cache, listing, config.depth)
        self._heads = heads.Heads(listing)
        self._ending: deque[Stream] = deque(maxlen=16)  # streams that flowed over their object

    def knows(self, number: int) -> bool:
        """Whether a stream of the object has had time to be recognised."""
        streams = self.streams.by_object.get(number, ())
        return any(s.accesses >= YOUNG_ACCESSES or s.chained for s in streams)

    def predict(self, accesses: Sequence[Access], now: float) -> list[CachedObject]:
        """Take the accesses in and queue what will be read next.

        Returns: objects that opening a predicted one made obsolete, to be dropped by the shell.
        """
        hide_s = self._config.depth.hide_s(self._path.rtt_s)
        candidates: list[Candidate] = []

        def on_new(stream: Stream) -> None:
            self._inherit(stream)
            if self._config.prefetch:
                self._heads.opened(stream)
                candidates.extend(self._opened(stream, now, hide_s))

        moved = self.streams.observe(accesses, on_new)
        if not self._config.prefetch:
            return []
        self._observe_items(moved, accesses, now)
        self.scoring.moved(list(moved), now)
        for s in sorted(moved, key=lambda s: s.stream_id):
            found = self.layouts.propose(s, moved[s], now, hide_s)
            candidates += self._propose(s, now, hide_s) if found is None else found
        candidates += self.layouts.take(now)
        candidates += self._items(now, hide_s)
        candidates += self._bring_heads(moved, now)
        return self._queue(candidates, now)

    def _observe_items(
        self, moved: Iterable[Stream], accesses: Sequence[Access], now: float
    ) -> None:
        for s in moved:
            known = s.pattern in (Pattern.SEQUENTIAL, Pattern.STRIDED)
            if s.layout or (known and s.accesses > YOUNG_ACCESSES):
                self.epochs.understood(folder_of(s.obj.name))
        self.epochs.observe(accesses, now, lambda cause: self._ledger().relearned(now, cause))

    def _propose(self, s: Stream, now: float, hide_s: float) -> list[Candidate]:
        depth = self._config.depth
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
            self._ledger().relearned(now, cause)
        if beyond and not self._heads.shuffled(s.obj.name):
            if s not in self._ending:
                self._ending.append(s)
            found += next_object.overflow(s, beyond, self._listing, hide_s)
        if not found and s.hide_bytes == 0:
            found = strided.propose(s, hide_s)
        return found

    @property
    def busy(self) -> bool:
        """Whether prefetches are on their way or wait for the path."""
        return self._outstanding > 0

    @property
    def _outstanding(self) -> int:
        """Prefetch bytes that are asked for or about to be."""
        return self._scheduler.prefetch_bytes_in_flight + self._scheduler.prefetch_bytes_queued

    @property
    def _ahead_max(self) -> int:
        """Bytes one stream may have ahead: more of a small cache, and what is fetched for later
        would push out what is fetched for now."""
        return int(self._cache.capacity * self._config.plan.share_of_cache / 2)

    def _items(self, now: float, hide_s: float) -> list[Candidate]:
        """What comes of data sets, as much as keeps the path busy for two round trips."""
        queued = self._scheduler.prefetch_bytes_queued
        return self.epochs.propose(self._line(now) - self._outstanding, queued, hide_s)

    def _line(self, now: float) -> int:
        """Prefetch bytes that keep the path busy."""
        want = blind_fill.OUTSTANDING_BYTES_MIN
        rate = self._path.rate(now)
        if rate is not None and self._path.rtt_s is not None:
            want = max(want, int(2 * rate * self._path.rtt_s))
        return min(want, int(self._cache.capacity * self._config.plan.share_of_cache))

    def _bring_heads(self, moved: dict[Stream, list[Access]], now: float) -> list[Candidate]:
        rtt = self._path.rtt_s or self._config.depth.rtt_s_default
        self._heads.moved(moved, now, rtt + self._config.depth.jitter_s)
        outstanding = self._outstanding
        room = self._cache.room - outstanding
        return self._heads.propose(self._line(now) - outstanding, self._cache.capacity, room, now)

    def _opened(self, s: Stream, now: float, hide_s: float) -> list[Candidate]:
        if s.chained or s.start != 0 or self._heads.shuffled(s.obj.name):
            return []
        size = min(s.obj.size, next_object.WHOLE_BYTES_MAX)
        floor = self._config.depth.floor_bytes
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
            obj = self._cache.current(c.name)
            if not self._fills(None if obj is None else obj.number):
                continue
            if c.entry is not None and (obj is None or obj.version != c.entry.version):
                obj, old = self._open(c.name, c.entry)
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
            self.scoring.score,
            self._config.plan,
            now=now,
            outstanding_bytes=self._outstanding,
            capacity=self._cache.capacity,
        ):
            c = planned.candidate
            obj = self._cache.current(c.name)
            assert obj is not None, c.name
            pages = page_span(c.offset, c.length)
            self._scheduler.prefetch(obj, *pages, planned.deadline)
            self.scoring.queued(c, obj.number, *pages)
        return obsolete
