"""W5, a shuffle without a seed: PyTorch's RandomSampler over a million small files, 8 workers.

Each epoch's seed comes from the system's entropy, so it has to be searched for anew in each one;
until it is found, blind fill is all there is. The seeds are here for the search's scoring alone
(`order_answers`).
"""

import math
from functools import lru_cache

import numpy as np

from hubspoke.core.orders import torch_randperm
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size, Workload

FILES, FILE_BYTES = 1_000_000, 100_000
WORKERS, BATCH, EPOCHS, STEP_S = 8, 256, 3, 0.25


def build(size: Size) -> Workload:
    """The workload at this size."""
    files, batch = size.of(FILES), max(1, BATCH // size.part)
    drawn = np.random.default_rng((5, size.seed)).integers(2**24, 2**32, EPOCHS)
    seeds = [int(seed) for seed in drawn]

    @lru_cache(1)
    def order(epoch: int) -> list[int]:
        found: list[int] = torch_randperm(files, seeds[epoch]).tolist()
        return found

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        mine = order(epoch)[step * batch : (step + 1) * batch]
        return [(n, 0, FILE_BYTES) for n in mine]

    job = JobSpec(1, WORKERS, STEP_S, [math.ceil(files / batch)] * EPOCHS, reads)
    return Workload(
        name="W5",
        title="shuffled files, no seed",
        names=[f"data/images/{i:07}.jpg" for i in range(files)],
        sizes=[FILE_BYTES] * files,
        capacity=files * FILE_BYTES // 2,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
        seeds=seeds,
    )
