"""A job that changes its way of reading: noticed within ten batches, named, and predicted anew."""

import random

from hubspoke.core.convergence import Relearned
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Workload
from hubspoke.sim.prediction.world import World

RANKS, PER_RANK, RECORD = 4, 8, 64 << 10
BATCH = RANKS * PER_RANK
FILES, PER_FILE = 4, 800
N = FILES * PER_FILE
STEPS = N // BATCH
STRIDE = 4


def sequential(step: int, rank: int) -> list[int]:
    first = (step * RANKS + rank) * PER_RANK
    return list(range(first, first + PER_RANK))


def strided(step: int, rank: int) -> list[int]:
    """Each rank has a file of its own and reads every fourth record of it."""
    first = rank * PER_FILE + step * PER_RANK * STRIDE
    return list(range(first, first + PER_RANK * STRIDE, STRIDE))


def shuffled(seed: int) -> list[int]:
    order = list(range(N))
    random.Random(seed).shuffle(order)
    return order


class Ways:
    """Several ways of reading one after the other, each for so many steps."""

    def __init__(self, *ways: tuple[str, int]) -> None:
        self.ways = ways
        self.order = shuffled(1)

    def reads(self, epoch: int, rank: int, step: int) -> list[Read]:
        for way, steps in self.ways:
            if step < steps:
                return [
                    (n // PER_FILE, n % PER_FILE * RECORD, RECORD)
                    for n in self._of(way, rank, step)
                ]
            step -= steps
        raise AssertionError(step)

    def _of(self, way: str, rank: int, step: int) -> list[int]:
        if way == "shuffled":
            return [self.order[n] for n in sequential(step, rank)]
        return sequential(step, rank) if way == "sequential" else strided(step, rank)


def run(*ways: tuple[str, int]) -> tuple[World, list[tuple[int, Relearned]]]:
    """With the batch at which each change was noticed."""
    steps = sum(n for _, n in ways)
    job = JobSpec(RANKS, 1, 0.1, [steps], Ways(*ways).reads)
    names = [f"b/set/{i}.bin" for i in range(FILES)]
    size = PER_FILE * RECORD
    world = World(
        Workload("T", "test", names, [size] * FILES, 64 << 20, [job], RANKS), search_s=None
    )
    world.run()
    noticed = world.spoke.core.ledger.convergence.relearned_entries()
    batches = world.recorder.reads().batches
    return world, [(int(batches[min(e.reads_before, len(batches) - 1)]), e) for e in noticed]


def hit_ratio(world: World, first: int, last: int) -> float:
    reads = world.recorder.reads()
    of = (reads.batches >= first) & (reads.batches < last)
    return float((reads.states[of] == 0).mean())


def test_each_change_is_noticed_named_and_overcome() -> None:
    world, noticed = run(("sequential", STEPS), ("strided", 25), ("shuffled", STEPS))
    assert [e.cause for _, e in noticed] == [
        "b/set/: reads were sequential, are strided by 262,144",
        "b/set/: reads were strided by 262,144, are random",
    ]
    (strided_at, _), (shuffled_at, _) = noticed
    assert STEPS <= strided_at <= STEPS + 10
    assert STEPS + 25 <= shuffled_at <= STEPS + 35
    assert hit_ratio(world, 10, STEPS) >= 0.95
    assert hit_ratio(world, STEPS + 10, STEPS + 25) >= 0.95
    # A third of the epoch fits: what is unread has all come once a third of it is left.
    assert hit_ratio(world, STEPS + 25 + 70, 2 * STEPS + 25) >= 0.95
    of_epoch = noticed[-1][1]
    assert of_epoch.reads_to_threshold is not None
