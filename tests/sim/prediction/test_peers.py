"""Peer policies: small examples by hand, and published figures."""

from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.sim.prediction.belady import belady
from hubspoke.sim.prediction.peers import NAMES, Peer, make
from hubspoke.traces.trace import Trace
from tests.sim.prediction.traces import ITEMS, Read, orders, pages_read, trace_of


def read_all(peer: Peer, trace: Trace) -> npt.NDArray[np.int64]:
    """Bytes that each read lacked, when what is fetched arrives before the next read."""
    lacked = np.zeros(len(trace), np.int64)
    columns = zip(
        trace.objects.tolist(),
        trace.offsets.tolist(),
        trace.lengths.tolist(),
        trace.clients.tolist(),
        strict=True,
    )
    for i, (obj, offset, length, client) in enumerate(columns):
        missing = peer.read(obj, offset, length, client, float(i))
        lacked[i] = sum(n for _, _, n in missing)
        for wanted in missing + peer.ahead(float(i)):
            peer.arrived(*wanted, float(i))
    return lacked


def page_hits(name: str, capacity_pages: int, order: list[int]) -> list[bool]:
    """For objects of one page, read in this order."""
    trace = pages_read(np.array(order), max(order) + 1)
    peer = make(name, capacity_pages * PAGE_BYTES, trace.sizes.tolist(), trace=trace)
    return [n == 0 for n in read_all(peer, trace).tolist()]


def hits_of(name: str, capacity_pages: int, order: list[int]) -> int:
    return sum(page_hits(name, capacity_pages, order))


def test_none_keeps_nothing() -> None:
    assert hits_of("none", 10, [0, 0, 0]) == 0


def test_pinned_keeps_what_came_first() -> None:
    assert page_hits("pinned", 2, [0, 1, 2, 0, 1, 2]) == [False] * 3 + [True, True, False]


def test_lru_equals_a_list_by_time() -> None:
    rng = np.random.default_rng(5)
    order = rng.zipf(1.3, 5_000) % 300
    expected, kept = [], OrderedDict[int, None]()
    for page in order.tolist():
        expected.append(page in kept)
        kept[page] = None
        kept.move_to_end(page)
        if len(kept) > 40:
            kept.popitem(last=False)
    assert page_hits("lru", 40, order.tolist()) == expected


def test_s3fifo_drops_what_is_read_once_and_keeps_what_is_read_again() -> None:
    hot = [0, 1, 2] * 3
    scan = list(range(10, 200))
    assert page_hits("s3fifo", 20, hot + scan + [0, 1, 2])[-3:] == [True] * 3
    assert page_hits("lru", 20, hot + scan + [0, 1, 2])[-3:] == [False] * 3


def test_s3fifo_takes_a_ghost_into_the_main_queue() -> None:
    # 0 leaves the small queue unread, comes back as a ghost, and then outlives a scan.
    order = [0, *range(1, 21), 0, *range(100, 160), 0]
    assert page_hits("s3fifo", 20, order)[-1]
    assert not page_hits("s3fifo", 20, [*range(1, 21), 0, *range(100, 160), 0])[-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_without_room_keeps_nothing_and_forgets_what_is_under_way(name: str) -> None:
    trace = pages_read(np.array([0, 0, 0]), 1)
    peer = make(name, 0, [PAGE_BYTES], trace=trace)
    assert read_all(peer, trace).tolist() == [PAGE_BYTES] * 3


@pytest.mark.parametrize("name", NAMES)
def test_never_more_is_stored_than_fits(name: str) -> None:
    rng = np.random.default_rng(2)
    sizes = [300_000, 5_000, 1_000_000]
    reads: list[Read] = []
    for obj in rng.integers(0, 3, 400).tolist():
        offset = int(rng.integers(0, sizes[obj]))
        reads.append((obj, offset, int(rng.integers(1, min(50_000, sizes[obj] - offset) + 1))))
    trace = trace_of(sizes, reads)
    peer = make(name, 40 * PAGE_BYTES, sizes, trace=trace)
    for i, read in enumerate(reads):
        fetched = peer.read(*read, 0, float(i)) + peer.ahead(float(i))
        for obj, offset, length in fetched:
            assert offset % PAGE_BYTES == 0
            assert 0 < length <= sizes[obj] - offset
        for wanted in fetched:
            peer.arrived(*wanted, float(i))
        assert int((peer.states & 3 == 2).sum()) <= 40
        assert not (peer.states & 3 == 1).any()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "none"])
