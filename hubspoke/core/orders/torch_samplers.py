"""Orders of torch's samplers and of its `DataLoader` (torch 2.13; CPU generators).

The algorithms depend on the size alone, and of a seed only the low 32 bits count: an unseeded
`DataLoader(shuffle=True)` has at most 2^32 orders. Who needs many orders, or only the beginning of
many, compiles the loops: they are in the docstrings.
"""

import math
from array import array

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders.mt19937 import TorchGenerator
from hubspoke.errors import ConfigError

Order = npt.NDArray[np.int64]

# From here on torch draws 64-bit numbers and another algorithm (TensorFactories.cpp).
RANDPERM_32BIT_MAX = (2**32 - 1) // 20
# From here on a bounded draw takes a 64-bit number (DistributionsHelper.h).
RANDINT_32BIT_MAX = 2**28
_DRAWS_AT_ONCE = 2**20


def torch_randperm(n: int, seed: int) -> Order:
    """`torch.randperm(n)` of a fresh CPU generator seeded `seed`. Raises ConfigError for n < 0.

    From 214,748,364 on it takes 0.5 us and 8 bytes an item.
    Source: aten/src/ATen/native/TensorFactories.cpp (randperm_cpu).
    """
    return randperm(n, TorchGenerator(seed))


def randperm(n: int, generator: TorchGenerator) -> Order:
    """`torch.randperm(n, generator=generator)`; the generator moves on by n - 1 words, or 2 n."""
    if n < 0:
        raise ConfigError(f"permutation of {n}: at least 0")
    if n < RANDPERM_32BIT_MAX:
        return forward_shuffle(generator.draws32(max(n - 1, 0)), n)
    return inside_out_shuffle(generator, n)


def forward_shuffle(draws: npt.NDArray[np.uint32], n: int) -> Order:
    """Place i is exchanged with place i + draws[i] mod (n - i), i upwards.

    So the first k items depend on the first k draws alone. draws: n - 1 of them (none for n = 0);
    n < 2^31. As arrays, 0.1 us and 50 bytes an item where the loop takes 0.5 us: what step i finds
    at its target was put there by the last earlier step with that target, which took it from its
    own place, and so on back to a place that no step had changed.
    """
    places = np.arange(n, dtype=np.int32)
    targets = np.arange(n)
    targets[: len(draws)] += draws % (n - targets[: len(draws)])
    bits = n.bit_length()
    by_target = np.sort(targets << bits | places)
    target = (by_target >> bits).astype(np.int32)
    step = (by_target & ((1 << bits) - 1)).astype(np.int32)
    again = target[1:] == target[:-1]
    former = np.full(n, -1, dtype=np.int32)  # the last earlier step with the same target
    former[step[1:][again]] = step[:-1][again]
    final = np.append(~again, True)[:n]
    giver = np.full(n, -1, dtype=np.int32)  # the last step before step i whose target was place i
    giver[target[final]] = step[final]
    giver = np.where(giver == places, former, giver)
    origin = np.where(giver < 0, places, giver)
    while not np.array_equal(further := origin[origin], origin):
        origin = further
    return np.where(former < 0, targets, origin[former])


def inside_out_shuffle(generator: TorchGenerator, n: int) -> Order:
    """i upwards: item i enters at place z = a 64-bit draw mod (i + 1), what was there goes to i."""
    order = array("q", bytes(8 * n))
    for start in range(0, n, _DRAWS_AT_ONCE):
        count = min(_DRAWS_AT_ONCE, n - start)
        places = generator.draws64(count) % np.arange(start + 1, start + count + 1, dtype=np.uint64)
        for i, z in enumerate(places.tolist(), start):
            order[i] = order[z]
            order[z] = i
    return np.frombuffer(order, dtype=np.int64)


