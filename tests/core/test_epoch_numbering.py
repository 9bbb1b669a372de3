"""How loaders number files, if not as they are listed."""

import pytest

from hubspoke.core.epochs.numbering import FILES_MAX, Names


def numbering(*names: str) -> list[int] | None:
    names_ = Names()
    half = len(names) // 2
    for part in (sorted(names)[:half], sorted(names)[half:]):
        names_.take(part)
    found = names_.numbering()
    return None if found is None else found.tolist()


def test_numbers_without_leading_zeros_count_as_numbers() -> None:
    chunks = [f"chunk-{rank}-{i}.bin" for rank in range(2) for i in range(11)]
    found = numbering(*chunks)
    assert found is not None and [sorted(chunks)[i] for i in found] == chunks


def test_other_files_are_no_data() -> None:
    shards = [f"{i:06}.tar" for i in range(20)]
    assert numbering(*shards, "_SUCCESS", "index.json") == list(range(20))


@pytest.mark.parametrize(
    "names",
    [
        (),
        [f"{i:06}.jpg" for i in range(30)],
        [f"{'abcdefgh'[i]}{i}" for i in range(8)],
        [*[f"a{i}" for i in range(10)], *[f"b{i}" for i in range(10)]],
        [f"{chr(97 + i)}.txt" for i in range(12)],
        [f"{10**18 + i}" for i in range(12)],
    ],
    ids=["none", "listed", "all unlike", "two kinds", "no numbers", "large"],
)
def test_otherwise_the_listing_is_the_numbering(names: list[str]) -> None:
    assert numbering(*names) is None


def test_very_many_files_are_taken_as_listed() -> None:
    names = Names()
    names.take(f"{i}" for i in range(FILES_MAX + 1))
    assert names.numbering() is None


def test_a_slice_of_names_is_taken_as_its_names_are() -> None:
    """Alike or not, with line ends, and numbers too long to be compared."""
    for names in (
        [f"a{i}.x" for i in range(20)],
        [f"a{i}.x" for i in range(20)] + ["index.json"],
        [f"q\n{i}" for i in range(20)],
        ["a1.x", f"a{10**30}.x", *(f"a{i}.x" for i in range(2, 20))],
    ):
        whole, each = Names(), Names()
        whole.take(names[:1])
        whole.take(names[1:])
        each._take_each(names)
        assert whole._kinds == each._kinds
        assert whole._count == each._count == len(names)
