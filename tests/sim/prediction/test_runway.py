"""What was bought for an outage is there when the hub is away, and nothing more without."""

from dataclasses import replace

import numpy as np
import pytest

from hubspoke.core.ids import ReadState
from hubspoke.core.orders import distributed_sampler
from hubspoke.core.orders.candidates import FAMILIES, SHARDS_MAX
from hubspoke.core.runway import runway_s
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.path import PathConfig
from hubspoke.sim.prediction.recorder import CODES
from hubspoke.sim.prediction.workload import MIB, Size, Workload
from hubspoke.sim.prediction.workloads import BY_NAME
from hubspoke.sim.prediction.world import World

STEPS, STEP_S, OUTAGE_AT_S, OUTAGE_S = 200, 0.2, 15.0, 10.0
ITEMS = 3_000


def in_order(epoch: int, rank: int, step: int) -> list[Read]:
    return [(0, (step * 8 + i) * (128 << 10), 128 << 10) for i in range(8)]


def shuffled(epoch: int, rank: int, step: int) -> list[Read]:
    order = distributed_sampler(ITEMS, ranks=1, seed=42, epoch=epoch)[0]
    return [(n, 0, 64 << 10) for n in order[step * 15 : (step + 1) * 15].tolist()]


def away(world: World) -> None:
    world.engine.at(OUTAGE_AT_S, world.spoke.outage, OUTAGE_S)


def longest_wait(workload: Workload, seconds: float) -> tuple[float, World, list[float | None]]:
    world = World(workload, runway_s=seconds)
    told: list[float | None] = []

    def look() -> None:
        known = world.spoke.core.prediction
        told.append(runway_s(known.streams, known.epochs.sets.values(), world.engine.now))

    world.engine.at(OUTAGE_AT_S - 0.5, look)
    world.run()
    return float(np.max(world.recorder.reads().latencies)), world, told


def workload(job: JobSpec, names: list[str], size: int) -> Workload:
    path = PathConfig(rate=40e6)
    sizes = [size] * len(names)
    made = Workload("T", "test", names, sizes, sum(sizes), [job], job.clients, path)
    return replace(made, happenings=away)


def test_a_sequential_job_goes_on_through_an_outage_that_it_bought() -> None:
    job = JobSpec(1, 4, STEP_S, [STEPS], in_order)
    file = workload(job, ["b/tokens.bin"], STEPS * MIB)
    waited, world, told = longest_wait(file, 0.0)
    assert waited > OUTAGE_S / 2 and told[0] is not None and told[0] < 5
    waited, world, told = longest_wait(file, OUTAGE_S + 5)
    assert waited < 0.5
    assert told[0] is not None and told[0] > OUTAGE_S
    assert world.path.delivered <= 1.02 * STEPS * MIB


def test_a_job_in_a_known_order_does_too() -> None:
    job = JobSpec(1, 4, STEP_S, [ITEMS // 15], shuffled)
    files = workload(job, [f"b/images/{i:06}.jpg" for i in range(ITEMS)], 64 << 10)
    waited, world, told = longest_wait(files, OUTAGE_S + 5)
    assert waited < 0.5
    assert told[0] is not None and told[0] > OUTAGE_S
    assert world.path.delivered <= 1.02 * ITEMS * (64 << 10)


def test_two_jobs_and_a_scan_go_on_through_an_outage_that_takes_the_whole_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """W12: 120 s of two jobs are 4.8 of the 5 GB, so all that is kept for later has to go."""
    # What the search goes through for the scan, which has no order, takes most of the time.
    monkeypatch.setattr("hubspoke.core.inference.search.EPOCHS_THOROUGH", 3)
    few = tuple(f for f in FAMILIES if f.most > SHARDS_MAX)
    monkeypatch.setattr("hubspoke.core.inference.search.FAMILIES", few)
    made = BY_NAME["W12"](Size(128))
    jobs = [replace(job, steps=[700]) for job in made.jobs]
    world = World(replace(made, jobs=jobs), runway_s=120.0)
    world.run()
    reads = world.recorder.reads()
    of_jobs = reads.batches >= 0
    away = of_jobs & (reads.at > 300) & (reads.at < 420)
    assert away.sum() > 300
    assert reads.latencies[away].max() < 1.0
    assert (reads.states[away] == CODES[ReadState.HIT]).all()
