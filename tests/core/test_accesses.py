"""Hits that are counted in batches leave the same books as reads that are counted one by one."""

import random
from collections.abc import Callable, Sequence

import pytest

from hubspoke.core import accesses as module
from hubspoke.core.accesses import Accesses, PieceOf
from hubspoke.core.cache import Cache, CachedObject
from hubspoke.core.convergence import WINDOW_READS
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version, page_span
from hubspoke.core.ledger import Ledger
from hubspoke.core.streams import Access

KIB, MIB = 1 << 10, 1 << 20


def a_cache() -> Cache:
    return Cache(64 * MIB)


def brought(cache: Cache, key: str, size: int = 2 * MIB) -> CachedObject:
    """An object whose pages were all read."""
    obj, _ = cache.open(ObjectName("b", key), ObjectEntry(Version("v"), size, "e", 0))
    pages = len(obj.pages)
    cache.asked(obj, 0, pages)
    cache.fly(obj, 0, pages)
    cache.arrived(obj, 0, pages)
    return obj


def reads(objects: list[CachedObject], n: int) -> list[tuple[CachedObject, int, int, float, float]]:
    rng = random.Random(n)
    found, now = [], 0.0
    for _ in range(n):
        obj, length = rng.choice(objects), rng.choice([1, 4 * KIB, 100 * KIB])
        now += rng.random() * 0.001
        offset = rng.randrange(obj.size - length)
        found.append((obj, offset, length, now, rng.random() ** 8))
    return found


def books(ledger: Ledger) -> dict[str, object]:
    hits = ledger.latency[ReadState.HIT]
    return {
        "requests": ledger.requests,
        "bytes": ledger.read_bytes,
        "latencies": [hits.quantile(q) for q in (0.01, 0.5, 0.9, 0.99, 1.0)],
        "count": hits.count,
        "max": hits.max_s,
        "windows": ledger.convergence.windows(),
        "held": ledger.convergence.held_since(),
        "first": ledger.convergence.first_read_at,
    }


@pytest.mark.parametrize("batch", [1, 7, 999, 5_000])
def test_batches_leave_the_books_that_single_reads_leave(batch: int) -> None:
    cache, single_cache = a_cache(), a_cache()
    n = 3 * WINDOW_READS + 17
    ledger, single = Ledger(0.0, 0), Ledger(0.0, 0)
    rings = Accesses(ledger, cache.read_again)
    objects = [brought(cache, f"d/{i}") for i in range(3)]
    twins = {o: brought(single_cache, o.name.key) for o in objects}
    for i, (obj, offset, length, at, took) in enumerate(reads(objects, n)):
        assert obj.read_before(*page_span(offset, length))
        rings.hit(obj, offset, length, "c", at, took)
        single.read(ReadState.HIT, length, 0, None, took, 0.0, at)
        assert single_cache.asked(twins[obj], *page_span(offset, length)) == (0, 0)
        if i % batch == 0:
            rings.count()
    rings.count()
    assert books(ledger) == books(single)
    assert ledger.latency[ReadState.HIT].sum_s == pytest.approx(single.latency[ReadState.HIT].sum_s)
    for obj, twin in twins.items():
        assert obj.read_at == twin.read_at
        assert obj.data_set.clock == twin.data_set.clock
        assert obj.data_set.again == twin.data_set.again
        assert [obj.pages.mark(b) for b in (0, 1)] == [twin.pages.mark(b) for b in (0, 1)]


def test_the_predictor_gets_hits_and_other_reads_in_order() -> None:
    cache = a_cache()
    rings = Accesses(Ledger(0.0, 0), cache.read_again)
    obj = brought(cache, "k")
    rings.hit(obj, 0, 10, "c", 1.0, 0.0)
    rings.read(Access(obj, 10, 10, "c", 2.0, ReadState.MISS))
    rings.hit(obj, 20, 10, "c", 3.0, 0.0)
    assert [(a.offset, a.at, a.state) for a in rings.drain()] == [
        (0, 1.0, ReadState.HIT),
        (10, 2.0, ReadState.MISS),
        (20, 3.0, ReadState.HIT),
    ]
    assert rings.drain() == []


def test_both_rings_are_bounded_and_no_hit_goes_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HITS_MAX", 8)
    monkeypatch.setattr(module, "EVENTS_MAX", 20)
    cache, ledger = a_cache(), Ledger(0.0, 0)
    rings = Accesses(ledger, cache.read_again)
    obj = brought(cache, "k")
    for i in range(27):
        rings.hit(obj, i, 1, "c", float(i), 0.0)
    assert ledger.requests[ReadState.HIT] == 24  # eight at a time
    rings.read(Access(obj, 0, 1, "c", 27.0, ReadState.HIT))
    assert ledger.requests[ReadState.HIT] == 27
    assert [a.offset for a in rings.drain()] == list(range(20))
    assert rings.dropped == 8


