"""Direct answers and spans of files on real sockets: order, release, slow and vanishing clients."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hubspoke.errors import HubUnavailable
from hubspoke.frontends import data_protocol, sending
from hubspoke.frontends.data_protocol import EXTENSION, PARTS
from hubspoke.frontends.direct_answers import DirectAnswer, Headers
from hubspoke.frontends.server import HttpServer, address, bind
from hubspoke.ports import FileSpan

MIB = 1 << 20
BODY = os.urandom(24 * MIB)


class App:
    """/direct/OFFSET/LENGTH by answer_now, /task/... by a task; spans when larger than 64 KiB."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(BODY)
        self.fd = os.open(path, os.O_RDONLY)
        self.lent = 0
        self.released = 0

    def span(self, offset: int, length: int) -> FileSpan:
        self.lent += 1

        def release() -> None:
            self.released += 1

        return FileSpan(self.fd, offset, length, release)

    def body(self, offset: int, length: int) -> bytes | FileSpan:
        if length <= 65536:
            return BODY[offset : offset + length]
        return self.span(offset, length)

    def answer_now(
        self, method: bytes, url: bytes, headers: Headers, client: str
    ) -> DirectAnswer | None:
        _, way, offset, length = url.split(b"/")
        if way != b"direct":
            return None
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %b\r\nx-client: %b\r\n\r\n"
        return DirectAnswer(head % (length, client.encode()), self.body(int(offset), int(length)))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert EXTENSION in scope["extensions"]
        if scope["method"] == "PUT":
            more = True
            while more:
                event = await receive()
                more = event.get("more_body", False)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if event["type"] == "http.disconnect":
                raise HubUnavailable("the upload broke off")
            await send({"type": "http.response.body", "body": b""})
            return
        _, _, offset, length = scope["path"].split("/")
        headers = [(b"content-length", length.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"].startswith("/broken"):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            raise HubUnavailable("the hub is gone")
        body = self.body(int(offset), int(length))
        if isinstance(body, bytes):
            await send({"type": "http.response.body", "body": body})
            return
        await send({"type": EXTENSION, "file": body})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[tuple[App, str, int]]:
    app = App(tmp_path / "f")
    sock = bind("127.0.0.1", 0, "--listen")
    server = HttpServer(app, sock, "--listen", app.answer_now)
    await server.start()
    host, port = address(sock).rsplit(":", 1)
    try:
        yield app, host, int(port)
    finally:
        await server.stop()
        os.close(app.fd)


def request(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: x", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ]
        return await reader.readexactly(length)


@pytest.mark.parametrize("way", ["direct", "task"])
@pytest.mark.parametrize("length", [1, 65_536, 65_537, 20 * MIB])
async def test_bytes_are_exact_on_a_kept_connection(tmp_path: Path, way: str, length: int) -> None:
    async with serving(tmp_path) as (app, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        for offset in (0, 4097, 3 * MIB):
            writer.write(request(f"/{way}/{offset}/{length}"))
            assert await answer(reader) == BODY[offset : offset + length]
        writer.close()
        assert app.released == app.lent


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    sizes = [10, 3 * MIB, 100, 70_000, 5 * MIB, 1, 65_536, 2 * MIB]
    async with serving(tmp_path) as (app, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        ways = ["direct", "task", "direct", "direct", "direct", "task", "task", "direct"]
        plan = list(zip(ways, range(0, 8 * MIB, MIB), sizes, strict=True))
        writer.write(b"".join(request(f"/{way}/{at}/{n}") for way, at, n in plan))
        for _, at, n in plan:
            assert await answer(reader) == BODY[at : at + n]
        writer.close()
        assert app.released == app.lent


async def test_a_client_that_asks_to_close_gets_the_usual_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request("/direct/0/2000000", "connection: close"))
        assert await answer(reader) == BODY[:2_000_000]
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("way", ["direct", "task"])
async def test_a_client_that_leaves_in_mid_body_releases_its_span(tmp_path: Path, way: str) -> None:
    async with serving(tmp_path) as (app, host, port):
        for _ in range(5):
            reader, writer = await asyncio.open_connection(host, port, limit=4096)
            writer.write(request(f"/{way}/0/{20 * MIB}"))
            await reader.readexactly(100_000)
            writer.transport.abort()
        async with asyncio.timeout(10):
            while app.released < app.lent:  # noqa: ASYNC110 - the server's view of a reset
                await asyncio.sleep(0.01)
        assert app.lent == 5


async def test_pipelined_requests_have_a_bound(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request("/task/7/100") * data_protocol.PIPELINED_MAX)
        for _ in range(data_protocol.PIPELINED_MAX):
            assert await answer(reader) == BODY[7:107]
        writer.write(request(f"/task/0/{20 * MIB}"))  # more than the socket's buffers take
        await reader.readuntil(b"\r\n\r\n")
        writer.write(request("/task/7/100") * (data_protocol.PIPELINED_MAX + 1))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            async with asyncio.timeout(20):
                await reader.readexactly(20 * MIB)
        writer.close()
        again, writer = await asyncio.open_connection(host, port)
        writer.write(request("/task/7/100"))
        assert await answer(again) == BODY[7:107]
        writer.close()


async def test_a_client_that_leaves_is_told_to_the_answer_under_way_not_to_the_last_asked() -> None:
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    sock = bind("127.0.0.1", 0, "--listen")
    server = HttpServer(app, sock, "--listen")
    await server.start()
    try:
        host, port = address(sock).rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request("/first") + request("/second"))
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        async with asyncio.timeout(20):
            await left.wait()
    finally:
        await server.stop()


@pytest.mark.parametrize("way", ["direct", "task"])
async def test_a_client_that_stops_reading_is_disconnected(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_STALL_S", 0.3)
    async with serving(tmp_path) as (app, host, port):
        sock = socket.create_connection((host, port))
        sock.sendall(request(f"/{way}/0/{20 * MIB}"))
        async with asyncio.timeout(10):
            while app.released < 1:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        sock.close()


async def test_a_slow_client_gets_every_byte_while_others_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port):
        slow_reader, slow = await asyncio.open_connection(host, port, limit=64 << 10)
        slow.write(request(f"/direct/0/{20 * MIB}"))
        await slow_reader.readuntil(b"\r\n\r\n")
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(50):
            writer.write(request("/direct/5/100000"))
            assert await answer(reader) == BODY[5:100_005]
        async with asyncio.timeout(20):
            assert await slow_reader.readexactly(20 * MIB) == BODY[: 20 * MIB]
        slow.close()
        writer.close()


async def test_stopping_lets_a_running_answer_end(tmp_path: Path) -> None:
    app = App(tmp_path / "f")
    sock = bind("127.0.0.1", 0, "--listen")
    server = HttpServer(app, sock, "--listen", app.answer_now)
    await server.start()
    host, port = address(sock).rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), limit=64 << 10)
    writer.write(request(f"/direct/0/{20 * MIB}"))
    await reader.readexactly(10)
    stopping = asyncio.create_task(server.stop())
    got = 10
    async with asyncio.timeout(20):
        while piece := await reader.read(1 << 20):
            got += len(piece)
        await stopping
    assert got > 20 * MIB
    writer.close()
    os.close(app.fd)


async def test_parts_are_one_chunk_each_and_wait_for_a_slow_client() -> None:
    pieces = [BODY[: 3 * MIB], memoryview(BODY)[3 * MIB : 20 * MIB], b"end"]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert PARTS in scope["extensions"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": PARTS, "parts": pieces[:2]})
        await send({"type": PARTS, "parts": pieces[2:]})
        await send({"type": "http.response.body", "body": b""})

    sock = bind("127.0.0.1", 0, "--listen")
    server = HttpServer(app, sock, "--listen")
    await server.start()
    try:
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for expected in (BODY[: 20 * MIB], b"end", b""):
            assert int(await reader.readline(), 16) == len(expected)
            assert await reader.readexactly(len(expected)) == expected
            assert await reader.readline() == b"\r\n"
        writer.close()
    finally:
        await server.stop()


async def everything(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        return await reader.read()


@pytest.mark.parametrize(
    "parts",
    [
        [request("/direct/0/1", "x: " + "y" * (70 << 10))],  # in one piece
        [b"GET / HTTP/1.1\r\nx: ", *[b"y" * 4096] * 64],  # a header that does not end
        [b"GET / HTTP/1.1\r\n", *[b"x: y\r\n" * 1000] * 64],  # headers without end
        [b"GET /" + b"y" * 4096, *[b"y" * 4096] * 64],  # a URL that does not end
        [b"GET " + b"/" * (70 << 10) + b" HTTP/1.1\r\nhost: x\r\n\r\n"],
    ],
)
async def test_a_head_without_bounds_is_431(tmp_path: Path, parts: list[bytes]) -> None:
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
        try:
            assert (await everything(reader)).startswith(b"HTTP/1.1 431 ")
        except ConnectionResetError:
            assert len(parts) > 1  # what came after the answer was sent
        writer.close()


async def test_trailers_without_end_cut_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"PUT /put/0/0 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        with suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"x: y\r\n" * 1000)
                await writer.drain()
        with suppress(ConnectionError):
            assert b"200" not in await everything(reader)
        writer.close()


async def test_a_long_body_and_a_head_below_the_bound_are_taken(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(3):
            writer.write(
                b"PUT /put/0/0 HTTP/1.1\r\nhost: x\r\nx: %b\r\ncontent-length: %d\r\n\r\n"
                % (b"y" * (60 << 10), 3 * MIB)
            )
            writer.write(bytes(3 * MIB))
            await writer.drain()
            async with asyncio.timeout(20):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
        writer.close()


async def test_an_answer_that_breaks_off_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hubspoke")
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request("/broken/0/9"))
        assert (await everything(reader)).endswith(b"\r\n\r\nx")
        writer.close()
    assert "answer broken off path=/broken/0/9" in caplog.text
    assert "Traceback" not in caplog.text


async def test_half_sent_requests_are_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"PUT /put/0/0 HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
    loop = asyncio.get_running_loop()
    with ExitStack() as clients:
        async with serving(tmp_path) as (_, host, port):
            for i in range(20):
                client = clients.enter_context(socket.create_connection((host, port)))
                client.sendall([head + b"12345", head, head[:20]][i % 3])
            await asyncio.sleep(0.1)
            before = loop.time()
        assert loop.time() - before < 4 * data_protocol.DRAIN_STALL_S
    assert "Traceback" not in caplog.text


async def test_an_upload_that_goes_on_may_end_while_the_port_drains(tmp_path: Path) -> None:
    async def upload(host: str, port: int, begun: asyncio.Event) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"PUT /put/0/0 HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n")
        for _ in range(15):
            writer.write(b"x")
            await asyncio.sleep(data_protocol.DRAIN_STALL_S / 5)
            begun.set()
        answer = await everything(reader)
        writer.close()
        return answer

    begun = asyncio.Event()
    async with serving(tmp_path) as (_, host, port):
        uploading = asyncio.create_task(upload(host, port, begun))
        await begun.wait()
    assert (await uploading).startswith(b"HTTP/1.1 200")
