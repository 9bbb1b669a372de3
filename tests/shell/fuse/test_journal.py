"""What the kernel was told, read back by whoever comes after a crash."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from hubspoke.frontends.fuse import journal
from hubspoke.frontends.fuse.journal import MemoryJournal, Told
from hubspoke.frontends.fuse.nodes import NodeRecord
from hubspoke.frontends.fuse.protocol import Agreed, Init


class Parent:
    """Keeps the last descriptor, as the keeper does."""

    def __init__(self) -> None:
        self.descriptor = -1
        self.kept = 0

    def keep(self, descriptor: int) -> None:
        self.close()
        self.descriptor = os.dup(descriptor)
        self.kept += 1

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def node(number: int) -> NodeRecord:
    return NodeRecord(number, "b", f"k/{number}", f"v{number}", number, "e", 5, bool(number % 2))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(2, 30)),
        st.tuples(st.just("forget"), st.integers(2, 30)),
        st.tuples(st.just("pass"), st.integers(2, 30), st.integers(0, 3)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 40))
def test_what_was_written_is_what_is_read(steps: list[tuple[str, ...]], cut: int) -> None:
    """Whole, and with its last record cut short, also after it was taken over."""
    parent, model, passed, highest = Parent(), dict[int, NodeRecord](), dict[int, object](), 0
    log = MemoryJournal(Told(), parent.keep)
    agreed = Agreed(45, Init.MAX_PAGES | Init.HAS_RESEND, 1 << 20)
    log.agree(agreed)
    for kind, number, *more in steps:
        assert isinstance(number, int)
        if kind == "add":
            model[number] = node(number)
            highest = max(highest, number)
            log.added(node(number))
        elif kind == "forget":
            model.pop(number, None)
            passed.pop(number, None)
            log.forgotten(number)
        else:
            handles = int(more[0])
            passed[number] = (number + 100, handles)
            if not handles:
                del passed[number]
            log.passed(number, number + 100, handles)
    log.close()
    for _ in range(2):
        told = journal.read(parent.descriptor)
        assert (told.agreed, told.nodes, told.backed, told.highest) == (
            agreed, model, passed, highest,
        )  # fmt: skip
        MemoryJournal(told, parent.keep).close()  # taken over: written anew
    before = journal.read(parent.descriptor)
    log = MemoryJournal(before, parent.keep)
    log.added(node(77))
    size = os.fstat(parent.descriptor).st_size
    whole = size - len(journal._packed((1, *journal._fields(node(77)))))
    os.ftruncate(parent.descriptor, min(size - 1, whole + cut))
    assert 77 not in journal.read(parent.descriptor).nodes
    log.close()
    parent.close()


def test_a_log_that_has_grown_is_written_anew() -> None:
    parent = Parent()
    log = MemoryJournal(Told(), parent.keep)
    log._limit = 10_000
    for number in range(2, 1000):
        log.added(node(number))
        log.forgotten(number)
    assert parent.kept > 1
    assert os.fstat(parent.descriptor).st_size < journal.GROWN_BYTES
    assert journal.read(parent.descriptor).nodes == {}
    assert journal.read(parent.descriptor).highest == 999
    log.close()
    parent.close()
