"""The rules of the log, and the partition policy."""

import math

from hypothesis import given
from hypothesis import strategies as st

from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectName
from hubspoke.core.namespace import (
    Incarnation,
    PageSpan,
    accept,
    resume_refusal,
    shared_history,
    supersedes,
)
from hubspoke.core.policy import PartitionPolicy


def change(sequence: int) -> Change:
    return Change(LogSequence(sequence), ObjectName("b", f"k{sequence}"), None)


def taken(applied: int, *sequences: int) -> tuple[list[int], bool]:
    accepted = accept(LogSequence(applied), [change(s) for s in sequences])
    return [int(c.sequence) for c in accepted.changes], accepted.gap


def test_consecutive_changes_are_taken() -> None:
    assert taken(4, 5, 6, 7) == ([5, 6, 7], False)
    assert taken(0) == ([], False)


def test_duplicates_are_ignored() -> None:
    assert taken(6, 5, 6, 7) == ([7], False)
    assert taken(6, 7, 7, 8, 7) == ([7, 8], False)
    assert taken(9, 5, 6) == ([], False)


def test_nothing_behind_a_gap_is_taken() -> None:
    assert taken(4, 6) == ([], True)
    assert taken(4, 5, 7, 6) == ([5], True)


@given(
    start=st.integers(0, 5),
    messages=st.lists(st.lists(st.integers(1, 12), max_size=6), max_size=8),
)
def test_a_replica_only_ever_moves_forward_by_one(start: int, messages: list[list[int]]) -> None:
    applied, log = start, []
    for message in messages:
        got, _ = taken(applied, *message)
        log += got
        applied = got[-1] if got else applied
    assert log == list(range(start + 1, start + 1 + len(log)))


def test_a_newer_record_is_never_replaced_by_an_older_one() -> None:
    assert supersedes(LogSequence(3), None)
    assert supersedes(LogSequence(3), LogSequence(2))
    assert not supersedes(LogSequence(3), LogSequence(3))
    assert not supersedes(LogSequence(2), LogSequence(3))


LIVES = [Incarnation("one", LogSequence(0)), Incarnation("two", LogSequence(7))]


def refusal(
    *, replica: str | None = "e", applied: int = 5, life: str = "two", reaches: bool = True
) -> str:
    return (
        resume_refusal(
            replica_epoch=Epoch(replica) if replica is not None else None,
            applied=LogSequence(applied),
            hub_epoch=Epoch("e"),
            shared=shared_history(LIVES, life, LogSequence(9)),
            log_reaches=reaches,
        )
        or ""
    )


def test_a_feed_resumes_only_where_the_log_continues_the_replica() -> None:
    assert refusal() == ""
    assert refusal(applied=9) == ""
    assert "epoch none" in refusal(replica=None)
    assert "epoch f at the spoke, e at the hub" in refusal(replica="f")
    assert "ahead of 9" in refusal(applied=10)
    assert "no longer reaches back to sequence 5" in refusal(reaches=False)


def test_a_feed_resumes_only_on_a_history_that_the_log_shares() -> None:
    assert refusal(life="one", applied=7) == ""
    assert "ahead of 7, the last that it shares" in refusal(life="one", applied=8)
    assert "a life of the hub that its log forgot" in refusal(life="restored away", applied=1)


def test_a_page_speaks_for_what_it_shows_and_what_it_shows_to_be_absent() -> None:
    page = PageSpan("b", "a/", "a/3", "a/7")
    assert page.covers(ObjectName("b", "a/5"))
    assert page.covers(ObjectName("b", "a/7"))
    assert not page.covers(ObjectName("b", "a/3"))
    assert not page.covers(ObjectName("b", "a/8"))
    assert not page.covers(ObjectName("b", "b/5"))
    assert not page.covers(ObjectName("c", "a/5"))
    assert page.covers(ObjectName("b", ""))
    assert PageSpan("b", "a/", "a/3", None).covers(ObjectName("b", "a/9"))


class Rule:
    def __init__(self, prefix: str, bounded_s: float | None) -> None:
        self.prefix = prefix
        self.bounded_s = bounded_s


def test_the_longest_matching_prefix_decides() -> None:
    policy = PartitionPolicy([Rule("b/", None), Rule("b/logs/", 60.0), Rule("", 10.0)])
    assert policy.bound_for(ObjectName("b", "x")) is None
    assert policy.bound_for(ObjectName("b", "logs/x")) == 60.0
    assert policy.bound_for(ObjectName("c", "x")) == 10.0
    assert PartitionPolicy().bound_for(ObjectName("c", "x")) == 3600.0


def test_a_listing_is_bound_by_the_strictest_of_its_names() -> None:
    policy = PartitionPolicy([Rule("b/ckpt/", None), Rule("b/logs/", 60.0), Rule("c/x", 5.0)])
    assert policy.bound_below(ObjectName("b", "")) is None
    assert policy.bound_below(ObjectName("b", "ck")) is None
    assert policy.bound_below(ObjectName("b", "ckpt/1/")) is None
    assert policy.bound_below(ObjectName("b", "lo")) == 60.0
    assert policy.bound_below(ObjectName("b", "other")) == 3600.0
    assert policy.bound_below(ObjectName("c", "")) == 5.0


def test_what_holds_is_told_with_its_default() -> None:
    policy = PartitionPolicy([Rule("b/logs/", 60.0), Rule("b/", None)])
    assert list(policy.bounds().items()) == [("", 3600.0), ("b/", None), ("b/logs/", 60.0)]
    assert PartitionPolicy([Rule("", None)]).bounds() == {"": None}


def test_without_a_lease_strict_refuses_and_bounded_answers_up_to_its_age() -> None:
    policy = PartitionPolicy([Rule("s/", None)], default_s=60.0)
    assert "strict" in (policy.refusal(ObjectName("s", ""), 0.1, below=True) or "")
    assert "strict" in (policy.refusal(ObjectName("s", "x"), 0.1) or "")
    assert policy.refusal(ObjectName("b", "x"), 59.9) is None
    assert "60.1 s old" in (policy.refusal(ObjectName("b", "x"), 60.1) or "")
    assert "unknown age" in (policy.refusal(ObjectName("b", "x"), math.inf) or "")
