"""Megatron's index files, samples and their bytes: recipes against tests/golden/megatron.json."""

import base64
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hubspoke.core.orders.megatron import Index, dealt, epochs_for, line, parse_index, reads
from hubspoke.errors import ConfigError, FormatError
from tests.golden.told import Case, cases, told


def index_of(w: dict[str, Any]) -> Index:
    """Documents one behind the other in a file of int32 tokens, lengths as in the real file."""
    lengths = [(37 * i * i + 11 * i) % (w["longest"] + 1) for i in range(w["documents"])]
    pointers = 4 * (np.cumsum(lengths) - lengths)
    return Index(4, np.array(lengths, dtype=np.int32), pointers.astype(np.int64))


def setting_of(w: dict[str, Any], index: Index) -> tuple[int, bool]:
    documents = range(*w["part"])
    tokens = int(index.lengths[documents.start : documents.stop].sum())
    return epochs_for(tokens, sequence=w["sequence"], samples=w["samples"])


@pytest.mark.parametrize(("w", "read"), cases("megatron", "tokens"))
def test_bytes_of_all_samples_in_order(w: dict[str, Any], read: Case) -> None:
    index = index_of(w)
    epochs, separate = setting_of(w, index)
    along = line(
        index.lengths,
        sequence=w["sequence"],
        seed=w["seed"],
        epochs=epochs,
        separate_last=separate,
        documents=range(*w["part"]),
    )
    found = reads(index, along, range(len(along.samples)))
    tokens = [
        np.arange(offset // 4, (offset + length) // 4)
        for offset, length in zip(found.offset.tolist(), found.length.tolist(), strict=True)
    ]
    assert told(np.concatenate(tokens)) == read
    some = range(3, 40, 5)
    of_some = np.isin(found.place, np.array(some))
    assert reads(index, along, some).offset.tolist() == found.offset[of_some].tolist()


def test_golden_cases_cover_one_pass_and_both_kinds_of_several() -> None:
    settings = {setting_of(w, index_of(w)) for w, _ in cases("megatron", "tokens")}
    assert {(epochs > 1, separate) for epochs, separate in settings} == {
        (False, False),
        (True, False),
        (True, True),
    }


@pytest.mark.parametrize(("w", "read"), cases("megatron", "index"))
def test_index_files(w: dict[str, Any], read: Case) -> None:
    file = base64.b64decode(w["file"])
    index = parse_index(file)
    assert told(index.lengths.tolist(), index.pointers.tolist()) == read
    assert index.token_bytes == w["token_bytes"]
    for end in (0, 33, 34 + 12 * len(index.lengths) - 1):
        with pytest.raises(FormatError):
            parse_index(file[:end])
    with pytest.raises(FormatError, match="type 99"):
        parse_index(file[:17] + bytes([99]) + file[18:])


def test_steps_deal_consecutive_samples_to_the_ranks() -> None:
    places = dealt(50, ranks=3, batch=4)
    assert places.shape == (4, 3, 4)
    assert places[1, 2].tolist() == [20, 21, 22, 23]
    assert all(a + 1 == b for a, b in pairwise(places.ravel().tolist()))
    with pytest.raises(ConfigError, match="0 ranks"):
        dealt(50, ranks=0, batch=4)


def test_data_too_small_for_a_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match="8 tokens"):
        line(np.array([5, 3], dtype=np.int32), sequence=8)
    with pytest.raises(ConfigError, match="0 tokens"):
        line(np.array([], dtype=np.int32), sequence=8)
    with pytest.raises(ConfigError, match="all at least 1"):
        epochs_for(0, sequence=8, samples=1)
