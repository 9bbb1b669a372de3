"""What prediction costs: microseconds of one core for each access, by how the reads come.

    python bench/prediction_cost.py [--reads 16000] [--runs 3] [--batch 40] [--only TEXT] [--json]

The core alone: a read is asked for, and what was fetched for it or in advance is there at once.

    append_us    what a hit pays on the read path, of any way: its place in the ring
    predict_us   off the read path: `predict` for a batch of accesses (2 ms of 20,000 reads a
                 second are 40), shared among them; 15 are wanted, a third of a core at 20,000
    book_us      the cache's book of a read that is no plain hit; kept without prediction, too
    all_us       all that the core does for an access: state, book, ring, prediction, requests,
                 arrivals; 50 are 20,000 accesses a second on one core

CPU time of this process and not the clock's, medians of rounds and of runs, with the daemon's own
settings of the search for cycles (a listing of 200,000 names is no part of it). Neighbours on the
same core slow that down, too: `yardstick_us` is what one fixed loop took between the rounds, in
the middle and at worst, by which two runs can be compared.
"""

import argparse
import gc
import itertools
import json
import random
import statistics
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hubspoke.adapters.interpreter import keep_all_that_is_there, serve_first
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RTT_S = 0.06
READS_PER_S = 20_000.0
ROUNDS = 8

Read = tuple[int, int, int, int]  # object, offset, length, client
Figures = dict[str, float]


class Names:
    """core.generators.Listing of one folder."""

    def __init__(self, count: int, size: int) -> None:
        self.names = [ObjectName("b", f"d/{i:07}") for i in range(count)]
        self.entry = ObjectEntry(Version("v1"), size, "e", 0)

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        at = bisect_right(self.names, name)
        return [(n, self.entry) for n in self.names[at : at + limit]]


@dataclass(frozen=True)
class Case:
    """objects of one size, and how they are read; capacity: of the cache."""

    objects: int
    size: int
    reads: Callable[[], Iterator[Read]]
    capacity: int = 4 * GIB


def whole(numbers: Iterator[int], length: int, clients: int = 8) -> Iterator[Read]:
    return ((n, 0, length, i % clients) for i, n in enumerate(numbers))


def places(offsets: Iterator[int], length: int, clients: int = 8) -> Iterator[Read]:
    return ((0, at, length, i % clients) for i, at in enumerate(offsets))


def at_random(count: int, length: int) -> Iterator[int]:
    rng = random.Random(1)
    return (rng.randrange(count) * length for _ in itertools.count())


def shuffled(count: int) -> Iterator[int]:
    order = list(range(count))
    random.Random(2).shuffle(order)
    return itertools.cycle(order)


def slices(size: int, length: int, workers: int = 8) -> Iterator[Read]:
    each = size // workers
    for at in range(0, each, length):
        for w in range(workers):
            yield 0, w * each + at, length, w


def batches(length: int, workers: int, batch: int) -> Iterator[Read]:
    """W1: each worker has a batch of its own, all go through theirs at once."""
    for base in itertools.count(0, workers * batch):
        for i in range(batch):
            for w in range(workers):
                yield 0, (base + w * batch + i) * length, length, w


def window(length: int, width: int) -> Iterator[int]:
    rng, n = random.Random(3), width // length
    for base in itertools.count(0, width):
        yield from (base + i * length for i in rng.sample(range(n), n))


def many(objects: int, length: int) -> Iterator[Read]:
    for at in itertools.count(0, length):
        for number in range(objects):
            yield number, at, length, number


