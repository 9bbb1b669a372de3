"""Compares core/orders.py with the real torch: run in an environment that has torch installed.

    python tests/clients/torch_sampler.py

test_torch_sampler.py does that. Exit status 1 on a difference.
"""

import sys

import torch
from torch.utils.data import DistributedSampler

from hubspoke.core.orders import distributed_sampler, torch_randperm

SETTINGS = [  # (n, ranks, seed, epoch)
    (23_976, 4, 0, 0),
    (23_976, 4, 0, 3),
    (1001, 16, 42, 1),
    (3, 8, 1234, 0),
    (70_000, 7, 2**32 + 5, 2),
]


def main() -> int:
    wrong = 0
    for n, ranks, seed, epoch in SETTINGS:
        ours = distributed_sampler(n, ranks=ranks, seed=seed, epoch=epoch).tolist()
        theirs = []
        for rank in range(ranks):
            sampler = DistributedSampler(range(n), num_replicas=ranks, rank=rank, seed=seed)
            sampler.set_epoch(epoch)
            theirs.append(list(sampler))
        same = ours == theirs
        wrong += not same
        print(f"n={n} ranks={ranks} seed={seed} epoch={epoch}: {'equal' if same else 'DIFFERENT'}")
    first = torch.randperm(10, generator=torch.Generator().manual_seed(0)).tolist()
    print(f"randperm(10) seeded 0: {first}")
    wrong += first != torch_randperm(10, 0).tolist()
    print(f"torch {torch.__version__}: {len(SETTINGS) + 1 - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
