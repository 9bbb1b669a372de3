"""How one global order is dealt to ranks and their workers."""

import numpy as np
import numpy.typing as npt

from hubspoke.errors import ConfigError

Order = npt.NDArray[np.int64]


def in_turns(parts: list[Order]) -> Order:
    """What is read if ranks and workers read parts of their own, and all are as fast."""
    turns = np.concatenate([np.arange(len(part)) for part in parts])
    return np.concatenate(parts)[np.argsort(turns, kind="stable")]


def deal(order: Order, *, ranks: int = 1, workers: int = 1) -> list[Order]:
    """Rank by rank and in it worker by worker: what each reads if items are dealt one by one.

    First to ranks (r, r + ranks, ...), then each rank's to its workers in the same way; some may
    get none. Raises ConfigError for ranks or workers < 1.
    Source: itertools.islice as in webdataset/shardlists.py (split_by_node, split_by_worker), and
    datasets/iterable_dataset.py (split_shard_indices_by_worker).
    """
    if ranks < 1 or workers < 1:
        raise ConfigError(f"{ranks} ranks of {workers} workers: both at least 1")
    return [order[r::ranks][w::workers] for r in range(ranks) for w in range(workers)]
