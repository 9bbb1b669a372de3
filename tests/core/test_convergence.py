"""Warm-up is told by windows of 1,000 reads, and remembered in bounded memory."""

import pytest

from hubspoke.core import convergence as module
from hubspoke.core.convergence import WINDOW_READS, Convergence


def feed(convergence: Convergence, hits: int, misses: int, at: float = 0.0) -> None:
    for i in range(hits + misses):
        hit = i < hits
        convergence.read(hit, 10, 0.001 if hit else 0.060, at)


def test_an_incomplete_window_says_nothing() -> None:
    convergence = Convergence()
    feed(convergence, WINDOW_READS - 1, 0)
    assert convergence.windows() == []
    assert convergence.held_since() is None


def test_windows_hold_ratio_and_exact_percentiles() -> None:
    convergence = Convergence()
    feed(convergence, 985, 15)
    (window,) = convergence.windows()
    assert (window.reads, window.hit_ratio) == (1000, 0.985)
    assert window.p50_ms == pytest.approx(1.0)
    assert window.p99_ms == pytest.approx(60.0)


def test_threshold_is_reached_at_the_first_window_after_which_all_hold() -> None:
    convergence = Convergence()
    feed(convergence, 500, 500, at=1.0)
    feed(convergence, 990, 10, at=2.0)  # holds, but not for good
    feed(convergence, 900, 100, at=3.0)
    assert convergence.held_since() is None
    feed(convergence, 940, 60, at=4.0)  # exactly the threshold
    feed(convergence, 1000, 0, at=5.0)
    held = convergence.held_since()
    assert held is not None
    assert (held.reads, held.bytes, held.at) == (3000, 30_000, 4.0)
    assert convergence.first_read_at == 1.0


def test_a_warm_start_needs_no_reads() -> None:
    convergence = Convergence()
    feed(convergence, 1000, 0)
    held = convergence.held_since()
    assert held is not None and held.reads == 0


def test_a_changed_pattern_has_its_own_way_back() -> None:
    convergence = Convergence()
    feed(convergence, 1400, 0)
    convergence.relearned(7.0, "new order")
    feed(convergence, 0, 600)
    (entry,) = convergence.relearned_entries()
    assert (entry.at, entry.cause, entry.reads_to_threshold) == (7.0, "new order", None)
    feed(convergence, 1000, 0)
    assert convergence.relearned_entries()[0].reads_to_threshold == 600
    feed(convergence, 0, 1000)
    assert convergence.relearned_entries()[0].reads_to_threshold is None


def test_a_change_that_costs_nothing_is_0_reads() -> None:
    convergence = Convergence()
    feed(convergence, 400, 0)
    convergence.relearned(7.0, "new order")
    feed(convergence, 600, 0)
    assert convergence.relearned_entries()[0].reads_to_threshold == 0


def test_an_older_change_keeps_what_it_reached() -> None:
    convergence = Convergence()
    convergence.relearned(1.0, "first")
    feed(convergence, 1000, 0)
    convergence.relearned(2.0, "second")
    feed(convergence, 0, 1000)
    first, second = convergence.relearned_entries()
    assert (first.reads_to_threshold, second.reads_to_threshold) == (0, None)


def test_long_runs_keep_the_first_and_the_last_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOWS_HEAD", 2)
    monkeypatch.setattr(module, "WINDOWS_TAIL", 3)
    convergence = Convergence()
    for i in range(8):
        feed(convergence, 1000 - i, i)
    misses = [round((1 - window.hit_ratio) * 1000) for window in convergence.windows()]
    assert misses == [0, 1, 5, 6, 7]
    assert convergence.windows_forgotten == 3
    held = convergence.held_since()
    assert held is not None and held.reads == 0  # the threshold forgets nothing