def randint(high: int, count: int, generator: TorchGenerator) -> Order:
    """`torch.randint(high, (count,), generator=generator)`; high: 1 to 2^63 - 1.

    Source: aten/src/ATen/core/DistributionsHelper.h (uniform_int_from_to_distribution).
    """
    if not 1 <= high < 2**63:
        raise ConfigError(f"numbers below {high}: 1 to 2^63 - 1")
    if high < RANDINT_32BIT_MAX:
        return (generator.draws32(count) % np.uint32(high)).astype(np.int64)
    return (generator.draws64(count) % np.uint64(high)).astype(np.int64)


def random_sampler(
    n: int,
    generator: TorchGenerator,
    *,
    replacement: bool = False,
    samples: int | None = None,
) -> Order:
    """One pass of `RandomSampler` over n items, drawing from `generator` as far as it does.

    samples: `num_samples`, None is n. A pass to its end burns one more permutation (of which it
    takes samples mod n), so that with `generator=` the next epoch begins n - 1 words later.
    Raises ConfigError for n < 1 or samples < 1.
    Source: torch/utils/data/sampler.py (RandomSampler.__iter__).
    """
    wanted = n if samples is None else samples
    if n < 1 or wanted < 1:
        raise ConfigError(f"{wanted} samples of {n}: both at least 1")
    if replacement:
        blocks = [32] * (wanted // 32) + [wanted % 32]
        return np.concatenate([randint(n, size, generator) for size in blocks])
    whole = [randperm(n, generator) for _ in range(wanted // n)]
    return np.concatenate([*whole, randperm(n, generator)[: wanted % n]])


def loader_seeds(
    seed: int, epochs: int, *, words_before: int = 0, persistent_workers: bool = False
) -> list[int]:
    """The seed of each epoch's `RandomSampler` in `DataLoader(shuffle=True)` without a generator.

    seed: of the process (`torch.manual_seed`, else `torch.initial_seed()`); words_before: 32-bit
    words that the program had drawn from the global generator before the first epoch (a model's
    initialisation). Each epoch takes the workers' base seed, then the sampler's, 64 bits each;
    with persistent workers the base seed is drawn once.
    Source: torch/utils/data/dataloader.py (_BaseDataLoaderIter), sampler.py.
    """
    generator = TorchGenerator(seed)
    generator.draws32(words_before)
    seeds: list[int] = []
    for _ in range(epochs):
        if not seeds or not persistent_workers:
            generator.random_()
        seeds.append(generator.random_())
    return seeds


def loader_orders(
    n: int,
    seed: int,
    epochs: int,
    *,
    persistent_workers: bool = False,
    replacement: bool = False,
    samples: int | None = None,
) -> list[Order]:
    """Each epoch's order of `DataLoader(shuffle=True, generator=g)` after `g.manual_seed(seed)`.

    g gives each epoch the workers' base seed first (once with persistent workers), then what
    `random_sampler` draws; later epochs follow from earlier ones only.
    Source: torch/utils/data/dataloader.py (_BaseDataLoaderIter), sampler.py.
    """
    generator = TorchGenerator(seed)
    orders: list[Order] = []
    for _ in range(epochs):
        if not orders or not persistent_workers:
            generator.random_()
        orders.append(random_sampler(n, generator, replacement=replacement, samples=samples))
    return orders


def distributed_sampler(
    n: int,
    *,
    ranks: int,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
    shuffle: bool = True,
) -> Order:
    """Orders of all ranks, [rank, place], of `DistributedSampler`.

    epoch: stays 0 where the program does not call `set_epoch`. The permutation is lengthened by
    its own start to a multiple of `ranks` (repeated if it is shorter), or cut with drop_last, and
    rank r reads places r, r + ranks, ...
    Raises ConfigError for n < 1 or ranks < 1.
    Source: torch/utils/data/distributed.py; torchdata's StatefulDistributedSampler is the same.
    """
    if n < 1 or ranks < 1:
        raise ConfigError(f"sampler over {n} sequences and {ranks} ranks: both at least 1")
    order = torch_randperm(n, seed + epoch) if shuffle else np.arange(n, dtype=np.int64)
    each = n // ranks if drop_last else math.ceil(n / ranks)
    return np.resize(order, each * ranks).reshape(each, ranks).T
