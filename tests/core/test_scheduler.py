"""Who is served first, on which lane, and that nothing is asked for twice."""

import pytest

from hubspoke.core.cache import PAGES_PER_BLOCK, Cache, CachedObject
from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import (
    BLOCK_BYTES,
    PAGE_BYTES,
    ObjectEntry,
    ObjectName,
    TrafficClass,
    Version,
)
from hubspoke.core.pacing import Lane, PacingConfig
from hubspoke.core.page_codes import ABSENT, FLIGHT, QUEUED
from hubspoke.core.scheduler import Scheduler


def made(
    size: int = 64 * BLOCK_BYTES, capacity: int = 256 * BLOCK_BYTES, lanes: int = 4
) -> tuple[Scheduler, Cache, CachedObject]:
    cache = Cache(capacity)
    obj, _ = cache.open(ObjectName("b", "k"), ObjectEntry(Version("v"), size, "e", 0))
    return Scheduler(cache, PacingConfig(lanes=lanes, demand_lanes=1)), cache, obj


def spans(fetch: Fetch) -> list[tuple[int, int]]:
    return [(r.first, r.last) for r in fetch.ranges]


def test_a_demand_goes_before_queued_prefetches() -> None:
    s, _, obj = made()
    s.prefetch(obj, 0, 10 * PAGES_PER_BLOCK, deadline=0.0)
    s.demand(obj, 20 * PAGES_PER_BLOCK, 20 * PAGES_PER_BLOCK + 2)
    fetches, _ = s.dispatch(0.0)
    assert fetches[0].traffic_class is TrafficClass.DEMAND
    assert spans(fetches[0]) == [(20 * PAGES_PER_BLOCK, 20 * PAGES_PER_BLOCK + 2)]


def test_prefetches_leave_a_lane_for_demand() -> None:
    s, _, obj = made()
    s.prefetch(obj, 0, 60 * PAGES_PER_BLOCK, deadline=0.0)
    fetches, _ = s.dispatch(0.0)
    assert len(fetches) == 3
    s.demand(obj, 63 * PAGES_PER_BLOCK, 63 * PAGES_PER_BLOCK + 1)
    (demand,), _ = s.dispatch(0.0)
    assert demand.traffic_class is TrafficClass.DEMAND


def test_a_demand_takes_over_a_queued_prefetch() -> None:
    s, _, obj = made()
    s.prefetch(obj, 0, 8, deadline=0.0)
    assert obj.pages[3] == QUEUED
    s.demand(obj, 2, 4)
    demand, _ = s.dispatch(0.0)
    assert [spans(f) for f in demand if f.traffic_class is TrafficClass.DEMAND] == [[(2, 4)]]
    prefetched = [x for f in demand[1:] for x in spans(f)]
    assert sorted(p for a, b in prefetched for p in range(a, b)) == [0, 1, 4, 5, 6, 7]


def test_a_prefetch_that_nobody_came_for_is_given_up() -> None:
    s, cache, obj = made()
    s.prefetch(obj, 0, 8, deadline=1.0)
    s.prefetch(obj, 8, 16, deadline=100.0)
    fetches, _ = s.dispatch(1.1 + s.config.overdue_s)
    assert sorted(x for f in fetches for x in spans(f)) == [(8, 11), (11, 14), (14, 16)]
    assert obj.pages[0] == ABSENT and s.prefetch_bytes_queued == 0
    assert cache.used == 8 * PAGE_BYTES


def test_pages_in_flight_are_not_asked_for_again() -> None:
    s, _, obj = made()
    s.demand(obj, 0, 8)
    s.dispatch(0.0)
    assert s.demand(obj, 0, 8) == []
    assert not s.prefetch(obj, 0, 8, deadline=0.0)
    assert s.dispatch(0.0) == ([], [])


def test_the_earliest_deadline_is_fetched_first() -> None:
    s, _, obj = made(lanes=2)
    s.prefetch(obj, 100, 101, deadline=2.0)
    s.prefetch(obj, 200, 201, deadline=1.0)
    (fetch,), _ = s.dispatch(0.0)
    assert spans(fetch) == [(200, 201), (100, 101)]


