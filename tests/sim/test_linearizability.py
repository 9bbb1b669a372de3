"""The checker against all orders of small histories, and against faults it must see."""

import itertools
import math
import random
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubspoke.sim.linearizability import Kind, Operation, check


def op(kind: Kind, value: Hashable, start: float, end: float, name: str = "k") -> Operation:
    return Operation(name, kind, value, start, end)


def write(value: Hashable, start: float, end: float = math.inf) -> Operation:
    return op("write", value, start, end)


def read(value: Hashable, start: float, end: float) -> Operation:
    return op("read", value, start, end)


def some_order_explains(history: Sequence[Operation]) -> bool:
    """The definition itself: every order of every choice of the writes of unknown outcome."""
    unknown = [o for o in history if o.end == math.inf]
    known = [o for o in history if o.end < math.inf]
    for n in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, n):
            for order in itertools.permutations([*known, *chosen]):
                if _fits(order):
                    return True
    return False


def _fits(order: Sequence[Operation]) -> bool:
    value: Hashable = None
    for i, o in enumerate(order):
        if any(later.end < o.start for later in order[i:]):
            return False
        if o.kind == "write":
            value = o.value
        elif o.value != value:
            return False
    return True


@st.composite
def histories(draw: st.DrawFn, values: Sequence[Hashable], losses: int) -> list[Operation]:
    """losses: of three writes, so many are lost."""
    history = []
    for _ in range(draw(st.integers(1, 6))):
        kind: Kind = draw(st.sampled_from(["write", "read"]))
        start = draw(st.integers(0, 8))
        lost = kind == "write" and draw(st.integers(1, 3)) <= losses
        end = math.inf if lost else start + draw(st.integers(0, 5))
        history.append(op(kind, draw(st.sampled_from(values)), start, end))
    return history


@settings(max_examples=600, deadline=None)
@given(histories([None, 1, 2], 1))
def test_it_says_what_all_orders_say(history: list[Operation]) -> None:
    assert (check(history) == []) == some_order_explains(history)


@settings(max_examples=600, deadline=None)
@given(histories([None, 1], 2))
def test_it_counts_lost_writes_of_one_value_as_all_orders_do(history: list[Operation]) -> None:
    assert (check(history) == []) == some_order_explains(history)


def register(seed: int, operations: int, clients: int = 8) -> list[Operation]:
    """What clients of a true register saw: half of all writes lose their answers and half of those
    happen, then or much later; half are deletes, each other value is written once."""
    rng = random.Random(seed)
    calls = sorted((rng.uniform(0, operations), rng.randrange(clients)) for _ in range(operations))
    free = [0.0] * clients
    at: list[tuple[float, Operation]] = []  # when each happens
    for number, (start, client) in enumerate(calls):
        start = max(start, free[client])
        end = start + rng.expovariate(1 / 3)
        free[client] = end + 1e-6
        value = rng.choice((None, number))
        if rng.random() < 0.5:
            at.append((rng.uniform(start, end), read(None, start, end)))
        elif rng.random() < 0.5:
            at.append((rng.uniform(start, end), write(value, start, end)))
        else:
            happens = start + rng.expovariate(1 / 30) if rng.random() < 0.5 else math.inf
            at.append((happens, write(value, start)))
    seen, now = list[Operation](), None
    for when, o in sorted(at, key=lambda pair: pair[0]):
        if o.kind == "write":
            now = o.value if when < math.inf else now
            seen.append(o)
        else:
            seen.append(read(now, o.start, o.end))
    return seen


@pytest.mark.parametrize("seed", range(10))
def test_it_judges_long_histories_with_many_lost_deletes(seed: int) -> None:
    history = register(seed, 1000)
    assert check(history) == []
    # What no write wrote before the read had returned cannot be read, whatever was lost.
    first, last = (f(history, key=lambda o: o.start) for f in (min, max))
    assert check([*history, read("never", first.start, last.start)])
    late = write("late", last.start, last.start + 1)
    assert check([*history, read("late", last.start - 2, last.start - 1), late])


def test_a_read_that_is_older_than_an_acknowledged_write_is_found() -> None:
    stale = read(1, 6, 7)
    [violation] = check([write(1, 0, 1), write(2, 2, 5), stale])
    assert violation.witness == stale
    assert "fits no order" in str(violation)


def test_old_after_somebody_saw_new_is_found_while_the_write_is_under_way() -> None:
    assert check([write(1, 0, 1), write(2, 2, 9), read(2, 3, 4), read(1, 5, 6)])
    assert not check([write(1, 0, 1), write(2, 2, 9), read(1, 3, 4), read(2, 5, 6)])


def test_a_write_of_unknown_outcome_may_come_late_or_never_but_not_twice() -> None:
    lost, before = write(2, 2), write(1, 0, 1)
    assert not check([before, lost, read(1, 50, 51)])
    assert not check([before, lost, read(1, 50, 51), read(2, 52, 53)])
    assert check([before, lost, read(2, 50, 51), read(1, 52, 53)])


def test_absence_is_a_value() -> None:
    assert not check([read(None, 0, 1), write(1, 2, 3), write(None, 4, 5), read(None, 6, 7)])
    assert check([write(1, 2, 3), read(None, 4, 5)])


def test_names_are_checked_each_for_itself() -> None:
    history = [write(1, 0, 1), op("read", None, 2, 3, name="other"), read(None, 2, 3)]
    assert [v.witness.name for v in check(history)] == ["k"]


def test_many_writes_of_unknown_outcome_cost_no_more_than_time() -> None:
    history = [write(0, 0, 1)]
    for i in range(1, 60):  # all of them are seen, so none of them can be left out
        history += [write(i, 2 * i), read(i, 2 * i + 1, 2 * i + 1.5)]
    assert not check(history)
    assert check([*history, read(0, 500, 501)])
