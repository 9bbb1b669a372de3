"""What prediction costs: microseconds of one core for each access, by how the reads come.

    python bench/prediction_cost.py [--reads 40000] [--batch 40] [--json]

The core alone: a read is asked for, and what was fetched for it or in advance is there at once,
off the clock. On the clock is what prediction adds to a read: the append to the ring, then
`predict` for a batch of accesses (2 ms of 20,000 reads a second are 40). The book of the cache
is shown beside it; it would be kept without prediction too. The target: 15 us, which leaves a
third of a core to everything else at 20,000 accesses a second.
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
from dataclasses import dataclass, field

from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig
from hubspoke.core.streams import Access

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RTT_S = 0.06
READS_PER_S = 20_000.0

Read = tuple[int, int, int, int]  # object, offset, length, client


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


@dataclass
class Spoke:
    """A core whose fetches arrive at once."""

    case: Case
    now: float = 0.0
    predict_s: float = 0.0
    book_s: float = 0.0
    rounds_us: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = Names(self.case.objects, self.case.size)
        config = SpokeConfig(self.case.capacity, True)
        self.core = SpokeCore(config, RuleRanker().score, self.names, 0.0, 0)
        self.core.path.round_trip(RTT_S)

    def batch(self, reads: list[Read]) -> None:
        core = self.core
        asked = []
        for number, offset, length, client in reads:
            self.now += 1 / READS_PER_S
            obj, _ = core.open(self.names.names[number], self.names.entry)
            length = min(length, obj.size - offset)
            state, _ = core.arrive(obj, offset, length)
            asked.append(Access(obj, offset, length, str(client), self.now, state))
            if state is not ReadState.HIT:
                core.demand(obj, offset, length)
        clock = time.thread_time
        book = clock()
        for a in asked:
            core.access(a.obj, a.offset, a.length, a.client, a.state, a.at)
        events = core.accesses.drain()
        began = clock()
        for a in events:
            core.accesses.read(a)
        core.predict(self.now)
        ended = clock()
        self.book_s += began - book
        self.predict_s += ended - began
        self.deliver()

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


def cost(case: Case, reads: int, batch: int) -> dict[str, float]:
    """Medians of rounds, after a first one to warm up."""
    spoke, source = Spoke(case), case.reads()
    predict, book = [], []
    gc.collect()
    for _ in range(9):
        spoke.predict_s = spoke.book_s = 0.0
        n = 0
        while n < reads // 8:
            some = list(itertools.islice(source, batch))
            if not some:
                break
            spoke.batch(some)
            n += len(some)
        predict.append(spoke.predict_s / n * 1e6)
        book.append(spoke.book_s / n * 1e6)
    ledger = spoke.core.ledger
    return {
        "predict_us": round(statistics.median(predict[1:]), 2),
        "worst_round_us": round(max(predict), 2),
        "book_us": round(statistics.median(book[1:]), 2),
        "streams": len(spoke.core.prediction.streams),
        "prefetch_issued_mib": ledger.prefetch_issued_bytes >> 20,
    }


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--reads", type=int, default=40_000, metavar="N", help="reads of each case")
    p.add_argument("--batch", type=int, default=40, metavar="N", help="accesses a call")
    p.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = p.parse_args()
    found = {n: cost(c, a.reads, a.batch) for n, c in CASES.items() if a.only in n}
    if a.json:
        print(json.dumps({"schema": 1, "kind": "prediction_cost", "cases": found}, indent=1))
        return 0
    print(f"us of one core for each access, {a.batch} accesses a call")
    for name, figures in found.items():
        print(f"  {name:40}" + "  ".join(f"{k}={v}" for k, v in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
