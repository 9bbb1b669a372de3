"""From accesses to what is fetched before it is asked for: streams, generators, plan, queue.

Runs off the read path: accesses wait in a ring (`accesses`) and are looked at in batches. A
generator is one file under `generators/`; this module only asks them in turn, has their
candidates scored, and queues what of it is absent and chosen.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.epochs import Epochs
from hubspoke.core.following import YOUNG_ACCESSES, Following
from hubspoke.core.generators import blind_fill, heads, layout, next_object, runs
from hubspoke.core.generators.candidates import Ahead, Candidate, Listing
from hubspoke.core.generators.runway import SHARE_OF_CACHE
from hubspoke.core.habits import Habits
from hubspoke.core.hints.hints import RATE_DEFAULT, Hints
from hubspoke.core.ids import PAGE_BYTES, ObjectEntry, ObjectName, page_span
from hubspoke.core.inference.inference import Inference
from hubspoke.core.ledger import Ledger
from hubspoke.core.pacing import PathModel
from hubspoke.core.page_codes import IS_ABSENT
from hubspoke.core.plan import choose
from hubspoke.core.ranking import Score
from hubspoke.core.relearning import Relearning
from hubspoke.core.scheduler import Scheduler
from hubspoke.core.scoring import Scoring
from hubspoke.core.spoke_config import SpokeConfig
from hubspoke.core.stream_table import StreamTable
from hubspoke.core.streams import ACTIVE_S, NEVER, Access, Pattern, Stream
from hubspoke.core.tokens.token_files import TokenFiles

AHEAD_BYTES_MIN = 64 << 10
# Of the cache, ahead of a walk through a data set whose jobs' orders are known.
SCAN_SHARE = 1 / 64

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
        self.habits = Habits()
        self.layouts = layout.Layouts(cache, listing, config.depth, self.habits)
        self._heads = heads.Heads(listing, cache, self.habits)
        self._runs = runs.Runs()
        self._following = Following(
            config.depth, listing, self.habits, self._heads.shuffled, self._walks.left_out,
            self._runs.within,
        )  # fmt: skip
        self._relearning = Relearning(self.epochs)
        self.inference = Inference()
        self.hints = Hints(cache, config.depth, self.epochs.forget)
        self.tokens = TokenFiles(cache, listing, self.inference)
        self.books = (self.layouts.book, self.tokens.indexes.book)

    def knows(self, number: int) -> bool:
        """Whether a stream of the object has had time to be recognised."""
        known = self.streams.by_object.get(number)
        if known is None:
            return False
        return known.reads >= YOUNG_ACCESSES or any(s.chained for s in known.streams)

    def predict(self, accesses: Sequence[Access], now: float) -> list[CachedObject]:
        """Take the accesses in and queue what will be read next.

        Returns: objects that opening a predicted one made obsolete, to be dropped by the shell.
        """
        hide_s = self._config.depth.hide_s(self._path.rtt_s)
        obsolete: list[CachedObject] = []
        if self._config.prefetch:
            accesses = self.hints.take(accesses, now)
            obsolete = self._bring_hinted(now, hide_s)
        candidates: list[Candidate] = []

        def born(stream: Stream) -> None:
            self._following.begun(stream)
            if self._config.prefetch:
                self._heads.opened(stream, self.streams.moved)

        def opened(a: Access, stream: Stream | None) -> None:
            if self._config.prefetch and (stream is None or not stream.chained):
                candidates.extend(self._opened(a, now, hide_s, whole=stream is None))

        moved = self.streams.observe(accesses, born, opened)
        if not self._config.prefetch:
            return []
        if self._config.infer_order:
            self.tokens.observe(accesses, now)

        def relearned(cause: str) -> None:
            self._ledger().relearned(now, cause)

        self._observe_items(moved, accesses, now, relearned)
        self.scoring.moved(list(moved), now)
        self.habits.moved(moved, hide_s)
        ahead = self._ahead(now)
        candidates += self._runs.observe(accesses)
        for s in sorted(moved, key=attrgetter("stream_id")):
            found = self.layouts.propose(s, moved[s], now, hide_s)
            if found is None and not self._explained(s, now):
                found = self._following.propose(s, now, hide_s, ahead)
            candidates += found or []
        self._relearning.look(moved, accesses, relearned)
        candidates += self.layouts.take(now)
        candidates += self._items(now, hide_s)
        candidates += self._bring_heads(moved, now)
        return obsolete + self._queue(candidates, now, self.scoring.score)

    def _bring_hinted(self, now: float, hide_s: float) -> list[CachedObject]:
        """What posted plans say comes before all that is only likely."""
        self.hints.gave_up |= self._scheduler.gave_up
        self.hints.path_rate = self._path.rate(now) or RATE_DEFAULT
        most = int(self._cache.capacity * self._config.plan.share_of_cache)
        found = self.hints.propose(now, hide_s, self._outstanding, most)
        if not found:
            return []
        obsolete = self._queue(found, now, lambda of: [1.0] * len(of))
        self.hints.gave_up |= self._scheduler.gave_up
        return obsolete

    def _explained(self, s: Stream, now: float) -> bool:
        """Whether a known order says what is read there. Among many random reads some lie as in a
        scan of a few megabytes."""
        known = self.epochs.sets.get(s.obj.data_set.folder)
        return known is not None and known.explains(now)

    def next_look(self, now: float) -> float | None:
        """When to `predict` although nobody reads, for posted plans; None: no need."""
        return self.hints.next_look(now, self._config.depth.hide_s(self._path.rtt_s))

    def _observe_items(
        self,
        moved: Iterable[Stream],
        accesses: Sequence[Access],
        now: float,
        relearned: Callable[[str], None],
    ) -> None:
        for s in moved:
            known = s.pattern in (Pattern.SEQUENTIAL, Pattern.STRIDED)
            folder = s.obj.data_set.folder
            known = known and s.accesses > YOUNG_ACCESSES and not self._relearning.random(folder)
            if self.layouts.in_groups(s.obj) or known:
                self.epochs.understood(folder, s.accesses)
        read = self.epochs.observe(accesses, now, relearned)
        for job in self.epochs.gone():
            self.inference.gone(job)
        for each in read:
            if self._config.infer_order and not self.tokens.looks_at(each.items.folder):
                items = each.items
                for job in each.jobs.all:
                    adopt = partial(each.adopt, job)
                    self.inference.look(job, adopt, now, items.shards, items.numbering)

    @property
    def infers(self) -> bool:
        """Whether jobs' orders are inferred."""
        return self._config.infer_order

    @property
    def busy(self) -> bool:
        """Whether prefetches are on their way or wait for the path."""
        return self._outstanding > 0

    @property
    def _outstanding(self) -> int:
        """Prefetch bytes that are asked for or about to be."""
        return self._scheduler.prefetch_bytes_in_flight + self._scheduler.prefetch_bytes_queued

    def _ahead(self, now: float) -> Ahead:
        """Bytes one stream may have ahead: more of a small cache, and what is fetched for later
        would push out what is fetched for now."""
        share = self._cache.capacity * self._config.plan.share_of_cache
        least = min(self._config.depth.floor_bytes, share / max(1, len(self.streams)))
        runway = 0.0
        if self._config.depth.runway_s and self._outstanding < share / 2:
            reading = sum(now - s.last_at <= ACTIVE_S for s in self.streams)
            runway = SHARE_OF_CACHE * self._cache.capacity / max(1, reading)
        return Ahead(max(int(least), AHEAD_BYTES_MIN), int(share / 2), int(runway))

    def _items(self, now: float, hide_s: float) -> list[Candidate]:
        """What comes of data sets, as much as keeps the path busy for two round trips."""
        scheduler = self._scheduler
        runway_s = self._config.depth.runway_s
        given_up, scheduler.gave_up = scheduler.gave_up, False
        found = self.tokens.propose(now, max(hide_s, runway_s), given_up=given_up)
        want, queued = self._line(now) - self._outstanding, scheduler.prefetch_bytes_queued
        found += self.epochs.propose(now, want, queued, hide_s, runway_s, given_up=given_up)
        return found

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
        want = self._line(now) - outstanding
        return self._heads.propose(want, room, self.epochs.sets, now)

    def _opened(self, a: Access, now: float, hide_s: float, *, whole: bool) -> list[Candidate]:
        obj, folder = a.obj, a.obj.data_set.folder
        if self._heads.shuffled(folder):
            return []
        size = min(obj.size, next_object.WHOLE_BYTES_MAX)
        floor = self._config.depth.floor_bytes
        most = NEVER if whole else self.habits.of_next(folder)
        known, room = self.epochs.sets.get(folder), None
        if known is not None and known.jobs.follows(a.client):
            return []  # of hundreds a second a walk beside them would not be seen
        if known is not None and known.comes and known.shelf.exact:
            # What is here is needed sooner than what a scan reads, most of which goes at once.
            room = int(self._cache.capacity * SCAN_SHARE)
        return self._walks.opened(obj.name, size, self._listing, now, hide_s, floor, most, room)

    def _queue(
        self,
        candidates: Sequence[Candidate],
        now: float,
        score: Callable[[Sequence[Candidate]], Sequence[float]],
    ) -> list[CachedObject]:
        """Queue what of the candidates is absent and chosen; returns objects made obsolete."""
        obsolete: list[CachedObject] = []
        absent: list[Candidate] = []
        name, obj = None, None
        for c in candidates:
            if c.name is not name:  # one stream's candidates come in a row
                name, obj = c.name, self._cache.current(c.name)
            if not self._fills(None if obj is None else obj.number):
                self._scheduler.gave_up = True
                if c.source == next_object.SOURCE and c.entry is not None:
                    self._walks.refused(c.name)
                continue
            if c.entry is not None and (obj is None or obj.version != c.entry.version):
                obj, old = self._open(c.name, c.entry)
                obsolete += old
            offset, length = c.offset, c.length
            if obj is None or obj.dead or offset >= obj.size:
                continue
            first, last = page_span(offset, min(length, obj.size - offset))
            runs = obj.pages.runs(first, last, IS_ABSENT)
            if runs:
                start = runs[0][0] * PAGE_BYTES
                n = min(runs[-1][1] * PAGE_BYTES, obj.size) - start
                same = start == offset and n == length
                absent.append(c if same else c.of_bytes(start, n))
        chosen = choose(
            absent,
            score,
            self._config.plan,
            now=now,
            outstanding_bytes=self._outstanding,
            capacity=self._cache.capacity,
        )
        self._scheduler.gave_up |= len(chosen) < len(absent)
        name, obj = None, None
        for c, deadline in chosen:
            if c.name is not name:
                name, obj = c.name, self._cache.current(c.name)
            assert obj is not None, c.name
            first, last = page_span(c.offset, c.length)
            self._scheduler.prefetch(obj, first, last, deadline)
            self.scoring.queued(c, obj.number, first, last)
        return obsolete
