"""The order in which a training job reads its sequences: which step, rank and place reads what.

Three orders of real loaders as arrays of sequence numbers, exact and computed with numpy alone:
what a predictor has to find out from the reads, the job knows from here.
"""

import math
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from hubspoke.errors import ConfigError

Order = Literal["sequential", "strided", "distributed"]
ORDERS: tuple[Order, ...] = get_args(Order)
Plan = npt.NDArray[np.int64]  # [step, rank, place in the rank's batch] -> sequence number

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


def job_plan(
    order: Order,
    *,
    sequences: int,
    ranks: int,
    per_rank: int,
    steps: int | None = None,
    seed: int = 0,
    epoch: int = 0,
) -> Plan:
    """Sequence numbers of every step, rank and place in the batch.

    sequential: step s reads the next ranks * per_rank sequences, rank r the r-th part of them.
    strided: rank r reads sequences r, r + ranks, ... distributed: torch's DistributedSampler.
    steps: None is one epoch without its incomplete last step. Raises ConfigError when the dataset
    has fewer sequences than that needs.
    """
    if order not in ORDERS:
        raise ConfigError(f"order {order!r}: must be one of {', '.join(ORDERS)}")
    if ranks < 1 or per_rank < 1:
        raise ConfigError(f"{ranks} ranks of {per_rank} sequences: both at least 1")
    per_step = ranks * per_rank
    steps_max = sequences // per_step
    wanted = steps_max if steps is None else steps
    if not 1 <= wanted <= steps_max:
        raise ConfigError(
            f"steps {wanted}: {sequences} sequences make 1 to {steps_max} steps of {per_step}"
        )
    if order == "distributed":
        by_rank = distributed_sampler(sequences, ranks=ranks, seed=seed, epoch=epoch)
        used = by_rank[:, : wanted * per_rank]
        return used.reshape(ranks, wanted, per_rank).transpose(1, 0, 2)
    numbers = np.arange(wanted * per_step, dtype=np.int64)
    if order == "sequential":
        return numbers.reshape(wanted, ranks, per_rank)
    return numbers.reshape(wanted, per_rank, ranks).transpose(0, 2, 1)
