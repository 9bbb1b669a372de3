"""What is proposed of files whose structure is known, and where the core wants to look."""

from dataclasses import dataclass, field

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.generators.candidates import Candidate, DepthConfig
from hubspoke.core.generators.layout import Layouts
from hubspoke.core.habits import Habits
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version, page_span
from hubspoke.core.layouts.layout import NoLayout, finish
from hubspoke.core.layouts.probe import Look, read
from hubspoke.core.stream_table import StreamTable
from hubspoke.core.streams import Access, Pattern
from tests.core import test_layouts
from tests.core.layout_files import parquet

GROUPS, COLUMNS, LENGTH = 40, 10, 64 << 10
FILE = parquet(GROUPS, COLUMNS, LENGTH)
TAIL = 64 << 10
HIDE_S = 0.3
MIB = 1 << 20


@dataclass
class Folder:
    """Objects with bytes; `core.generators.Listing`."""

    files: dict[str, bytes]
    asked: int = 0

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        self.asked += 1
        found = sorted(f for f in self.files if f > name.key)[:limit]
        return [(ObjectName("b", f), self.entry(f)) for f in found]

    def entry(self, key: str) -> ObjectEntry:
        return ObjectEntry(Version("1"), len(self.files[key]), "e", 0)


@dataclass
class Spoke:
    """The part of one that reads pass through: what was read is in the cache at once."""

    folder: Folder
    cache: Cache = field(default_factory=lambda: Cache(1 << 30))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.habits = Habits()
        self.layouts = Layouts(self.cache, self.folder, DepthConfig(), self.habits)
        self.streams = StreamTable()
        self.looks = 0

    def open(self, key: str) -> CachedObject:
        return self.cache.open(ObjectName("b", key), self.folder.entry(key))[0]

    def bring(self, obj: CachedObject, offset: int, length: int) -> None:
        for a, b in obj.not_local(*page_span(offset, min(length, obj.size - offset))):
            self.cache.fly(obj, a, b)
            self.cache.arrived(obj, a, b)

    def look(self) -> None:
        """As the shell does."""
        due = self.layouts.book.due()
        while due:
            for one in due:
                self.looks += 1
                start, length = one.look.span
                content = self.folder.files[one.obj.name.key]
                try:
                    seen = finish(read(one.look, content[start : start + length]))
                except NoLayout:
                    seen = None
                self.layouts.book.saw(one, seen)
            due = self.layouts.book.due()

    def read(
        self, key: str, *ranges: tuple[int, int], state: ReadState = ReadState.HIT
    ) -> list[Candidate]:
        """Reads one after the other; what is proposed, which is None where others have to."""
        found: list[Candidate] = []
        for offset, length in ranges:
            self.now += 0.001
            obj = self.open(key)
            self.bring(obj, offset, length)
            access = Access(obj, offset, length, "c", self.now, state)
            moved = self.streams.observe([access], lambda s: None, lambda *_: None)
            self.habits.moved(moved, HIDE_S)
            for s, accesses in moved.items():
                self.proposed = self.layouts.propose(s, accesses, self.now, HIDE_S)
                found += self.proposed or []
                self.stream = s
            self.look()
            taken = self.layouts.take(self.now)
            for c in taken:
                self.bring(self.open(c.name.key), c.offset, c.length)
            self.look()
            found += taken
        return found

    def read_footer(self, key: str) -> list[Candidate]:
        size = len(self.folder.files[key])
        return self.read(key, (size - TAIL, TAIL))

    def read_columns(self, key: str, group: int, *columns: int) -> list[Candidate]:
        return self.read(key, *(place(group, c) for c in columns))


def place(group: int, column: int) -> tuple[int, int]:
    return 4 + (group * COLUMNS + column) * LENGTH, LENGTH


def parts(candidates: list[Candidate], key: str) -> set[tuple[int, int]]:
    """(group, column) of chunks with proposed bytes."""
    found = set()
    for c in candidates:
        if c.name.key == key and c.offset + c.length <= GROUPS * COLUMNS * LENGTH + 4:
            first, last = (c.offset - 4) // LENGTH, (c.offset + c.length - 5) // LENGTH
            found |= {divmod(p, COLUMNS) for p in range(first, last + 1)}
    return found


def a_folder(count: int) -> Folder:
    return Folder({f"t/{i:03}.parquet": FILE for i in range(count)})


def test_same_columns_of_the_coming_row_groups_are_proposed() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    candidates = spoke.read_columns("t/000.parquet", 0, 2, 7)
    candidates += spoke.read_columns("t/000.parquet", 1, 2)
    found = parts(candidates, "t/000.parquet")
    assert {c for _, c in found} == {2, 7}
    assert {(1, 7), (2, 2), (2, 7), (3, 2)} <= found
    assert spoke.stream.describe()["layout"] == "parquet, 2 of 10 columns"
    assert spoke.layouts.in_groups(spoke.stream.obj)