def test_a_cold_burst_is_dealt_in_small_units_in_order_of_need() -> None:
    s, _, obj = made(lanes=5)
    s.prefetch(obj, 0, PAGES_PER_BLOCK, deadline=0.0)
    fetches, _ = s.dispatch(0.0)
    assert [f.ranges[0].first for f in fetches] == [0, 3, 6, 9]
    assert sum(f.bytes for f in fetches) == BLOCK_BYTES


def test_no_range_crosses_a_block() -> None:
    s, _, obj = made(lanes=2)
    s.demand(obj, PAGES_PER_BLOCK - 3, 3 * PAGES_PER_BLOCK + 5)
    fetches, _ = s.dispatch(0.0)
    for f in fetches:
        for a, b in spans(f):
            assert a // PAGES_PER_BLOCK == (b - 1) // PAGES_PER_BLOCK


def test_a_prefetch_larger_than_the_budget_is_sent_in_turns() -> None:
    s, _, obj = made(lanes=2)
    s.prefetch(obj, 0, 32 * PAGES_PER_BLOCK, deadline=0.0)
    sent: list[tuple[int, int]] = []
    now = 0.0
    while True:
        fetches, _ = s.dispatch(now)
        if not fetches:
            break
        for f in fetches:
            sent += spans(f)
            now += 0.1
            s.finished(f, f.bytes, now)
    pages = [p for a, b in sent for p in range(a, b)]
    assert sorted(pages) == list(range(32 * PAGES_PER_BLOCK))
    assert s.prefetch_bytes_queued == 0 and s.prefetch_bytes_in_flight == 0


def test_prefetch_that_finds_no_room_is_given_up() -> None:
    s, cache, obj = made(capacity=2 * BLOCK_BYTES, lanes=100)
    s.demand(obj, 0, 2 * PAGES_PER_BLOCK)
    s.dispatch(0.0)
    s.prefetch(obj, 8 * PAGES_PER_BLOCK, 9 * PAGES_PER_BLOCK, deadline=0.0)
    assert s.dispatch(0.0) == ([], [])
    assert cache.state(obj, 8 * PAGES_PER_BLOCK, 8 * PAGES_PER_BLOCK + 1).value == "miss"
    assert s.prefetch_bytes_queued == 0


def test_a_demand_without_room_is_refused() -> None:
    s, _, obj = made(capacity=2 * BLOCK_BYTES)
    assert s.demand(obj, 0, 2 * PAGES_PER_BLOCK) == []
    assert s.demand(obj, 2 * PAGES_PER_BLOCK, 3 * PAGES_PER_BLOCK) is None


def test_a_demand_drops_consumed_blocks_and_says_what_to_punch() -> None:
    s, cache, obj = made(capacity=2 * BLOCK_BYTES)
    s.demand(obj, 0, 2 * PAGES_PER_BLOCK)
    cache.arrived(obj, 0, 2 * PAGES_PER_BLOCK)
    cache.asked(obj, 0, PAGES_PER_BLOCK)
    punched = s.demand(obj, 2 * PAGES_PER_BLOCK, 3 * PAGES_PER_BLOCK)
    assert punched is not None
    assert [(p.offset, p.length) for p in punched] == [(0, BLOCK_BYTES)]


def test_obsolete_objects_are_not_prefetched() -> None:
    s, cache, obj = made()
    s.prefetch(obj, 0, 8, deadline=0.0)
    cache.forget(obj.name)
    assert s.dispatch(0.0) == ([], [])


def test_lanes_widen_with_what_they_deliver_and_forget_when_idle() -> None:
    s, _, obj = made(lanes=1)
    s.demand(obj, 0, 64)
    (f,), _ = s.dispatch(0.0)
    assert obj.pages[0] == FLIGHT
    before = f.lane.window
    s.finished(f, f.bytes, 0.1)
    assert f.lane.window == before + f.bytes
    f.lane.room(s.config, 10.0)
    assert f.lane.window == before


