"""Readers that look as if they would read all of a data set, and do not: what is brought for
nothing is bounded by what they read, and less comes when an epoch has shown that it was so."""

import random
from collections.abc import Sequence

from hubspoke.core.epochs.trust import AHEAD_MAX, LEAST_BYTES
from hubspoke.core.orders.torch_samplers import torch_randperm
from hubspoke.sim.prediction.job import JobSpec
from hubspoke.sim.prediction.workload import Workload
from hubspoke.sim.prediction.world import World

FILES, SIZE, WORKERS, EACH = 40_000, 256 << 10, 4, 8
STEP = WORKERS * EACH
STEP_S = 0.4  # 21 MB/s of a path of 1 GB/s: all comes within half a minute
PART = FILES // 20 // STEP * STEP
FLYING_BYTES = 120_000_000  # of the path, two round trips


def reader(orders: Sequence[Sequence[int]]) -> Workload:
    """One list of files for each epoch."""

    def reads(epoch: int, rank: int, step: int) -> list[tuple[int, int, int]]:
        at = (step * WORKERS + rank) * EACH
        return [(number, 0, SIZE) for number in orders[epoch][at : at + EACH]]

    names = [f"b/d/{i:06}" for i in range(FILES)]
    job = JobSpec(WORKERS, 1, STEP_S, [len(o) // STEP for o in orders], reads)
    return Workload("P", "planted", names, [SIZE] * FILES, 16 << 30, [job], WORKERS)


def brought(orders: Sequence[Sequence[int]], search_s: float | None = None) -> int:
    """Bytes that crossed."""
    world = World(reader(orders), search_s=search_s)
    world.run()
    return world.path.delivered


def part() -> list[int]:
    return random.Random(4).sample(range(FILES), PART)


def test_of_a_job_that_ends_early_the_fill_is_a_multiple_of_what_it_read() -> None:
    most = (1 + AHEAD_MAX) * PART * SIZE + LEAST_BYTES + FLYING_BYTES
    assert most < 0.5 * FILES * SIZE
    assert brought([part()]) <= most


def test_so_it_is_of_one_whose_order_is_known() -> None:
    order = torch_randperm(FILES, 0).tolist()
    most = (1 + AHEAD_MAX) * PART * SIZE + LEAST_BYTES + FLYING_BYTES
    assert brought([order[:PART]], search_s=60.0) <= most


def test_less_comes_when_an_epoch_has_shown_that_it_was_for_nothing() -> None:
    mine = part()
    again = [random.Random(i).sample(mine, PART) for i in range(2)]
    first, all_ = brought([mine]), brought([mine, *again])
    assert all_ - first <= 0.25 * first
