"""Linux's window and Leap's majority, read by read."""

from itertools import pairwise

import numpy as np

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.sim.prediction.peers import make
from hubspoke.sim.prediction.read_ahead import HISTORY, Leap, ReadAhead, majority
from tests.sim.prediction.test_peers import read_all
from tests.sim.prediction.traces import Read, trace_of

BIG = 100_000 * PAGE_BYTES


def test_the_window_doubles_while_reads_go_on_and_stops_at_its_limit() -> None:
    rule = ReadAhead(64)
    asked = [rule.after(0, 0, page, page + 4, 0, page == 0) for page in range(0, 256, 4)]
    spans = [span for spans in asked for span in spans]
    # 4 pages are more than 1/32 and not more than a quarter of 64: twice them, then doubling.
    assert spans[:5] == [(0, 8), (8, 24), (24, 56), (56, 120), (120, 184)]
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    # The next window is asked for when the last one is entered, not at its end.
    assert asked[1] == [(8, 24)]
    assert asked[2] == [(24, 56)]


def test_random_reads_open_no_window() -> None:
    rule = ReadAhead(64)
    assert [rule.after(0, 0, p, p + 4, 0, True) for p in (400, 100, 900, 50)] == [[]] * 4


def test_each_worker_and_file_has_a_window_of_its_own() -> None:
    rule = ReadAhead(64)
    for client, obj in ((0, 0), (1, 0), (0, 1)):
        assert rule.after(client, obj, 0, 4, 0, True) == [(0, 8)]
    # Worker 1 jumps; worker 0 goes on.
    assert rule.after(1, 0, 500, 504, 0, True) == []
    assert rule.after(0, 0, 4, 8, 4, False) == [(8, 24)]


def ring(strides: list[int]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    found = np.zeros(HISTORY, np.int64)
    for i, stride in enumerate(strides):
        found[i % HISTORY] = stride
    return found, len(strides)


def test_a_majority_of_the_last_16_strides_is_the_trend() -> None:
    assert majority(*ring([7] * 40)) == 7
    assert majority(*ring([5] * 23 + [7] * 9)) == 7, "nine of sixteen, though not of all"
    assert majority(*ring([7, 100, 7, -3, 7, 55] * 6 + [7] * 4)) == 7, "noise between"


def test_a_majority_of_all_32_counts_where_the_last_16_have_none() -> None:
    last = [7, 1, 7, 2, 7, 3, 7, 4, 7, 5, 7, 6, 7, 10, 7, 9]  # eight of sixteen: no majority
    assert majority(*ring([7] * 16 + last)) == 7
    assert majority(*ring([8] * 16 + last)) == 0


def test_no_majority_is_no_trend() -> None:
    assert majority(*ring(list(range(1, 40)))) == 0
    assert majority(*ring([])) == 0


def test_leap_follows_a_stride_with_a_window_that_grows_with_hits() -> None:
    rule = Leap(1 << 20)
    found: dict[int, list[tuple[int, int]]] = {}
    ahead: set[int] = set()
    for i in range(40):
        page = 10 * i
        spans = rule.after(0, 0, page, page + 1, int(page in ahead), page not in ahead)
        ahead.update(a for a, _ in spans)
        if spans:
            found[i] = spans
    sizes = [len(spans) for spans in found.values()]
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert all(a % 10 == 0 for spans in found.values() for a, _ in spans)


def test_leap_keeps_the_stride_through_noise() -> None:
    rng = np.random.default_rng(0)
    reads: list[Read] = []
    for i in range(2_000):
        reads.append((0, 3 * i * PAGE_BYTES, PAGE_BYTES))
        if i % 6 == 5:
            reads.append((1, int(rng.integers(0, 90_000)) * PAGE_BYTES, PAGE_BYTES))
    trace = trace_of([BIG, BIG], reads)
    peer = make("leap", BIG, [BIG, BIG], window_bytes=32 * PAGE_BYTES)
    hit = read_all(peer, trace) == 0
    regular = trace.objects == 0
    # The noise misses too, and each miss takes hits from the next window.
    assert hit[regular].mean() > 0.7
    assert hit[~regular].mean() < 0.05
    blind = make("readahead", BIG, [BIG, BIG], window_bytes=32 * PAGE_BYTES)
    assert (read_all(blind, trace) == 0)[regular].mean() < 0.01


def test_leap_stops_where_there_is_no_trend() -> None:
    rng = np.random.default_rng(1)
    reads = [(0, int(p) * PAGE_BYTES, PAGE_BYTES) for p in rng.integers(0, 100_000, 2_000)]
    peer = make("leap", BIG, [BIG])
    read_all(peer, trace_of([BIG], reads))
    assert peer.fetched_ahead < 20 * PAGE_BYTES


def test_what_is_fetched_ahead_counts_as_used_once_it_is_read() -> None:
    peer = make("readahead", BIG, [BIG], window_bytes=64 * PAGE_BYTES)
    read_all(peer, trace_of([BIG], [(0, p * PAGE_BYTES, 4 * PAGE_BYTES) for p in range(0, 40, 4)]))
    assert peer.used_ahead == 36 * PAGE_BYTES
    assert peer.fetched_ahead == (120 - 4) * PAGE_BYTES
    # The same again: nothing is used twice.
    read_all(peer, trace_of([BIG], [(0, p * PAGE_BYTES, 4 * PAGE_BYTES) for p in range(0, 40, 4)]))
    assert peer.used_ahead == 36 * PAGE_BYTES
