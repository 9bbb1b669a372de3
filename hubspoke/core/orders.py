"""The orders in which data loaders read, exact and computed with numpy alone.

What a loader shuffles is decided by a seed, so whoever knows the seed knows every read to come.
"""

import math

import numpy as np
import numpy.typing as npt

from hubspoke.errors import ConfigError

# From here on torch draws 64-bit numbers and another algorithm (TensorFactories.cpp).
RANDPERM_32BIT_MAX = (2**32 - 1) // 20


def torch_randperm(n: int, seed: int) -> npt.NDArray[np.int64]:
    """`torch.randperm(n)` of a fresh CPU generator seeded `seed`, for n < 214,748,364.

    MT19937 with Knuth's initialisation from the low 32 bits of the seed, which is numpy's legacy
    seeding; then a forward Fisher-Yates with one 32-bit draw modulo the rest for each place.
    Source: aten/src/ATen/native/TensorFactories.cpp (randperm_cpu); checked against torch in
    tests/clients/torch_sampler.py.
    """
    if n >= RANDPERM_32BIT_MAX:
        raise ConfigError(f"permutation of {n}: at most {RANDPERM_32BIT_MAX - 1} sequences")
    rng = np.random.RandomState(seed % 2**32)
    draws = rng.randint(0, 2**32, size=max(n - 1, 0), dtype=np.uint32).astype(np.int64)
    picks = (np.arange(n - 1) + draws % (n - np.arange(n - 1))).tolist() if n > 1 else []
    order = list(range(n))
    for i, j in enumerate(picks):
        order[i], order[j] = order[j], order[i]
    return np.array(order, dtype=np.int64)


def distributed_sampler(
    n: int, *, ranks: int, seed: int = 0, epoch: int = 0
) -> npt.NDArray[np.int64]:
    """Orders of all ranks, [rank, place], as `DistributedSampler(shuffle=True, drop_last=False)`.

    Source: torch/utils/data/distributed.py: the permutation is lengthened by its own start to a
    multiple of `ranks`, and rank r reads places r, r + ranks, ...
    """
    if n < 1 or ranks < 1:
        raise ConfigError(f"sampler over {n} sequences and {ranks} ranks: both at least 1")
    order = torch_randperm(n, seed + epoch)
    each = math.ceil(n / ranks)
    return np.resize(order, each * ranks).reshape(each, ranks).T
