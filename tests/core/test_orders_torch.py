"""torch's samplers and loaders: the recipes against what torch gave (tests/golden/torch.json)."""

from typing import Any

import numpy as np
import pytest

from hubspoke.core.orders.mt19937 import TorchGenerator
from hubspoke.core.orders.torch_samplers import (
    RANDPERM_32BIT_MAX,
    distributed_sampler,
    inside_out_shuffle,
    loader_orders,
    loader_seeds,
    randint,
    random_sampler,
    torch_randperm,
)
from hubspoke.errors import ConfigError
from tests.golden.told import Case, cases, told

EPOCHS = 3


def without(w: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in w.items() if key not in keys}


@pytest.mark.parametrize(("w", "read"), cases("torch", "randperm"))
def test_randperm(w: dict[str, int], read: Case) -> None:
    if w["n"] >= RANDPERM_32BIT_MAX:
        pytest.skip("takes minutes and gigabytes: tests/clients/test_golden.py")
    assert told(torch_randperm(w["n"], w["seed"])) == read


def test_the_algorithm_for_many_items_on_few() -> None:
    draws = TorchGenerator(3).draws64(1000).tolist()
    order: list[int] = []
    for i, drawn in enumerate(draws):
        z = drawn % (i + 1)
        order.append(order[z] if z < i else i)
        order[z] = i
    assert inside_out_shuffle(TorchGenerator(3), 1000).tolist() == order
    assert sorted(order) == list(range(1000))


@pytest.mark.parametrize(("w", "read"), cases("torch", "randint"))
def test_randint(w: dict[str, int], read: Case) -> None:
    assert told(randint(w["high"], w["count"], TorchGenerator(w["seed"]))) == read


@pytest.mark.parametrize(("w", "read"), cases("torch", "RandomSampler"))
def test_random_sampler_twice_with_one_generator(w: dict[str, Any], read: Case) -> None:
    generator = TorchGenerator(w["seed"])
    first = random_sampler(w["n"], generator, replacement=w["replacement"], samples=w["samples"])
    again = random_sampler(w["n"], generator, replacement=w["replacement"], samples=w["samples"])
    assert told(first, again) == read


@pytest.mark.parametrize(("w", "read"), cases("torch", "DistributedSampler"))
def test_distributed_sampler(w: dict[str, Any], read: Case) -> None:
    dealt = distributed_sampler(w["n"], **without(w, "n"))
    assert told(*map(np.ascontiguousarray, dealt)) == read


@pytest.mark.parametrize(("w", "read"), cases("torch", "DataLoader"))
def test_loader_without_generator(w: dict[str, Any], read: Case) -> None:
    seeds = loader_seeds(w["seed"], EPOCHS, **without(w, "n", "seed"))
    assert told(*[torch_randperm(w["n"], seed) for seed in seeds]) == read


@pytest.mark.parametrize(("w", "read"), cases("torch", "DataLoader with generator"))
def test_loader_with_generator(w: dict[str, Any], read: Case) -> None:
    assert told(*loader_orders(w["n"], w["seed"], EPOCHS, **without(w, "n", "seed"))) == read


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="permutation of -1: at least 0"):
        torch_randperm(-1, 0)
    with pytest.raises(ConfigError, match="numbers below 0"):
        randint(0, 1, TorchGenerator(0))
    with pytest.raises(ConfigError, match="0 samples of 5"):
        random_sampler(5, TorchGenerator(0), samples=0)
    with pytest.raises(ConfigError, match="both at least 1"):
        distributed_sampler(5, ranks=0)
    assert torch_randperm(0, 0).tolist() == []
