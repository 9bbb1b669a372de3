"""A lane against a hub on a real socket: whose frames are whose, and who waits for whom."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from hubspoke import wire
from hubspoke.adapters.fetch_answers import Answer
from hubspoke.adapters.fetch_lane import LARGE_BYTES, PENDING_BYTES_MAX, LaneProtocol, take
from hubspoke.errors import FormatError, HubBusy, HubSpokeError, HubUnavailable

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
REQUEST = b"POST /fetch HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
Hub = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def a_lane(hub: Hub) -> AsyncIterator[LaneProtocol]:
    """A connection to `hub`, which is closed when the hub's coroutine ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await hub(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    _, protocol = await asyncio.get_running_loop().create_connection(LaneProtocol, *address)
    try:
        async with asyncio.timeout(20):
            yield protocol
    finally:
        protocol.fail(HubUnavailable("the test is over"))
        server.close()
        await server.wait_closed()


async def requests(reader: asyncio.StreamReader, count: int) -> None:
    for _ in range(count):
        await reader.readuntil(b"\r\n\r\n")


def body(fill: int, n: int) -> bytes:
    return bytes((fill,)) * n


def frame(offset: int, data: bytes) -> bytes:
    n = len(data)
    return wire.pack_frame(wire.FRAME_DATA, 0, offset, n, wire.digest(data), n) + data


DONE = wire.pack_frame(wire.FRAME_DONE, 0, 0, 0)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer_of(*frames: bytes) -> bytes:
    return HEAD + chunk(b"".join(frames) + DONE) + b"0\r\n\r\n"


def ask(lane: LaneProtocol) -> Answer:
    answer = Answer(1)
    lane.ask(REQUEST, answer)
    return answer


async def everything(lane: LaneProtocol, answer: Answer) -> list[tuple[int, bytes]]:
    got: list[tuple[int, bytes]] = []
    while frames := await take(lane, answer, 10.0):
        got += [(h.offset, bytes(p)) for h, p in frames if h.kind == wire.FRAME_DATA]
    lane.done(answer)
    return got


async def test_two_requests_on_one_lane_each_get_their_own() -> None:
    """The second is sent before the first is answered, and taken from first."""

    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 2)
        first = [frame(i << 18, body(1, 1 << 18)) for i in range(3)]
        # Cut where it hurts: both answers come in pieces of 7,777 bytes.
        whole = answer_of(*first) + answer_of(frame(0, body(2, 5000)))
        for at in range(0, len(whole), 7777):
            writer.write(whole[at : at + 7777])
            await writer.drain()
        await reader.read()

    async with a_lane(hub) as lane:
        one, two = ask(lane), ask(lane)
        assert await everything(lane, two) == [(0, body(2, 5000))]
        assert await everything(lane, one) == [(i << 18, body(1, 1 << 18)) for i in range(3)]
        assert lane.transport is not None


@pytest.mark.parametrize("cut", [1, 39, 7_777, 300_000])
async def test_frames_that_chunks_cut_anywhere_are_whole(cut: int) -> None:
    """A proxy between may cut the body as it likes; the hub sends whole frames in a chunk."""
    sizes = [10, 5_000] if cut == 1 else [10, 1 << 18, 5_000, 70_000, 1 << 18, 1 << 18, 100]
    bodies = [body(i + 1, n) for i, n in enumerate(sizes)]

    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 1)
        writer.write(HEAD)
        whole = b"".join(frame(i << 18, data) for i, data in enumerate(bodies)) + DONE
        for at in range(0, len(whole), cut):
            writer.write(chunk(whole[at : at + cut]))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async with a_lane(hub) as lane:
        assert await everything(lane, ask(lane)) == [(i << 18, b) for i, b in enumerate(bodies)]
        assert lane.transport is not None


async def test_frames_stay_as_they_were_while_the_lane_reads_on() -> None:
    """They are slices of what the lane reads into."""

    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for turn in range(8):
            await requests(reader, 1)
            sent = [frame(i << 18, body(turn * 8 + i, (1 << 18) - 100 * i)) for i in range(8)]
            writer.write(answer_of(*sent))
            await writer.drain()
        await reader.read()

    async with a_lane(hub) as lane:
        kept: list[wire.Frame] = []
        for _ in range(8):
            answer = ask(lane)
            while frames := await take(lane, answer, 10.0):
                kept += [f for f in frames if f[0].kind == wire.FRAME_DATA]
            lane.done(answer)
        for n, (header, data) in enumerate(kept):
            wire.check_digest(header, data, f"frame {n}")
            assert bytes(data[:1]) == bytes((n,))


