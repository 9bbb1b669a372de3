"""The spoke's link against hubs that misbehave on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import uvloop
import zstandard

from hubspoke import wire
from hubspoke.adapters.hub_link import AiohttpHubLink, LinkConfig
from hubspoke.adapters.tcp_info import TcpInfo, tcp_info
from hubspoke.errors import (
    DeadlineExceeded,
    FormatError,
    HubSpokeError,
    HubUnavailable,
    NoSuchKey,
    VersionChanged,
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
FAST = LinkConfig(connect_s=1.0, stall_s=0.3, control_s=0.3, feed_silence_s=0.3)
REQUEST = wire.FetchRequest(
    "s1",
    1,
    "demand",
    [wire.FetchObject("b", "k", "v1")],
    [wire.FetchRange(0, 0, 4096), wire.FetchRange(0, 8192, 4096)],
)
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def a_server(answer: Handler) -> AsyncIterator[AiohttpHubLink]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = AiohttpHubLink(f"http://127.0.0.1:{port}", "s1", 1, FAST)
    try:
        yield link
    finally:
        await link.close()
        server.close()


def answering(*chunks: bytes, end: bool = True, linger: bool = False) -> Handler:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for c in chunks:
            writer.write(b"%x\r\n%b\r\n" % (len(c), c))
        if end:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        if linger:
            await asyncio.sleep(5)

    return answer


def data(index: int, offset: int, body: bytes, *, flags: int = 0, plain: bytes = b"") -> bytes:
    whole = plain or body
    head = wire.pack_frame(
        wire.FRAME_DATA, index, offset, len(whole), wire.digest(whole), len(body), flags
    )
    return head + body


def done(index: int) -> bytes:
    return wire.pack_frame(wire.FRAME_DONE, index, 0, 0)


async def fetch(
    link: AiohttpHubLink,
) -> tuple[list[tuple[int, bytes]], dict[int, HubSpokeError | None]]:
    frames: list[tuple[int, bytes]] = []
    ended: dict[int, HubSpokeError | None] = {}

    async def on_frames(batch: Sequence[wire.Frame]) -> None:
        frames.extend((header.offset, body) for header, body in batch)

    await link.fetch(0, REQUEST, on_frames, ended.__setitem__)
    return frames, ended


async def test_frames_of_both_ranges_in_any_order() -> None:
    stream = data(1, 8192, b"b" * 4096) + done(1) + data(0, 0, b"a" * 4096) + done(0)
    async with a_server(answering(stream[:100], stream[100:])) as link:
        frames, ended = await fetch(link)
    assert frames == [(8192, b"b" * 4096), (0, b"a" * 4096)]
    assert ended == {0: None, 1: None}


async def test_compressed_frames_are_unpacked() -> None:
    plain = b"abcd" * 1024
    packed = zstandard.ZstdCompressor().compress(plain)
    stream = data(0, 0, packed, flags=wire.FLAG_ZSTD, plain=plain) + done(0) + done(1)
    async with a_server(answering(stream)) as link:
        frames, _ = await fetch(link)
    assert frames == [(0, plain)]


@pytest.mark.parametrize(
    ("code", "error"),
    [(wire.ERROR_CHANGED, VersionChanged), (wire.ERROR_GONE, NoSuchKey)],
)
async def test_an_error_ends_its_range_only(code: int, error: type[HubSpokeError]) -> None:
    told = b"what happened"
    stream = wire.pack_frame(wire.FRAME_ERROR, 0, 0, code, payload_bytes=len(told)) + told
    stream += data(1, 8192, b"b" * 4096) + done(1)
    async with a_server(answering(stream)) as link:
        frames, ended = await fetch(link)
    assert frames == [(8192, b"b" * 4096)]
    assert type(ended[0]) is error and "what happened" in str(ended[0])
    assert ended[1] is None


@pytest.mark.parametrize(
    "stream",
    [b"\x00" * 40, data(7, 0, b"x"), done(0)[:-1] + b"\x01" + b"junk" * 20],
    ids=["no magic", "range not asked for", "junk after a frame"],
)
async def test_garbage_is_a_format_error(stream: bytes) -> None:
    async with a_server(answering(stream)) as link:
        with pytest.raises(FormatError):
            await fetch(link)


async def test_a_stream_that_breaks_off_is_unavailable() -> None:
    async with a_server(answering(data(0, 0, b"a" * 4096)[:100], end=False)) as link:
        with pytest.raises(HubUnavailable):
            await fetch(link)


async def test_a_stream_that_stalls_has_a_deadline() -> None:
    async with a_server(answering(b"\xf5", end=False, linger=True)) as link:
        with pytest.raises(DeadlineExceeded):
            await fetch(link)


async def test_nobody_listening_is_unavailable() -> None:
    link = AiohttpHubLink("http://127.0.0.1:1", "s1", 1, FAST)
    with pytest.raises(HubUnavailable, match=r"127\.0\.0\.1:1"):
        await link.lease(wire.LeaseRequest("s1", "e", 0))
    await link.close()


async def test_an_error_status_says_what_the_hub_said() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 x\r\ncontent-length: 8\r\n\r\nindexing")

    async with a_server(answer) as link:
        with pytest.raises(HubUnavailable, match="503: indexing"):
            await fetch(link)


async def test_a_feed_that_ends_between_messages_ends_quietly() -> None:
    beat = wire.pack_message(wire.encode(wire.FeedHeartbeat(7)))
    async with a_server(answering(beat, beat)) as link:
        assert [m async for m in link.feed("e", 0)] == [wire.FeedHeartbeat(7)] * 2


async def test_a_feed_cut_inside_a_message_is_unavailable() -> None:
    beat = wire.pack_message(wire.encode(wire.FeedHeartbeat(7)))
    async with a_server(answering(beat + beat[:3])) as link:
        with pytest.raises(HubUnavailable):
            [m async for m in link.feed("e", 0)]


async def test_a_silent_feed_has_a_deadline() -> None:
    async with a_server(answering(b"\x01", end=False, linger=True)) as link:
        with pytest.raises(DeadlineExceeded):
            [m async for m in link.feed("e", 0)]


async def test_the_kernel_counts_what_crossed() -> None:
    stream = data(0, 0, b"a" * 4096) + done(0) + done(1)
    async with a_server(answering(stream)) as link:
        await fetch(link)
        n = link.counters()
    received = len(HEAD) + len(stream) + len(b"%x\r\n\r\n" % len(stream)) + len(b"0\r\n\r\n")
    assert n.received - received in (0, 1)  # the FIN takes a sequence number too
    assert n.received_by_class["demand"] == n.received
    assert n.sent > len(wire.encode(REQUEST))


def test_a_closed_connection_has_no_counts_whatever_the_loop() -> None:
    """Or a hub that is lost would break the report and the metrics of its spoke."""

    async def closed() -> TcpInfo | None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, "127.0.0.1", port
        )
        sock = transport.get_extra_info("socket")
        assert tcp_info(sock) is not None
        transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        server.close()
        return tcp_info(sock)

    for loop in (uvloop.new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(closed()) is None
