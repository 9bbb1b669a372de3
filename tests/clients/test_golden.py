"""The golden files say what the real packages give today: made again, nothing differs."""

import pytest

from hubspoke.core.orders import RANDPERM_32BIT_MAX, torch_randperm
from tests.clients.environments import INSTALL_S
from tests.golden.make import FAMILIES, RUN_S, made, stored, text
from tests.golden.told import cases, told


@pytest.mark.timeout(INSTALL_S + RUN_S)
@pytest.mark.parametrize("family", FAMILIES)
def test_golden_file_holds_what_the_package_gives(family: str) -> None:
    assert text(made(family)) == stored(family).read_text(encoding="utf-8")


@pytest.mark.timeout(1800)
def test_the_other_algorithm_for_very_many_items() -> None:
    """Two to three minutes and 2 GB, so not beside the other recipes in tests/core."""
    large = [(w, r) for w, r in cases("torch", "randperm") if w["n"] >= RANDPERM_32BIT_MAX]
    assert large
    for parameters, read in large:
        assert told(torch_randperm(parameters["n"], parameters["seed"])) == read
