"""A posted plan of an order that nobody could guess, in the simulator."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from hubspoke.core.ids import ReadState
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.recorder import CODES
from hubspoke.sim.prediction.result import result
from hubspoke.sim.prediction.workload import Workload
from hubspoke.sim.prediction.world import World

FILES, FILE_BYTES, BATCH, WORKERS, EPOCHS = 20_000, 100_000, 64, 8, 2
POST = 4_096


def workload(hinted: int, *, records: bool = False, ranks: int = 1) -> Workload:
    """hinted: epochs that are posted when they begin, by each rank its own part."""
    batch = BATCH // ranks
    per_object = 100 if records else 1
    each = FILES // ranks

    @lru_cache(EPOCHS)
    def order(epoch: int) -> list[int]:
        found: list[int] = np.random.default_rng((99, 7, epoch)).permutation(FILES).tolist()
        return found

    def read(item: int) -> Read:
        number, place = divmod(item, per_object)
        return number, place * FILE_BYTES, FILE_BYTES

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        mine = order(epoch)[rank * each : (rank + 1) * each]
        return [read(i) for i in mine[step * batch : (step + 1) * batch]]

    steps = math.ceil(each / batch)
    job = JobSpec(ranks, WORKERS, 0.0625, [steps] * EPOCHS, reads)

    def happen(world: World) -> None:
        def post(epoch: int) -> None:
            for rank in range(ranks):
                mine = order(epoch)[rank * each : (rank + 1) * each]
                for at in range(0, each, POST):
                    part = [read(i) for i in mine[at : at + POST]]
                    world.spoke.hint(f"rank-{rank}", part, append=at > 0)

        def stepped(done: int) -> None:
            epoch, step = divmod(done, steps)
            if not step and epoch < hinted:
                post(epoch)

        if hinted:
            post(0)
        world.jobs[0].on_step.append(stepped)

    count = FILES // per_object
    return Workload(
        name="hinted",
        title="an order that nobody could guess",
        names=[f"data/images/{i:05}.jpg" for i in range(count)],
        sizes=[per_object * FILE_BYTES] * count,
        capacity=FILES * FILE_BYTES // 2,
        jobs=[job],
        first_misses=job.clients,
        happenings=happen,
    )


def run(made: Workload) -> tuple[World, dict[str, Any]]:
    world = World(made, search_s=None)
    world.run()
    return world, result(world, 0.0)


def hit_ratio_from_the_second_batch(world: World) -> float:
    reads = world.recorder.reads()
    later = reads.batches > 0
    return float((reads.states[later] == CODES[ReadState.HIT]).mean())


def test_files_in_an_order_that_nobody_could_guess() -> None:
    world, found = run(workload(EPOCHS))
    assert hit_ratio_from_the_second_batch(world) >= 0.99
    assert found["waste"] == 0.0
    assert found["of_minimum"] <= 1.05
    assert found["misses"] < 200


def test_records_of_packed_files_by_ranks_that_post_their_own_parts() -> None:
    world, found = run(workload(EPOCHS, records=True, ranks=2))
    assert hit_ratio_from_the_second_batch(world) >= 0.98
    assert found["waste"] == 0.0
    assert found["of_minimum"] <= 1.05


def test_without_a_plan_the_same_job_waits() -> None:
    world, _ = run(workload(0))
    assert hit_ratio_from_the_second_batch(world) < 0.9