def test_a_long_demand_is_spread_over_the_lanes_and_not_given_to_one() -> None:
    s, _, obj = made(lanes=4)
    s.demand(obj, 0, 32 * PAGES_PER_BLOCK)
    fetches, _ = s.dispatch(0.0)
    assert [f.bytes for f in fetches] == [s.config.in_flight_bytes_min] * 4
    first = fetches[0]
    s.arrived(first, first.bytes, 0.1)
    (more,), _ = s.dispatch(0.1)
    assert more.lane is first.lane
    assert 0 < more.bytes < 2 * first.lane.window + PAGE_BYTES


def test_a_long_demand_passes_over_an_idle_lane_that_was_seen_to_be_slow() -> None:
    s, _, obj = made(lanes=2)
    slow, fast = s.lanes
    for lane, bytes_ in ((slow, BLOCK_BYTES // 8), (fast, 16 * BLOCK_BYTES)):
        lane.asked(2 * bytes_, prefetch=False)
        lane.delivered(s.config, bytes_, 0.0)
        lane.delivered(s.config, bytes_, 0.1)
        lane.ended(0, 0.1, prefetch=False)
        lane.window = s.config.window_bytes_max  # what slow start would have come to
    s.demand(obj, 0, 8 * PAGES_PER_BLOCK)
    fetches, _ = s.dispatch(0.1)
    assert [f.lane for f in fetches] == [fast]
    s.demand(obj, 8 * PAGES_PER_BLOCK, 8 * PAGES_PER_BLOCK + 1)
    (short,), _ = s.dispatch(0.1)
    assert short.lane is slow, "a short want is there first on the lane with nothing under way"


def test_a_lanes_rate_rises_at_once_and_falls_slowly() -> None:
    lane, config = Lane(0), PacingConfig()
    lane.asked(100 << 20, prefetch=False)
    for step in range(3):
        lane.delivered(config, 1 << 20, step * 0.1)
    assert lane.rate == pytest.approx((1 << 20) / 0.1)
    lane.delivered(config, 0, 0.3)
    assert lane.rate == pytest.approx(0.7 * (1 << 20) / 0.1)
    lane.delivered(config, 4 << 20, 0.4)
    assert lane.rate == pytest.approx((4 << 20) / 0.1)
    lane.ended(0, 0.5, prefetch=False)
    lane.delivered(config, 1 << 20, 9.0)
    assert lane.rate == pytest.approx((4 << 20) / 0.1), "the idle time is not part of a sample"


def test_a_lane_is_topped_up_when_half_is_there() -> None:
    s, _, obj = made(lanes=1)
    s.demand(obj, 0, 32 * PAGES_PER_BLOCK)
    (f,), _ = s.dispatch(0.0)
    s.arrived(f, f.bytes // 8, 0.1)
    assert not s.wants(f.lane, 0.1)
    s.arrived(f, f.bytes // 2, 0.2)
    assert s.wants(f.lane, 0.2)
    (more,), _ = s.dispatch(0.2)
    assert f.lane.requests == 2 and f.lane.in_flight == f.bytes - f.arrived + more.bytes
    s.finished(f, f.bytes, 0.3)
    s.finished(more, 0, 0.3)
    assert f.lane.requests == 0 and f.lane.in_flight == 0


def test_a_prefetch_is_not_put_behind_a_demand_on_the_lanes_kept_for_it() -> None:
    s, _, obj = made()
    s.demand(obj, 0, 1)
    (demand,), _ = s.dispatch(0.0)
    s.prefetch(obj, PAGES_PER_BLOCK, 60 * PAGES_PER_BLOCK, deadline=0.0)
    fetches, _ = s.dispatch(0.0)
    assert len(fetches) == 3
    assert demand.lane not in [f.lane for f in fetches]


def test_bytes_that_a_demand_took_over_are_no_longer_queued() -> None:
    s, _, obj = made()
    s.prefetch(obj, 0, 64, deadline=0.0)
    s.demand(obj, 0, 64)
    for f in s.dispatch(0.0)[0]:
        s.finished(f, f.bytes, 0.1)
    s.dispatch(0.1)
    assert s.prefetch_bytes_queued == 0 and s.idle
