"""Recorders at a spoke: bounded, honest about what is missing, and ended with their spoke."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from hubspoke.core.accesses import Accesses
from hubspoke.core.cache import Cache, CachedObject
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version
from hubspoke.core.ledger import Ledger
from hubspoke.core.streams import Access
from hubspoke.errors import Overloaded
from hubspoke.spoke.recording import RECORDERS_MAX, Recorders, Recording, RecordingTuning
from hubspoke.traces.format import FrameReader, Reads

TUNING = RecordingTuning(waiting_max=100, slice_reads=10, interval_s=0.01, clients_max=3)


class Clock:
    def now(self) -> float:
        return 50.0

    def unix_ns(self) -> int:
        return 0


def an_object(key: str = "k", size: int = 1 << 20) -> CachedObject:
    return Cache(1 << 20).open(ObjectName("b", key), ObjectEntry(Version("v"), size, "e", 0))[0]


def access(obj: CachedObject, i: int, client: str = "c", at: float | None = None) -> Access:
    state = list(ReadState)[i % 3]
    return Access(obj, i, 1 + i, client, 50.0 + i if at is None else at, state)


def decoded(data: bytes) -> tuple[FrameReader, list[Reads]]:
    reader = FrameReader("x")
    return reader, list(reader.feed(data))


def slices(recording: Recording) -> bytes:
    data = b""
    while (piece := recording.slice()) is not None:
        data += piece
    return data + recording.progress(60.0, {"rate": 1e9})


def test_reads_come_as_they_were_and_none_from_before() -> None:
    recording = Recording({"a": 1}, 50.0, TUNING)
    obj, other = an_object(), an_object("l", 7)
    recording.take([access(obj, 0, at=49.9), *(access(obj, i, f"c{i % 2}") for i in range(25))], 0)
    recording.take([access(other, 0, "c0", at=80.0)], 0)
    reader, found = decoded(slices(recording))
    assert [len(r) for r in found] == [9, 10, 7]
    whole = Reads.joined(found)
    assert whole.ticks.tolist() == [*range(0, 25_000_000, 1_000_000), 30_000_000]
    assert whole.offsets.tolist() == [*range(25), 0]
    assert whole.lengths.tolist() == [*range(1, 26), 1]
    assert whole.clients.tolist() == [i % 2 for i in range(25)] + [0]
    assert whole.states.tolist() == [i % 3 for i in range(25)] + [0]
    assert whole.objects.tolist() == [0] * 25 + [1]
    assert (reader.contents.names, reader.contents.sizes) == (["b/k", "b/l"], [1 << 20, 7])
    assert reader.contents.facts == {
        "a": 1, "seconds": 10.0, "dropped_reads": 0, "rate": 1e9,
    }  # fmt: skip


def test_a_recorder_that_is_behind_loses_whole_lists_and_is_told() -> None:
    recording = Recording({"a": 1}, 0.0, TUNING)
    obj = an_object()
    recording.take([access(obj, i) for i in range(90)], 5)
    recording.take([access(obj, i) for i in range(11)], 0)
    recording.take([access(obj, i) for i in range(10)], 0)
    reader, found = decoded(slices(recording))
    assert sum(map(len, found)) == 100
    assert reader.contents.facts is not None
    assert reader.contents.facts["dropped_reads"] == 5 + 11


def test_a_new_version_that_is_larger_makes_its_object_larger() -> None:
    recording = Recording({"a": 1}, 0.0, TUNING)
    for size in (10, 5, 30):
        recording.take([access(an_object("k", size), 0)], 0)
    reader, found = decoded(slices(recording))
    assert reader.contents.sizes == [30]
    assert Reads.joined(found).objects.tolist() == [0, 0, 0]


def test_time_does_not_go_back_in_a_trace() -> None:
    recording = Recording({"a": 1}, 0.0, TUNING)
    obj = an_object()
    recording.take([access(obj, 0, at=5.0), access(obj, 0, at=4.0), access(obj, 0, at=6.0)], 0)
    _, found = decoded(slices(recording))
    assert Reads.joined(found).ticks.tolist() == [5_000_000, 5_000_000, 6_000_000]


def test_clients_without_bound_get_new_numbers() -> None:
    recording = Recording({"a": 1}, 0.0, TUNING)
    recording.take([access(an_object(), 0, c) for c in ("a", "b", "a", "c", "d", "a")], 0)
    _, found = decoded(slices(recording))
    assert Reads.joined(found).clients.tolist() == [0, 1, 0, 2, 3, 4]


def test_objects_beyond_the_bound_are_dropped_and_counted() -> None:
    recording = Recording({"a": 1}, 0.0, RecordingTuning(objects_max=2))
    recording.take([access(an_object(k), 0) for k in ("a", "b", "c", "a")], 0)
    recording.take([access(an_object("d"), 0)] * 2, 0)
    reader, found = decoded(slices(recording))
    assert Reads.joined(found).objects.tolist() == [0, 1, 0]
    assert reader.contents.facts is not None
    assert reader.contents.facts["dropped_reads"] == 3


def recorders() -> tuple[Accesses, Recorders]:
    accesses = Accesses(Ledger(0.0, 0), lambda hits: None)
    return accesses, Recorders(accesses, lambda: {"a": 1}, lambda: {"rtt_s": 0.06}, Clock(), TUNING)


async def rest(pieces: AsyncGenerator[bytes, None]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_what_was_read_before_the_spoke_closes_is_in_the_trace() -> None:
    accesses, all_ = recorders()
    pieces = all_.record()
    start = await anext(pieces)
    accesses.read(access(an_object(), 3))
    all_.close()
    async with asyncio.timeout(10):
        reader, found = decoded(start + await rest(pieces))
    assert reader.contents.complete
    assert Reads.joined(found).offsets.tolist() == [3]
    assert reader.contents.facts is not None
    assert reader.contents.facts["rtt_s"] == 0.06
    assert reader.contents.facts["ended"] == "the spoke stopped"


async def test_a_place_is_free_again_when_its_recorder_goes() -> None:
    accesses, all_ = recorders()
    under_way = [all_.record() for _ in range(RECORDERS_MAX)]
    for pieces in under_way:
        await anext(pieces)
    with pytest.raises(Overloaded, match="4 recorders are at work"):
        all_.record()
    await under_way[0].aclose()
    again = all_.record()
    await anext(again)
    for pieces in [*under_way, again]:
        await pieces.aclose()
    accesses.read(access(an_object(), 0))
    accesses.drain()  # nobody watches any more
