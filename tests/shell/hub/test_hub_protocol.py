"""The hub's side of the protocol, spoken by a plain HTTP client."""

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import aiohttp
import pytest
import zstandard

from hubspoke import wire
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectEntry, ObjectName, Version
from hubspoke.errors import InvalidRequest, StoreUnavailable
from hubspoke.frontends import hub_protocol
from hubspoke.frontends.hub_fetch import FetchConfig, check_fetch
from hubspoke.ports import NamespaceRecord
from tests.hub_bench import HubBench, until

KIB = 1024


@dataclass
class Frame:
    header: wire.FrameHeader
    payload: bytes


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as s:
        yield s


def request(
    entries: Sequence[tuple[str, ObjectEntry | str]],
    *ranges: tuple[int, int, int],
    zstd: bool = False,
    number: int = 7,
) -> wire.FetchRequest:
    objects = [
        wire.FetchObject("bkt", key, e if isinstance(e, str) else e.version) for key, e in entries
    ]
    asked = [wire.FetchRange(*r) for r in ranges]
    return wire.FetchRequest("s1", number, "demand", objects, asked, zstd)


async def frames_of(response: aiohttp.ClientResponse) -> list[Frame]:
    body = await response.read()
    frames, at, size = [], 0, wire.FRAME_HEADER.size
    while at < len(body):
        header = wire.unpack_frame(body[at : at + size])
        payload = body[at + size : at + size + header.payload_bytes]
        assert len(payload) == header.payload_bytes
        frames.append(Frame(header, payload))
        at += size + header.payload_bytes
    return frames


async def fetch(
    session: aiohttp.ClientSession, hub: HubBench, asked: wire.FetchRequest
) -> list[Frame]:
    async with session.post(hub.url + wire.PREFIX + "fetch", data=wire.encode(asked)) as response:
        assert response.status == 200, await response.text()
        return await frames_of(response)


def data_of(frames: list[Frame], index: int) -> bytes:
    """The bytes of one range, each frame checked by itself."""
    parts = []
    for f in frames:
        if f.header.range_index == index and f.header.kind == wire.FRAME_DATA:
            wire.check_digest(f.header, f.payload, "test")
            parts.append(f.payload)
    return b"".join(parts)


def ends(frames: list[Frame]) -> dict[int, int | None]:
    """range -> None when it was sent whole, else its error code."""
    return {
        f.header.range_index: None if f.header.kind == wire.FRAME_DONE else f.header.length
        for f in frames
        if f.header.kind != wire.FRAME_DATA
    }


