"""Where records lie: first offset, step and length, from reads in any order."""

from collections.abc import Sequence

import numpy as np
import pytest

from hubspoke.core.epochs.kinds import AGREE, KIND_READS
from hubspoke.core.epochs.records import Records, packed, records_of, suffix_of

NEED = int(AGREE * KIND_READS)


def offsets(first: int, step: int, count: int, seed: int) -> list[int]:
    """As many as decide, of `count` records read at random."""
    rng = np.random.default_rng(seed)
    items = rng.choice(count, KIND_READS, replace=False).tolist()
    return [first + item * step for item in items]


def found(at: Sequence[int], length: int, name: str = "d/x.bin") -> tuple[int, int, int] | None:
    records = records_of([(name, each) for each in at], length, NEED)
    return None if records is None else records[:3]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("first", "step", "length", "count"),
    [
        (0, 4_096, 4_096, 6_144),
        (0, 20_480, 4_096, 1_200),
        (128, 3_000, 3_000, 100_000),
        (4_096, 8_194, 8_194, 60),
        (7, 30, 11, 10_000),
    ],
)
def test_step_is_what_all_offsets_are_apart(
    seed: int, first: int, step: int, length: int, count: int
) -> None:
    expected = first % step, step, length
    at = offsets(first, step, count, seed)
    assert found(at, length) == expected
    # Some reads are of something else, on a finer lattice or on none.
    rng = np.random.default_rng(seed)
    for size in (length, 1):
        others = (rng.integers(first + count * step // size, size=4) * size).tolist()
        assert found([*at[:-4], *others], length) == expected


def test_rows_of_npy_begin_behind_its_head() -> None:
    at = offsets(128, 64, 1_000, 0)
    assert found(at, 64, "d/x.npy") == (128, 64, 64)
    assert found(at, 64) == (0, 64, 64), "of others nobody knows how much is no record"
    assert found([64, *at[1:]], 64, "d/x.npy") == (0, 64, 64)


def test_reads_that_overlap_are_no_records() -> None:
    rng = np.random.default_rng(0)
    for grid in (1, 2, 512, 4_096):
        assert found((rng.integers(10_000, size=KIND_READS) * grid).tolist(), 8_192) is None


def test_few_places_are_no_evidence_of_gaps() -> None:
    at = [20_480 * (i % 10) for i in range(KIND_READS)]
    assert found(at, 4_096) == (0, 4_096, 4_096)
    assert found([each + 128 for each in at], 4_096) is None


def test_records_are_of_names_that_end_alike() -> None:
    names = ["a/0.mds", "a/1.mds", "b.c/2", "x.00017"]
    assert [suffix_of(name) for name in names] == ["mds", "mds", "", ""]
    reads = [(f"d/{i % 3}.mds", at) for i, at in enumerate(offsets(0, 100, 1_000, 0))]
    records = records_of([*reads[:-1], ("d/index.json", 31)], 100, NEED)
    assert records == Records(0, 100, 100, frozenset({"mds"}))


def test_of_each_step_so_much_is_a_record() -> None:
    records = Records(128, 20_480, 4_096)
    assert [records.count(size) for size in (0, 128, 129, 20_608, 20_609)] == [0, 0, 1, 1, 2]
    assert packed(10) == Records(0, 10, 10)
