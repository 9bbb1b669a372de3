"""W7, MosaicML's StreamingDataset: samples of many shards at once, 2 nodes x 8 ranks x 8 workers.

py1e moves a sample by up to half a block, which is most of the data set: nearly all shards are open
at any time, so what is fetched has to be samples. The seed is the package's default.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders import mosaicml
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size, Workload

SHARDS, SAMPLES, SAMPLE_BYTES = 1_024, 4_096, 16_384
NODES, RANKS, WORKERS, BATCH, EPOCHS = 2, 8, 8, 64, 2
DEMAND = 300e6


def build(size: Size) -> Workload:
    """The workload at this size."""
    shards, batch = size.cut(SHARDS), max(1, BATCH // size.part)
    samples = shards * SAMPLES
    places = mosaicml.partition(
        samples, canonical_nodes=NODES, nodes=NODES, ranks=RANKS, workers=WORKERS, batch=batch
    )

    @lru_cache(1)
    def order(epoch: int) -> npt.NDArray[np.int64]:
        seed = mosaicml.SEED + size.seed
        sizes = [SAMPLES] * shards
        return mosaicml.shuffled_samples(sizes, canonical_nodes=NODES, seed=seed, epoch=epoch)

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        turn, worker = divmod(step, WORKERS)
        mine = places[rank // RANKS, rank % RANKS, worker, turn]
        numbers = order(epoch)[mine[mine >= 0]].tolist()
        return [(n // SAMPLES, n % SAMPLES * SAMPLE_BYTES, SAMPLE_BYTES) for n in numbers]

    ranks = NODES * RANKS
    step_s = ranks * batch * SAMPLE_BYTES / (DEMAND / size.part)
    steps = WORKERS * places.shape[3]
    job = JobSpec(ranks, WORKERS, step_s, [steps] * EPOCHS, reads)
    return Workload(
        name="W7",
        title="MosaicML samples of shards, py1e",
        names=[f"data/mds/shard.{i:05}.mds" for i in range(shards)],
        sizes=[SAMPLES * SAMPLE_BYTES] * shards,
        capacity=samples * SAMPLE_BYTES // 2,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
    )
