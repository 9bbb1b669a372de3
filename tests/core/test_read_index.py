"""Rounds that readers share, and what a reply admits."""

from hubspoke.core.ids import Epoch, LogSequence, ObjectName
from hubspoke.core.read_index import History, ReadIndex, ReadRounds

A, B = ObjectName("b", "a"), ObjectName("b", "b")
HERE = History(Epoch("e"), "life")


def test_a_reader_uses_only_a_round_that_is_sent_after_it_came() -> None:
    rounds = ReadRounds(2)
    assert rounds.send() is None
    first = rounds.join()
    assert rounds.join() == first
    assert rounds.send() == first
    late = rounds.join()
    assert late == first + 1
    assert rounds.send() == late


def test_readers_that_come_while_enough_rounds_are_under_way_share_the_next() -> None:
    rounds = ReadRounds(1)
    first = rounds.join()
    assert rounds.send() == first
    waiting = {rounds.join() for _ in range(100)}
    assert waiting == {first + 1}
    assert rounds.send() is None
    rounds.ended(first)
    assert rounds.send() == first + 1
    assert rounds.send() is None


def test_a_round_that_nobody_waits_for_is_not_sent() -> None:
    rounds = ReadRounds(2)
    number = rounds.join()
    assert rounds.send() == number
    rounds.ended(number)
    assert rounds.send() is None


def admits(
    *, applied: int = 5, history: History = HERE, name: ObjectName = A, over: tuple[int, ...] = ()
) -> bool:
    index = ReadIndex(HERE, LogSequence(5), ((7, B), (8, B)))
    return index.admits(
        history=history,
        applied=LogSequence(applied),
        covered=lambda n: n == name,
        in_force=lambda i: i not in over,
    )


def test_a_replica_that_has_the_sequence_is_current() -> None:
    assert admits()
    assert admits(applied=6)
    assert not admits(applied=4)


def test_a_sequence_says_nothing_about_another_history() -> None:
    assert not admits(history=History(Epoch("f"), "life"))
    assert not admits(history=History(Epoch("e"), "another"))


def test_a_name_whose_change_is_under_way_waits_for_every_change_the_reply_named() -> None:
    assert not admits(name=B)
    assert not admits(name=B, over=(7,))
    assert admits(name=B, over=(7, 8))
