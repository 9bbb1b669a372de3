"""The Trainer's sampler and datasets' shuffles: recipes against tests/golden/huggingface.json."""

from typing import Any

import pytest

from hubspoke.core.orders.huggingface import (
    shuffled_dataset,
    streaming_shards,
    train_test_split,
    trainer_sampler,
)
from hubspoke.errors import ConfigError
from tests.golden.told import Case, cases, told


@pytest.mark.parametrize(("w", "read"), cases("huggingface", "trainer"))
def test_trainer_deals_batches_to_ranks(w: dict[str, Any], read: Case) -> None:
    assert told(*trainer_sampler(w["n"], **{k: v for k, v in w.items() if k != "n"})) == read


def test_trainer_refuses_nothing_to_deal() -> None:
    with pytest.raises(ConfigError, match="0 items for 2 ranks in batches of 8"):
        trainer_sampler(0, ranks=2, batch=8)


@pytest.mark.parametrize(("w", "read"), cases("huggingface", "shuffle"))
def test_shuffled_dataset(w: dict[str, int], read: Case) -> None:
    assert told(shuffled_dataset(w["n"], w["seed"])) == read


@pytest.mark.parametrize(("w", "read"), cases("huggingface", "train_test_split"))
def test_split(w: dict[str, int], read: Case) -> None:
    assert told(*train_test_split(w["n"], test=w["test"], seed=w["seed"])) == read


def opened(streams: list[Any]) -> list[int]:
    """Shards of one worker in the order of their first rows; all are equally long: in rounds."""
    rounds = max(map(len, streams))
    return [int(s[i]) for i in range(rounds) for s in streams if i < len(s)]


@pytest.mark.parametrize(("w", "read"), cases("huggingface", "streaming"))
def test_streaming_takes_turns_between_streams(w: dict[str, Any], read: Case) -> None:
    given = {k: v for k, v in w.items() if k != "shards"}
    assert told(*map(opened, streaming_shards(w["shards"], **given))) == read
