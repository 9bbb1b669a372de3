"""Connections whose requests pass the parser by: how long they live and what they hold."""

import asyncio
import errno
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from hubspoke.frontends.data_protocol import DataProtocol
from hubspoke.frontends.direct_answers import DirectAnswer, DirectAnswers, Headers
from hubspoke.frontends.server import HttpServer, address, bind
from hubspoke.ports import FileSpan
from tests.shell.test_spoke_service import until

BODY = os.urandom(1 << 20)
SPAN_BYTES_MIN = 100_000
KEEP_ALIVE_S = 10


class App:
    """Ranges of BODY by answer_now, as buffers and as spans; nothing by a task."""

    def __init__(self, file: Path | None = None) -> None:
        self.known = 0  # requests that came past the parser
        self.lent = 0
        self.fd = -1
        if file is not None:
            file.write_bytes(BODY)
            self.fd = os.open(file, os.O_RDONLY)

    def answer_now(
        self, method: bytes, url: bytes, headers: Headers, client: str
    ) -> DirectAnswer | None:
        first, _, last = dict(headers)[b"range"].removeprefix(b"bytes=").partition(b"-")
        return self.answer(int(first), int(last), client)

    def again(self, first: int, last: int, client: str) -> DirectAnswer | None:
        self.known += 1
        return self.answer(first, last, client)

    def answer(self, first: int, last: int, client: str) -> DirectAnswer:
        length = last + 1 - first
        body: bytes | FileSpan = BODY[first : last + 1]
        if length >= SPAN_BYTES_MIN and self.fd >= 0:
            self.lent += 1
            body = FileSpan(self.fd, first, length, self._release)
        head = b"HTTP/1.1 206 Partial Content\r\ncontent-length: %d\r\n\r\n" % length
        return DirectAnswer(head, body, self.again)

    def _release(self) -> None:
        self.lent -= 1

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        first, last = re.findall(rb"\d+", dict(scope["headers"])[b"range"])
        data = BODY[int(first) : int(last) + 1]
        headers = [(b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": 206, "headers": headers})
        await send({"type": "http.response.body", "body": data})


def asked(first: int, length: int) -> bytes:
    return b"GET /o HTTP/1.1\r\nHost: x\r\nRange: bytes=%d-%d\r\n\r\n" % (first, first + length - 1)


class Time:
    """A loop's clock and timers."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> "_Timer":
        self.timers.append((self.now + delay, callback))
        return _Timer(self, self.timers[-1])

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self.timers if t[0] <= end]:
            timer = min(due, key=lambda t: t[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = end


class _Timer:
    def __init__(self, time: Time, timer: tuple[float, Callable[[], None]]) -> None:
        self._time, self._timer = time, timer

    def cancel(self) -> None:
        if self._timer in self._time.timers:
            self._time.timers.remove(self._timer)


class Transport(asyncio.Transport):
    """The server's end of a socket pair; nothing waits in a buffer."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock, "peername": ("127.0.0.1", 9)})
        self.closed = False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def resume_reading(self) -> None:
        pass


def test_idle_connections_are_closed_and_those_with_known_heads_are_not_idle() -> None:
    app, time = App(), Time()
    ours, theirs = socket.socketpair()
    transport = Transport(ours)
    config = uvicorn.Config(app, ws="none", lifespan="off", timeout_keep_alive=KEEP_ALIVE_S)
    config.load()
    protocol = DataProtocol(
        DirectAnswers(app.answer_now), config=config, server_state=ServerState(), app_state={},
        _loop=time,
    )  # fmt: skip
    protocol.connection_made(transport)
    theirs.settimeout(10)

    def ask() -> None:
        protocol.data_received(asked(7, 5))
        assert theirs.recv(1_000).endswith(b"\r\n\r\n" + BODY[7:12])

    ask()
    for n in range(1, 20):  # each before the time is over, all together long after it
        time.passes(0.9 * KEEP_ALIVE_S)
        ask()
        assert app.known == n
        assert len(time.timers) == 1
    time.passes(0.9 * KEEP_ALIVE_S)
    assert not transport.closed
    time.passes(0.2 * KEEP_ALIVE_S)
    assert transport.closed
    protocol.connection_lost(None)
    ours.close()
    theirs.close()


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[tuple[HttpServer, int]]:
    sock = bind("127.0.0.1", 0, "--listen")
    server = HttpServer(app, sock, "--listen", app.answer_now)
    await server.start()
    try:
        yield server, int(address(sock).rsplit(":", 1)[1])
    finally:
        await server.stop()
        if app.fd >= 0:
            os.close(app.fd)


async def one(reader: asyncio.StreamReader, first: int, length: int) -> None:
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 206 ") and b"content-length: %d\r\n" % length in head
        assert await reader.readexactly(length) == BODY[first : first + length]


async def test_a_client_that_asks_and_does_not_read_holds_little_memory() -> None:
    app, length, requests = App(), 60_000, 200  # fewer than may be asked for in advance
    async with serving(app) as (server, port):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, asked(0, length))
        await until(lambda: bool(server._server.server_state.connections))
        (protocol,) = server._server.server_state.connections
        assert isinstance(protocol, DataProtocol)

        async def ask() -> None:
            for i in range(1, requests):
                await loop.sock_sendall(client, asked(i, length))
                await asyncio.sleep(0)  # each in a segment of its own

        asking = asyncio.create_task(ask())
        await until(lambda: protocol.flow.write_paused)
        known = app.known
        for _ in range(100):
            await asyncio.sleep(0)
            assert protocol.transport.get_write_buffer_size() < 65_536 + 2 * length
        assert app.known == known, "an answer was made for a client that does not read"
        reader, writer = await asyncio.open_connection(sock=client)
        for i in range(requests):
            await one(reader, i, length)
        await asking
        writer.close()
        await writer.wait_closed()


async def test_without_a_descriptor_small_answers_go_out_and_large_ones_cut_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(tmp_path / "f")
    async with serving(app) as (_, port):

        def none_left(fd: int) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", none_left)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for i in range(5):
                writer.write(asked(i, 3_000))
                await one(reader, i, 3_000)
            assert app.known == 4
            writer.write(asked(0, SPAN_BYTES_MIN))
            async with asyncio.timeout(20):
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await reader.readexactly(SPAN_BYTES_MIN)
            writer.close()
            assert app.lent == 0
            assert "no descriptor" in caplog.text
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asked(5, SPAN_BYTES_MIN))
        await one(reader, 5, SPAN_BYTES_MIN)
        writer.close()