async def test_many_ranges_of_many_objects_come_as_one_stream(
    hub: HubBench, session: aiohttp.ClientSession
) -> None:
    big = bytes(i * 7 % 251 for i in range(3_000_000))
    entries = [("big", await hub.put("big", big)), ("small", await hub.put("small", b"tiny"))]
    asked = request(
        entries, (0, 0, 3_000_000), (1, 0, 4), (0, 200 * KIB, 200 * KIB), (0, 4096, 8192)
    )
    frames = await fetch(session, hub, asked)
    assert data_of(frames, 0) == big
    assert data_of(frames, 1) == b"tiny"
    assert data_of(frames, 2) == big[200 * KIB : 400 * KIB]
    assert data_of(frames, 3) == big[4096 : 4096 + 8192]
    assert ends(frames) == {0: None, 1: None, 2: None, 3: None}
    data = [f.header for f in frames if f.header.kind == wire.FRAME_DATA]
    assert all(h.length <= 256 * KIB and h.offset % 4096 == 0 for h in data)
    # No frame crosses a 256 KiB boundary of its object; a small range is one frame.
    assert all(h.offset // (256 * KIB) == (h.offset + h.length - 1) // (256 * KIB) for h in data)
    assert [h.length for h in data if h.range_index == 3] == [8192]


async def test_an_error_ends_its_range_only(hub: HubBench, session: aiohttp.ClientSession) -> None:
    entry = await hub.put("k", b"x" * 5000)
    asked = request(
        [("k", entry), ("k", "other"), ("none", entry)],
        (0, 0, 5000), (1, 0, 10), (2, 0, 10), (0, 4096, 905), (0, 4096, 904),
    )  # fmt: skip
    frames = await fetch(session, hub, asked)
    assert ends(frames) == {
        0: None, 1: wire.ERROR_CHANGED, 2: wire.ERROR_GONE, 3: wire.ERROR_RANGE, 4: None,
    }  # fmt: skip
    assert data_of(frames, 0) == b"x" * 5000
    assert data_of(frames, 4) == b"x" * 904
    told = {f.header.range_index: f.payload for f in frames if f.header.kind == wire.FRAME_ERROR}
    assert told[3] == b"bkt/k: 4096+905 of 5000 bytes"
    assert b"other was asked for" in told[1]


async def test_an_object_changed_behind_the_hubs_back_is_changed_and_looked_into(
    hub: HubBench, session: aiohttp.ClientSession
) -> None:
    entry = await hub.put("k", b"x" * 5000)
    store = hub.store
    name = ObjectName("bkt", "k")

    async def new() -> AsyncIterator[bytes]:
        yield b"y" * 5000

    behind = await store.complete(await store.stage(name, {}, new()))
    frames = await fetch(session, hub, request([("k", entry)], (0, 0, 5000)))
    assert ends(frames) == {0: wire.ERROR_CHANGED}
    await until(lambda: hub.hub.known(name) == behind, "the change in the log")


class BrokenStore(MemoryObjectStore):
    broken = False
    gate: asyncio.Event | None = None
    reading = 0

    async def read(self, name: ObjectName, version: Version, offset: int, length: int) -> bytes:
        if self.broken and offset >= 1 << 20:
            raise StoreUnavailable("disk says no")
        self.reading += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
            return await super().read(name, version, offset, length)
        finally:
            self.reading -= 1


@pytest.fixture
async def broken(hub: HubBench) -> BrokenStore:
    store = BrokenStore(["bkt"])
    await hub.stop()
    hub.store, hub.state = store, hub.state.with_name("other")
    await hub.start()
    return store


async def test_a_store_that_fails_ends_the_range_after_what_was_read(
    hub: HubBench, broken: BrokenStore, session: aiohttp.ClientSession
) -> None:
    entry = await hub.put("k", b"x" * (3 << 20))
    broken.broken = True
    frames = await fetch(session, hub, request([("k", entry)], (0, 0, 3 << 20), (0, 0, 4096)))
    assert ends(frames) == {0: wire.ERROR_STORE, 1: None}
    assert data_of(frames, 0) == b"x" * (1 << 20)
    assert [f.payload for f in frames if f.header.kind == wire.FRAME_ERROR] == [b"disk says no"]


async def test_ranges_can_be_cancelled_one_by_one(
    hub: HubBench, broken: BrokenStore, session: aiohttp.ClientSession
) -> None:
    entry = await hub.put("k", b"x" * (4 << 20))
    broken.gate = asyncio.Event()
    asked = request([("k", entry)], (0, 0, 4096), (0, 0, 4 << 20), (0, 8192, 4096))
    fetching = asyncio.create_task(fetch(session, hub, asked))
    await until(lambda: broken.reading > 0, "reads under way")
    url = hub.url + wire.PREFIX
    cancel = wire.encode(wire.CancelRequest("s1", 7, [1, 55]))
    async with session.post(url + "cancel", data=cancel) as response:
        assert response.status == 204
    broken.gate.set()
    assert ends(await fetching) == {0: None, 1: wire.ERROR_CANCELLED, 2: None}
    async with session.post(url + "cancel", data=cancel) as response:
        assert response.status == 204


async def test_a_spoke_that_restarts_may_use_its_numbers_again(
    hub: HubBench, broken: BrokenStore, session: aiohttp.ClientSession
) -> None:
    entry = await hub.put("k", b"x" * (20 << 20))
    broken.gate = asyncio.Event()
    asked = request([("k", entry)], (0, 0, 20 << 20))
    lost = asyncio.create_task(fetch(session, hub, asked))
    await until(lambda: broken.reading > 0, "reads under way")
    again = asyncio.create_task(fetch(session, hub, request([("k", entry)], (0, 0, 4096))))
    await until(lambda: broken.reading > 4, "the second request's read")
    broken.gate.set()
    assert ends(await again) == {0: None}
    assert ends(await lost) == {0: wire.ERROR_CANCELLED}


async def test_a_client_that_goes_away_ends_the_reads(hub: HubBench, broken: BrokenStore) -> None:
    entry = await hub.put("k", b"x" * (8 << 20))
    broken.gate = asyncio.Event()
    asked = request([("k", entry)], (0, 0, 8 << 20))
    async with aiohttp.ClientSession() as session:
        fetching = asyncio.create_task(fetch(session, hub, asked))
        await until(lambda: broken.reading > 0, "reads under way")
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
    await until(lambda: broken.reading == 0, "the reads ended")


async def test_a_client_that_does_not_read_holds_a_bounded_part(
    hub: HubBench, broken: BrokenStore
) -> None:
    entry = await hub.put("k", b"x" * (64 << 20))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(hub.url.rsplit(":", 1)[1]))
    body = wire.encode(request([("k", entry)], (0, 0, 64 << 20)))
    head = f"POST {wire.PREFIX}fetch HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readexactly(100)
    sent = -1
    async with asyncio.timeout(10):
        while sent != hub.hub.facts().sent_bytes:
            sent = hub.hub.facts().sent_bytes
            await asyncio.sleep(0.3)
    assert sent < 32 << 20
    writer.close()


