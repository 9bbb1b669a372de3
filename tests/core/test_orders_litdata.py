"""LitData's shuffles: the recipes against tests/golden/litdata.json."""

from typing import Any

import pytest

from hubspoke.core.orders.litdata import World, full_shuffle, window_shuffle
from hubspoke.errors import ConfigError
from tests.golden.told import Case, cases, told

WORLD = ("nodes", "ranks", "workers", "batch", "drop_last")


def setting(w: dict[str, Any]) -> tuple[list[int], World, dict[str, Any]]:
    world = World(**{key: w[key] for key in WORLD})
    given = {k: v for k, v in w.items() if k not in (*WORLD, "sizes", "times")}
    return w["sizes"] * w["times"], world, given


@pytest.mark.parametrize(("w", "read"), cases("litdata", "full"))
def test_full_shuffle(w: dict[str, Any], read: Case) -> None:
    sizes, world, given = setting(w)
    assert told(*full_shuffle(sizes, world, **given)) == read


@pytest.mark.parametrize(("w", "read"), cases("litdata", "window"))
def test_window_shuffle(w: dict[str, Any], read: Case) -> None:
    sizes, world, given = setting(w)
    assert told(*window_shuffle(sizes, world, **given)) == read


@pytest.mark.parametrize(("w", "read"), cases("litdata", "data set"))
def test_a_data_set_on_disk(w: dict[str, Any], read: Case) -> None:
    assert w["shuffle"] == "FullShuffle"
    assert told(*full_shuffle(w["sizes"], World(), seed=w["seed"], epoch=w["epoch"])) == read


def test_ranks_that_do_not_divide_among_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 ranks on 2 nodes"):
        full_shuffle([10], World(nodes=2, ranks=3))
    with pytest.raises(ConfigError, match="0 workers"):
        window_shuffle([10], World(workers=0))
