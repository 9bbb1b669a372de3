"""How much of each file is read, learned from the last files of the folder."""

import random

from hubspoke.core import habits as h
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.items import folder_of
from hubspoke.core.eviction.data_set import DataSet
from hubspoke.core.generators import backward, next_object
from hubspoke.core.generators.candidates import Ahead, DepthConfig
from hubspoke.core.habits import Habits
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version
from hubspoke.core.stream_table import StreamTable
from hubspoke.core.streams import NEVER, Access, Pattern, Stream
from tests.core.test_streams import an_object

KIB, MIB = 1 << 10, 1 << 20
SIZE, READ, HIDE_S = 8 * MIB, 64 * KIB, 0.3


class Folder:
    """Reads of its files, one after the other."""

    def __init__(self, size: int = SIZE, read_s: float = 0.01) -> None:
        self.table, self.habits = StreamTable(), Habits()
        self.size, self.now, self.read_s = size, 0.0, read_s
        self.files: dict[int, CachedObject] = {}

    def name(self, number: int) -> ObjectName:
        return an_object(self.size, number).name

    def read(self, number: int, start: int, end: int, client: str = "c", by: int = READ) -> Stream:
        """Bytes [start, end) of a file; downwards if `by` is below 0. Returns the last stream."""
        obj = self.files.setdefault(number, an_object(self.size, number))
        for offset in range(start, end, by) if by > 0 else range(end + by, start - 1, by):
            self.now += self.read_s
            a = Access(obj, offset, abs(by), client, self.now, ReadState.HIT)
            moved = self.table.observe([a], lambda s: None, lambda *_: None)
            self.habits.moved(moved, HIDE_S)
        return self.table.by_object[number].streams[-1]

    def heads(self, numbers: range, length: int = MIB) -> None:
        for number in numbers:
            self.read(number, 0, length)

    def part(self, size: int = SIZE) -> tuple[int, int] | None:
        return self.habits.part(self.name(999), size)


def test_a_file_will_be_left_where_the_last_ones_were() -> None:
    folder = Folder()
    folder.heads(range(3))
    assert folder.part() == (0, SIZE)  # two were left, the third may be read on
    folder.heads(range(3, 5))
    assert folder.part() == (0, MIB)
    assert folder.read(9, 0, READ).end == MIB


def test_files_that_are_read_to_their_end_have_no_other() -> None:
    folder = Folder()
    folder.heads(range(5), SIZE)
    assert folder.part() == (0, SIZE)
    assert folder.read(9, 0, READ).end == SIZE


def test_some_files_that_are_read_on_change_nothing_for_the_others() -> None:
    folder = Folder()
    for number in range(16):
        folder.read(number, 0, SIZE if number % 4 == 1 else MIB)
    assert folder.part() == (0, MIB)


def test_who_goes_on_is_believed_at_once() -> None:
    folder = Folder()
    folder.heads(range(8))
    assert folder.read(9, 0, MIB).end == MIB
    assert folder.read(9, MIB, MIB + READ).end == SIZE


