"""Which reads belong together, and what is believed about them."""

import random
from itertools import pairwise

import pytest

from hubspoke.core.cache import CachedObject
from hubspoke.core.eviction.data_set import DataSet
from hubspoke.core.generators import sequential
from hubspoke.core.generators.candidates import Ahead, DepthConfig
from hubspoke.core.ids import ObjectName, ReadState, Version
from hubspoke.core.pages import PageMap
from hubspoke.core.recent import RECENT, Recent
from hubspoke.core.stream_table import STREAMS_MAX, STREAMS_PER_OBJECT_MAX, StreamTable
from hubspoke.core.streams import (
    CLIENTS_PER_STREAM_MAX,
    HEAD_BYTES,
    Access,
    Cursor,
    Pattern,
    Stream,
    surprise,
)

KIB, MIB = 1 << 10, 1 << 20
AHEAD = Ahead(MIB, 1 << 62)


def an_object(size: int, number: int = 1) -> CachedObject:
    n = -(-size // 4096)
    name = ObjectName("b", f"k{number}")
    return CachedObject(number, name, Version("v"), size, DataSet(("b", "")), PageMap(n))


def accesses(obj: CachedObject, offsets: list[int], length: int = 8 * KIB) -> list[Access]:
    return [
        Access(obj, o, length, f"c{i % 8}", i * 0.001, ReadState.HIT) for i, o in enumerate(offsets)
    ]


def observed(table: StreamTable, reads: list[Access]) -> list[Stream]:
    table.observe(reads, lambda _: None, lambda *_: None)
    return list(table)


def test_reads_shuffled_inside_a_window_are_one_dense_stream() -> None:
    obj = an_object(256 * MIB)
    order = list(range(0, 32 * MIB, 8 * KIB))
    rng = random.Random(1)
    for i in range(0, len(order), 128):
        part = order[i : i + 128]
        rng.shuffle(part)
        order[i : i + 128] = part
    (s,) = observed(StreamTable(), accesses(obj, order))
    assert sequential.judge(s, AHEAD)
    assert s.pattern is Pattern.SEQUENTIAL
    assert s.hi == 32 * MIB


def test_two_jobs_far_apart_in_one_object_are_two_streams() -> None:
    obj = an_object(1 << 30)
    reads = [o for i in range(64) for o in (i * 8 * KIB, 512 * MIB + i * 8 * KIB)]
    assert len(observed(StreamTable(), accesses(obj, reads))) == 2


def test_one_reader_in_order_is_called_sequential_soon() -> None:
    obj = an_object(256 * MIB)
    reads = accesses(obj, [i * MIB for i in range(10)], MIB)
    (s,) = observed(StreamTable(), [a._replace(client="one") for a in reads])
    assert sequential.judge(s, AHEAD)
    assert s.pattern is Pattern.SEQUENTIAL


def test_random_reads_are_called_random() -> None:
    obj = an_object(1 << 30)
    rng = random.Random(2)
    reads = [rng.randrange(0, 64 * MIB, 8 * KIB) for _ in range(400)]
    streams = observed(StreamTable(), accesses(obj, reads))
    assert not any(sequential.judge(s, AHEAD) for s in streams)


@pytest.mark.parametrize("seed", [7, 24, 151])  # of 200, those of which one was taken for a scan
def test_an_epoch_at_random_is_random_to_its_last_read(seed: int) -> None:
    """Late in it nearly all that lies behind any front was read."""
    size, record = 1_127_526_400, 112_640
    obj, table = an_object(size), StreamTable()
    order = list(range(0, size, record))
    random.Random(seed).shuffle(order)
    taken = set[float]()
    for i in range(0, len(order), 16):
        streams = observed(table, accesses(obj, order[i : i + 16], record))
        for s in streams:
            if sequential.judge(s, AHEAD) and s.accesses > RECENT:
                taken.add(i / len(order))
            assert s.pattern is not Pattern.SEQUENTIAL, (i, s.describe())
    assert not taken


def test_holes_behind_the_front_end_a_dense_stream() -> None:
    obj = an_object(256 * MIB)
    table = StreamTable()
    (s,) = observed(table, accesses(obj, list(range(0, 8 * MIB, 8 * KIB))))
    assert sequential.judge(s, AHEAD)
    table.observe(
        accesses(obj, list(range(8 * MIB, 24 * MIB, 32 * KIB))), lambda _: None, lambda *_: None
    )
    assert not sequential.judge(s, AHEAD)
    assert s.pattern is not Pattern.SEQUENTIAL


def test_coverage_looks_back_only_as_far_as_the_ring_reaches() -> None:
    obj = an_object(512 * MIB)
    table = StreamTable()
    reads = accesses(obj, list(range(0, 200 * MIB, 256 * KIB)), 256 * KIB)
    (s,) = observed(table, reads)
    assert s.coverage(100 * MIB, 200 * MIB) == 1.0
    assert s.coverage(0, 100 * MIB) == 0.0
    assert s.coverage(150 * MIB, 400 * MIB) < 0.5


def test_the_ring_forgets_marks_when_the_front_jumps() -> None:
    obj = an_object(512 * MIB)
    table = StreamTable()
    observed(table, accesses(obj, list(range(0, 8 * MIB, 64 * KIB)), 64 * KIB))
    (s,) = observed(table, accesses(obj, [11 * MIB]))
    assert s.coverage(8 * MIB, 11 * MIB) == 0.0
    assert s.coverage(0, 8 * MIB) == 1.0


def test_a_cursor_confirms_equal_jumps_of_equal_runs() -> None:
    c = Cursor(0, 8, 0.0)
    for k in range(1, 5):
        c.access(k * 100, 4, float(k))
        c.access(k * 100 + 4, 4, k + 0.5)
    assert (c.jump, c.last_run_length, c.confirmed, c.period_s) == (100, 8, 3, 1.0)
    c.access(1_000_000, 8, 9.0)
    assert c.confirmed == 0


def test_a_repeated_read_is_not_a_jump() -> None:
    c = Cursor(0, 8, 0.0)
    c.access(0, 8, 1.0)
    c.access(4, 2, 2.0)
    assert (c.run_start, c.run_end, c.jump) == (0, 8, 0)


def test_tables_stay_bounded() -> None:
    table = StreamTable()
    for n in range(STREAMS_MAX + 100):
        observed(table, accesses(an_object(64 * KIB, n), [0]))
    assert len(table) == len(list(table)) == STREAMS_MAX
    table = StreamTable()
    far = [
        at
        for i in range(3 * STREAMS_PER_OBJECT_MAX)
        for at in (i * 20 * MIB, i * 20 * MIB + 8 * KIB)
    ]
    assert len(observed(table, accesses(an_object(4 << 30), far))) == STREAMS_PER_OBJECT_MAX
    many = [
        Access(an_object(MIB), 0, 10, f"c{i}", 0.0, ReadState.HIT)
        for i in range(CLIENTS_PER_STREAM_MAX + 50)
    ]
    (s,) = observed(StreamTable(), [a._replace(obj=many[0].obj) for a in many])
    assert len(s.clients) == CLIENTS_PER_STREAM_MAX


def test_a_single_read_at_the_start_brings_only_the_head() -> None:
    obj = an_object(64 * MIB)
    (s,) = observed(StreamTable(), accesses(obj, [0]))
    (c,), beyond = sequential.propose(s, 0.0, 0.3, DepthConfig(), ahead=AHEAD)
    assert c.offset + c.length == 8 * KIB + HEAD_BYTES
    assert beyond == 0


def test_a_single_read_in_the_middle_brings_nothing() -> None:
    obj = an_object(64 * MIB)
    assert observed(StreamTable(), accesses(obj, [10 * MIB])) == []


def test_a_first_read_near_the_start_brings_the_start_too() -> None:
    obj = an_object(512 * MIB)
    (s,) = observed(StreamTable(), accesses(obj, [640 * KIB], 128 * KIB))
    (c,), beyond = sequential.propose(s, 0.0, 0.3, DepthConfig(), ahead=AHEAD)
    assert (c.offset, c.length) == (0, 768 * KIB + HEAD_BYTES)
    assert beyond == 0


def test_two_reads_of_a_window_at_the_start_are_read_on_from() -> None:
    obj = an_object(512 * MIB)
    (s,) = observed(StreamTable(), accesses(obj, [640 * KIB, 1664 * KIB], 128 * KIB))
    (c,), _ = sequential.propose(s, 0.01, 0.3, DepthConfig(), waited=True, ahead=AHEAD)
    assert c.offset == 0 and c.offset + c.length >= s.hi + MIB
    elsewhere = [100 * MIB + o for o in (640 * KIB, 1664 * KIB)]
    (s,) = observed(StreamTable(), accesses(obj, elsewhere, 128 * KIB))
    assert sequential.propose(s, 0.01, 0.3, DepthConfig(), waited=True, ahead=AHEAD) == ([], 0)


@pytest.mark.parametrize(
    ("size", "length", "near"),
    [
        (512 * MIB, 128 * KIB, 2 * MIB),
        (32 * MIB, 128 * KIB, 128 * KIB),
        (512 * MIB, 16 * KIB, 152 * KIB),
        (512 * MIB, 4 * KIB, 0),  # what it brings is too much for so small reads
    ],
)
def test_how_near_is_a_part_of_the_object_and_of_what_is_read(
    size: int, length: int, near: int
) -> None:
    assert len(observed(StreamTable(), accesses(an_object(size), [near], length))) == 1
    assert observed(StreamTable(), accesses(an_object(size), [near + 4096], length)) == []


def test_a_front_that_began_near_the_start_leaves_it_behind() -> None:
    obj, table = an_object(512 * MIB), StreamTable()
    offsets = [64 * KIB + i * 128 * KIB for i in range(RECENT + 1)]
    for i, access in enumerate(accesses(obj, offsets, 128 * KIB)):
        (s,) = observed(table, [access])
        assert s.recent_lo == (0 if i < RECENT else offsets[1])


def test_the_tail_says_how_much_is_due_after_the_end() -> None:
    obj = an_object(8 * MIB)
    (s,) = observed(StreamTable(), accesses(obj, list(range(0, 8 * MIB - 64 * KIB, 8 * KIB))))
    found, beyond = sequential.propose(s, 1.0, 0.3, DepthConfig(), ahead=AHEAD)
    assert found[-1].offset + found[-1].length == 8 * MIB
    assert beyond > 0


def test_what_was_planned_is_not_proposed_again() -> None:
    obj = an_object(256 * MIB)
    (s,) = observed(StreamTable(), accesses(obj, list(range(0, 8 * MIB, 8 * KIB))))
    (first,), _ = sequential.propose(s, 1.0, 0.3, DepthConfig(), ahead=AHEAD)
    assert sequential.propose(s, 1.0, 0.3, DepthConfig(), ahead=AHEAD) == ([], 0)
    assert s.planned == first.offset + first.length


def test_what_is_read_later_comes_later() -> None:
    obj = an_object(256 * MIB)
    (s,) = observed(StreamTable(), accesses(obj, list(range(0, 8 * MIB, 8 * KIB))))
    s.boost.factor = 8.0
    found, _ = sequential.propose(s, 1.0, 2.0, DepthConfig(), ahead=AHEAD)
    assert 2 < len(found) <= sequential.PARTS_MAX
    rate = s.rate.per_second(1.0)
    for before, c in pairwise(found):
        assert c.offset == before.offset + before.length
        assert c.use_in_s == pytest.approx((c.offset - s.hi) / rate)


def test_the_front_begins_where_the_earliest_of_the_last_reads_does() -> None:
    obj, rng = an_object(256 * MIB), random.Random(3)
    offsets = [0] + [rng.randrange(4 * MIB) for _ in range(500)]
    table = StreamTable()
    for i, access in enumerate(accesses(obj, offsets)):
        (s,) = observed(table, [access])
        assert s.recent_lo == min(offsets[max(0, i - RECENT + 1) : i + 1])


def test_reads_far_apart_in_a_large_object_are_no_streams() -> None:
    obj, rng = an_object(40 << 30), random.Random(5)
    table = StreamTable()
    reads = accesses(obj, [rng.randrange(10 << 20) * 4096 for _ in range(2_000)], 4096)
    moved = table.observe(reads, lambda _: None, lambda *_: None)
    assert sum(len(found) for found in moved.values()) <= 0.05 * len(reads)
    assert len(table) <= 40


def test_slices_of_one_object_are_a_stream_each() -> None:
    obj = an_object(64 * MIB)
    reads = [w * 8 * MIB + i * 64 * KIB for i in range(40) for w in range(8)]
    streams = observed(StreamTable(), accesses(obj, reads, 64 * KIB))
    assert sorted(s.start for s in streams) == [w * 8 * MIB for w in range(8)]
    assert all(sequential.judge(s, AHEAD) for s in streams)


def test_an_object_read_whole_is_opened_and_no_stream() -> None:
    table, opened = StreamTable(), []
    reads = [Access(an_object(MIB, n), 0, MIB, "c", 0.0, ReadState.MISS) for n in range(5)]
    moved = table.observe(reads, lambda _: None, lambda a, s: opened.append((a, s)))
    assert not moved and not len(table)
    assert opened == [(a, None) for a in reads]


def test_heads_are_not_fetched_where_objects_are_left_after_their_start() -> None:
    table = StreamTable()
    heads = []
    for n in range(12):
        obj = an_object(64 * MIB, n)
        table.observe(accesses(obj, [0], 4096), lambda s: heads.append(s.head), lambda *_: None)
        elsewhere = accesses(obj, [40 * MIB, 20 * MIB, 60 * MIB], 4096)
        table.observe(elsewhere, lambda _: None, lambda *_: None)
    assert heads == [True] * 4 + [False] * 8
    for n in range(12, 16):
        obj = an_object(64 * MIB, n)
        observed(table, accesses(obj, [0, 4096], 4096))
    table.observe(
        accesses(an_object(MIB, 99), [0], 4096), lambda s: heads.append(s.head), lambda *_: None
    )
    assert heads[-1] is True


def test_an_object_that_is_forgotten_takes_its_streams_along() -> None:
    table = StreamTable()
    obj = an_object(64 * MIB)
    (s,) = observed(table, accesses(obj, [0, 8 * KIB]))
    table.forget(obj.number)
    assert s.gone and len(table) == 0
    table.forget(obj.number)
    assert len(observed(table, accesses(obj, [0]))) == 1


def test_closeness_is_judged_against_chance() -> None:
    assert surprise(1, 4096, 1, 1 << 30) == 0.0
    assert surprise(2, 8 * KIB, 2, 1 << 30) > 10  # the second read right after the first
    assert surprise(2, MIB, 1_000, 1 << 30) == 0.0  # one of a thousand has to be somewhere
    assert surprise(20, MIB, 40, 1 << 30) > 50


def recent(reads: list[tuple[int, int]]) -> Recent:
    found = Recent()
    for read in reads:
        found.add(*read)
    return found


def test_reads_that_go_down_are_told_from_shuffled_ones() -> None:
    down = [(i * 10, i * 10 + 10) for i in range(30, 0, -1)]
    assert recent(down).descends and recent(down[:5]).descends and not recent(down[:4]).descends
    assert not recent(down[::-1]).descends
    rng = random.Random(6)
    assert not any(recent(rng.sample(down, 24)).descends for _ in range(200))


def test_the_sums_of_recent_reads_are_those_of_the_last_ones() -> None:
    rng = random.Random(7)
    reads: list[tuple[int, int]] = []
    found = Recent()
    for _ in range(3 * RECENT):
        start, length = rng.randrange(20), rng.randrange(1, 9)
        leaves = found.add(start, start + length)
        assert leaves == (reads[-RECENT][0] if len(reads) >= RECENT else -1)
        reads.append((start, start + length))
        last = reads[-RECENT:]
        steps = [b[0] < a[0] for a, b in pairwise(last)]
        assert found.bytes == sum(b - a for a, b in last)
        assert found.share_down == sum(steps) / max(1, len(steps))
        assert found.lowest == min(a for a, _ in last)
        assert found.highest == max(b for _, b in last)
