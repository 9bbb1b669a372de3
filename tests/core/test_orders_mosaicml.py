"""StreamingDataset's shuffles and partition: recipes against tests/golden/mosaicml.json."""

from typing import Any

import numpy as np
import pytest

from hubspoke.core.orders.mosaicml import default_block, partition, shuffled_samples
from hubspoke.errors import ConfigError
from tests.golden.told import Case, cases, told


@pytest.mark.parametrize(("w", "read"), cases("mosaicml", "shuffle"))
def test_shuffles(w: dict[str, Any], read: Case) -> None:
    given = {k: v for k, v in w.items() if k not in ("shard_sizes", "times")}
    assert told(shuffled_samples(w["shard_sizes"] * w["times"], **given)) == read


@pytest.mark.parametrize(("w", "read"), cases("mosaicml", "partition"))
def test_partition(w: dict[str, int], read: Case) -> None:
    places = partition(w["n"], **{k: v for k, v in w.items() if k != "n"})
    assert told(places.ravel()) == read


@pytest.mark.parametrize(("w", "read"), cases("mosaicml", "work"))
def test_what_each_worker_is_told_to_read(w: dict[str, Any], read: Case) -> None:
    sizes, canonical = w["shard_sizes"], w["canonical_nodes"]
    order = shuffled_samples(
        sizes, canonical_nodes=canonical, algorithm=w["algorithm"], epoch=w["epoch"]
    )
    given = {k: w[k] for k in ("nodes", "ranks", "workers", "batch")}
    places = partition(sum(sizes), canonical_nodes=canonical, **given)
    assert told(np.where(places >= 0, order[places], -1).ravel()) == read


def test_what_the_package_does_otherwise_is_refused() -> None:
    assert default_block(1) == 4_000_000
    assert default_block(100) == 262_144
    with pytest.raises(ConfigError, match="3 samples for 4 canonical nodes"):
        shuffled_samples([3], canonical_nodes=4)
    with pytest.raises(ConfigError, match="one divides the other"):
        partition(100, canonical_nodes=3, nodes=2, ranks=1, workers=1, batch=1)
    with pytest.raises(ConfigError, match="7 samples"):
        partition(7, canonical_nodes=4, nodes=4, ranks=1, workers=1, batch=1)
