"""A reading job and a path of slow-starting lanes in virtual time, around a real SpokeCore.

Only what the predictor sees matters here: when reads come, and when frames arrive. A lane
delivers its requests window by window, one window a round trip, doubling as TCP does.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version, page_span
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig

RTT_S = 0.06
READ_S = 0.0003
Read = tuple[ObjectName, int, int]


class Names:
    """core.generators.Listing over a dict."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.entries = {
            ObjectName("b", k): ObjectEntry(Version("v1"), n, "e", 0) for k, n in sizes.items()
        }
        self._order = sorted(self.entries)

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        folder = name.key[: name.key.rfind("/") + 1]
        later = (n for n in self._order if n > name and n.key.startswith(folder))
        return [(n, self.entries[n]) for n in itertools.islice(later, limit)]


@dataclass
class Lab:
    """Virtual time: `run` until nothing is left to happen."""

    names: Names
    prefetch: bool = True
    capacity: int = 4 << 30
    now: float = 0.0
    states: list[ReadState] = field(default_factory=list)
    causes: list[str | None] = field(default_factory=list)
    received: int = 0
    unique: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        config = SpokeConfig(self.capacity, self.prefetch)
        self.core = SpokeCore(config, RuleRanker().score, self.names, 0.0, 0)
        self.core.path.round_trip(RTT_S)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()
        # With the pages that came by while the cache had no room for them.
        self._waiting: list[tuple[Read, Callable[[], None], set[int]]] = []
        self._predicting = False

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._tie), action))

    def run(self) -> None:
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def read(self, read: Read, client: str, then: Callable[[], None]) -> None:
        """`then` is called when the bytes are there."""
        name, offset, length = read
        obj, _ = self.core.open(name, self.names.entries[name])
        state, cause = self.core.arrive(obj, offset, length)
        self.states.append(state)
        self.causes.append(cause)
        first, last = page_span(offset, length)
        self.unique.update((name.key, p) for p in range(first, last))
        self.core.access(obj, offset, length, client, state, self.now)
        if not self._predicting:
            self._predicting = True
            self.at(self.now + 0.002, self._predict)
        if state is ReadState.HIT:
            self.at(self.now + READ_S, then)
            return
        self._waiting.append((read, then, set()))
        self.core.cache.pin(obj, first, last)
        if self.core.demand(obj, offset, length) is None:
            for a, b in obj.not_local(first, last):
                self.core.passing(obj, a, b)
        self._dispatch()

    def _predict(self) -> None:
        self._predicting = False
        self.core.predict(self.now)
        self._dispatch()

    def _dispatch(self) -> None:
        fetches, _ = self.core.dispatch(self.now)
        for fetch in fetches:
            window = max(14_600, int(fetch.lane.window))
            self._rounds(fetch, window)

    def _rounds(self, fetch: Fetch, window: int) -> None:
        when, room = self.now + RTT_S, window
        for index, r in enumerate(fetch.ranges):
            offset, end = r.offset, r.offset + r.length
            while offset < end:
                n = min(32 << 10, end - offset)
                if room <= 0:
                    window = min(2 * window, 4 << 20)
                    when, room = when + RTT_S, window
                room -= n
                self.at(when, self._frame(fetch, index, offset, n))
                offset += n
        self.at(when, lambda: self._finished(fetch))

    def _frame(self, fetch: Fetch, index: int, offset: int, length: int) -> Callable[[], None]:
        def arrived() -> None:
            self.received += length
            r = fetch.ranges[index]
            if r.stored:
                self.core.arrived(fetch, index, offset, length, length, self.now)
            else:
                self.core.passed(fetch, index, offset, length, length, self.now)
                for read, _, passed in self._waiting:
                    if read[0] == r.obj.name:
                        passed.update(range(*page_span(offset, length)))
            self._wake()

        return arrived

    def _wake(self) -> None:
        still = []
        for read, then, passed in self._waiting:
            obj = self.core.cache.current(read[0])
            assert obj is not None
            pages = range(*page_span(read[1], read[2]))
            if all(p in passed or self.core.cache.readable(obj, p, p + 1) for p in pages):
                self.at(self.now + READ_S, then)
                self.core.cache.unpin(obj, pages.start, pages.stop)
            else:
                still.append((read, then, passed))
        self._waiting = still

    def _finished(self, fetch: Fetch) -> None:
        fetch.open_ranges.clear()
        self.core.finished(fetch, fetch.bytes, self.now)
        self._dispatch()

    # -- the job ------------------------------------------------------------------------------

    def count(self, state: ReadState) -> int:
        return sum(s is state for s in self.states)

    @property
    def hit_ratio(self) -> float:
        return self.count(ReadState.HIT) / len(self.states)

    @property
    def amplification(self) -> float:
        return self.received / (len(self.unique) * 4096)


@dataclass
class Job:
    """Ranks in lockstep, each with workers that take whole batches in turn, as PyTorch's do."""

    lab: Lab
    batches: list[list[list[Read]]]  # [step][rank] -> reads
    workers: int = 2
    prefetch_factor: int = 4
    compute_s: float = 0.02
    waits: list[float] = field(default_factory=list)

    def start(self) -> None:
        ranks = len(self.batches[0])
        self._done: set[tuple[int, int]] = set()
        self._handed = [0] * ranks
        self._busy = [[False] * self.workers for _ in range(ranks)]
        self._queues: list[list[list[int]]] = [
            [[] for _ in range(self.workers)] for _ in range(ranks)
        ]
        self._step, self._ready_at, self._computing = 0, self.lab.now, False
        for rank in range(ranks):
            for _ in range(self.workers * self.prefetch_factor):
                self._hand_out(rank)

    def _hand_out(self, rank: int) -> None:
        step = self._handed[rank]
        if step >= len(self.batches):
            return
        self._handed[rank] += 1
        worker = step % self.workers
        self._queues[rank][worker].append(step)
        if not self._busy[rank][worker]:
            self._next(rank, worker)

    def _next(self, rank: int, worker: int) -> None:
        queue = self._queues[rank][worker]
        self._busy[rank][worker] = bool(queue)
        if queue:
            step = queue.pop(0)
            self._reads(rank, worker, step, iter(self.batches[step][rank]))

    def _reads(self, rank: int, worker: int, step: int, left: Iterable[Read]) -> None:
        left = iter(left)
        read = next(left, None)
        if read is None:
            self._done.add((step, rank))
            self._try_step()
            self._next(rank, worker)
            return
        self.lab.read(read, f"{rank}.{worker}", lambda: self._reads(rank, worker, step, left))

    def _try_step(self) -> None:
        if self._computing or self._step >= len(self.batches):
            return
        if any((self._step, r) not in self._done for r in range(len(self.batches[0]))):
            return
        self.waits.append(self.lab.now - self._ready_at)
        self._computing = True
        for rank in range(len(self.batches[0])):
            self._hand_out(rank)
        self.lab.at(self.lab.now + self.compute_s, self._computed)

    def _computed(self) -> None:
        self._computing = False
        self._step += 1
        self._ready_at = self.lab.now
        self._try_step()
