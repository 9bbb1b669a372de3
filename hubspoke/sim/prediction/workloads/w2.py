"""W2, tar shards by WebDataset: 2 nodes x 4 workers, each reads its shards from start to end.

Shards are dealt to nodes, then to workers, and each worker shuffles its own with the same seed
(shardshuffle=100, detshuffle: seed + epoch). A batch is 64 reads of 128 KiB of one worker.
"""

from functools import lru_cache

from hubspoke.core.orders.webdataset import shard_orders
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import MIB, READ_BYTES, Size, Workload

SHARDS, SHARD_BYTES = 256, 128 * MIB
NODES, WORKERS, EPOCHS = 2, 4, 2
DEMAND = 100e6  # bytes per second of all nodes
READS_PER_BATCH = 64
BUFFER = 100


def build(size: Size) -> Workload:
    """The workload at this size."""
    shards = size.dealt(SHARDS, NODES * WORKERS)
    per_batch = size.cut(READS_PER_BATCH)
    reads_each = SHARD_BYTES // READ_BYTES
    per_worker = shards // (NODES * WORKERS)
    batches = per_worker * reads_each // per_batch * WORKERS

    @lru_cache(1)
    def orders(epoch: int) -> list[list[int]]:
        """Of each worker, node by node."""
        dealt = shard_orders(
            shards,
            buffer=BUFFER,
            seed=size.seed,
            epoch=epoch,
            deterministic=True,
            ranks=NODES,
            workers=WORKERS,
        )
        return [part.tolist() for part in dealt]

    def reads(epoch: int, node: int, step: int) -> list[Read]:
        turn, worker = divmod(step, WORKERS)
        mine = orders(epoch)[node * WORKERS + worker]
        places = (divmod(n, reads_each) for n in range(turn * per_batch, (turn + 1) * per_batch))
        return [(mine[i], at * READ_BYTES, READ_BYTES) for i, at in places]

    step_s = NODES * per_batch * READ_BYTES / (DEMAND / size.part)
    job = JobSpec(NODES, WORKERS, step_s, [batches] * EPOCHS, reads)
    return Workload(
        name="W2",
        title="tar shards, WebDataset",
        names=[f"data/shards/{i:06}.tar" for i in range(shards)],
        sizes=[SHARD_BYTES] * shards,
        capacity=shards * SHARD_BYTES // 2,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
    )
