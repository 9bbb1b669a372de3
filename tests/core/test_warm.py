"""Warming goes behind everything that a reader needs, and drops nothing that is to be read."""

import pytest

from hubspoke.core.cache import PAGES_PER_BLOCK, Cache, CachedObject
from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import BLOCK_BYTES, ObjectEntry, ObjectName, TrafficClass, Version
from hubspoke.core.pacing import PacingConfig
from hubspoke.core.scheduler import Scheduler
from hubspoke.core.warm import RateMeter, WarmPiece, WarmQueue

CONFIG = PacingConfig(lanes=8, demand_lanes=2, warm_lanes=4, warm_lanes_beside=1)


def made(capacity: int = 256 * BLOCK_BYTES) -> tuple[Scheduler, Cache, CachedObject]:
    cache = Cache(capacity)
    return Scheduler(cache, CONFIG), cache, opened(cache, "k")


def opened(cache: Cache, key: str, size: int = 64 * BLOCK_BYTES) -> CachedObject:
    return cache.open(ObjectName("b", key), ObjectEntry(Version("v"), size, "e", 0))[0]


def fill(cache: Cache, obj: CachedObject, first: int, last: int) -> None:
    cache.fly(obj, first, last)
    cache.arrived(obj, first, last)


def warm(s: Scheduler, obj: CachedObject, first: int, last: int, force: bool = False) -> WarmPiece:
    piece = WarmPiece(obj, first, last, forced=force)
    s.warm.push(piece)
    return piece


def asked(fetches: list[Fetch]) -> set[int]:
    return {p for f in fetches for r in f.ranges for p in range(r.first, r.last)}


def end(s: Scheduler, cache: Cache, fetches: list[Fetch], now: float) -> None:
    for f in fetches:
        for r in f.ranges:
            cache.arrived(r.obj, r.first, r.last)
        s.finished(f, f.bytes, now)


def test_everything_that_is_absent_is_asked_for_once() -> None:
    s, cache, obj = made()
    fill(cache, obj, 5, 7)
    cache.fly(obj, 9, 10)
    piece = warm(s, obj, 0, 8 * PAGES_PER_BLOCK)
    pages: list[int] = []
    now = 0.0
    while not s.warm.empty:
        fetches, punched = s.dispatch(now)
        assert punched == []
        assert all(f.warm and f.traffic_class is TrafficClass.PREFETCH for f in fetches)
        pages += [p for f in fetches for r in f.ranges for p in range(r.first, r.last)]
        now += 0.1
        end(s, cache, fetches, now)
    assert sorted(pages) == sorted(set(range(8 * PAGES_PER_BLOCK)) - {5, 6, 9})
    assert not piece.waiting and not piece.refused


def test_demand_and_prediction_go_first() -> None:
    s, _, obj = made()
    warm(s, obj, 0, 100)
    s.prefetch(obj, 200, 210, deadline=5.0)
    s.demand(obj, 300, 301)
    fetches, _ = s.dispatch(0.0)
    classes = [(f.traffic_class, f.warm) for f in fetches]
    assert classes.index((TrafficClass.DEMAND, False)) < classes.index(
        (TrafficClass.PREFETCH, True)
    )
    assert classes.index((TrafficClass.PREFETCH, False)) < classes.index(
        (TrafficClass.PREFETCH, True)
    )


def test_warming_leaves_lanes_and_takes_few_beside_others() -> None:
    s, cache, obj = made()
    warm(s, obj, 0, 64 * PAGES_PER_BLOCK)
    fetches, _ = s.dispatch(0.0)
    assert len(fetches) == CONFIG.warm_lanes
    assert s.dispatch(0.0) == ([], []), "their requests are large enough"
    end(s, cache, fetches, 0.1)
    other = opened(cache, "other")
    s.demand(other, 0, 1)
    fetches, _ = s.dispatch(0.1)
    assert [f.warm for f in fetches].count(True) == CONFIG.warm_lanes_beside
    end(s, cache, fetches, 0.2)
    assert len(s.dispatch(0.3)[0]) == CONFIG.warm_lanes_beside, "the reader may come again"
    assert s.alone(1.3) and not s.alone(1.1)


def test_warming_counts_as_no_prefetch_of_the_predictor() -> None:
    s, cache, obj = made()
    warm(s, obj, 0, 100)
    fetches, _ = s.dispatch(0.0)
    assert s.prefetch_bytes_in_flight == s.prefetch_bytes_queued == 0
    end(s, cache, fetches, 0.1)
    assert s.prefetch_bytes_in_flight == 0