async def test_frames_that_compress_travel_compressed_when_asked_for(
    hub: HubBench, session: aiohttp.ClientSession
) -> None:
    text = json.dumps(list(range(200_000))).encode()
    noise = bytes((i * i * 2654435761 >> 13) & 255 for i in range(300_000))
    entries = [("text", await hub.put("text", text)), ("noise", await hub.put("noise", noise))]
    asked = request(entries, (0, 0, len(text)), (1, 0, len(noise)), zstd=True)
    frames = await fetch(session, hub, asked)
    assert ends(frames) == {0: None, 1: None}
    plain = []
    for f in frames:
        if f.header.kind == wire.FRAME_DATA and f.header.flags & wire.FLAG_ZSTD:
            f.payload = zstandard.ZstdDecompressor().decompress(f.payload)
            plain.append(f.header.range_index)
    assert set(plain) == {0}
    assert data_of(frames, 0) == text
    assert data_of(frames, 1) == noise


async def test_what_is_in_memory_waits_for_no_thread_behind_what_is_not(
    hub: HubBench, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where frames are packed: the ranges come in order, and only the others are read."""
    noise = random.Random(1).randbytes(200 * 4096)
    entry = await hub.put("k", noise)
    read = hub.store.read
    waited: list[int] = []

    def in_memory(name: ObjectName, version: Version, at: int, n: int) -> memoryview | None:
        return None if at % 40960 == 0 else memoryview(noise)[at : at + n]

    async def noted(name: ObjectName, version: Version, at: int, n: int) -> bytes:
        waited.append(at)
        return await read(name, version, at, n)

    monkeypatch.setattr(hub.store, "read_now", in_memory)
    monkeypatch.setattr(hub.store, "read", noted)
    ranges = [(0, at, 4096) for at in range(0, len(noise), 4096)]
    frames = await fetch(session, hub, request([("k", entry)], *ranges, zstd=True))
    assert [f.header.range_index for f in frames] == [i // 2 for i in range(400)]
    assert b"".join(f.payload for f in frames) == noise
    assert waited == list(range(0, len(noise), 40960))


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        ([], "0 ranges"),
        ([(0, 0, 4096)] * 5, "5 ranges; 1 to 4"),
        ([(1, 0, 1)], "object 1 of 1"),
        ([(-1, 0, 1)], "object -1 of 1"),
        ([(0, 1, 1)], "offset a multiple of 4096"),
        ([(0, -4096, 1)], "offset a multiple of 4096"),
        ([(0, 0, 0)], "length > 0"),
        ([(0, 0, 6000), (0, 0, 6000)], "12000 bytes; 10000 at most"),
    ],
)
def test_a_request_beyond_the_limits_is_refused_with_its_reason(
    ranges: list[tuple[int, int, int]], why: str
) -> None:
    config = FetchConfig(ranges_max=4, bytes_max=10_000)
    with pytest.raises(InvalidRequest, match=why):
        check_fetch(request([("k", "v")], *ranges), config)


async def test_what_is_not_the_protocol_is_refused(
    hub: HubBench, session: aiohttp.ClientSession
) -> None:
    url = hub.url + wire.PREFIX
    lease = wire.encode(wire.LeaseRequest("s1", "e", 0))
    cases: list[tuple[str, str, bytes, int, str]] = [
        ("POST", "nope", b"", 404, "no POST nope"),
        ("GET", "fetch", b"", 404, "no GET fetch"),
        ("POST", "fetch", b"\xff\x00garbage", 400, "hub-spoke message"),
        ("POST", "fetch", lease, 400, "LeaseRequest; expected FetchRequest"),
        ("POST", "lease", b"x" * (2 << 20), 400, "more than 1048576 bytes"),
        ("GET", "feed?epoch=e&after=-1", b"", 400, "after='-1'"),
        ("GET", "feed?epoch=e&after=x", b"", 400, "after='x'"),
    ]
    for method, path, data, status, text in cases:
        async with session.request(method, url + path, data=io.BytesIO(data)) as response:
            assert (response.status, text in await response.text()) == (status, True), path
    bad = request([("k", "v")], (0, 0, 1))
    bad = wire.FetchRequest("s1", 1, "lunch", bad.objects, bad.ranges)
    async with session.post(url + "fetch", data=wire.encode(bad)) as response:
        assert response.status == 400
        assert "'lunch'" in await response.text()


async def test_a_hub_that_does_not_serve_yet_says_why(
    hub: HubBench, session: aiohttp.ClientSession
) -> None:
    hub.hub._not_ready = "first index of the store"
    async with session.get(hub.url + wire.PREFIX + "snapshot") as response:
        assert response.status == 503
        assert await response.text() == "first index of the store"
    hub.hub._not_ready = ""


async def test_a_feed_has_heartbeats(hub: HubBench, session: aiohttp.ClientSession) -> None:
    epoch = hub.hub.facts().epoch
    url = f"{hub.url}{wire.PREFIX}feed?epoch={epoch}&after=0&spoke=s1"
    beats = 0
    async with asyncio.timeout(5), session.get(url) as response:
        while beats < 3:
            head = await response.content.readexactly(4)
            message = wire.decode(await response.content.readexactly(wire.message_length(head)))
            beats += isinstance(message, wire.FeedHeartbeat)


@pytest.mark.parametrize("limit", ["FETCHES_MAX", "FETCHES_PER_SPOKE_MAX"])
async def test_more_fetches_than_the_hub_can_hold_are_refused_and_taken_later(
    hub: HubBench,
    session: aiohttp.ClientSession,
    broken: BrokenStore,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    monkeypatch.setattr(hub_protocol, limit, 3)
    entry = await hub.put("k", b"x" * 5000)
    broken.gate = asyncio.Event()
    wanted = [request([("k", entry)], (0, 0, 5000), number=i) for i in range(4)]
    fetching = [asyncio.create_task(fetch(session, hub, r)) for r in wanted[:3]]
    await until(lambda: broken.reading == 3, "three fetches that wait for the store")
    url = hub.url + wire.PREFIX + "fetch"
    async with session.post(url, data=wire.encode(wanted[3])) as response:
        assert response.status == 503
        assert "3 fetches are being answered" in await response.text()
    broken.gate.set()
    for frames in await asyncio.gather(*fetching):
        assert data_of(frames, 0) == b"x" * 5000
    assert data_of(await fetch(session, hub, wanted[3]), 0) == b"x" * 5000


@pytest.mark.parametrize("after", ["9" * 5000, "9" * 19, "-1", "1e3", "x", "\u0661"])
async def test_a_feed_from_what_is_no_sequence_is_refused(
    hub: HubBench, session: aiohttp.ClientSession, after: str
) -> None:
    url = f"{hub.url}{wire.PREFIX}feed"
    params = {"epoch": hub.hub.facts().epoch, "after": after}
    async with session.get(url, params=params) as response:
        assert response.status == 400
        assert "expected a sequence number" in await response.text()
    params["after"] = "9" * 18
    async with asyncio.timeout(5), session.get(url, params=params) as response:
        head = await response.content.readexactly(4)
        message = wire.decode(await response.content.readexactly(wire.message_length(head)))
        assert isinstance(message, wire.FeedResync)


async def test_a_snapshot_that_fails_midway_is_cut_without_a_traceback(
    hub: HubBench, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    await hub.put("k", b"1")
    namespace = hub.hub._namespace

    def fail(*_: object, **__: object) -> list[NamespaceRecord]:
        raise StoreUnavailable("the namespace is gone")

    namespace.scan = fail  # type: ignore[method-assign]
    with pytest.raises(aiohttp.ClientPayloadError):
        async with session.get(hub.url + wire.PREFIX + "snapshot") as response:
            await response.read()
    assert "Traceback" not in caplog.text
