"""DLIO's samplers: the recipes against tests/golden/dlio.json."""

from typing import Any

import pytest

from hubspoke.core.orders.dlio import iterative_files, torch_loader
from hubspoke.errors import ConfigError
from tests.golden.told import Case, cases, told


@pytest.mark.parametrize(("w", "read"), cases("dlio", "torch"))
def test_torch_loader_shuffles_the_order_of_the_epoch_before(w: dict[str, int], read: Case) -> None:
    epochs = [
        torch_loader(w["n"], ranks=w["ranks"], seed=w["seed"], epoch=epoch)
        for epoch in range(1, w["epochs"] + 1)
    ]
    assert told(*[rank for orders in epochs for rank in orders]) == read
    assert epochs[0].tolist() != epochs[1].tolist()


@pytest.mark.parametrize(("w", "read"), cases("dlio", "iterative"))
def test_iterative_files_and_samples(w: dict[str, Any], read: Case) -> None:
    files, per_file, epochs = w["files"], w["samples_per_file"], w["epochs"]
    given = {k: v for k, v in w.items() if k not in ("files", "samples_per_file", "epochs")}
    orders = [
        part
        for rank in range(w["ranks"])
        for epoch in range(1, epochs + 1)
        for part in iterative_files(files, per_file, rank=rank, epoch=epoch, **given)
    ]
    assert told(*orders) == read


def test_samples_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="1000 samples for 3 ranks"):
        torch_loader(1000, ranks=3)
