"""What stays in a cache that is too small: the figures of WORKLOADS, by the book of pages."""

import random
from collections.abc import Iterable

import pytest

from hubspoke.core.cache import PAGES_PER_BLOCK, Cache, CachedObject
from hubspoke.core.eviction.pinned_set import rank
from hubspoke.core.eviction.policy import KeyQueue
from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES, ObjectEntry, ObjectName, Version
from hubspoke.core.page_codes import IS_UNASKED

Range = tuple[CachedObject, int, int]


class Reader:
    """Reads pages as the spoke does, and counts hits and what would have crossed the WAN."""

    def __init__(self, blocks: int) -> None:
        self.cache = Cache(blocks * BLOCK_BYTES)
        self.fetched = 0

    def object(self, key: str, size: int) -> CachedObject:
        return self.cache.open(ObjectName("b", key), ObjectEntry(Version("v"), size, "e", 0))[0]

    def read(self, obj: CachedObject, first: int, last: int) -> bool:
        cache = self.cache
        hit = cache.readable(obj, first, last)
        cache.asked(obj, first, last)
        missing = obj.runs(first, last, IS_UNASKED)
        need = sum(b - a for a, b in missing) * PAGE_BYTES
        if need:
            cache.make_room(need)
            assert cache.room >= need
        for a, b in missing:
            cache.fly(obj, a, b)
            cache.arrived(obj, a, b)
        self.fetched += need
        assert cache.used <= cache.limit
        return hit

    def epoch(self, order: Iterable[Range]) -> tuple[float, int]:
        """Hit ratio and fetched bytes of reading all of it."""
        before = self.fetched
        hits = [self.read(*r) for r in order]
        return sum(hits) / len(hits), self.fetched - before


def blocks_of(obj: CachedObject) -> list[Range]:
    starts = range(0, len(obj.pages), PAGES_PER_BLOCK)
    return [(obj, p, min(p + PAGES_PER_BLOCK, len(obj.pages))) for p in starts]


@pytest.mark.parametrize("step", [256, 64, 2])
def test_a_cyclic_scan_of_twice_the_cache_hits_half(step: int) -> None:
    reader = Reader(64)
    obj = reader.object("tokens.bin", 128 * BLOCK_BYTES)
    order = [(obj, p, p + step) for p in range(0, len(obj.pages), step)]
    reader.epoch(order)
    for _ in range(4):
        hits, _ = reader.epoch(order)
        assert hits >= 0.45


def test_shuffled_epochs_over_twice_the_cache_reach_the_bound() -> None:
    reader, rng = Reader(200), random.Random(1)
    obj = reader.object("tokens.bin", 400 * BLOCK_BYTES)
    order = blocks_of(obj)
    reader.epoch(order)
    for _ in range(6):
        rng.shuffle(order)
        hits, fetched = reader.epoch(order)
        assert hits >= 0.45
        assert fetched <= 1.1 * (400 - 200) * BLOCK_BYTES


def test_shuffled_small_samples_fetch_only_what_the_cache_cannot_hold() -> None:
    reader, rng = Reader(32), random.Random(2)
    objects = [reader.object(f"d/{i}", 16 * BLOCK_BYTES) for i in range(4)]
    order = [(o, p, p + 2) for o in objects for p in range(0, len(o.pages), 2)]
    rng.shuffle(order)
    reader.epoch(order)
    for _ in range(3):
        rng.shuffle(order)
        hits, fetched = reader.epoch(order)
        assert hits >= 0.45
        assert fetched <= 1.1 * 32 * BLOCK_BYTES


def test_the_hits_of_an_epoch_are_spread_over_it() -> None:
    reader = Reader(128)
    obj = reader.object("tokens.bin", 256 * BLOCK_BYTES)
    order = blocks_of(obj)
    reader.epoch(order)
    for quarter in range(4):
        part = order[quarter * 64 : (quarter + 1) * 64]
        assert 0.35 < reader.epoch(part)[0] < 0.65


