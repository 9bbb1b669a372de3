"""The node table: what an id means, for how long, and what is left of it for another process."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubspoke.core.ids import ObjectEntry, ObjectName, Version
from hubspoke.frontends.fuse.nodes import DOUBTFUL_MAX, NodeRecord, NodeTable
from hubspoke.frontends.fuse.protocol import ROOT_ID

NAME = ObjectName("b", "a/x")


def entry(version: str, size: int = 1) -> ObjectEntry:
    return ObjectEntry(Version(version), size, "etag", 7)


class Kept:
    """A journal as what a process that reads it would know."""

    def __init__(self) -> None:
        self.records: dict[int, NodeRecord] = {}
        self.highest = 0

    def added(self, record: NodeRecord) -> None:
        assert record.id not in self.records
        self.records[record.id] = record
        self.highest = record.id

    def forgotten(self, node_id: int) -> None:
        del self.records[node_id]


def test_a_version_is_a_node_and_so_is_its_completion() -> None:
    table = NodeTable()
    first = table.file(NAME, entry("1"), complete=False)
    assert table.file(NAME, entry("1"), complete=False) is first
    others = {
        table.file(NAME, entry("1"), complete=True).id,
        table.file(NAME, entry("2"), complete=False).id,
        table.folder("b", "a/x/").id,
        table.folder("b", "").id,
    }
    assert len(others | {first.id, ROOT_ID}) == 6
    assert first.resolved is not None and first.resolved.entry.version == "1"


def test_a_node_is_forgotten_with_its_last_reference_and_its_id_never_used_again() -> None:
    table = NodeTable()
    node = table.file(NAME, entry("1"), complete=False)
    node.lookups += 3
    assert table.forget(node.id, 2) is None and table.get(node.id) is node
    assert table.forget(node.id, 1) is node and table.get(node.id) is None
    assert table.forget(node.id, 1) is None
    assert table.file(NAME, entry("1"), complete=False).id > node.id


def test_the_root_is_never_forgotten() -> None:
    table = NodeTable()
    assert table.forget(ROOT_ID, 10**9) is None
    root = table.get(ROOT_ID)
    assert root is not None and root.is_folder and not root.is_own


def test_the_mounts_own_files_are_no_buckets() -> None:
    table = NodeTable()
    folder, file = table.own(".hubspoke"), table.own("report")
    assert folder.is_folder and folder.is_own and not file.is_folder and file.is_own
    assert not table.folder("report", "").is_own


def taken_over(n: int) -> tuple[Kept, NodeTable, list[int]]:
    """A table of n files after a crash, and their ids."""
    kept = Kept()
    before = NodeTable(kept)
    ids = []
    for i in range(n):
        node = before.file(ObjectName("b", f"k{i}"), entry("1"), complete=False)
        node.lookups += 1
        ids.append(node.id)
    after = NodeTable(kept)
    after.restore(list(kept.records.values()), kept.highest)
    return kept, after, ids


@pytest.mark.parametrize("lookups", [0, 1])
def test_what_a_process_before_had_told_outlives_an_answer_that_was_not_used(lookups: int) -> None:
    """The kernel gives that one reference back, and an open handle has another one."""
    kept, table, (node_id,) = taken_over(1)
    node = table.file(ObjectName("b", "k0"), entry("1"), complete=False)
    assert node.id == node_id
    node.lookups += lookups
    assert table.forget(node_id, lookups) is None
    assert table.get(node_id) is node and node_id in kept.records
    assert table.forget(node_id, 5) is None  # nor does the count of all of them say so
    assert table.get(node_id) is node


def test_of_those_only_so_many_stay_and_the_ones_asked_about() -> None:
    kept, table, ids = taken_over(DOUBTFUL_MAX + 100)
    for node_id in ids[:100]:
        table.forget(node_id, 1)
    assert table.get(ids[0]) is not None
    table.file(ObjectName("b", "k2"), entry("1"), complete=False).lookups += 1
    for node_id in ids[100:]:
        table.forget(node_id, 1)
    # The root, what was asked about, and what was found by its name.
    assert len(table) == DOUBTFUL_MAX + 3 and table.get(ids[2]) is not None
    assert table.get(ids[1]) is None and ids[1] not in kept.records
    assert table.get(ids[0]) is not None and table.get(ids[-1]) is not None


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["file", "folder", "forget"]),
        st.integers(0, 5),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(OPERATIONS)
def test_another_process_finds_every_id_that_the_kernel_may_have(
    operations: list[tuple[str, int, int, bool]],
) -> None:
    kept = Kept()
    table = NodeTable(kept)
    ids = list[int]()
    for kind, number, version, complete in operations:
        name = ObjectName("b", f"k{number}")
        if kind == "file":
            node = table.file(name, entry(str(version), number), complete=complete)
        elif kind == "folder":
            node = table.folder("b", f"k{number}/")
        else:
            if ids:
                table.forget(ids[number % len(ids)], 1 + version)
            continue
        node.lookups += 1
        ids.append(node.id)
    after = NodeTable()
    after.restore(kept.records.values(), kept.highest)
    assert len(after) == len(table)
    for node_id in {ROOT_ID, *ids}:
        before, now = table.get(node_id), after.get(node_id)
        assert (before is None) == (now is None)
        if before is not None and now is not None:
            assert before.record() == now.record()
    assert after.folder("b", "new/").id not in ids
