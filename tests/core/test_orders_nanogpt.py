"""nanoGPT's windows: the recipe against tests/golden/nanogpt.json."""

from typing import Any

import pytest

from hubspoke.core.orders.nanogpt import windows
from hubspoke.errors import ConfigError
from tests.golden.told import Case, cases, told


@pytest.mark.parametrize(("w", "read"), cases("nanogpt", "offsets"))
def test_offsets_of_windows(w: dict[str, Any], read: Case) -> None:
    given = {k: v for k, v in w.items() if k != "tokens"}
    assert told(windows(w["tokens"], **given)) == read


def test_a_file_of_one_block_has_no_window() -> None:
    with pytest.raises(ConfigError, match="numbers below 0"):
        windows(1024, block=1024, count=1)
