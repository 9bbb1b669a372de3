"""Orders in which WebDataset (1.0.2) reads its shards; each shard is read from start to end."""

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders.dealing import deal
from hubspoke.core.orders.mt19937 import PythonRandom

Order = npt.NDArray[np.int64]
# Without a seed the constructor draws one, the same for all workers: randint(0, 1000000).
UNSEEDED_MAX = 1_000_000
INITIAL = 100


def shard_orders(
    shards: int,
    *,
    buffer: int,
    seed: int,
    epoch: int = 0,
    deterministic: bool = False,
    ranks: int = 1,
    workers: int = 1,
) -> list[Order]:
    """Shards of each worker in the order of reading, rank by rank and in it worker by worker.

    Of `WebDataset(urls, shardshuffle=buffer, seed=seed, nodesplitter=split_by_node)`; shards are
    numbered as in the list of URLs; buffer 0 is no shuffle. deterministic: `detshuffle=True`,
    where epochs (from 0) differ; otherwise every epoch repeats the first.
    Source: webdataset/compat.py (WebDataset), shardlists.py, filters.py (detshuffle, _shuffle).
    """
    urls = np.arange(shards, dtype=np.int64)
    seed += epoch if deterministic else 0
    return [
        buffer_shuffle(part, PythonRandom(seed), buffer=buffer)
        for part in deal(urls, ranks=ranks, workers=workers)
    ]


def buffer_shuffle(items: Order, rng: PythonRandom, *, buffer: int) -> Order:
    """A shuffle with a buffer: two come in for one that goes out until it is full.

    The first goes out when min(100, buffer) are held, so with at most 100 items all are in before:
    then it is a full shuffle. Source: webdataset/filters.py (_shuffle, pick).
    """
    held: list[int] = []
    order: list[int] = []

    def pick() -> None:
        at = rng.below(len(held))
        order.append(held[at])
        held[at] = held[-1]
        held.pop()

    coming = iter(items.tolist())
    for item in coming:
        held.append(item)
        if len(held) < buffer:
            held.extend(one for one in [next(coming, None)] if one is not None)
        if len(held) >= min(INITIAL, buffer):
            pick()
    while held:
        pick()
    return np.array(order, dtype=np.int64)