def test_of_files_whose_first_groups_are_read_no_others_come() -> None:
    spoke = Spoke(a_folder(8))
    for number in range(6):
        key = f"t/{number:03}.parquet"
        spoke.read_footer(key)
        for group in range(5):
            spoke.read_columns(key, group, 2, 7)
    key = "t/006.parquet"
    found = spoke.read_footer(key)
    for group in range(5):
        found += spoke.read_columns(key, group, 2, 7)
    assert max(group for group, _ in parts(found, key)) == 4
    further = parts(spoke.read(key, place(5, 2), state=ReadState.MISS), key)
    assert {(6, 2), (6, 7)} <= further


def test_requests_are_exact() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    spoke.read_columns("t/000.parquet", 0, 2, 7)
    found = spoke.read_columns("t/000.parquet", 1, 2)
    for c in found:
        assert (c.offset, c.length) in {place(g, n) for g in range(GROUPS) for n in (2, 7)}, c


def test_nothing_is_proposed_twice() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    seen: set[tuple[int, int]] = set()
    for g in range(10):
        for c in spoke.read_columns("t/000.parquet", g, 2, 7) if g else []:
            assert (c.offset, c.length) not in seen
            seen.add((c.offset, c.length))
        if not g:
            spoke.read_columns("t/000.parquet", 0, 2, 7)
            seen = {place(0, 2), place(0, 7)}


def test_what_waited_is_looked_at_again_once_a_round_trip() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    for g in range(3):
        spoke.read_columns("t/000.parquet", g, 2, 7)
    spoke.now += 1.0
    late = spoke.read("t/000.parquet", place(3, 2), state=ReadState.LATE)
    assert (3, 7) in parts(late, "t/000.parquet")
    late = spoke.read("t/000.parquet", place(3, 7), state=ReadState.LATE)
    assert (4, 2) not in parts(late, "t/000.parquet")


def test_columns_at_equal_distances_are_expected_to_go_on() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    found = parts(spoke.read_columns("t/000.parquet", 0, 0, 3, 6), "t/000.parquet")
    assert (0, 9) in found
    assert (0, 7) not in found


def test_other_columns_are_believed_after_some_groups() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    for g in range(4):
        spoke.read_columns("t/000.parquet", g, 2, 7)
    for g in range(4, 9):
        spoke.read_columns("t/000.parquet", g, 1)
    found = parts(spoke.read_columns("t/000.parquet", 9, 1), "t/000.parquet")
    assert {c for _, c in found} <= {1}


def test_row_groups_at_random_are_not_followed() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    for g in (0, 5, 3, 8):
        spoke.read_columns("t/000.parquet", g, 2, 7)
    assert spoke.read_columns("t/000.parquet", 12, 2) == []


def test_two_passes_over_a_file_are_told_apart() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    for g in range(3):
        spoke.read_columns("t/000.parquet", g, 2)
        spoke.read_columns("t/000.parquet", g + 20, 5)
    found = parts(spoke.read_columns("t/000.parquet", 30, 5), "t/000.parquet")
    assert {c for g, c in found if g > 28} <= {5}


def test_footer_and_columns_of_the_next_file_come_before_it_is_opened() -> None:
    spoke = Spoke(a_folder(3))
    key = "t/001.parquet"
    found = spoke.read_footer("t/000.parquet")
    (tail,) = [c for c in found if c.name.key == key]
    assert (tail.offset, tail.length) == (len(FILE) - TAIL, TAIL), "as much as readers read"
    for g in range(3):
        spoke.now += 0.3
        found += spoke.read_columns("t/000.parquet", g, 2, 7)
    assert parts(found, key) >= {(0, 2), (0, 7), (1, 2), (1, 7)}
    assert {c for _, c in parts(found, key)} == {2, 7}
    # Once it is opened, what follows is asked for at once, before a column was read.
    assert (5, 7) in parts(spoke.read_footer(key), key)


def test_files_in_any_order_are_all_prepared() -> None:
    spoke = Spoke(a_folder(40))
    found: list[Candidate] = []
    for i in (20, 7, 33, 2):
        found += spoke.read_footer(f"t/{i:03}.parquet")
        for g in range(GROUPS):
            found += spoke.read_columns(f"t/{i:03}.parquet", g, 2, 7)
            spoke.now += 0.3
    assert len({c.name.key for c in found}) == 40


def test_no_more_is_prepared_than_was_read() -> None:
    spoke = Spoke(a_folder(300))
    keys = [f"t/{i:03}.parquet" for i in (20, 7, 33, 2)]
    found: list[Candidate] = []
    for key in keys:
        found += spoke.read_footer(key)
        for g in range(GROUPS):
            found += spoke.read_columns(key, g, 2, 7)
            spoke.now += 0.3
    read = len(keys) * (GROUPS * 2 * LENGTH)
    unread = {
        (c.name.key, page)
        for c in found
        if c.name.key not in keys
        for page in range(*page_span(c.offset, c.length))
    }
    assert 4 * MIB < 4_096 * len(unread) <= 1.1 * read