async def test_a_consumer_that_is_slow_holds_the_hub_back() -> None:
    frames = 256  # 64 MiB: far more than sockets hold
    sent = 0

    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await requests(reader, 1)
        writer.write(HEAD)
        for i in range(frames):
            writer.write(chunk(frame(i << 18, body(i % 251, 1 << 18))))
            await writer.drain()
            sent += 1
        writer.write(chunk(DONE) + b"0\r\n\r\n")
        await reader.read()

    async with a_lane(hub) as lane:
        answer = ask(lane)
        while not lane.paused:  # noqa: ASYNC110 - a state, which has no event for tests
            await asyncio.sleep(0.001)
        before = -1
        while before != lane.received:
            before = lane.received
            await asyncio.sleep(0.02)
        assert answer.bytes <= PENDING_BYTES_MAX + LARGE_BYTES
        assert sent < frames
        got = await everything(lane, answer)
        assert [offset for offset, _ in got] == [i << 18 for i in range(frames)]
        assert all(data == body(i % 251, 1 << 18) for i, (_, data) in enumerate(got))
        assert not lane.paused


async def test_a_stream_that_breaks_inside_a_frame_fails_all_behind_it() -> None:
    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 2)
        whole = frame(0, body(1, 4096))
        writer.write(HEAD + b"%x\r\n" % 500_000 + whole + frame(4096, body(2, 1 << 18))[:100_000])
        await writer.drain()

    async with a_lane(hub) as lane:
        one, two = ask(lane), ask(lane)
        (first,) = await take(lane, one, 10.0)
        assert bytes(first[1]) == body(1, 4096)
        for answer in (one, two):
            with pytest.raises(HubUnavailable, match="closed the connection"):
                await take(lane, answer, 10.0)
        assert lane.transport is None


async def test_a_refused_request_leaves_the_ones_behind_it_alone() -> None:
    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 2)
        told = b"64 fetches are being answered"
        head = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n\r\n" % len(told)
        writer.write(head + told + answer_of(frame(0, body(7, 300_000 % (1 << 18)))))
        await reader.read()

    async with a_lane(hub) as lane:
        one, two = ask(lane), ask(lane)
        with pytest.raises(HubBusy, match="64 fetches are being answered"):
            await take(lane, one, 10.0)
        lane.done(one)
        assert await everything(lane, two) == [(0, body(7, 300_000 % (1 << 18)))]


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (HEAD + b"zz\r\n", FormatError),
        (HEAD + chunk(DONE + b"more"), FormatError),
        (HEAD + chunk(frame(0, b"x" * 10)) + b"0\r\n\r\n", FormatError),
        (b"HTTP/1.1 200 OK\r\n\r\n", FormatError),
        (b"x" * 20_000, FormatError),
        (b"HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\nno", HubUnavailable),
    ],
)
async def test_what_is_no_answer_is_an_error(stream: bytes, error: type[HubSpokeError]) -> None:
    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 1)
        writer.write(stream)
        await reader.read()

    async with a_lane(hub) as lane:
        answer = ask(lane)
        with pytest.raises(error):
            await everything(lane, answer)


async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 1)
        writer.write(answer_of() + answer_of())
        await reader.read()

    async with a_lane(hub) as lane:
        assert await everything(lane, ask(lane)) == []
        while lane.transport is not None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)


async def test_large_payloads_are_not_moved_from_buffer_to_buffer() -> None:
    """Read as greedily as the kernel gives, a payload that is cut off at the end of a buffer would
    be copied to the next one: of frames of 256 KiB every fourth."""
    moved = 0

    class Counting(LaneProtocol):
        def _renew(self, size: int) -> None:
            nonlocal moved
            moved += self._end - self._at
            super()._renew(size)

    lane, answer = Counting(), Answer(1)
    lane._answers.append(answer)  # no socket: the test is the kernel
    whole = memoryview(answer_of(*(frame(i << 18, body(i, 1 << 18)) for i in range(64))))
    at = 0
    while at < len(whole):
        room = lane.get_buffer(-1)
        n = min(len(room), len(whole) - at)
        room[:n] = whole[at : at + n]
        lane.buffer_updated(n)
        at += n
    got = [(h.offset, bytes(p)) for h, p in answer.frames if h.kind == wire.FRAME_DATA]
    assert got == [(i << 18, body(i, 1 << 18)) for i in range(64)]
    assert moved < 64 << 10 << 1  # the first buffer is small, and the second was begun with it


async def test_a_long_head_ends_where_it_ends() -> None:
    """Only the beginning of what has come is looked through at a time."""

    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 1)
        long = HEAD.replace(b"\r\n\r\n", b"\r\nx-long: " + b"x" * 5_000 + b"\r\n\r\n")
        writer.write(answer_of(frame(0, body(7, 1 << 18))).replace(HEAD, long))
        await reader.read()

    async with a_lane(hub) as lane:
        assert await everything(lane, ask(lane)) == [(0, body(7, 1 << 18))]
