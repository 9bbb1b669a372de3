"""W4, records at random: PyTorch's DistributedSampler over packed records, 4 ranks x 4 workers.

The seed is the sampler's default, with set_epoch, so every epoch has its own permutation, which
blind fill does not know.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders import distributed_sampler
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size, Workload

RECORDS, RECORD, FILES = 1_281_167, 112_640, 128
RANKS, WORKERS, BATCH, EPOCHS = 4, 4, 256, 3
DEMAND = 800e6


def build(size: Size) -> Workload:
    """The workload at this size."""
    records, files = size.of(RECORDS), size.of(FILES)
    batch = max(1, BATCH // size.part)
    per_file = -(-records // files)

    @lru_cache(1)
    def order(epoch: int) -> npt.NDArray[np.int64]:
        return distributed_sampler(records, ranks=RANKS, seed=size.seed, epoch=epoch)

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        mine = order(epoch)[rank, step * batch : (step + 1) * batch].tolist()
        return [(n // per_file, n % per_file * RECORD, RECORD) for n in mine]

    steps = math.ceil(math.ceil(records / RANKS) / batch)
    step_s = RANKS * batch * RECORD / (DEMAND / size.part)
    job = JobSpec(RANKS, WORKERS, step_s, [steps] * EPOCHS, reads)
    of_file = [min(per_file, records - i * per_file) * RECORD for i in range(files)]
    return Workload(
        name="W4",
        title="records at random, DistributedSampler",
        names=[f"data/records/{i:05}.rec" for i in range(files)],
        sizes=of_file,
        capacity=records * RECORD // 2,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
    )
