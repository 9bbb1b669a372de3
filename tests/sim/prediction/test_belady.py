"""The optimum: against all policies on small traces, against published figures on large ones."""

import random

import numpy as np
import pytest

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.sim.prediction.belady import belady, exact_bytes
from tests.sim.prediction.optimum_by_trial import most_hits
from tests.sim.prediction.traces import ITEMS, orders, pages_read, trace_of


@pytest.mark.parametrize("seed", range(40))
def test_no_policy_has_more_page_hits(seed: int) -> None:
    rng = random.Random(seed)
    pages = [rng.randint(1, 4) for _ in range(3)]
    # Ends and beginnings off the page: neighbours share pages, and objects end inside one.
    sizes = [n * PAGE_BYTES - rng.choice((0, 1, 4_000)) for n in pages]
    reads = []
    for _ in range(14):
        obj = rng.randrange(3)
        offset = rng.randrange(sizes[obj])
        reads.append((obj, offset, rng.randint(1, sizes[obj] - offset)))
    trace = trace_of(sizes, reads)
    for capacity in (0, 1, 2, 3, 5, 20):
        best = belady(trace, capacity * PAGE_BYTES + rng.randrange(PAGE_BYTES))
        assert (best.hits, best.accesses) == most_hits(trace, capacity, PAGE_BYTES)


@pytest.mark.parametrize("seed", range(40))
def test_no_policy_fetches_fewer_bytes(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 5) for _ in range(2)]
    reads = []
    for _ in range(10):
        obj = rng.randrange(2)
        offset = rng.randrange(sizes[obj])
        reads.append((obj, offset, rng.randint(1, sizes[obj] - offset)))
    trace = trace_of(sizes, reads)
    for capacity in (0, 1, 2, 3, 5, 20):
        best = exact_bytes(trace, capacity)
        hits, accesses = most_hits(trace, capacity, 1)
        assert (best.hits, best.accesses) == (hits, accesses)
        assert best.egress_bytes == accesses - hits


def test_pages_read_together_count_as_pages() -> None:
    # Two runs of ten pages in turn, room for twelve: all of one and two pages of the other stay.
    run = 10 * PAGE_BYTES
    trace = trace_of([2 * run], [(0, 0, run), (0, run, run)] * 3)
    best = belady(trace, 12 * PAGE_BYTES)
    one_by_one = trace_of([2 * run], [(0, p * PAGE_BYTES, PAGE_BYTES) for p in range(20)] * 3)
    assert best.hits == belady(one_by_one, 12 * PAGE_BYTES).hits
    assert best.accesses == 60
    assert best.egress_bytes == (60 - best.hits) * PAGE_BYTES


def test_an_object_ends_inside_its_last_page() -> None:
    trace = trace_of([PAGE_BYTES + 100], [(0, 0, 1), (0, PAGE_BYTES, 100), (0, PAGE_BYTES, 50)])
    best = belady(trace, 0)
    assert best.fetched.tolist() == [PAGE_BYTES, 100, 100]
    assert best.egress_bytes == PAGE_BYTES + 200
    assert exact_bytes(trace, 0).fetched.tolist() == [1, 100, 50]


def test_an_unlimited_cache_fetches_each_byte_once() -> None:
    sizes = [10 * PAGE_BYTES, 0, 7]
    trace = trace_of(sizes, [(0, 0, 100), (0, 50, 9_000), (2, 0, 7), (0, 0, 40_960), (2, 1, 3)])
    assert exact_bytes(trace, 10**9).egress_bytes == 40_960 + 7
    assert belady(trace, 10**9).egress_bytes == 40_960 + 7


def test_a_trace_without_reads_costs_nothing() -> None:
    best = belady(trace_of([10], []), PAGE_BYTES)
    assert (best.egress_bytes, best.hits, best.accesses) == (0, 0, 0)


def test_a_negative_capacity_is_named() -> None:
    with pytest.raises(ValueError, match="-1"):
        exact_bytes(trace_of([10], [(0, 0, 10)]), -1)


# WORKLOADS, "what is optimal": hits as a share of the reads that can be hits (an item's first one
# cannot). Two jobs agree with that table at 8 epochs each; at 12 they reach .511 and .739.
@pytest.mark.parametrize(
    ("order", "epochs", "hits"),
    [
        ("permutation", 12, {0.25: 0.250, 0.50: 0.500, 0.75: 0.750}),
        ("cyclic", 12, {0.25: 0.250, 0.50: 0.500, 0.75: 0.750}),
        ("iid", 12, {0.25: 0.650, 0.50: 0.842, 0.75: 0.950}),
        ("two jobs", 8, {0.25: 0.515, 0.50: 0.744}),
    ],
)
def test_published_optima(order: str, epochs: int, hits: dict[float, float]) -> None:
    traces = [pages_read(orders(order, seed, epochs), ITEMS) for seed in range(3)]
    possible = sum(len(trace) - len(np.unique(trace.objects)) for trace in traces)
    for share, published in hits.items():
        capacity = int(share * ITEMS) * PAGE_BYTES
        reached = sum(belady(trace, capacity).hits for trace in traces)
        assert reached / possible == pytest.approx(published, abs=0.001)
