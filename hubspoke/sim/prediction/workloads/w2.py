"""W2, tar shards by WebDataset: 2 nodes x 4 workers, each reads its shards from start to end.

Shards are dealt to nodes, then to workers, and each worker shuffles its own with the same seed
(shardshuffle=100, detshuffle: seed + epoch). A batch is 64 reads of 128 KiB of one worker.
"""

import random
from functools import lru_cache

from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import MIB, READ_BYTES, Size, Workload

SHARDS, SHARD_BYTES = 256, 128 * MIB
NODES, WORKERS, EPOCHS = 2, 4, 2
DEMAND = 100e6  # bytes per second of all nodes
READS_PER_BATCH = 64
BUFFER, INITIAL = 100, 100


def buffer_shuffle(items: list[int], seed: int) -> list[int]:
    """`webdataset.filters._shuffle` (1.0.2) over a whole list."""
    rng, held, out = random.Random(seed), list[int](), list[int]()

    def emit() -> None:
        k = rng.randint(0, len(held) - 1)
        out.append(held[k])
        held[k] = held[-1]
        held.pop()

    left = iter(items)
    for item in left:
        held.append(item)
        if len(held) < BUFFER:
            held += [more for more in (next(left, None),) if more is not None]
        if len(held) >= INITIAL:
            emit()
    while held:
        emit()
    return out


def build(size: Size) -> Workload:
    """The workload at this size."""
    shards = size.dealt(SHARDS, NODES * WORKERS)
    per_batch = size.cut(READS_PER_BATCH)
    reads_each = SHARD_BYTES // READ_BYTES
    per_worker = shards // (NODES * WORKERS)
    batches = per_worker * reads_each // per_batch * WORKERS

    @lru_cache(NODES * WORKERS)
    def order(epoch: int, node: int, worker: int) -> list[int]:
        mine = list(range(shards))[node::NODES][worker::WORKERS]
        return buffer_shuffle(mine, size.seed + epoch)

    def reads(epoch: int, node: int, step: int) -> list[Read]:
        turn, worker = divmod(step, WORKERS)
        mine = order(epoch, node, worker)
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
        disk=size.disk(),
    )