def test_another_habit_is_believed_after_half_of_the_files_that_count() -> None:
    folder = Folder()
    folder.heads(range(20))
    folder.heads(range(20, 20 + h.PARTS // 2 + 1), 4 * MIB)
    assert folder.part() == (0, 4 * MIB)


def test_lengths_that_differ_are_followed_a_part_at_a_time() -> None:
    folder, rng = Folder(), random.Random(1)
    for number in range(30):
        folder.read(number, 0, rng.randrange(8, 33) * READ)
    s = folder.read(99, 0, READ)
    assert 8 * READ <= s.end < 32 * READ
    assert folder.read(99, READ, s.end + READ).end > s.end - READ


def test_tails_and_middles() -> None:
    tails, middles = Folder(), Folder()
    for number in range(5):
        tails.read(number, SIZE - MIB, SIZE)
        middles.read(number, 3 * MIB, 5 * MIB)
    assert tails.part(2 * SIZE) == (2 * SIZE - MIB, 2 * SIZE)
    assert middles.part() == (3 * MIB, 5 * MIB)
    assert middles.read(9, 3 * MIB, 4 * MIB).end == 5 * MIB
    assert tails.read(9, SIZE - MIB, SIZE - READ).end == SIZE


def test_what_flows_over_is_what_will_be_read_of_the_next_file() -> None:
    folder = Folder()
    for number in range(5):
        s = folder.read(number, 3 * MIB, 5 * MIB)
    entry = ObjectEntry(Version("v"), SIZE, "e", 0)
    following = [(folder.name(n), entry) for n in (5, 6)]
    found = next_object.overflow(s, 3 * MIB, following, HIDE_S, folder.habits)
    assert [(c.offset, c.length) for c in found] == [(3 * MIB, 2 * MIB), (3 * MIB, MIB)]


def test_files_begun_anywhere_say_nothing_of_the_next_one() -> None:
    folder = Folder()
    for number in range(12):
        folder.read(number, number % 6 * MIB, (number % 6 + 1) * MIB)
    assert folder.part() is None
    entry = ObjectEntry(Version("v"), SIZE, "e", 0)
    s = folder.read(12, MIB, 2 * MIB)
    assert not next_object.overflow(s, MIB, [(folder.name(13), entry)], HIDE_S, folder.habits)


def test_downwards_files_are_left_too() -> None:
    folder = Folder()

    def down(number: int, start: int) -> Stream:
        s = folder.read(number, start, SIZE - MIB, by=-READ)
        backward.judge(s, Ahead(MIB, NEVER))
        return s

    for number in range(6):
        down(number, SIZE - MIB - 8 * READ)
        folder.read(number, SIZE - 3 * MIB, SIZE - MIB - 8 * READ, by=-READ)
    s = down(9, SIZE - MIB - 8 * READ)
    assert s.pattern is Pattern.BACKWARD
    s.planned = s.recent_lo
    found = backward.propose(
        s, folder.now, 100.0, DepthConfig(), waited=False, ahead=Ahead(MIB, 64 * MIB)
    )
    assert min(c.offset for c in found) == SIZE - 3 * MIB


def test_a_directory_at_the_end_is_no_end() -> None:
    folder = Folder()
    for number in range(5):
        folder.read(number, SIZE - READ, SIZE)
        folder.read(number, 0, MIB)
    assert folder.part() == (0, MIB)


def test_thousands_of_files_read_in_turns_are_not_left() -> None:
    folder = Folder()
    for number in range(4 * h.OPENINGS_ONCE):
        folder.read(number, 0, READ, f"c{number % 4}")
    assert folder.part() == (0, SIZE)
    folder.now += h.ONCE_S
    for number in range(1_000, 1_002 + h.OPENINGS_ONCE):
        folder.read(number, 0, READ)
    assert folder.part() == (0, READ)


def test_files_of_other_readers_are_left_when_others_are_read_and_time_has_passed() -> None:
    folder = Folder(read_s=0.001)
    for number in range(8):
        folder.read(number, 0, MIB, f"handle {number}")
    assert folder.part() == (0, SIZE)
    for number in range(8, 16):
        folder.now += HIDE_S
        folder.read(number, 0, MIB, f"handle {number}")
    assert folder.part() == (0, MIB)


def test_a_verdict_that_was_wrong_is_harder_to_get_again() -> None:
    folder = Folder()
    ends = []
    for turn in range(6):  # one reader that reads four files in turns, and opens a fifth each time
        for number in (0, 1, 2, 3, 10 + turn):
            start = 2 * turn * READ if number < 10 else 0
            ends.append(folder.read(number, start, start + 2 * READ).end)
    assert set(ends[-5:]) == {SIZE}
    habit = folder.habits.get(("b", ""))
    assert habit is not None and habit.patience > 1
    folder.heads(range(100, 100 + 4 * h.TRUSTED + 8))
    assert habit.patience == 1


def test_a_file_that_was_left_is_begun_anew() -> None:
    folder = Folder()
    folder.heads(range(4))
    before = folder.read(0, 0, READ)
    assert before.accesses == 1
    assert folder.part() == (0, MIB)


def test_walks_bring_what_was_read_of_any_file_until_habits_are_known() -> None:
    folder = Folder()
    assert folder.habits.of_next(folder_of(folder.name(0))) == h.YOUNG_BYTES
    folder.heads(range(2), 3 * MIB)
    assert folder.habits.of_next(folder_of(folder.name(3))) == 3 * MIB
    folder.heads(range(2, 12))
    assert folder.habits.of_next(folder_of(folder.name(13))) == MIB


def test_memory_has_a_bound() -> None:
    folder = Folder(read_s=0.0)
    for number in range(h.FILES_MAX + 10):
        folder.read(number, 0, READ, f"c{number}")
    habit = folder.habits.get(("b", ""))
    assert habit is not None
    assert len(habit.reading) == h.FILES_MAX and len(habit.opened_by) == h.CLIENTS_MAX
    for number in range(h.FOLDERS_MAX + 5):
        obj = an_object(SIZE, 20_000 + number)
        obj.name, obj.data_set = ObjectName("b", f"{number}/f"), DataSet(("b", f"{number}/"))
        a = Access(obj, 0, READ, "c", 0.0, ReadState.HIT)
        moved = folder.table.observe([a], lambda s: None, lambda *_: None)
        folder.habits.moved(moved, HIDE_S)
    assert folder.habits.get(("b", "")) is None
    assert folder.habits.get(("b", f"{h.FOLDERS_MAX + 4}/")) is not None


def test_columns_of_the_last_groups_are_no_directory() -> None:
    """A sixteenth of the file from its end is where directories lie; who reads on to there reads
    on. Without that the last groups of every file were not brought."""
    size = 64 * MIB
    folder = Folder(size)
    for number in range(6):
        folder.read(number, size - 64 * KIB, size)  # the footer
        for group in range(0, size - MIB, MIB):
            s = folder.read(number, group, group + 256 * KIB)
            s.layout = "parquet"
    part = folder.part(size)
    assert part is not None and part[0] == 0 and part[1] >= size - 2 * MIB, part
