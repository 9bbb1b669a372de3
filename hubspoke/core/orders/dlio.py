"""Orders of DLIO (dlio_benchmark 2.0.0), the load generator of MLPerf Storage."""

import numpy as np
import numpy.typing as npt

from hubspoke.errors import ConfigError

Order = npt.NDArray[np.int64]
SEED = 123


def torch_loader(n: int, *, ranks: int, seed: int = SEED, epoch: int = 1) -> Order:
    """Samples of all ranks, [rank, place], with data_loader pytorch and sample_shuffle seed.

    epoch: 1 is the first. Each rank has its own contiguous range. The seed is set anew at each
    epoch, but what is shuffled is the order of the epoch before: one permutation, applied again
    and again. n is a multiple of ranks (else DLIO itself fails), or ConfigError.
    Source: dlio_benchmark/data_loader/torch_data_loader.py (dlio_sampler), main.py (one loader
    for all epochs), utils/config.py (seed 123).
    """
    each = _share(n, ranks)
    step = np.arange(each)
    np.random.RandomState(seed).shuffle(step)
    order = np.arange(each)
    for _ in range(epoch):
        order = order[step]
    return order + np.arange(ranks)[:, None] * each


def iterative_files(
    files: int,
    samples_per_file: int,
    *,
    rank: int,
    ranks: int,
    seed: int = SEED,
    epoch: int = 1,
    file_shuffle: bool = False,
    sample_shuffle: bool = False,
    seed_change_epoch: bool = True,
) -> tuple[Order, Order]:
    """Files, and samples in them, that one rank reads with an iterative sampler (TensorFlow).

    Returns: file numbers (of the list before any shuffle) and sample numbers, by place; with
    several threads each takes a contiguous part. File lists are shuffled in place, so an epoch's
    order follows from all before it. All but a rank's first sample come from the first files of
    the list, whatever the rank: so DLIO 2.0.0 has it.
    Source: dlio_benchmark/utils/config.py (reconfigure, build_sample_map_iter).
    """
    each = _share(files * samples_per_file, ranks)
    order = np.arange(files)
    if file_shuffle:
        for earlier in range(1, epoch + 1):
            np.random.RandomState(seed + earlier * seed_change_epoch).shuffle(order)
    samples = np.arange(each * rank, each * (rank + 1))
    if sample_shuffle:
        np.random.RandomState(seed + epoch * seed_change_epoch).shuffle(samples)
    places = np.arange(each) // samples_per_file % files
    places[0] = rank * (files // ranks % files)
    return order[places], samples % samples_per_file


def _share(n: int, ranks: int) -> int:
    if n < 1 or ranks < 1 or n % ranks:
        raise ConfigError(f"{n} samples for {ranks} ranks: a multiple, and at least 1 each")
    return n // ranks
