"""Orders of Hugging Face's Trainer (accelerate 1.15) and datasets (5.2).

The two come on top of each other: a shuffled map-style data set is an index that the Trainer's
sampler permutes again.
"""

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders.dealing import deal
from hubspoke.core.orders.torch_samplers import torch_randperm
from hubspoke.errors import ConfigError

Order = npt.NDArray[np.int64]
INPUT_SHARDS = 10  # that a streaming buffer shuffle reads at a time (5.2; older versions: 1)


def trainer_sampler(
    n: int,
    *,
    ranks: int,
    batch: int,
    seed: int = 42,
    epoch: int = 0,
    drop_last: bool = False,
    even_batches: bool = True,
) -> list[Order]:
    """What each rank reads in one epoch of the Trainer, or of a loader that accelerate prepared.

    batch: of one rank. The permutation is cut in batches, dealt to ranks in turn (split_batches
    off). A last round that is not full is filled up from the start of the permutation
    (even_batches), left uneven, or dropped (drop_last).
    Raises ConfigError for n, ranks or batch < 1.
    Source: accelerate/data_loader.py (SeedableRandomSampler, BatchSamplerShard); seed 42 is
    transformers' TrainingArguments.seed, for which its Trainer sets use_seedable_sampler.
    """
    if n < 1 or ranks < 1 or batch < 1:
        raise ConfigError(f"{n} items for {ranks} ranks in batches of {batch}: all at least 1")
    order = torch_randperm(n, seed + epoch)
    a_round = ranks * batch
    if drop_last:
        order = order[: n // a_round * a_round]
    elif even_batches:
        order = np.resize(order, -(-n // a_round) * a_round)
    batch_of = np.arange(len(order)) // batch
    return [order[batch_of % ranks == rank] for rank in range(ranks)]


def shuffled_dataset(n: int, seed: int) -> Order:
    """Rows of `Dataset.shuffle(seed=seed)`: item i of the shuffled set is row order[i].

    seed None takes a 32-bit word of numpy's global state: within 0 to 2^32 - 1 too.
    Source: datasets/arrow_dataset.py (Dataset.shuffle).
    """
    return np.random.default_rng(seed).permutation(n)


def train_test_split(n: int, *, test: int, seed: int) -> tuple[Order, Order]:
    """Rows of the train and the test part of `Dataset.train_test_split(test, seed=seed)`.

    test: rows of the test part, 0 to n. Source: datasets/arrow_dataset.py (train_test_split).
    """
    order = shuffled_dataset(n, seed)
    return order[test:], order[:test]


def streaming_shards(
    shards: int,
    *,
    seed: int | None,
    epoch: int = 0,
    ranks: int = 1,
    workers: int = 1,
    interleaved: int = INPUT_SHARDS,
) -> list[list[Order]]:
    """Shards that each worker reads: [rank and worker][stream], a stream reads one by one.

    Of `IterableDataset.shuffle(seed=seed)` at `set_epoch(epoch)`, split by node; seed None: not
    shuffled in epoch 0. A worker alternates between up to `interleaved` streams, which have
    contiguous parts of its shards. Where the shards are no multiple of the ranks, each rank
    reads all of them. Within a shard reads are sequential: the buffer shuffles what was read.
    Source: datasets/iterable_dataset.py (shuffle, _prepare_ex_iterable_for_iteration,
    InterleavedShardsExamplesIterable), utils/sharding.py (_shuffle_gen_kwargs).
    """
    order = list(range(shards))
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    if epoch:
        again = list(range(shards))
        np.random.default_rng(epoch).shuffle(again)
        order = [order[i] for i in again]
    whole = np.array(order, dtype=np.int64)
    if shards % ranks:
        dealt = deal(whole, workers=workers) * ranks
    else:
        dealt = deal(whole, ranks=ranks, workers=workers)
    streams = max(1, interleaved) if seed is not None else 1
    return [np.array_split(part, max(1, min(streams, len(part)))) for part in dealt]
