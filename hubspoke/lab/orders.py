"""The order in which a training job reads its sequences: which step, rank and place reads what.

Three orders of real loaders as arrays of sequence numbers, exact and computed with numpy alone:
what a predictor has to find out from the reads, the job knows from here.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders import distributed_sampler
from hubspoke.errors import ConfigError

Order = Literal["sequential", "strided", "distributed"]
ORDERS: tuple[Order, ...] = get_args(Order)
Plan = npt.NDArray[np.int64]  # [step, rank, place in the rank's batch] -> sequence number


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
