"""Large files in a known order: what goes, and what comes."""

import numpy as np

from hubspoke.core.cache import Cache, CachedObject
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.epochs.large_files import LargeFiles
from hubspoke.core.eviction.by_item import Wanted
from hubspoke.core.ids import PAGE_BYTES, ObjectName
from hubspoke.core.streams import NEVER
from tests.core.virtual_wan import Names

MIB = 1 << 20
FILES, BLOCKS, HELD = 16, 8, 8
ORDER = list(reversed(range(FILES)))


class Folder:
    """Sixteen files of 8 MiB; the last eight in listing order, first in the job's, are here."""

    def __init__(self, read: list[int], reading: dict[int, int]) -> None:
        self.names = Names({f"d/{i:02}": BLOCKS * MIB for i in range(FILES)})
        self.cache = Cache(HELD * BLOCKS * MIB)
        self.objects = [self.cache.open(n, e)[0] for n, e in self.names.entries.items()]
        for obj in self.objects[HELD:]:
            self.cache.fly(obj, 0, len(obj.pages))
            self.cache.arrived(obj, 0, len(obj.pages))
        items = ListedItems(("b", "d/"), self.names, record=None)
        while not items.complete:
            items.grow()
        self.job = Job(1, FILES)
        self.job.rate = 1.0
        self.job.take(np.array(read, np.int32), [0] * len(read), 1.0)
        self.job.adopt(self.order())
        self.files = LargeFiles(items, self.cache)
        assert self.files.follow([self.job], reading, self.objects[0].data_set)

    def order(self) -> KnownOrder:
        return KnownOrder(np.array(ORDER, np.int32), 4, "planted", "by a test", self.order)

    def dropped(self, wanted: CachedObject, *, demand: bool, blocks: int = 1) -> list[object]:
        """(file, block) of what goes for one of the files."""
        gone = self.cache.make_room(blocks * MIB, Wanted(wanted, 0, demand))
        return [(self.objects.index(obj), offset // MIB) for obj, offset, _ in gone]


def test_the_end_of_what_was_read_goes_first() -> None:
    folder = Folder(read=[15, 14], reading={})
    gone = folder.dropped(folder.objects[0], demand=False, blocks=3)
    assert gone == [(14, 7), (14, 6), (14, 5)]


def test_nothing_of_this_epoch_goes_for_what_is_brought_for_later() -> None:
    folder = Folder(read=[15], reading={15: 0})
    assert folder.dropped(folder.objects[0], demand=False) == []


def test_what_is_read_last_goes_for_a_demand() -> None:
    folder = Folder(read=[15], reading={15: 0})
    assert folder.dropped(folder.objects[7], demand=True) == [(8, 7)]


def test_of_a_file_that_is_being_read_only_what_lies_behind_its_reader_goes() -> None:
    folder = Folder(read=[15], reading={15: 2 * MIB + PAGE_BYTES})
    gone = folder.dropped(folder.objects[7], demand=True, blocks=3)
    assert gone == [(15, 1), (15, 0), (8, 7)]


def test_what_readers_pass_goes_before_what_is_still_to_be_read() -> None:
    folder = Folder(read=[15], reading={15: 0})
    assert folder.dropped(folder.objects[7], demand=True) == [(8, 7)]
    data_set = folder.objects[0].data_set
    assert folder.files.follow([folder.job], {15: 2 * MIB}, data_set)
    gone = folder.dropped(folder.objects[7], demand=True, blocks=4)
    assert gone == [(15, 1), (15, 0), (8, 6)]


def test_heads_of_the_files_opened_next_come() -> None:
    folder = Folder(read=[15, 14], reading={15: 0, 14: 0})
    found = folder.files.propose(0, MIB, NEVER, hungry=False)
    assert [(c.name.key, c.offset, c.length) for c in found] == [
        ("d/13", 0, MIB),
        ("d/12", 0, MIB),
    ]
    assert folder.files.propose(0, MIB, NEVER, hungry=False) == []


def test_heads_come_for_readers_who_were_between_two_files() -> None:
    folder = Folder(read=[15, 14], reading={14: 0})
    data_set = folder.objects[0].data_set
    found = folder.files.propose(0, MIB, NEVER, hungry=False)
    assert [c.name.key for c in found] == ["d/13"]
    assert folder.files.follow([folder.job], {15: 0, 14: 0}, data_set)
    found = folder.files.propose(0, MIB, NEVER, hungry=False)
    assert "d/12" in [c.name.key for c in found]


def test_whole_files_come_into_the_room_of_what_was_read() -> None:
    folder = Folder(read=[15, 14], reading={})
    found = folder.files.propose(64 * MIB, MIB, NEVER, hungry=True)[1:]
    assert {c.name for c in found} <= {ObjectName("b", "d/07"), ObjectName("b", "d/06")}
    room = 2 * BLOCKS * MIB
    assert 0.9 * room <= sum(c.length for c in found) <= room


def test_an_order_that_is_lost_leaves_the_blocks_to_the_cache() -> None:
    folder = Folder(read=[15, 14], reading={})
    folder.job.lose()
    assert not folder.files.follow([folder.job], {}, folder.objects[0].data_set)
    assert folder.objects[0].data_set.items is None