def test_a_data_set_of_many_small_folders_is_pinned_as_one() -> None:
    reader, rng = Reader(64), random.Random(3)
    order = [
        (reader.object(f"class{i:03}/{j}", BLOCK_BYTES // 4), 0, 64)
        for i in range(128)
        for j in range(4)
    ]
    reader.epoch(order)
    for _ in range(3):
        rng.shuffle(order)
        assert reader.epoch(order)[0] >= 0.45


def test_a_scan_that_is_read_once_does_not_displace_a_pinned_set() -> None:
    reader = Reader(64)
    obj = reader.object("set/tokens.bin", 60 * BLOCK_BYTES)
    scan = reader.object("checkpoints/7", 100 * BLOCK_BYTES)
    for _ in range(2):
        reader.epoch(blocks_of(obj))
    reader.epoch(blocks_of(scan))
    assert reader.epoch(blocks_of(obj))[0] >= 0.95


def test_a_data_set_that_is_over_gives_way_to_the_next() -> None:
    reader = Reader(64)
    old = reader.object("old/tokens.bin", 128 * BLOCK_BYTES)
    new = reader.object("new/tokens.bin", 128 * BLOCK_BYTES)
    for _ in range(3):
        reader.epoch(blocks_of(old))
    ratios = [reader.epoch(blocks_of(new))[0] for _ in range(7)]
    assert ratios[-1] >= 0.45


def test_files_that_are_no_longer_read_give_way_inside_their_folder() -> None:
    reader = Reader(64)
    order = [r for i in range(8) for r in blocks_of(reader.object(f"d/{i}", 16 * BLOCK_BYTES))]
    for _ in range(2):
        reader.epoch(order)
    ratios = [reader.epoch(order[: 4 * 16])[0] for _ in range(9)]
    assert ratios[0] < 0.7 and ratios[-1] >= 0.95


def test_small_hot_files_survive_scans_of_a_data_set() -> None:
    reader, rng = Reader(64), random.Random(4)
    hot = [reader.object(f"meta/{i}", 64 << 10) for i in range(16)]
    obj = reader.object("set/tokens.bin", 256 * BLOCK_BYTES)
    hits = reads = 0
    for r in blocks_of(obj) * 3:
        reader.read(*r)
        file = rng.choice(hot)
        hits += reader.read(file, 0, len(file.pages))
        reads += 1
    assert hits >= reads - len(hot)


def test_s3_fifo_keeps_what_is_read_again_among_small_things_read_once() -> None:
    reader, rng = Reader(16), random.Random(5)
    hot = [reader.object("hot/x", 64 << 10)] + [
        reader.object(f"hot{i}/x", 64 << 10) for i in range(10)
    ]
    hits = 0
    for i in range(2_000):
        cold = reader.object(f"cold{i}/x", 64 << 10)
        reader.read(cold, 0, len(cold.pages))
        file = rng.choice(hot)
        hits += reader.read(file, 0, len(file.pages))
    assert hits >= 1_900


def test_a_block_of_one_page_is_one_page() -> None:
    reader = Reader(1)
    obj = reader.object("tokens.bin", 1_000 * BLOCK_BYTES)
    for block in range(256):
        reader.read(obj, block * PAGES_PER_BLOCK, block * PAGES_PER_BLOCK + 1)
    assert reader.cache.used == BLOCK_BYTES and reader.cache.counters.evicted_bytes == 0
    reader.read(obj, 999 * PAGES_PER_BLOCK, 999 * PAGES_PER_BLOCK + 2)
    assert reader.cache.counters.evicted_bytes == 2 * PAGE_BYTES


def test_a_pinned_victim_goes_when_its_reader_is_done() -> None:
    reader = Reader(2)
    cache, obj = reader.cache, reader.object("tokens.bin", 8 * BLOCK_BYTES)
    reader.epoch(blocks_of(obj)[:2])
    cache.pin(obj, 0, 2 * PAGES_PER_BLOCK)
    assert cache.make_room(1) == []
    cache.unpin(obj, 0, PAGES_PER_BLOCK)
    assert cache.make_room(1) == [(obj, 0, BLOCK_BYTES)]
    cache.unpin(obj, PAGES_PER_BLOCK, 2 * PAGES_PER_BLOCK)
    assert cache.make_room(2 * BLOCK_BYTES) == [(obj, BLOCK_BYTES, BLOCK_BYTES)]


def test_a_shortage_of_the_disk_is_a_smaller_capacity_at_once() -> None:
    reader = Reader(8)
    obj = reader.object("tokens.bin", 8 * BLOCK_BYTES)
    reader.epoch(blocks_of(obj))
    assert len(reader.cache.bound(-3 * BLOCK_BYTES)) == 3
    assert reader.cache.room == 0
    assert reader.cache.bound(BLOCK_BYTES) == []
    assert reader.cache.room == BLOCK_BYTES
    assert reader.cache.bound(100 * BLOCK_BYTES) == []
    assert reader.cache.limit == reader.cache.capacity


def test_ranks_are_spread_evenly_over_neighbouring_blocks() -> None:
    ranks = [rank((7 << 32) + block) for block in range(1_024)]
    for part in range(0, 1_024, 128):
        low = sum(r < 128 for r in ranks[part : part + 128])
        assert 56 <= low <= 72


def test_a_queue_forgets_what_is_out_of_date() -> None:
    queue = KeyQueue()
    for key in range(5_000):
        queue.push(key)
        queue.tidy(10, lambda k: k % 1_000 == 0)
    assert len(queue) < 1_100
    while len(queue):
        last = queue.pop()
    assert last == 4_999


def test_the_book_of_the_order_does_not_grow_with_what_has_passed() -> None:
    reader, rng = Reader(4), random.Random(6)
    obj = reader.object("tokens.bin", 64 * BLOCK_BYTES)
    for _ in range(20_000):
        block = rng.randrange(64)
        reader.read(obj, block * PAGES_PER_BLOCK, block * PAGES_PER_BLOCK + 2)
    assert reader.cache.blocks <= 64
    victims = 0
    while reader.cache.make_room(reader.cache.room + 1):
        victims += 1
    assert victims <= 64 and reader.cache.used == 0 and reader.cache.blocks == 0