def test_hits_on_an_object_that_has_gone_are_counted_all_the_same() -> None:
    cache, ledger = a_cache(), Ledger(0.0, 0)
    rings = Accesses(ledger, cache.read_again)
    gone, kept = brought(cache, "gone"), brought(cache, "kept")
    before = kept.data_set.clock
    for obj in (gone, kept, gone):
        rings.hit(obj, 0, 4 * KIB, "c", 1.0, 0.0)
    assert cache.forget(gone.name) == [gone]
    rings.count()
    assert ledger.requests[ReadState.HIT] == 3
    assert ledger.read_bytes == 12 * KIB
    assert kept.data_set.clock == before + 4 * KIB
    assert kept.read_at == kept.data_set.clock


def test_pages_new_prefetched_or_absent_were_not_read_before() -> None:
    cache = a_cache()
    obj = brought(cache, "k")
    assert obj.read_before(0, 512)
    cache.forget_asked()
    assert not obj.read_before(0, 1)
    cache.asked(obj, 0, 1)
    assert obj.read_before(0, 1)
    assert not obj.read_before(0, 2)
    cache.evict(obj, 0, 256)
    assert not obj.read_before(0, 1)


def watched(rings: Accesses) -> tuple[list[Access], list[int], Callable[[], None]]:
    seen: list[Access] = []
    dropped: list[int] = []

    def watch(reads: Sequence[Access], lost: int) -> None:
        seen.extend(reads)
        dropped.append(lost)

    return seen, dropped, rings.watch(watch)


def test_who_watches_sees_reads_and_not_the_pieces_of_long_ones() -> None:
    cache = a_cache()
    obj = brought(cache, "k")
    rings = Accesses(Ledger(0.0, 0), cache.read_again)
    seen, _, end = watched(rings)
    rings.hit(obj, 0, 1, "c", 1.0, 0.001)
    rings.long(Access(obj, 0, 2 * MIB, "d", 2.0, ReadState.MISS))
    for i in range(2):
        rings.read(Access(obj, i * MIB, MIB, PieceOf("d"), 2.5 + i, ReadState.MISS))
    rings.hit(obj, 5, 1, "c", 3.0, 0.001)
    predicted = rings.drain()
    assert [(a.client, a.offset, a.length) for a in predicted] == [
        ("c", 0, 1), ("d", 0, MIB), ("d", MIB, MIB), ("c", 5, 1),
    ]  # fmt: skip
    assert [(a.client, a.offset, a.length) for a in seen] == [
        ("c", 0, 1), ("d", 0, 2 * MIB), ("c", 5, 1),
    ]  # fmt: skip
    end()
    rings.long(Access(obj, 0, 2 * MIB, "d", 4.0, ReadState.MISS))
    rings.hit(obj, 5, 1, "c", 5.0, 0.001)
    rings.drain()
    assert len(seen) == 3


def test_who_watches_is_told_what_was_dropped_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 3)
    cache = a_cache()
    obj = brought(cache, "k")
    rings = Accesses(Ledger(0.0, 0), cache.read_again)
    for i in range(5):  # two are lost before anybody watches
        rings.read(Access(obj, i, 1, "c", float(i), ReadState.HIT))
    seen, dropped, _ = watched(rings)
    rings.drain()
    for i in range(4):
        rings.read(Access(obj, i, 1, "c", 9.0 + i, ReadState.HIT))
        rings.long(Access(obj, 0, MIB, "d", 9.5 + i, ReadState.MISS))
    rings.drain()
    assert dropped == [0, 2]
    assert len(seen) == 3 + 3 + 3


def test_a_batch_reaches_the_predictor_as_a_whole_and_holds_nobody_up() -> None:
    cache = a_cache()
    accesses = Accesses(Ledger(0.0, 0), lambda _: None)
    obj, told = brought(cache, "a"), list[Access]()
    accesses.watch(lambda reads, _: told.extend(reads))

    def read(client: str, at: float) -> Access:
        access = Access(obj, 0, KIB, client, at, ReadState.MISS)
        accesses.read(access)
        return access

    before = read("mine", 0.0)
    assert accesses.drain() == [before]
    with accesses.batch("mine"):
        first = read("mine", 1.0)
        with accesses.batch("mine"), accesses.batch("others"):
            other = read("others", 1.5)
            assert accesses.drain() == []
        theirs = read("theirs", 2.0)
        assert accesses.drain() == [other, theirs]
        assert told == [before, first, other, theirs], "a trace is not held up"
        assert accesses.drain() == [], "a batch of the same client has ended, and this one not"
        last = read("mine", 3.0)
    assert accesses.drain() == [first._replace(at=2.0), last], "time does not go back"
    assert told == [before, first, other, theirs, last]
    after = read("mine", 4.0)
    assert accesses.drain() == [after]


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 3)
    obj, accesses = brought(a_cache(), "a"), Accesses(Ledger(0.0, 0), lambda _: None)
    with accesses.batch("mine"):
        for at in range(2):
            accesses.read(Access(obj, 0, KIB, "mine", at, ReadState.MISS))
            assert accesses.drain() == []
        for at in range(2, 5):
            accesses.read(Access(obj, 0, KIB, "mine", at, ReadState.MISS))
    assert [a.at for a in accesses.drain()] == [0, 1, 2]
    assert accesses.dropped == 2
