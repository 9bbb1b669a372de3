"""W12, chaos: two jobs over the same small files, scans, an outage and a rename.

Both jobs draw all files once an epoch (DistributedSampler, seeds 42 and 1234, set_epoch), the
second one with seed 7 from its second epoch on. Every 200 steps of the first a scan reads the
next 10,000 files in listing order as fast as it gets them. The hub is out of reach for two minutes
from t = 300 s, and at t = 600 s a name gets another version.
"""

import math
from collections.abc import Callable
from functools import lru_cache

from hubspoke.core.orders import distributed_sampler
from hubspoke.sim.prediction.job import JobSpec, Read, Scan
from hubspoke.sim.prediction.workload import Size, Workload
from hubspoke.sim.prediction.world import World

FILES, FILE_BYTES = 200_000, 100_000
WORKERS, BATCH, EPOCHS, DEMAND = 4, 50, 2, 20e6
CAPACITY = 5_000_000_000
SCAN_FILES, SCAN_STEPS = 10_000, 200
OUTAGE_AT_S, OUTAGE_S, RENAME_AT_S = 300.0, 120.0, 600.0
SEEDS = ((42, 43), (1234, 7))  # by job and epoch


def build(size: Size) -> Workload:
    """The workload at this size."""
    files, scanned = size.of(FILES), size.of(SCAN_FILES)
    batch = max(1, BATCH // size.part)
    step_s = batch * FILE_BYTES / (DEMAND / size.part)

    def spec(seeds: tuple[int, ...]) -> JobSpec:
        @lru_cache(1)
        def order(epoch: int) -> list[int]:
            drawn = distributed_sampler(files, ranks=1, seed=seeds[epoch] + size.seed)
            found: list[int] = drawn[0].tolist()
            return found

        def reads(epoch: int, rank: int, step: int) -> list[Read]:
            mine = order(epoch)[step * batch : (step + 1) * batch]
            return [(n, 0, FILE_BYTES) for n in mine]

        return JobSpec(1, WORKERS, step_s, [math.ceil(files / batch)] * EPOCHS, reads)

    jobs = [spec(seeds) for seeds in SEEDS]
    return Workload(
        name="W12",
        title="chaos: two jobs, scans, an outage, a rename",
        names=[f"data/images/{i:06}.jpg" for i in range(files)],
        sizes=[FILE_BYTES] * files,
        capacity=CAPACITY // size.part,
        jobs=jobs,
        first_misses=sum(job.clients for job in jobs),
        path=size.path(),
        happenings=_happenings(files, scanned),
    )


def _happenings(files: int, scanned: int) -> Callable[[World], None]:
    def happen(world: World) -> None:
        world.engine.at(OUTAGE_AT_S, world.spoke.outage, OUTAGE_S)
        world.engine.at(RENAME_AT_S, world.spoke.changed, files // 2, "v2")
        scan = Scan(world.engine, world.spoke, world.clients)

        def stepped(steps: int) -> None:
            if steps % SCAN_STEPS == 0 and not scan.running:
                first = (steps // SCAN_STEPS - 1) * scanned
                scan.start([(n % files, 0, FILE_BYTES) for n in range(first, first + scanned)])

        world.jobs[0].on_step.append(stepped)

    return happen
