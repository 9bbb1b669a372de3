"""Items: numbers of the objects or records of a folder, and the way back."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import pytest

from hubspoke.core.cache import Cache
from hubspoke.core.epochs import items as module
from hubspoke.core.epochs.data_sets import DataSets, ItemReads
from hubspoke.core.epochs.epochs import Epochs
from hubspoke.core.epochs.items import SLICE_NAMES, ListedItems
from hubspoke.core.epochs.records import Records, packed
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version
from hubspoke.core.streams import Access

FOLDER = ("data", "set/")
RECORD = 10_000


class Listing:
    """Names of one folder in order."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.names = [ObjectName("data", f"set/{i:05}") for i in range(len(sizes))]
        self.entries = [ObjectEntry(Version("v1"), size, "e", 0) for size in sizes]
        self.asked: list[int] = []

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        self.asked.append(limit)
        at = bisect_right(self.names, name)
        return list(zip(self.names[at : at + limit], self.entries[at : at + limit], strict=True))


def listed(sizes: Sequence[int], record: Records | None) -> tuple[ListedItems, Listing]:
    listing = Listing(sizes)
    items = ListedItems(FOLDER, listing, record=record)
    while not items.complete:
        items.grow()
    return items, listing


def test_files_are_items_in_listing_order() -> None:
    items, listing = listed([5, 6, 7], None)
    assert items.count == 3
    assert items.number(listing.names[1], 0, 6) == 1
    assert items.number(listing.names[1], 3, 2) == 1, "any read of an object belongs to it"
    assert items.number(ObjectName("data", "set/other"), 0, 5) is None
    assert items.number(ObjectName("data", "else/00001"), 0, 5) is None
    assert items.place(2) == (listing.names[2], listing.entries[2], 0, 7)


def test_records_are_numbered_through_all_objects() -> None:
    items, listing = listed([3 * RECORD, 2 * RECORD + 1, RECORD], packed(RECORD))
    assert items.count == 7
    assert items.number(listing.names[1], RECORD, RECORD) == 4
    assert items.number(listing.names[1], 2 * RECORD, 1) == 5, "the last one is short"
    assert items.number(listing.names[1], RECORD, 1) is None, "not the whole record"
    assert items.number(listing.names[1], 5, RECORD) is None, "not where a record begins"
    assert items.place(5) == (listing.names[1], listing.entries[1], 2 * RECORD, 1)
    assert items.place(6) == (listing.names[2], listing.entries[2], 0, RECORD)
    every = np.arange(7, dtype=np.int32)
    assert list(items.ranges(every)) == [items.range(i) for i in range(7)]


def test_records_apart_are_numbered_alike() -> None:
    """Behind a head, with padding, and beside files that have none."""
    listing = Listing([3_128, 100, 900, 2_000])
    listing.names[2] = ObjectName("data", "set/00002.json")
    rows = Records(128, 1_000, 600, frozenset({""}))
    items = ListedItems(FOLDER, listing, record=rows)
    while not items.complete:
        items.grow()
    assert items.count == 5 and items.shards == (3, 2) and items.bytes_mean == 600
    every = np.arange(5, dtype=np.int32)
    places = [(0, 128, 600), (0, 1_128, 600), (0, 2_128, 600), (3, 128, 600), (3, 1_128, 600)]
    assert list(items.ranges(every)) == [items.range(i) for i in range(5)] == places
    assert items.lengths().tolist() == [600] * 5
    for item, (number, offset, length) in enumerate(places):
        assert items.number(listing.names[number], offset, length) == item
    assert items.number(listing.names[2], 128, 600) is None, "no record is in it"
    assert items.number(listing.names[1], 128, 600) is None, "it is too short"
    key = listing.names[0].key
    touched = {(at, to): [*items.touching(key, at, to)] for at, to in [(0, 128), (0, 129)]}
    assert touched == {(0, 128): [], (0, 129): [0]}
    assert [*items.touching(key, 727, 1_129)] == [0, 1]
    assert [*items.touching(key, 728, 1_128)] == [], "between two"
    assert [*items.touching(key, 2_500, 9_999)] == [2]