def test_folder_without_layouts_is_left_alone() -> None:
    spoke = Spoke(Folder({f"i/{n:03}.jpg": bytes(300_000) for n in range(50)}))
    for n in range(50):
        spoke.read(f"i/{n:03}.jpg", (0, 100_000), (200_000, 100_000))
        assert spoke.proposed is None
    assert spoke.looks <= 8
    assert spoke.folder.asked == 0


def test_small_objects_are_not_looked_at() -> None:
    spoke = Spoke(Folder({"i/0": test_layouts.npz()}))
    spoke.read("i/0", (0, 40_000), (40_000, len(spoke.folder.files["i/0"]) - 40_000))
    assert spoke.looks == 0


def test_read_at_the_end_does_not_flow_over_before_it_was_looked_at() -> None:
    spoke = Spoke(a_folder(2))
    obj = spoke.open("t/000.parquet")
    access = Access(obj, obj.size - TAIL, TAIL, "c", 0.0, ReadState.MISS)
    for s, accesses in spoke.streams.observe([access], lambda s: None, lambda *_: None).items():
        assert spoke.layouts.propose(s, accesses, 0.0, HIDE_S) == []


def test_sequential_stream_is_left_to_its_generator() -> None:
    spoke = Spoke(a_folder(1))
    spoke.read_footer("t/000.parquet")
    spoke.read("t/000.parquet", (0, 4096))
    spoke.read("t/000.parquet", (4096, 4096))
    spoke.stream.pattern = Pattern.SEQUENTIAL
    spoke.read("t/000.parquet", (8192, 4096))
    assert spoke.proposed is None


def test_tar_is_read_on_from_its_start() -> None:
    spoke = Spoke(Folder({"s/0.tar": test_layouts.tar() + bytes(MIB)}))
    spoke.read("s/0.tar", (0, 4096))
    spoke.read("s/0.tar", (0, 4096))
    assert spoke.stream.pattern is Pattern.SEQUENTIAL
    assert spoke.stream.describe()["layout"] == "tar"


def tensors(n: int) -> bytes:
    return test_layouts.safetensors({f"w{i:02}": bytes(100_000) for i in range(n)})


def test_tensors_are_proposed_once_the_header_was_read() -> None:
    content = tensors(20)
    spoke = Spoke(Folder({"m/0.safetensors": content}))
    spoke.read("m/0.safetensors", (0, 8), (8, 1_500))
    start = len(content) - 20 * 100_000
    found = spoke.read("m/0.safetensors", (start, 100))
    assert found[0].offset == start + 100
    assert not spoke.layouts.in_groups(spoke.open("m/0.safetensors")), "an item as a whole"
    assert spoke.stream.describe()["layout"] == "safetensors, 1 of 20 parts"


def test_tensors_read_one_after_the_other_are_left_to_the_sequential_generator() -> None:
    content = tensors(60)
    spoke = Spoke(Folder({"m/0.safetensors": content}))
    spoke.read("m/0.safetensors", (0, 8), (8, 4_500))
    start = len(content) - 60 * 100_000
    spoke.read("m/0.safetensors", *((start + i * 100_000, 100_000) for i in range(6)))
    assert spoke.proposed is None


def test_asked_tensors_alone_are_read_to_their_end() -> None:
    content = tensors(60)
    spoke = Spoke(Folder({"m/0.safetensors": content}))
    spoke.read("m/0.safetensors", (0, 8), (8, 4_500))
    start = len(content) - 60 * 100_000
    for i in (3, 11, 17, 25):
        spoke.read("m/0.safetensors", (start + i * 100_000, 100_000))
    at = start + 40 * 100_000
    found = spoke.read("m/0.safetensors", (at, 4_096))
    assert [(c.offset, c.length) for c in found] == [(at + 4_096, 100_000 - 4_096)]


def test_members_of_a_zip_are_proposed_once_the_directory_was_read() -> None:
    content = test_layouts.big_npz()
    spoke = Spoke(Folder({"z/0.npz": content}))
    found = spoke.read("z/0.npz", (len(content) - 4_096, 4_096), (0, 100))
    assert found
    assert min(c.offset for c in found) == 100


def test_obsolete_object_is_forgotten() -> None:
    spoke = Spoke(a_folder(1))
    obj = spoke.open("t/000.parquet")
    spoke.read_footer("t/000.parquet")
    spoke.read("t/000.parquet", (obj.size - TAIL, TAIL))
    spoke.cache.open(obj.name, ObjectEntry(Version("2"), obj.size, "e", 0))
    assert obj.dead
    spoke.layouts.book.want(obj, Look.tail(obj.size))
    assert spoke.layouts.book.due() == []
