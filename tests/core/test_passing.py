"""Pages that pass the cache by: asked for once, in flight nowhere twice, and never kept."""

from hubspoke.core.cache import PAGES_PER_BLOCK, Cache, CachedObject
from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import BLOCK_BYTES, ObjectEntry, ObjectName, Version
from hubspoke.core.pacing import PacingConfig
from hubspoke.core.scheduler import Scheduler


def made(capacity_blocks: int = 64) -> tuple[Scheduler, Cache, CachedObject]:
    cache = Cache(capacity_blocks * BLOCK_BYTES)
    entry = ObjectEntry(Version("v"), 16 * BLOCK_BYTES, "e", 0)
    obj, _ = cache.open(ObjectName("b", "k"), entry)
    return Scheduler(cache, PacingConfig(lanes=4, demand_lanes=1)), cache, obj


def asked(fetches: list[Fetch], *, stored: bool) -> list[int]:
    ranges = [r for f in fetches for r in f.ranges if r.stored is stored]
    return sorted(p for r in ranges for p in range(r.first, r.last))


def test_they_are_asked_for_once_and_take_no_room() -> None:
    s, cache, obj = made()
    s.passing(obj, 0, 8)
    s.passing(obj, 4, 12)
    fetches, punched = s.dispatch(0.0)
    assert asked(fetches, stored=False) == list(range(12))
    assert (cache.used, punched) == (0, [])


def test_a_demand_for_the_cache_leaves_them_alone_and_they_leave_it_alone() -> None:
    s, _, obj = made()
    s.passing(obj, 2, 4)
    assert s.demand(obj, 0, 6) == []
    s.passing(obj, 0, 8)
    fetches, _ = s.dispatch(0.0)
    assert asked(fetches, stored=True) == [0, 1, 4, 5]
    assert asked(fetches, stored=False) == [2, 3, 6, 7]


def test_the_two_kinds_never_share_a_range() -> None:
    s, _, obj = made()
    s.demand(obj, 1, 3)
    s.passing(obj, 3, 5)
    fetches, _ = s.dispatch(0.0)
    kinds = sorted((r.first, r.last, r.stored) for f in fetches for r in f.ranges)
    assert kinds == [(1, 3, True), (3, 5, False)]


def test_what_has_passed_may_be_asked_for_again() -> None:
    s, _, obj = made()
    s.passing(obj, 0, 4)
    s.dispatch(0.0)
    s.passed(obj, 0, 2)
    s.passing(obj, 0, 4)
    again, _ = s.dispatch(0.0)
    assert asked(again, stored=False) == [0, 1]
    s.passed(obj, 0, 4)
    s.passed(obj, 0, 4)  # nothing is on its way any more
    assert s.demand(obj, 0, 4) == []


def test_a_demand_without_room_tells_later_what_it_had_dropped() -> None:
    s, cache, obj = made(capacity_blocks=2)
    s.demand(obj, 0, PAGES_PER_BLOCK)
    s.dispatch(0.0)
    cache.arrived(obj, 0, PAGES_PER_BLOCK)
    assert s.demand(obj, PAGES_PER_BLOCK, 4 * PAGES_PER_BLOCK) is None
    s.passing(obj, PAGES_PER_BLOCK, PAGES_PER_BLOCK + 1)
    _, punched = s.dispatch(0.0)
    assert [(p.offset, p.length) for p in punched] == [(0, BLOCK_BYTES)]