def test_many_reads_have_the_numbers_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the folder has few objects or many, and whether a name was asked for before."""
    sizes = [3 * RECORD, 2 * RECORD + 1, RECORD, 5, 0]
    for record in (None, packed(RECORD), Records(1, RECORD, RECORD - 1), Records(1, RECORD, 5)):
        items, listing = listed(sizes, record)
        names = [*listing.names, ObjectName("data", "set/other")] * 2
        at_k = [(at, k) for at in (0, 1, RECORD, RECORD + 1) for k in (1, 4, 5, RECORD - 1, RECORD)]
        reads = [(n, at, k) for n in names for at, k in at_k]
        keys, offsets, lengths = zip(*((n.key, at, k) for n, at, k in reads), strict=True)
        each = [items.number(*read) for read in reads]
        for few in (0, 2, 4_096):
            monkeypatch.setattr(module, "FEW_OBJECTS", few)
            found = items.numbers(keys, offsets, lengths).tolist()
            assert [None if n < 0 else n for n in found] == each
        assert {None, 0, 1} < set(each)


def test_listing_is_read_a_slice_at_a_time() -> None:
    listing = Listing([1] * (2 * SLICE_NAMES))
    items = ListedItems(FOLDER, listing, record=None)
    for _ in range(2):
        items.grow()
        assert not items.complete
        assert items.number(listing.names[0], 0, 1) is None
    items.grow()
    assert items.complete
    assert items.count == 2 * SLICE_NAMES
    assert max(listing.asked) == SLICE_NAMES
    items.grow()
    assert len(listing.asked) == 3, "nothing more is asked"


def test_place_of_an_object_that_is_gone() -> None:
    items, listing = listed([5, 6, 7], None)
    del listing.names[1], listing.entries[1]
    assert items.place(1) is None
    assert items.place(2) == (listing.names[1], listing.entries[1], 0, 7)


def test_names_are_any_bytes() -> None:
    items, _ = listed([], None)
    assert items.count == 0
    assert items.number(ObjectName("data", "set/x"), 0, 1) is None
    listing = Listing([1, 2])
    listing.names = [ObjectName("data", "set/\udcff"), ObjectName("data", "set/\U0001f600")]
    items = ListedItems(FOLDER, listing, record=None)
    items.grow()
    items.grow()
    assert [items.object_name(i) for i in range(2)] == listing.names


# -- which items are read ---------------------------------------------------------------------


class Reader:
    """Reads of a folder, one batch for each read."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.listing = Listing(sizes)
        self.cache = Cache(1 << 30)
        self.data_sets = DataSets(self.listing)

    def access(self, number: int, offset: int, length: int) -> Access:
        obj, _ = self.cache.open(self.listing.names[number], self.listing.entries[number])
        return Access(obj, offset, length, "c", 0.0, ReadState.MISS)

    def read(self, *reads: tuple[int, int, int]) -> list[ItemReads]:
        return self.data_sets.observe([self.access(*r) for r in reads])


def test_shuffled_small_files_are_items() -> None:
    reader = Reader([100] * 64)
    assert reader.read(*((i * 7 % 64, 0, 100) for i in range(32))) == []
    (found,) = reader.read((5, 0, 100))
    assert found.items.tolist() == [i * 7 % 64 for i in range(32)] + [5], "none was lost"
    (found,) = reader.read((6, 0, 100), (7, 0, 50), (7, 50, 50))
    assert found.items.tolist() == [6, 7], "an object in pieces is one item"
    assert [a.length for a in found.accesses] == [100, 50]


def test_records_at_random_are_items() -> None:
    reader = Reader([20 * RECORD] * 4)
    reader.read(*((i % 4, i * 7 % 20 * RECORD, RECORD) for i in range(32)))
    (found,) = reader.read((1, 3 * RECORD, RECORD), (1, 5, 17))
    assert found.items[-1] == 23
    assert len(found.items) == 33, "a read that is no record is left out"


def test_reads_of_a_head_are_no_records() -> None:
    """Each file is opened and its head read, before rows of it are."""
    reader = Reader([128 + 50 * RECORD] * 8)
    rows = np.random.default_rng(0).permutation(400).tolist()
    reads = [(i // 50, 128 + i % 50 * RECORD, RECORD) for i in rows]
    for i in range(0, 60, 5):
        reader.read((reads[i][0], 0, 128), *reads[i : i + 5])
    (found,) = reader.read(reads[60])
    assert found.items.tolist() == rows[60:61]
    assert found.folder.items is not None and found.folder.items.count == 400


def test_step_that_was_too_large_is_corrected() -> None:
    """The first reads were of every second record."""
    reader = Reader([400 * RECORD])
    order = np.random.default_rng(0).permutation(400)
    reader.read(*((0, int(i) // 2 * 2 * RECORD, RECORD) for i in order[:40]))
    (found,) = reader.read((0, 2 * RECORD, RECORD))
    assert found.folder.items is not None and found.folder.items.count == 200
    for i in order:
        taken = reader.read((0, int(i) * RECORD, RECORD))
    assert taken[0].items.tolist() == [order[-1]]
    # Reads of other lengths, as of a copy, say nothing of the records.
    for i in range(200):
        reader.read((0, i * 2 * RECORD, 2 * RECORD))
    assert reader.read((0, 7 * RECORD, RECORD))[0].items.tolist() == [7]


def test_what_another_generator_follows_has_no_items() -> None:
    reader = Reader([20 * RECORD] * 4)
    reader.read(*((i % 4, i * 7 % 20 * RECORD, RECORD) for i in range(32)))
    reader.data_sets.understood(FOLDER)
    assert reader.read((1, 3 * RECORD, RECORD)) == []


def test_reads_that_do_not_agree_have_no_items() -> None:
    reader = Reader([20 * RECORD] * 4)
    rng = np.random.default_rng(0)
    for _ in range(1_024):
        offset = int(rng.integers(10 * RECORD))
        assert reader.read((int(rng.integers(4)), offset, 1 + int(rng.integers(5_000)))) == []
    asked = len(reader.listing.asked)
    assert asked == 0, "the listing is not read for nothing"


def test_large_objects_read_in_order_are_files() -> None:
    reader = Reader([4_000] * 16)
    found: list[int] = []
    for _ in range(2):
        for i in range(16):
            for reads in reader.read(*((i, p * 1_000, 1_000) for p in range(4))):
                found += reads.items.tolist()
    assert found == [*range(16), *range(16)]


def test_jobs_of_a_data_set_that_is_over_are_told_once() -> None:
    reader = Reader([100] * 64)
    epochs = Epochs(reader.listing, reader.cache)
    for i in range(34):
        moved = epochs.observe([reader.access(i * 7 % 64, 0, 100)], 0.0, lambda why: None)
    (found,) = moved
    jobs = list(found.jobs.all)
    assert jobs and not epochs.gone()
    epochs.forget(reader.listing.names[0])
    assert epochs.gone() == jobs and not epochs.gone()
