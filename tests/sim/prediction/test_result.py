"""The measures of a run, against counting by hand."""

import numpy as np

from hubspoke.sim.prediction.recorder import Reads
from hubspoke.sim.prediction.result import batches_to_steady, counts, unique_pages


def reads(
    spans: list[tuple[int, int, int]],
    states: list[int],
    latencies: list[float] | None = None,
    batches: list[int] | None = None,
) -> Reads:
    n = len(spans)
    return Reads(
        np.arange(n, dtype=np.float64),
        np.array([s[0] for s in spans], dtype=np.int32),
        np.array([s[1] for s in spans], dtype=np.int64),
        np.array([s[2] for s in spans], dtype=np.int64),
        np.zeros(n, dtype=np.int32),
        np.array(states, dtype=np.uint8),
        np.array(latencies or [0.001] * n),
        np.array(batches or [0] * n, dtype=np.int32),
    )


def everything(found: Reads) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return np.ones(len(found.at), dtype=bool)


def test_unique_pages_are_counted_once() -> None:
    spans = [(0, 0, 8_192), (0, 4_096, 4_096), (1, 0, 1), (0, 4_095, 2), (0, 40_960, 4_097)]
    found = reads(spans, [2] * 5)
    touched = {(o, p) for o, at, n in spans for p in range(at // 4096, -(-(at + n) // 4096))}
    assert unique_pages(found, everything(found)) == len(touched)
    assert unique_pages(found, np.zeros(5, dtype=bool)) == 0


def test_late_reads_are_no_hits() -> None:
    found = reads([(0, i * 4_096, 4_096) for i in range(4)], [0, 1, 2, 0])
    total = counts(found, everything(found))
    assert (total.reads, total.hits, total.late, total.misses) == (4, 2, 1, 1)
    assert total.hit_ratio == 0.5


def steady(bad: set[int], slow: set[int], batches: int) -> int | None:
    """Batches of 10 reads of which, in a bad one, none is a hit; in a slow one, one is slow."""
    rows = [(b, i) for b in range(batches) for i in range(10)]
    found = reads(
        [(0, 4_096 * k, 4_096) for k in range(len(rows))],
        [2 if b in bad else 0 for b, _ in rows],
        [0.01 if b in slow and i < 2 else 0.001 for b, i in rows],
        [b for b, _ in rows],
    )
    return batches_to_steady(found, everything(found), batches)


def test_steady_from_the_first_batch_after_which_every_window_is_good() -> None:
    assert steady(set(), set(), 30) == 0
    assert steady({0}, set(), 30) == 1
    assert steady({0, 7}, set(), 30) == 8
    assert steady({29}, set(), 30) is None
    assert steady(set(), {3}, 30) == 4
    assert steady(set(), set(), 9) is None
