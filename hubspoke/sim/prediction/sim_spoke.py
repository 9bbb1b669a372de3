"""A spoke in virtual time: the shell around the very SpokeCore that production runs.

It tells the core what happens in the order in which spoke/reads.py and spoke/filler.py do, and
does what is returned on a simulated path and drive. It decides nothing. Bytes do not exist; what
a reader lacks is a set of pages.

Not simulated: files, digests, compression, and a drive that fails. A hit does not pin its block,
as a direct hit in production does not.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.fetches import Fetch
from hubspoke.core.hints.book import HintedRange
from hubspoke.core.ids import FRAME_BYTES_MAX, PAGE_BYTES, ReadState, page_span
from hubspoke.core.layouts.book import Book, Due
from hubspoke.core.layouts.probe import Look, Seen
from hubspoke.core.ranking import Score
from hubspoke.core.spoke import SpokeCore
from hubspoke.sim.prediction.disk import Disk
from hubspoke.sim.prediction.engine import Engine
from hubspoke.sim.prediction.job import Read
from hubspoke.sim.prediction.objects import Objects
from hubspoke.sim.prediction.order_answers import SEARCH_S, OrderAnswers
from hubspoke.sim.prediction.path import Path
from hubspoke.sim.prediction.recorder import Outcome, Recorder
from hubspoke.spoke.tuning import SpokeTuning

# Of an index: 13 us a column chunk of 100 bytes (core/layouts/parquet).
PARSE_S_PER_BYTE = 1.3e-7
PARSE_S_MAX = 0.5  # arrays are not parsed number by number
HANDED_S = 50e-6  # from a frame's arrival to the reader's next step
DETECTED_S = 2.0  # DESIGN, partition: lease loss on the data path

Then = Callable[..., None]
LayoutOf = Callable[[str, Look], Seen | None]  # of "bucket/key"


class _Need:
    """Pages a reader lacks, a bit for each."""

    __slots__ = ("first", "lacking", "last", "obj", "outcome")

    def __init__(self, obj: CachedObject, first: int, last: int, outcome: tuple[Any, ...]) -> None:
        """outcome: what `_answered` is told once nothing lacks."""
        self.obj, self.first, self.last = obj, first, last
        self.outcome = outcome
        self.lacking = 0


class SimSpoke:
    """Reads by object number; `then(*args)` is called when the bytes are there."""

    def __init__(
        self,
        engine: Engine,
        objects: Objects,
        path: Path,
        disk: Disk,
        recorder: Recorder,
        *,
        tuning: SpokeTuning,
        score: Score,
        layouts: LayoutOf | None = None,
        planted: Sequence[int] = (),
        search_s: float = SEARCH_S,
    ) -> None:
        """layouts: what is seen where the core looks; None: nothing. planted, search_s: see
        OrderAnswers."""
        config = tuning.core_config(searching=True)
        self.core = SpokeCore(config, score, objects, engine.now, 0)
        self.core.path.round_trip(path.config.rtt_s)
        self.core.prediction.hints.entry = objects.entry
        self._look_at = float("inf")
        self._layouts: LayoutOf = layouts or (lambda name, look: None)
        inference = self.core.prediction.inference
        self._search = OrderAnswers(engine, planted, search_s, inference.answered)
        self.stale_reads = 0
        self._engine, self._objects = engine, objects
        self._path, self._disk, self._recorder = path, disk, recorder
        self._needs: dict[int, list[_Need]] = {}
        self._under_way: dict[int, Fetch] = {}
        self._reachable = True
        self._predict_interval_s = tuning.predict_interval_s
        self._predicting = False
        self._predicted = float("-inf")
        self._clients: dict[int, str] = {}

    # -- reads --------------------------------------------------------------------------------

    def read(
        self,
        number: int,
        offset: int,
        length: int,
        client: int,
        batch: int,
        then: Then,
        *args: Any,
    ) -> None:
        core, now = self.core, self._engine.now
        name, entry = self._objects.names[number], self._objects.entries[number]
        obj = core.cache.current(name)
        if obj is None or obj.version != entry.version:
            obj, _ = core.open(name, entry)
        self.stale_reads += obj.dead or obj.version != entry.version
        state, cause = core.arrive(obj, offset, length)
        core.access(obj, offset, length, self._client(client), state, now)
        self._predict_soon(now)
        row = self._recorder.asked(now, number, offset, length, client, batch, state)
        if state is ReadState.HIT:
            done = self._disk.read(length, now)
            self._engine.at(done, self._answered, row, state, length, 0, None, then, args)
            return
        missed = core.missing(obj, offset, length)
        outcome = (row, state, length, missed, cause, then, args)
        need = _Need(obj, *page_span(offset, length), outcome)
        core.cache.pin(obj, need.first, need.last)
        self._needs.setdefault(obj.number, []).append(need)
        self._ask(need)
        self._dispatch()

    def _client(self, client: int) -> str:
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = str(client)
        return found

    def _ask(self, need: _Need) -> None:
        """Demand what is lacking, past the cache if it has no room."""
        core, obj = self.core, need.obj
        runs = obj.not_local(need.first, need.last)
        need.lacking = sum((1 << b - a) - 1 << a - need.first for a, b in runs)
        offset = need.first * PAGE_BYTES
        if core.demand(obj, offset, obj.range_bytes(need.first, need.last)) is None:
            for a, b in runs:
                core.passing(obj, a, b)

    def _answered(
        self,
        row: int,
        state: ReadState,
        length: int,
        missed: int,
        cause: str | None,
        then: Then,
        args: Any,
    ) -> None:
        now = self._engine.now
        took = self._recorder.answered(row, now)
        waited = 0.0 if state is ReadState.HIT else took
        self.core.ledger.read(state, length, missed, cause, took, waited, now)
        then(*args)

    def _hand(self, obj: CachedObject, first: int, last: int) -> None:
        """Pages are here: to the readers who lack them."""
        needs = self._needs.get(obj.number)
        if needs is None:
            return
        served = []
        for need in needs:
            a, b = max(first, need.first), min(last, need.last)
            if a < b:
                need.lacking &= ~((1 << b - a) - 1 << a - need.first)
                if not need.lacking:
                    served.append(need)
        for need in served:
            needs.remove(need)
            self._served(need)
        if not needs:
            del self._needs[obj.number]

    def _served(self, need: _Need) -> None:
        obj, core = need.obj, self.core
        core.cache.unpin(obj, need.first, need.last)
        core.cache.reap(obj)
        self._engine.at(self._engine.now + HANDED_S, self._answered, *need.outcome)

    # -- prediction and fetches ---------------------------------------------------------------

    def _predict_soon(self, now: float) -> None:
        if not self._predicting:
            self._predicting = True
            self._engine.at(max(now, self._predicted + self._predict_interval_s), self._predict)

    def _predict(self) -> None:
        self._predicting = False
        self._predicted = self._engine.now
        self.core.predict(self._predicted)
        for book in self.core.prediction.books:
            for due in book.due():
                length = due.look.span.length
                took = min(length * PARSE_S_PER_BYTE, PARSE_S_MAX)
                at = self._disk.read(length, self._engine.now) + took
                self._engine.at(at, self._look, book, due)
        self._search.cancel(self.core.prediction.inference.needless())
        self._search.ask(self.core.prediction.inference.requests())
        self._dispatch()
        self._look_again()

    def _look_again(self) -> None:
        """For what posted plans want although nobody reads."""
        now = self._engine.now
        at = self.core.next_look(now)
        if at is not None and max(at, now) < self._look_at:
            self._look_at = max(at, now + self._predict_interval_s)
            self._engine.at(self._look_at, self._looked)

    def _looked(self) -> None:
        self._look_at = float("inf")
        self._predict_soon(self._engine.now)

    def hint(self, job: str, reads: Sequence[Read], *, append: bool = False) -> None:
        """A job posts what it will read."""
        names = self._objects.names
        ranges = [HintedRange(names[n], offset, length) for n, offset, length in reads]
        self.core.prediction.hints.post(job, ranges, self._engine.now, append=append)
        self._predict_soon(self._engine.now)

    def _look(self, book: Book, due: Due) -> None:
        """Bytes do not exist: the workload says what they would say."""
        name = str(due.obj.name)
        book.saw(due, self._layouts(name, due.look))
        self._predict_soon(self._engine.now)

    def _dispatch(self) -> None:
        if not self._reachable or self.core.scheduler.idle:
            return
        fetches, _ = self.core.dispatch(self._engine.now)
        for fetch in fetches:
            self._under_way[fetch.number] = fetch
            self._path.ask(fetch.lane.index, _frames(fetch), self._frame)

    def _frame(self, fetch: Fetch, index: int, offset: int, length: int, ends: int) -> None:
        """A frame is here. ends: 1 if its range ends with it, 2 if its request does."""
        r = fetch.ranges[index]
        self._hand(r.obj, *page_span(offset, length))
        now = self._engine.now
        if r.stored:
            done = self._disk.write(length, now)
            self._engine.at(done, self._stored, fetch, index, offset, length, ends)
            return
        self.core.passed(fetch, index, offset, length, length, now)
        self._ended(fetch, index, ends)

    def _stored(self, fetch: Fetch, index: int, offset: int, length: int, ends: int) -> None:
        if fetch.number not in self._under_way:
            return  # given up meanwhile
        self.core.arrived(fetch, index, offset, length, length, self._engine.now)
        self._hand(fetch.ranges[index].obj, *page_span(offset, length))
        self._ended(fetch, index, ends)

    def _ended(self, fetch: Fetch, index: int, ends: int) -> None:
        now = self._engine.now
        if ends:
            self.core.closed(fetch, index)
        if ends == 2:
            del self._under_way[fetch.number]
            self.core.finished(fetch, fetch.arrived, now)
            self._dispatch()
        elif self.core.scheduler.wants(fetch.lane, now):
            self._dispatch()

    def outcome(self, now: float) -> Outcome:
        """Settles what was wasted last."""
        ledger = self.core.ledger
        self.core.dispatch(now)
        unused = max(0, ledger.prefetch_issued_bytes - ledger.prefetch_used_bytes)
        causes = {cause: n for cause, n in ledger.misses_by_cause.items() if n}
        return Outcome(causes, unused, self.stale_reads)

    # -- what happens to it -------------------------------------------------------------------

    def outage(self, seconds: float) -> None:
        """The hub cannot be reached from now on for so long; what is under way is lost, which
        is noticed by the lease."""
        now = self._engine.now
        self._path.down()
        self._engine.at(now + min(DETECTED_S, seconds), self._noticed)
        self._engine.at(now + seconds, self._back)

    def _noticed(self) -> None:
        self._reachable = False
        for fetch in self._under_way.values():
            self.core.finished(fetch, fetch.arrived, self._engine.now)
        self._under_way.clear()

    def _back(self) -> None:
        self._path.restore()
        self._reachable = True
        for needs in self._needs.values():
            for need in needs:
                self._ask(need)
        self._dispatch()

    def changed(self, number: int, version: str) -> None:
        """The feed says that the name has another version."""
        self._objects.change(number, version)
        self.core.gone(self._objects.names[number])


def _frames(fetch: Fetch) -> list[tuple[int, tuple[Any, ...]]]:
    """As the hub cuts an answer: at multiples of the frame, so that none crosses a block."""
    units: list[tuple[int, tuple[Any, ...]]] = []
    last = len(fetch.ranges) - 1
    for i, r in enumerate(fetch.ranges):
        at, end = r.offset, r.offset + r.length
        while at < end:
            cut = min(end, (at // FRAME_BYTES_MAX + 1) * FRAME_BYTES_MAX)
            ends = 0 if cut < end else 2 if i == last else 1
            units.append((cut - at, (fetch, i, at, cut - at, ends)))
            at = cut
    return units
