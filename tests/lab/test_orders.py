"""The orders a job reads in: exact against an independent form of the published recipes."""

import math

import numpy as np
import pytest

from hubspoke.core.orders import distributed_sampler, torch_randperm
from hubspoke.errors import ConfigError
from hubspoke.lab.orders import job_plan


class Mt19937:
    """The generator as in Matsumoto and Nishimura's paper: Knuth's seeding, then tempering."""

    def __init__(self, seed: int) -> None:
        self.state = [seed % 2**32]
        for i in range(1, 624):
            before = self.state[-1]
            self.state.append((1812433253 * (before ^ (before >> 30)) + i) % 2**32)
        self.at = 624

    def draw(self) -> int:
        if self.at == 624:
            for i in range(624):
                y = (self.state[i] & 0x80000000) | (self.state[(i + 1) % 624] & 0x7FFFFFFF)
                mixed = self.state[(i + 397) % 624] ^ (y >> 1)
                self.state[i] = mixed ^ 0x9908B0DF if y & 1 else mixed
            self.at = 0
        y = self.state[self.at]
        self.at += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C5680
        y ^= (y << 15) & 0xEFC60000
        return y ^ (y >> 18)


def shuffled(n: int, seed: int) -> list[int]:
    rng = Mt19937(seed)
    order = list(range(n))
    for i in range(n - 1):
        j = i + rng.draw() % (n - i)
        order[i], order[j] = order[j], order[i]
    return order


@pytest.mark.parametrize("n", [1, 2, 3, 10, 623, 624, 625, 1000, 23_976])
@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, 2**32 + 5, 2**63 - 1])
def test_randperm_equals_the_recipe(n: int, seed: int) -> None:
    assert torch_randperm(n, seed).tolist() == shuffled(n, seed)


def test_randperm_known_values() -> None:
    # torch.randperm(10, generator=torch.Generator().manual_seed(0)); see tests/golden.
    assert torch_randperm(10, 0).tolist() == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]


@pytest.mark.parametrize(
    ("n", "ranks", "seed", "epoch"), [(10, 4, 0, 0), (24, 4, 0, 3), (3, 8, 42, 0), (1001, 16, 7, 1)]
)
def test_distributed_sampler_pads_with_its_own_start(
    n: int, ranks: int, seed: int, epoch: int
) -> None:
    order = shuffled(n, seed + epoch)
    total = math.ceil(n / ranks) * ranks
    padded = (order * math.ceil(total / n))[:total]
    got = distributed_sampler(n, ranks=ranks, seed=seed, epoch=epoch)
    assert [row.tolist() for row in got] == [padded[r::ranks] for r in range(ranks)]


def test_sequential_deals_each_step_to_the_ranks_in_turn() -> None:
    plan = job_plan("sequential", sequences=50, ranks=2, per_rank=3)
    assert plan.shape == (8, 2, 3)
    assert plan[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert plan[1].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert (plan.ravel() == np.arange(48)).all()


def test_strided_gives_each_rank_its_residue_class() -> None:
    plan = job_plan("strided", sequences=12, ranks=2, per_rank=3)
    assert plan[:, 0].ravel().tolist() == [0, 2, 4, 6, 8, 10]
    assert plan[:, 1].ravel().tolist() == [1, 3, 5, 7, 9, 11]


def test_distributed_plan_is_each_ranks_sampler_in_batches() -> None:
    plan = job_plan("distributed", sequences=40, ranks=4, per_rank=2, steps=3, seed=5, epoch=2)
    by_rank = distributed_sampler(40, ranks=4, seed=5, epoch=2)
    assert plan.shape == (3, 4, 2)
    for rank in range(4):
        assert plan[:, rank].ravel().tolist() == by_rank[rank][:6].tolist()


@pytest.mark.parametrize("steps", [0, 3, -1])
def test_steps_outside_the_epoch_are_refused(steps: int) -> None:
    with pytest.raises(ConfigError, match="make 1 to 2 steps of 6"):
        job_plan("strided", sequences=12, ranks=2, per_rank=3, steps=steps)


def test_unknown_order_and_empty_job_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be one of sequential, strided, distributed"):
        job_plan("random", sequences=12, ranks=2, per_rank=3)  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(ConfigError, match="both at least 1"):
        job_plan("strided", sequences=12, ranks=0, per_rank=3)
    with pytest.raises(ConfigError, match="both at least 1"):
        distributed_sampler(0, ranks=1)
