"""What the kernel is let to read ahead, by how a folder's files are read."""

import random
from pathlib import Path

import pytest

from hubspoke.core.ids import ObjectEntry, ObjectName, Version
from hubspoke.frontends.fuse.folder_reads import ENDS_MAX, READS_MAX, FolderReads, Level
from hubspoke.frontends.fuse.nodes import Node, NodeTable
from hubspoke.frontends.fuse.read_ahead import FOLDERS_MAX, ReadAhead
from hubspoke.frontends.fuse.tuning import FuseTuning

KIB, MIB, PAGE = 1 << 10, 1 << 20, 4096
USUAL, CUT = FuseTuning().read_ahead, FuseTuning().read_ahead_cut


def folder(reads: list[tuple[int, int]], read_ahead: int = USUAL) -> FolderReads:
    made = FolderReads("data")
    for offset, size in reads:
        made.read(1, offset, size, read_ahead)
    return made


def faults(n: int, read_ahead: int) -> list[tuple[int, int]]:
    """READs around random pages, as the kernel makes them."""
    rng = random.Random(5)
    pages = [rng.randrange(64, 1 << 20) for _ in range(n)]
    return [(page * PAGE - read_ahead // 2, read_ahead) for page in pages]


def in_order(n: int, size: int, start: int = 0) -> list[tuple[int, int]]:
    return [(start + i * size, size) for i in range(n)]


def test_faults_of_a_mapping_are_cut_from_the_next_file_on() -> None:
    assert folder(faults(12, USUAL)).opens() is Level.CUT
    assert folder(faults(3, USUAL)).opens() is Level.USUAL  # too few to say


def test_what_was_cut_stays_cut_as_long_as_it_is_read_so() -> None:
    reads = folder(faults(12, USUAL))
    for offset, size in faults(1_000, CUT):
        reads.read(1, offset, size, CUT)
        assert reads.opens() is Level.CUT


def test_records_of_several_pages_stay_cut() -> None:
    """The pages behind a fault come in READs that go on from it, some as long as the read-ahead."""
    reads, rng = folder(faults(12, USUAL)), random.Random(7)
    for offset, size in faults(1_000, CUT):
        reads.read(1, offset, size, CUT)
        if rng.random() < 0.3:
            reads.read(1, offset + size, CUT, CUT)
        elif rng.random() < 0.5:
            reads.read(1, offset + size, 2 * PAGE, CUT)
        assert reads.opens() is Level.CUT


def test_single_pages_say_nothing() -> None:
    reads = folder(faults(12, USUAL) + [(offset, PAGE) for offset, _ in faults(500, PAGE)])
    assert reads.opens() is Level.CUT


def test_files_that_are_read_on_get_longer_requests() -> None:
    assert folder(in_order(20, USUAL)).opens() is Level.WIDE
    assert folder(in_order(20, USUAL, start=PAGE)).opens() is Level.WIDE


def test_readers_side_by_side_in_one_file_are_no_faults() -> None:
    each = [in_order(20, USUAL, start=PAGE + w * 100 * MIB) for w in range(8)]
    assert folder([read for turn in zip(*each, strict=True) for read in turn]).opens() is Level.WIDE


def test_records_at_random_places_are_no_faults() -> None:
    rng = random.Random(6)
    aligned = [(rng.randrange(1 << 12) * USUAL, USUAL) for _ in range(200)]
    shorter = [(rng.randrange(1 << 20) * PAGE, 100 * KIB) for _ in range(200)]
    assert folder(aligned).opens() is Level.USUAL
    assert folder(shorter).opens() is Level.USUAL


def test_a_folder_that_is_read_in_another_way_is_found_out() -> None:
    reads = folder(faults(500, USUAL))
    assert reads.opens() is Level.CUT
    for offset, size in in_order(2 * READS_MAX, CUT):
        reads.read(1, offset, size, CUT)
    assert reads.opens() is Level.WIDE
    for offset, size in faults(2 * READS_MAX, MIB):
        reads.read(1, offset, size, MIB)
    assert reads.opens() is Level.CUT


def test_what_is_kept_of_a_folder_is_bounded() -> None:
    reads = folder(faults(10 * ENDS_MAX, USUAL))
    assert len(reads._ends) <= ENDS_MAX
    assert reads.around + reads.on + reads.other < READS_MAX


def a_file(table: NodeTable, key: str, size: int = 64 * MIB) -> Node:
    entry = ObjectEntry(Version("v"), size, "e", 0)
    return table.file(ObjectName("b", key), entry, complete=False)


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    path = tmp_path / "read_ahead_kb"
    path.write_text("128\n")
    return path


def test_it_is_set_before_a_file_is_opened_that_wants_another(setting: Path) -> None:
    ahead, table = ReadAhead(FuseTuning()), NodeTable()
    ahead.begin(setting)
    assert setting.read_text() == "256\n"
    mapped, other = a_file(table, "mapped/0"), a_file(table, "other/0")
    level = ahead.opened(mapped)
    for offset, size in faults(12, USUAL):
        ahead.read(mapped, level, offset, size)
    assert ahead.opened(a_file(table, "mapped/1")) is Level.CUT
    assert setting.read_text().split()[0] == "64"
    assert ahead.opened(other) is Level.USUAL
    assert setting.read_text().split()[0] == "256"
    ahead.close()


def test_a_user_who_may_not_set_it_goes_without(tmp_path: Path) -> None:
    ahead, node = ReadAhead(FuseTuning()), a_file(NodeTable(), "k")
    ahead.begin(tmp_path / "missing")
    assert ahead.opened(node) is Level.USUAL
    for offset, size in faults(12, USUAL):
        ahead.read(node, 0, offset, size)
    assert ahead.opened(node) is Level.USUAL


def test_small_files_are_left_alone_and_folders_bounded(setting: Path) -> None:
    ahead, table = ReadAhead(FuseTuning()), NodeTable()
    ahead.begin(setting)
    assert ahead.opened(a_file(table, "small/0", 100 * KIB)) is Level.USUAL
    for i in range(FOLDERS_MAX + 10):
        ahead.opened(a_file(table, f"{i}/k"))
    assert len(ahead._folders) == FOLDERS_MAX
    ahead.close()