def test_what_is_under_way_is_not_fetched_again(name: str) -> None:
    trace = trace_of([10 * PAGE_BYTES], [(0, 0, 8_192), (0, 4_096, 8_192), (0, 0, 12_288)])
    peer = make(name, 10 * PAGE_BYTES, [10 * PAGE_BYTES], trace=trace, window_bytes=PAGE_BYTES)
    assert peer.read(0, 0, 8_192, 0, 0.0) == [(0, 0, 8_192)]
    assert peer.read(0, 4_096, 8_192, 1, 0.0) == [(0, 8_192, 4_096)]
    peer.arrived(0, 0, 4_096, 1.0)
    peer.arrived(0, 4_096, 4_096, 1.0)
    peer.arrived(0, 8_192, 4_096, 1.0)
    assert peer.read(0, 0, 12_288, 2, 2.0) == []


def test_belady_as_a_policy_fetches_the_least() -> None:
    for order in ("permutation", "iid", "two jobs"):
        trace = pages_read(orders(order, 1, 3), ITEMS)
        capacity = ITEMS // 3 * PAGE_BYTES
        peer = make("belady", capacity, trace.sizes.tolist(), trace=trace)
        assert read_all(peer, trace).tolist() == belady(trace, capacity).fetched.tolist()


def test_belady_as_a_policy_survives_overtaking() -> None:
    trace = pages_read(orders("permutation", 1, 3), ITEMS)
    # Sixteen workers with reads under way: each read may come a little earlier or later.
    rng = np.random.default_rng(0)
    late = np.argsort(np.arange(len(trace)) + rng.integers(0, 500, len(trace)), kind="stable")
    other = pages_read(trace.objects[late].astype(np.int64), ITEMS)
    capacity = ITEMS // 2 * PAGE_BYTES
    peer = make("belady", capacity, trace.sizes.tolist(), trace=trace)
    least = belady(other, capacity).egress_bytes
    assert least <= read_all(peer, other).sum() <= 1.01 * least


def test_belady_needs_its_future() -> None:
    with pytest.raises(ValueError, match="belady: needs the trace"):
        make("belady", 1, [1])


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="arc: no such policy; one of none, lru"):
        make("arc", 1, [1])


# WORKLOADS, "what is optimal": hits as a share of the reads that can be hits.
@pytest.mark.parametrize(
    ("order", "epochs", "lru", "exact"),
    [
        ("permutation", 12, {0.25: 0.034, 0.50: 0.153, 0.75: 0.404}, True),
        ("cyclic", 12, {0.25: 0.0, 0.50: 0.0, 0.75: 0.0}, True),
        ("iid", 12, {0.25: 0.272, 0.50: 0.532, 0.75: 0.781}, False),
        ("two jobs", 8, {0.25: 0.149, 0.50: 0.336}, False),
    ],
)
def test_published_hits(order: str, epochs: int, lru: dict[float, float], exact: bool) -> None:
    trace = pages_read(orders(order, 0, epochs), ITEMS)
    possible = len(trace) - ITEMS
    for share, published in lru.items():
        peer = make("lru", int(share * ITEMS) * PAGE_BYTES, trace.sizes.tolist())
        hits = int((read_all(peer, trace) == 0).sum())
        assert hits / possible == pytest.approx(published, abs=0.002)
    peer = make("pinned", ITEMS // 4 * PAGE_BYTES, trace.sizes.tolist())
    later = read_all(peer, trace)[len(trace) // epochs :]
    assert (later == 0).mean() == pytest.approx(0.25, abs=0 if exact else 0.005)
