"""WebDataset's order of shards: the recipe against tests/golden/webdataset.json."""

import random
from typing import Any

import pytest

from hubspoke.core.orders.mt19937 import PythonRandom
from hubspoke.core.orders.webdataset import shard_orders
from hubspoke.errors import ConfigError
from tests.golden.told import Case, cases, told


@pytest.mark.parametrize(("w", "read"), cases("webdataset", "shards"))
def test_shards_of_each_worker_and_epoch(w: dict[str, Any], read: Case) -> None:
    given = {k: v for k, v in w.items() if k not in ("shards", "epochs")}
    epochs = [shard_orders(w["shards"], epoch=epoch, **given) for epoch in range(w["epochs"])]
    assert told(*[order for orders in epochs for order in orders]) == read


def test_more_workers_than_shards_leave_some_without() -> None:
    assert [len(part) for part in shard_orders(3, buffer=10, seed=0, workers=4)] == [1, 1, 1, 0]
    with pytest.raises(ConfigError, match="0 ranks of 4 workers"):
        shard_orders(3, buffer=10, seed=0, ranks=0, workers=4)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1, 2**32, 2**40 + 7, -5, 10**30])
def test_pythons_generator(seed: int) -> None:
    ours, theirs = PythonRandom(seed), random.Random(seed)
    for n in [1, 2, 3, 100, 2**31, 2**32 - 1] * 300:
        assert ours.below(n) == theirs.randrange(n)
