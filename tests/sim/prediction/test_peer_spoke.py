"""Peers on the simulated path: what a reader waits for, and what crosses."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.sim.prediction.compare import planned, trace_of
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.recorder import Reads
from hubspoke.sim.prediction.result import result
from hubspoke.sim.prediction.workload import Size, Workload
from hubspoke.sim.prediction.workloads import BY_NAME
from hubspoke.sim.prediction.world import World

MISS, LATE, HIT = 2, 1, 0


def workload(steps: list[list[Read]], sizes: list[int], capacity: int, ranks: int = 1) -> Workload:
    """Every rank reads the same, one step after the other."""
    job = JobSpec(ranks, 1, 1.0, [len(steps)], lambda epoch, rank, step: steps[step])
    names = [f"data/{i}" for i in range(len(sizes))]
    return Workload("T", "", names, sizes, capacity, [job], 1)


def run(what: Workload, policy: str) -> tuple[World, Reads]:
    world = World(what, policy=policy)
    world.run()
    return world, world.recorder.reads()


def test_a_miss_pays_the_round_trip_and_a_hit_the_drive() -> None:
    one = [(0, 0, PAGE_BYTES)]
    world, reads = run(workload([one, one], [PAGE_BYTES], PAGE_BYTES), "lru")
    assert reads.states.tolist() == [MISS, HIT]
    assert 0.06 <= reads.latencies[0] < 0.065
    assert reads.latencies[1] < 0.001
    assert world.path.delivered == PAGE_BYTES
    assert world.disk.written_bytes == PAGE_BYTES


def test_without_a_cache_nothing_is_written_and_each_read_crosses() -> None:
    one = [(0, 0, PAGE_BYTES)]
    world, reads = run(workload([one, one], [PAGE_BYTES], PAGE_BYTES), "none")
    assert reads.states.tolist() == [MISS, MISS]
    assert world.path.delivered == 2 * PAGE_BYTES
    assert world.disk.written_bytes == 0


def test_two_readers_of_one_page_share_its_fetch() -> None:
    what = workload([[(0, 0, PAGE_BYTES)]], [PAGE_BYTES], PAGE_BYTES, ranks=2)
    world, reads = run(what, "lru")
    assert reads.states.tolist() == [MISS, LATE]
    assert reads.latencies[1] == pytest.approx(reads.latencies[0])
    assert world.path.delivered == PAGE_BYTES


def test_a_read_larger_than_a_frame_waits_for_all_of_it() -> None:
    size = 3 << 20
    world, reads = run(workload([[(0, 0, size)], [(0, 0, size)]], [size], size), "lru")
    assert reads.states.tolist() == [MISS, HIT]
    assert world.path.delivered == size
    alone = run(workload([[(0, 0, PAGE_BYTES)]], [size], size), "lru")[1].latencies[0]
    assert reads.latencies[0] > alone


def test_every_read_is_answered_and_waste_is_what_was_fetched_in_vain() -> None:
    for policy in ("readahead", "leap"):
        what = BY_NAME["W2"](Size(256))
        world, _ = run(what, policy)
        document = result(world, 0.0)
        planned_reads = sum(
            len(job.reads(epoch, rank, step))
            for job in what.jobs
            for epoch, steps in enumerate(job.steps)
            for rank in range(job.ranks)
            for step in range(steps)
        )
        assert document["reads"] == planned_reads
        assert document["of_minimum"] >= 1
        assert 0 <= document["waste"] < 0.05
        assert document["hit_ratio"] > 0.5


def test_a_window_behind_the_end_of_reading_is_waste() -> None:
    size = 100 * PAGE_BYTES
    world, _ = run(workload([[(0, 0, PAGE_BYTES)]] * 2, [size], size), "readahead")
    document = result(world, 0.0)
    ahead = world.path.delivered - PAGE_BYTES
    assert ahead > 0
    assert document["waste"] == ahead / world.path.delivered


def test_belady_in_a_run_fetches_about_the_least() -> None:
    world, _ = run(BY_NAME["W10"](Size(512)), "belady")
    assert 1 <= result(world, 0.0)["of_minimum"] < 1.01


def test_what_is_planned_is_what_is_read() -> None:
    what = BY_NAME["W10"](Size(512))
    _, reads = run(what, "none")
    done = trace_of(what.names, what.sizes, reads)
    plan = planned(what)

    def sorted_reads(*columns: npt.NDArray[np.signedinteger[Any]]) -> list[list[int]]:
        rows = np.stack([c.astype(np.int64) for c in columns])
        return [row.tolist() for row in rows[:, np.lexsort(rows)]]

    assert sorted_reads(plan.objects, plan.offsets, plan.lengths) == sorted_reads(
        done.objects, done.offsets, done.lengths
    )
