"""The book of pages: states, accounts, pins and victims."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hubspoke.core.cache import PAGES_PER_BLOCK, Cache, CachedObject, StoredFrame
from hubspoke.core.ids import BLOCK_BYTES, ObjectEntry, ObjectName, ReadState, Version
from hubspoke.core.lending import Lending
from hubspoke.core.page_codes import ABSENT, FLIGHT, PRESENT, QUEUED, UNVERIFIED

NAME = ObjectName("b", "k")


def entry(size: int, version: str = "v1") -> ObjectEntry:
    return ObjectEntry(Version(version), size, "e", 0)


def opened(cache: Cache, size: int, key: str = "k") -> CachedObject:
    return cache.open(ObjectName("b", key), entry(size))[0]


def fill(cache: Cache, obj: CachedObject, first: int, last: int) -> None:
    cache.fly(obj, first, last)
    cache.arrived(obj, first, last)


def test_a_read_is_a_hit_only_if_every_page_is_local() -> None:
    cache = Cache(BLOCK_BYTES)
    obj = opened(cache, 10 * 4096)
    assert cache.state(obj, 0, 2) is ReadState.MISS
    cache.fly(obj, 0, 2)
    assert cache.state(obj, 0, 2) is ReadState.LATE
    cache.arrived(obj, 0, 1)
    assert cache.state(obj, 0, 1) is ReadState.HIT
    assert cache.state(obj, 0, 2) is ReadState.LATE
    assert cache.state(obj, 0, 3) is ReadState.MISS


def test_what_is_held_as_a_whole_is_no_victim_until_it_is_let_go() -> None:
    cache = Cache(8 * BLOCK_BYTES)
    lending = Lending(cache)
    held, other = opened(cache, 2 * BLOCK_BYTES, "held"), opened(cache, 5 * BLOCK_BYTES, "other")
    fill(cache, held, 0, 2 * PAGES_PER_BLOCK)
    fill(cache, other, 0, 5 * PAGES_PER_BLOCK)
    assert lending.hold(held) and lending.hold(held)
    assert lending.bytes == 2 * BLOCK_BYTES
    cache.pin(held, 0, 1)
    cache.unpin(held, 0, 1)
    assert {obj for obj, _, _ in cache.make_room(8 * BLOCK_BYTES)} == {other}
    assert lending.whole(held) and not cache.evict(held, 0, 2 * PAGES_PER_BLOCK)[0]
    assert cache.pins.any(held, PAGES_PER_BLOCK, PAGES_PER_BLOCK + 1)
    lending.let_go(held)
    assert cache.pins.holds(held) and cache.make_room(8 * BLOCK_BYTES) == []
    lending.let_go(held)
    assert lending.bytes == 0 and not held.pins
    assert len(cache.make_room(8 * BLOCK_BYTES)) == 2


def test_only_what_is_whole_and_at_most_half_of_the_cache_is_held() -> None:
    cache = Cache(8 * BLOCK_BYTES)
    lending = Lending(cache)
    empty = opened(cache, 0, "empty")
    part, a, b = (opened(cache, 2 * BLOCK_BYTES, key) for key in ("part", "a", "b"))
    fill(cache, part, 0, 2 * PAGES_PER_BLOCK - 1)
    assert not lending.hold(empty) and not lending.hold(part)
    cache.fly(part, 2 * PAGES_PER_BLOCK - 1, 2 * PAGES_PER_BLOCK)
    assert not lending.hold(part)
    cache.arrived(part, 2 * PAGES_PER_BLOCK - 1, 2 * PAGES_PER_BLOCK)
    assert lending.hold(part)
    fill(cache, a, 0, 2 * PAGES_PER_BLOCK)
    fill(cache, b, 0, 2 * PAGES_PER_BLOCK)
    assert lending.hold(a) and not lending.hold(b)
    lending.let_go(part)
    assert lending.hold(b)


def test_what_is_held_outlives_its_name_and_what_is_unchecked_is_not_held() -> None:
    cache = Cache(4 * BLOCK_BYTES)
    lending = Lending(cache)
    obj = opened(cache, BLOCK_BYTES)
    fill(cache, obj, 0, PAGES_PER_BLOCK)
    assert lending.hold(obj)
    _, obsolete = cache.open(NAME, entry(10, "v2"))
    assert obsolete == [] and obj.number in cache.objects
    lending.let_go(obj)
    assert cache.reap(obj) == [obj]
    frames = [StoredFrame(0, 8192, 1)]
    old = cache.restore(9, ObjectName("b", "old"), Version("v"), 8192, frames)
    assert not lending.hold(old)
    cache.verified(old, frames[0], good=True)
    assert lending.hold(old)


def test_pages_queued_for_prefetch_are_a_miss() -> None:
    cache = Cache(BLOCK_BYTES)
    obj = opened(cache, 4096)
    cache.queue(obj, 0, 1)
    assert cache.state(obj, 0, 1) is ReadState.MISS
    cache.unqueue(obj, 0, 1)
    assert obj.pages[0] == ABSENT


def test_bytes_are_counted_as_the_disk_does_in_whole_pages() -> None:
    cache = Cache(BLOCK_BYTES)
    obj = opened(cache, 4096 + 10)
    fill(cache, obj, 0, 2)
    assert cache.used == 8192


def test_unique_bytes_count_each_page_once_and_prefetched_ones_as_used() -> None:
    cache = Cache(BLOCK_BYTES)
    obj = opened(cache, 3 * 4096)
    cache.fly(obj, 0, 3, prefetch=True)
    cache.arrived(obj, 0, 3)
    assert cache.asked(obj, 0, 2) == (8192, 8192)
    assert cache.asked(obj, 0, 3) == (4096, 4096)
    assert cache.asked(obj, 0, 3) == (0, 0)


def test_prefetched_pages_dropped_unread_are_waste() -> None:
    cache = Cache(BLOCK_BYTES)
    obj = opened(cache, 2 * BLOCK_BYTES)
    cache.fly(obj, 0, PAGES_PER_BLOCK, prefetch=True)
    cache.arrived(obj, 0, PAGES_PER_BLOCK)
    cache.asked(obj, 0, 1)
    assert cache.make_room(BLOCK_BYTES) == [(obj, 0, BLOCK_BYTES)]
    assert sum(n for _, _, n in cache.counters.wasted) == BLOCK_BYTES - 4096
    assert cache.counters.evicted_bytes == BLOCK_BYTES
    assert cache.used == 0


def test_consumed_blocks_go_before_waiting_ones() -> None:
    cache = Cache(3 * BLOCK_BYTES)
    obj = opened(cache, 3 * BLOCK_BYTES)
    fill(cache, obj, 0, 3 * PAGES_PER_BLOCK)
    cache.asked(obj, PAGES_PER_BLOCK, 3 * PAGES_PER_BLOCK)
    dropped = [cache.make_room(room * BLOCK_BYTES)[0][1] // BLOCK_BYTES for room in (1, 2, 3)]
    assert sorted(dropped[:2]) == [1, 2] and dropped[2] == 0


def test_pinned_and_flying_blocks_are_never_victims() -> None:
    cache = Cache(2 * BLOCK_BYTES)
    obj = opened(cache, 4 * BLOCK_BYTES)
    fill(cache, obj, 0, PAGES_PER_BLOCK)
    cache.fly(obj, PAGES_PER_BLOCK, 2 * PAGES_PER_BLOCK)
    cache.pin(obj, 0, 1)
    assert cache.make_room(1) == []
    cache.unpin(obj, 0, 1)
    assert cache.make_room(1) == [(obj, 0, BLOCK_BYTES)]


def test_what_is_away_is_neither_counted_nor_evicted_until_it_is_back() -> None:
    cache = Cache(3 * BLOCK_BYTES)
    gone, here = opened(cache, 2 * BLOCK_BYTES), opened(cache, 2 * BLOCK_BYTES, "k2")
    fill(cache, gone, 0, PAGES_PER_BLOCK)
    fill(cache, here, 0, PAGES_PER_BLOCK)
    cache.away.add(gone)
    assert (cache.used, cache.away.bytes) == (2 * BLOCK_BYTES, BLOCK_BYTES)
    assert cache.room == 2 * BLOCK_BYTES
    # Of the disks that are left: what lies on them, and what they have room for.
    assert cache.bound(BLOCK_BYTES // 2) == []
    assert cache.limit == BLOCK_BYTES * 3 // 2
    assert cache.bound(-BLOCK_BYTES) == [(here, 0, BLOCK_BYTES)]
    assert cache.make_room(1) == []
    cache.failed(gone, 0, 10)
    assert cache.away.bytes == BLOCK_BYTES - 10 * 4096
    cache.away.remove(gone)
    cache.freed(gone)
    assert cache.away.bytes == 0 and cache.readable(gone, 10, PAGES_PER_BLOCK)
    assert cache.make_room(1) == [(gone, 0, BLOCK_BYTES)]


def test_an_object_that_is_away_leaves_with_its_version() -> None:
    cache = Cache(3 * BLOCK_BYTES)
    gone = opened(cache, BLOCK_BYTES)
    fill(cache, gone, 0, PAGES_PER_BLOCK)
    cache.away.add(gone)
    assert cache.forget(NAME) == [gone]
    assert (cache.used, cache.away.bytes, gone.number in cache.away) == (0, 0, False)


def test_a_cache_can_have_another_capacity() -> None:
    cache = Cache(4 * BLOCK_BYTES)
    obj = opened(cache, 4 * BLOCK_BYTES)
    fill(cache, obj, 0, 4 * PAGES_PER_BLOCK)
    cache.resize(2 * BLOCK_BYTES)
    assert len(cache.bound(100 * BLOCK_BYTES)) == 2
    cache.resize(4 * BLOCK_BYTES)
    assert cache.bound(100 * BLOCK_BYTES) == [] and cache.room == 2 * BLOCK_BYTES


def test_space_is_given_back_of_what_is_not_there_and_nobody_has() -> None:
    cache = Cache(4 * BLOCK_BYTES)
    obj = opened(cache, 3 * BLOCK_BYTES)
    fill(cache, obj, 10, 20)
    cache.fly(obj, 30, 40)
    whole = (0, len(obj.pages) + 7)
    assert cache.pins.unused(obj, *whole) == [(0, 10), (20, 30), (40, 256), (256, 512), (512, 768)]
    cache.pin(obj, 300, 301)
    assert cache.pins.unused(obj, *whole) == [(0, 10), (20, 30), (40, 256), (512, 768)]
    assert cache.pins.any(obj, 256, 257) and not cache.pins.any(obj, 512, 768)
    cache.unpin(obj, 300, 301)
    assert cache.pins.unused(obj, 300, 301) == [(300, 301)]


def test_a_new_version_makes_the_old_one_obsolete() -> None:
    cache = Cache(BLOCK_BYTES)
    old = opened(cache, 4096)
    fill(cache, old, 0, 1)
    new, dropped = cache.open(NAME, entry(4096, "v2"))
    assert dropped == [old] and old.dead and not new.dead
    assert cache.used == 0
    assert cache.state(new, 0, 1) is ReadState.MISS


def test_an_obsolete_version_stays_while_it_is_read_or_filled() -> None:
    cache = Cache(BLOCK_BYTES)
    old = opened(cache, 2 * 4096)
    fill(cache, old, 0, 1)
    cache.fly(old, 1, 2)
    cache.pin(old, 0, 1)
    assert cache.forget(NAME) == []
    assert cache.readable(old, 0, 1)
    cache.unpin(old, 0, 1)
    assert cache.reap(old) == []
    cache.failed(old, 1, 2)
    assert cache.reap(old) == [old]
    assert cache.used == 0 and cache.blocks == 0


def test_restored_frames_are_verified_on_first_touch() -> None:
    cache = Cache(BLOCK_BYTES)
    frames = [StoredFrame(0, 8192, 1), StoredFrame(8192, 4096, 2)]
    obj = cache.restore(5, NAME, Version("v1"), 3 * 4096, frames)
    assert cache.state(obj, 0, 3) is ReadState.HIT and not cache.readable(obj, 0, 3)
    assert obj.unverified_frames(1, 2) == [frames[0]]
    cache.verified(obj, frames[0], good=True)
    assert cache.readable(obj, 0, 2)
    cache.verified(obj, frames[1], good=False)
    assert cache.state(obj, 2, 3) is ReadState.MISS
    assert cache.counters.corrupt_frames == 1
    assert cache.used == 8192
    assert opened(cache, 4096, "other").number == 6


class CacheMachine(RuleBasedStateMachine):
    """Any order of events keeps the accounts: `used` is the bytes of accounted pages."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(4 * BLOCK_BYTES)
        self.objs = [opened(self.cache, 2 * BLOCK_BYTES + 77, f"k{i}") for i in range(3)]
        self.pins: list[tuple[CachedObject, int, int]] = []

    ranges = st.tuples(st.integers(0, 2), st.integers(0, 2 * PAGES_PER_BLOCK), st.integers(1, 300))

    def pick(self, r: tuple[int, int, int]) -> tuple[CachedObject, int, int]:
        obj = self.objs[r[0]]
        return obj, r[1], min(r[1] + r[2], len(obj.pages))

    @rule(r=ranges)
    def queue(self, r: tuple[int, int, int]) -> None:
        self.cache.queue(*self.pick(r))

    @rule(r=ranges, prefetch=st.booleans())
    def fly(self, r: tuple[int, int, int], prefetch: bool) -> None:
        obj, first, last = self.pick(r)
        for p in range(first, last):
            if obj.pages[p] in (ABSENT, QUEUED):
                need = 4096
                if self.cache.room < need:
                    self.cache.make_room(need)
                if self.cache.room < need:
                    return
                self.cache.fly(obj, p, p + 1, prefetch=prefetch)

    @rule(r=ranges)
    def arrived(self, r: tuple[int, int, int]) -> None:
        self.cache.arrived(*self.pick(r))

    @rule(r=ranges)
    def asked(self, r: tuple[int, int, int]) -> None:
        self.cache.asked(*self.pick(r))

    @rule(r=ranges)
    def pin(self, r: tuple[int, int, int]) -> None:
        obj, first, last = self.pick(r)
        present = self.cache.readable(obj, first, last)
        if present and len(self.pins) < 4:
            self.cache.pin(obj, first, last)
            self.pins.append((obj, first, last))

    @rule()
    def unpin(self) -> None:
        if self.pins:
            self.cache.unpin(*self.pins.pop())

    @rule(need=st.integers(1, 3 * BLOCK_BYTES))
    def make_room(self, need: int) -> None:
        self.cache.make_room(need)

    @invariant()
    def accounts_hold(self) -> None:
        used = 0
        for obj in self.objs:
            for p in range(len(obj.pages)):
                state = obj.pages[p]
                if state in (FLIGHT, UNVERIFIED, PRESENT):
                    used += 4096
        assert self.cache.used == used
        assert used <= self.cache.capacity

    @invariant()
    def pinned_pages_are_there(self) -> None:
        assert all(self.cache.readable(*pin) for pin in self.pins)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_no_capacity_below_one_block() -> None:
    with pytest.raises(AssertionError):
        Cache(BLOCK_BYTES - 1)
