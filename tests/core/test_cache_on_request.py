"""The book of pages asked by a person: how much is here, this will be read, this may go."""

from hubspoke.core.cache import PAGES_PER_BLOCK, Cache, CachedObject, StoredFrame
from hubspoke.core.ids import BLOCK_BYTES, ObjectEntry, ObjectName, Version
from hubspoke.core.pacing import PacingConfig
from hubspoke.core.page_codes import ABSENT, QUEUED
from hubspoke.core.scheduler import Scheduler


def opened(cache: Cache, size: int, key: str = "k") -> CachedObject:
    return cache.open(ObjectName("b", key), ObjectEntry(Version("v1"), size, "e", 0))[0]


def fill(cache: Cache, obj: CachedObject, first: int, last: int) -> None:
    cache.fly(obj, first, last)
    cache.arrived(obj, first, last)


def test_local_bytes_count_what_is_on_disk_and_the_short_last_page() -> None:
    cache = Cache(4 * BLOCK_BYTES)
    obj = opened(cache, 3 * 4096 + 10)
    assert obj.local_bytes() == 0
    fill(cache, obj, 0, 1)
    cache.fly(obj, 1, 2)
    assert obj.local_bytes() == 4096
    fill(cache, obj, 3, 4)
    assert obj.local_bytes() == 4096 + 10
    assert obj.absent(0, 4) == [(2, 3)]
    assert obj.not_local(0, 4) == [(1, 3)]
    assert opened(cache, 0, "empty").local_bytes() == 0


def test_local_bytes_count_what_a_start_found() -> None:
    cache = Cache(4 * BLOCK_BYTES)
    name = ObjectName("b", "k")
    obj = cache.restore(7, name, Version("v"), 5000, [StoredFrame(0, 5000, 1)])
    assert obj.local_bytes() == 5000


def test_what_will_be_read_again_is_no_longer_consumed() -> None:
    cache = Cache(2 * BLOCK_BYTES)
    first, second = opened(cache, BLOCK_BYTES, "1"), opened(cache, BLOCK_BYTES, "2")
    for obj in (first, second):
        fill(cache, obj, 0, PAGES_PER_BLOCK)
        cache.asked(obj, 0, PAGES_PER_BLOCK)
    cache.to_be_read(second)
    assert cache.make_room(2 * BLOCK_BYTES, consumed_only=True) == [(first, 0, BLOCK_BYTES)]
    assert cache.room == BLOCK_BYTES
    assert cache.make_room(2 * BLOCK_BYTES) == [(second, 0, BLOCK_BYTES)]


def test_evict_spares_what_is_in_use_and_tells_what_it_freed() -> None:
    cache = Cache(8 * BLOCK_BYTES)
    obj = opened(cache, 4 * BLOCK_BYTES)
    fill(cache, obj, 0, 3 * PAGES_PER_BLOCK)
    cache.pin(obj, 0, 1)
    cache.fly(obj, 3 * PAGES_PER_BLOCK, 3 * PAGES_PER_BLOCK + 1)
    punched, freed = cache.evict(obj, 0, len(obj.pages))
    assert freed == 2 * BLOCK_BYTES
    assert punched == [(obj, BLOCK_BYTES, BLOCK_BYTES), (obj, 2 * BLOCK_BYTES, BLOCK_BYTES)]
    assert cache.used == BLOCK_BYTES + 4096
    cache.unpin(obj, 0, 1)
    assert cache.evict(obj, 0, len(obj.pages)) == ([(obj, 0, BLOCK_BYTES)], BLOCK_BYTES)
    assert cache.evict(obj, 0, len(obj.pages)) == ([], 0)
    assert cache.current(obj.name) is obj and not obj.dead


def test_a_dropped_block_leaves_the_account_of_queued_prefetches_even() -> None:
    cache = Cache(8 * BLOCK_BYTES)
    scheduler = Scheduler(cache, PacingConfig(lanes=4, demand_lanes=1))
    obj = opened(cache, BLOCK_BYTES)
    fill(cache, obj, 0, 8)
    scheduler.prefetch(obj, 8, 16, deadline=0.0)
    cache.evict(obj, 0, len(obj.pages))
    assert (obj.pages[0], obj.pages[8]) == (ABSENT, QUEUED)
    cache.forget(obj.name)
    scheduler.dispatch(0.0)
    assert scheduler.prefetch_bytes_queued == 0
