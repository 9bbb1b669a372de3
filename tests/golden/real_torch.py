"""Orders that torch itself gives: the cases of torch.json. Run by make.py."""

import json
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from tests.golden.told import Case, told

PERMUTATIONS = [(n, s) for n in (1, 2, 3, 10, 623, 624, 625, 1000) for s in (0, 42, -1)]
PERMUTATIONS += [(70_000, 2**32 + 5), (70_000, 2**63 - 1), (1_281_167, 1234)]
# From here on another algorithm.
PERMUTATIONS += [(214_748_364, 3)]
INTEGERS = [(10, 100), (2**28 - 1, 100), (2**28, 100), (2**40 + 7, 100), (2**63 - 1, 5)]
SAMPLERS = [  # n, replacement, samples, seed
    (10, False, 25, 5),
    (1000, False, 300, 5),
    (100, True, 100, 5),
    (1000, True, 64, 5),
    (3, True, 5, 5),
    (1001, False, 1001, 0),
    (1500, False, 1500, 42),
    (2000, False, 2000, 1234),
    (3000, False, 3000, 100_000),
]
DISTRIBUTED = [  # n, ranks, seed, epoch, drop_last, shuffle
    (23_976, 4, 0, 0, False, True),
    (23_976, 4, 0, 3, False, True),
    (1001, 16, 42, 1, False, True),
    (1001, 16, 42, 1, True, True),
    (1008, 16, 7, 2, True, True),
    (3, 8, 1234, 0, False, True),
    (70_000, 7, 2**32 + 5, 2, False, True),
    (25, 4, 0, 5, False, False),
]
LOADERS = [  # n, seed, words drawn before, workers, persistent workers
    (1000, 42, 0, 0, False),
    (1000, 42, 0, 2, False),
    (1000, 42, 0, 2, True),
    (333, 0, 100, 0, False),
    (333, 2**32 + 1, 7, 0, False),
    (2000, 1234, 0, 2, False),
    (1500, 7, 0, 2, True),
    (3000, 0, 0, 4, False),
]
OWN = [  # n, seed, workers, persistent workers, replacement
    (1000, 42, 0, False, False),
    (1000, 42, 2, False, False),
    (1000, 42, 2, True, False),
    (17, 1337, 0, False, False),
    (333, 0, 0, False, True),
    (2000, 1337, 2, False, False),
    (1500, 0, 2, True, False),
    (3000, 123, 4, False, False),
]
EPOCHS = 3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def epochs_of(loader: Any) -> Case:
    return told(*[[int(i) for batch in loader for i in batch] for _ in range(EPOCHS)])


def case(what: str, read: Case, **parameters: Any) -> Case:
    return {"what": what, "with": parameters, "read": read}


def sampled() -> list[Case]:
    found = [
        case("randperm", told(torch.randperm(n, generator=seeded(s)).numpy()), n=n, seed=s)
        for n, s in PERMUTATIONS
    ]
    for high, count in INTEGERS:
        drawn = torch.randint(high, (count,), generator=seeded(9)).tolist()
        found.append(case("randint", told(drawn), high=high, count=count, seed=9))
    for n, replacement, samples, seed in SAMPLERS:
        g = seeded(seed)
        sampler = RandomSampler(range(n), replacement, samples, generator=g)
        parameters = {"n": n, "seed": seed, "replacement": replacement, "samples": samples}
        found.append(case("RandomSampler", told(sampler, sampler), **parameters))
    for n, ranks, seed, epoch, drop_last, shuffle in DISTRIBUTED:
        parameters = {"seed": seed, "drop_last": drop_last, "shuffle": shuffle}
        dealt = [DistributedSampler(range(n), ranks, rank, **parameters) for rank in range(ranks)]
        for sampler in dealt:
            sampler.set_epoch(epoch)
        parameters |= {"n": n, "ranks": ranks, "epoch": epoch}
        found.append(case("DistributedSampler", told(*dealt), **parameters))
    return found


def loaded() -> list[Case]:
    found = []
    for n, seed, words, workers, persistent in LOADERS:
        torch.manual_seed(seed)
        torch.randint(10, (words,))
        loader: Any = DataLoader(
            range(n), 8, shuffle=True, num_workers=workers, persistent_workers=persistent
        )
        parameters = {"n": n, "seed": seed, "words_before": words, "persistent_workers": persistent}
        found.append(case("DataLoader", epochs_of(loader), **parameters))
    for n, seed, workers, persistent, replacement in OWN:
        g = seeded(seed)
        sampler = RandomSampler(range(n), replacement, generator=g)
        loader = DataLoader(
            range(n),
            8,
            sampler=sampler,
            generator=g,
            num_workers=workers,
            persistent_workers=persistent,
        )
        parameters = {"n": n, "seed": seed, "persistent_workers": persistent}
        parameters |= {"replacement": replacement}
        found.append(case("DataLoader with generator", epochs_of(loader), **parameters))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"torch": torch.__version__.split("+")[0], "cases": sampled() + loaded()}))