def test_a_read_takes_over_what_waits_to_be_warmed() -> None:
    s, _, obj = made()
    warm(s, obj, 0, 8)
    s.demand(obj, 2, 4)
    fetches, _ = s.dispatch(0.0)
    demand = [f for f in fetches if f.traffic_class is TrafficClass.DEMAND]
    warmed = [f for f in fetches if f.warm]
    assert (asked(demand), asked(warmed)) == ({2, 3}, {0, 1, 4, 5, 6, 7})


@pytest.mark.parametrize("force", [False, True])
def test_only_force_drops_what_is_still_to_be_read(force: bool) -> None:
    s, cache, obj = made(capacity=2 * BLOCK_BYTES)
    waiting, consumed = opened(cache, "waiting"), opened(cache, "consumed")
    fill(cache, waiting, 0, PAGES_PER_BLOCK)
    fill(cache, consumed, 0, PAGES_PER_BLOCK)
    cache.asked(consumed, 0, PAGES_PER_BLOCK)
    first = warm(s, obj, 0, PAGES_PER_BLOCK, force)
    fetches, punched = s.dispatch(0.0)
    assert [p.obj for p in punched] == [consumed]
    assert len(asked(fetches)) == PAGES_PER_BLOCK and not first.refused
    end(s, cache, fetches, 0.1)
    second = warm(s, obj, PAGES_PER_BLOCK, 2 * PAGES_PER_BLOCK, force)
    fetches, punched = s.dispatch(0.1)
    assert second.refused is not force
    assert [p.obj for p in punched] == ([waiting] if force else [])
    assert not second.waiting and cache.used <= cache.capacity


def test_what_was_given_up_or_is_obsolete_is_not_fetched() -> None:
    s, cache, obj = made()
    piece = warm(s, obj, 0, 8)
    piece.given_up = True
    obsolete = opened(cache, "old")
    warm(s, obsolete, 0, 8)
    cache.forget(obsolete.name)
    assert s.dispatch(0.0) == ([], [])
    assert s.idle


def test_a_piece_is_queued_once_and_can_be_asked_again() -> None:
    cache = Cache(BLOCK_BYTES)
    queue = WarmQueue(cache)
    piece = WarmPiece(opened(cache, "k"), 0, 1)
    queue.push(piece)
    queue.push(piece)
    assert queue.next(10, []) == (piece.obj, 0, 1)
    assert queue.next(10, []) is None and queue.empty
    cache.failed(piece.obj, 0, 1)
    queue.push(piece)
    assert queue.next(10, []) == (piece.obj, 0, 1)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    meter = RateMeter()
    assert meter.rate(0.0) is None and meter.eta_s(1, 0.0) is None
    for i in range(1000):
        meter.add(100, i / 10)
    rate = meter.rate(99.9)
    assert rate is not None and 950 < rate < 1050
    assert meter.eta_s(10_000, 99.9) == pytest.approx(10, rel=0.1)
    assert meter.eta_s(0, 99.9) == 0.0
    assert meter.rate(1000.0) is not None


def test_no_more_is_asked_for_than_the_path_carries() -> None:
    s, _, obj = made()
    piece = warm(s, obj, 0, 64 * PAGES_PER_BLOCK)
    for lane in s.lanes:
        lane.window = 1e6
        lane.last_used = 0.0
    s.warm.path(20e6, 0.1, alone=False)
    fetches, _ = s.dispatch(0.0)
    asked_for = sum(f.bytes for f in fetches)
    assert 3_000_000 <= asked_for < 3_000_000 + BLOCK_BYTES
    first = fetches[0]
    s.arrived(first, 500_000, 0.1)
    assert s.dispatch(0.1) == ([], []), "more than three quarters are under way"
    s.arrived(first, 500_000, 0.2)
    more, _ = s.dispatch(0.2)
    assert sum(f.bytes for f in more) >= 1_000_000
    for f in [*fetches, *more]:
        s.finished(f, f.arrived, 0.3)  # broken off: what did not come is no longer under way
    assert piece.waiting
    s.warm.path(None, None, alone=True)
    fetches, _ = s.dispatch(0.3)
    assert sum(f.bytes for f in fetches) > 4 << 20
