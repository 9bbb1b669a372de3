"""The memory budget: a hard bound, fair across handles."""

from hypothesis import given
from hypothesis import strategies as st

from hubspoke.core.budget import BudgetConfig, FairBudget

MIB = 1 << 20


def grab(budget: FairBudget, handle: str, step: int = MIB) -> int:
    """Take as much as it is given."""
    while budget.fits(handle, step):
        budget.take(handle, step)
    return budget.held(handle)


def test_a_slow_reader_cannot_hold_all() -> None:
    budget = FairBudget(BudgetConfig(256 * MIB))
    assert grab(budget, "slow") == 128 * MIB
    assert budget.fits("new", MIB)
    assert grab(budget, "new") >= 64 * MIB
    assert budget.fits("newer", MIB)


def test_what_is_given_back_is_free_again() -> None:
    budget = FairBudget(BudgetConfig(8 * MIB))
    grab(budget, "a")
    budget.give("a", budget.held("a"))
    assert budget.used == 0 and budget.held("a") == 0
    budget.take("a", 2 * MIB)
    budget.give("a", MIB)
    assert budget.held("a") == MIB


def test_one_too_large_is_served_alone() -> None:
    budget = FairBudget(BudgetConfig(MIB))
    assert budget.fits("a", 3 * MIB)
    budget.take("a", 3 * MIB)
    assert not budget.fits("b", 1)
    budget.give("a", 3 * MIB)
    assert budget.fits("b", 1)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40), st.booleans())))
def test_the_bound_holds_and_the_sum_is_right(steps: list[tuple[str, int, bool]]) -> None:
    budget = FairBudget(BudgetConfig(100))
    held = dict.fromkeys("abcdef", 0)
    for handle, n, back in steps:
        if back:
            n = min(n, held[handle])
            budget.give(handle, n)
            held[handle] -= n
        elif budget.fits(handle, n):
            budget.take(handle, n)
            held[handle] += n
        assert budget.used == sum(held.values()) <= 100
        assert all(budget.held(h) == n for h, n in held.items())