CASES = {
    "sequential, 8 workers, 8 KiB": Case(
        1, 64 * GIB, lambda: places(itertools.count(0, 8 * KIB), 8 * KIB)
    ),
    "sequential, 1 worker, 1 MiB": Case(
        1, 64 * GIB, lambda: places(itertools.count(0, MIB), MIB, 1)
    ),
    "shuffled inside 2 MiB, 8 KiB": Case(
        1, 64 * GIB, lambda: places(window(8 * KIB, 2 * MIB), 8 * KIB)
    ),
    "dealt batches, 64 workers, 4 KiB": Case(1, 64 * GIB, lambda: batches(4 * KIB, 64, 48)),
    "slices of one file, 8 workers, 64 KiB": Case(1, 16 * GIB, lambda: slices(16 * GIB, 64 * KIB)),
    "strided, 1 in 8, 64 KiB": Case(
        1, 64 * GIB, lambda: places(itertools.count(0, 512 * KIB), 64 * KIB)
    ),
    "4,096 files at once, 64 KiB": Case(4_096, 64 * MIB, lambda: many(4_096, 64 * KIB)),
    "random, one file of 40 GiB, 4 KiB": Case(
        1, 40 * GIB, lambda: places(at_random(10 * MIB, 4 * KIB), 4 * KIB)
    ),
    "random, one file of 40 GiB, 128 KiB": Case(
        1, 40 * GIB, lambda: places(at_random(40 * 8 * KIB, 128 * KIB), 128 * KIB)
    ),
    "random, 40 files of 1 GiB, 4 KiB": Case(
        40,
        GIB,
        lambda: (
            (at // GIB, at % GIB, 4 * KIB, i % 8)
            for i, at in enumerate(at_random(10 * MIB, 4 * KIB))
        ),
    ),
    "shuffled, 200,000 files of 100 KB": Case(
        200_000, 100_000, lambda: whole(shuffled(200_000), 100_000)
    ),
    "in order, 200,000 files of 100 KB": Case(
        200_000, 100_000, lambda: whole(iter(range(200_000)), 100_000)
    ),
}


def cpu_us() -> float:
    """CPU time of this process so far."""
    return time.process_time_ns() / 1e3


def yardstick() -> float:
    """us of a fixed loop of what the core is made of: dicts, ints, tuples, calls."""
    began, seen = cpu_us(), dict[int, tuple[int, int]]()
    for i in range(1_000):
        seen[i & 63] = max(i, 7), len(seen)
    return cpu_us() - began


@dataclass
class Spoke:
    """A core whose fetches arrive at once. Counters are us of CPU since they were reset."""

    case: Case
    now: float = 0.0
    predict_us: float = 0.0
    book_us: float = 0.0
    all_us: float = 0.0

    def __post_init__(self) -> None:
        self.names = Names(self.case.objects, self.case.size)
        config = SpokeConfig(self.case.capacity, True)
        self.core = SpokeCore(config, RuleRanker().score, self.names, 0.0, 0)
        self.core.path.round_trip(RTT_S)

    def batch(self, reads: list[Read]) -> None:
        core = self.core
        began = cpu_us()
        asked = []
        for number, offset, length, client in reads:
            self.now += 1 / READS_PER_S
            obj, _ = core.open(self.names.names[number], self.names.entry)
            length = min(length, obj.size - offset)
            state, _ = core.arrive(obj, offset, length)
            asked.append((obj, offset, length, str(client), state, self.now))
            if state is not ReadState.HIT:
                core.demand(obj, offset, length)
        book = cpu_us()
        for access in asked:
            core.access(*access)
        predict = cpu_us()
        core.predict(self.now)
        predicted = cpu_us()
        self.deliver()
        self.book_us += predict - book
        self.predict_us += predicted - predict
        self.all_us += cpu_us() - began

    def deliver(self) -> None:
        while True:
            fetches, _ = self.core.dispatch(self.now)
            if not fetches:
                return
            for fetch in fetches:
                for i, r in enumerate(fetch.ranges):
                    if r.stored:
                        self.core.arrived(fetch, i, r.offset, r.length, r.length, self.now)
                    else:
                        self.core.passed(fetch, i, r.offset, r.length, r.length, self.now)
                    self.core.closed(fetch, i)
                self.core.finished(fetch, fetch.bytes, self.now)


def cost(case: Case, reads: int, batch: int, yardsticks: list[float]) -> dict[str, float]:
    """Medians of rounds, after a first one to warm up."""
    spoke, source = Spoke(case), case.reads()
    rounds: dict[str, list[float]] = {"predict_us": [], "book_us": [], "all_us": []}
    gc.unfreeze()
    gc.collect()
    keep_all_that_is_there()
    for _ in range(ROUNDS + 1):
        spoke.predict_us = spoke.book_us = spoke.all_us = 0.0
        n = 0
        while n < reads // ROUNDS:
            some = list(itertools.islice(source, batch))
            if not some:
                break
            spoke.batch(some)
            n += len(some)
        for name, figures in rounds.items():
            figures.append(getattr(spoke, name) / n)
        yardsticks.append(yardstick())
    return {
        **{name: statistics.median(figures[1:]) for name, figures in rounds.items()},
        "worst_round_us": max(rounds["predict_us"]),
        "streams": len(spoke.core.prediction.streams),
        "prefetch_issued_mib": spoke.core.ledger.prefetch_issued_bytes >> 20,
    }


def costs(case: Case, reads: int, runs: int, batch: int, yardsticks: list[float]) -> Figures:
    """`cost` in the middle of some runs."""
    found = [cost(case, reads, batch, yardsticks) for _ in range(runs)]
    return {name: round(statistics.median(f[name] for f in found), 2) for name in found[0]}


def append_us(hits: int = 2_000, rounds: int = 25) -> float:
    """Of a hit whose pages were read before, for its place in the ring."""
    spoke = Spoke(CASES["sequential, 8 workers, 8 KiB"])
    obj, _ = spoke.core.open(spoke.names.names[0], spoke.names.entry)
    accesses, found = spoke.core.accesses, list[float]()
    for _ in range(rounds):
        began = cpu_us()
        for _ in range(hits):
            accesses.hit(obj, 0, 8 * KIB, "c", 1.0, 0.001)
        found.append((cpu_us() - began) / hits)
        accesses.drain()
    return round(statistics.median(found), 2)


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--reads", type=int, default=16_000, metavar="N", help="reads of each case")
    p.add_argument("--runs", type=int, default=3, metavar="N", help="of each case")
    p.add_argument("--batch", type=int, default=40, metavar="N", help="accesses a call")
    p.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = p.parse_args()
    serve_first()
    yardsticks: list[float] = []
    append = append_us()
    found = {
        n: costs(c, a.reads, a.runs, a.batch, yardsticks) for n, c in CASES.items() if a.only in n
    }
    yard = {
        "median": round(statistics.median(yardsticks), 1),
        "worst": round(max(yardsticks), 1),
    }
    if a.json:
        report = {"schema": 2, "kind": "prediction_cost", "append_us": append}
        print(json.dumps({**report, "yardstick_us": yard, "cases": found}, indent=1))
        return 0
    print(f"CPU us for each access, {a.batch} accesses a call; medians of {a.runs} runs")
    print(f"append_us={append}  yardstick_us={yard['median']}, at worst {yard['worst']}")
    for name, figures in found.items():
        print(f"  {name:40}" + "  ".join(f"{k}={v:g}" for k, v in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
