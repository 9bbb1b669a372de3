"""The S3 door behind a real server on loopback, with a boto3 client."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import uvicorn
import uvloop
from botocore.config import Config

from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.frontends.asgi import ASGIApp, Receive, Scope, Send
from hubspoke.frontends.s3 import S3App, S3DoorTuning
from tests.store_service import StoreService

WAIT_S = 20.0
BUCKET = "data"


@dataclass
class Door:
    """A running door. client: boto3, typed by nobody; client_for makes others."""

    port: int
    service: StoreService
    client: Any
    client_for: Callable[..., Any]

    def raw(self, data: bytes) -> "RawConnection":
        return RawConnection(self.port, data)

    def request(self, head: str, body: bytes = b"") -> "RawAnswer":
        """One request line and headers (lines), on a connection of its own."""
        lines = head.strip().splitlines()
        text = "\r\n".join([lines[0] + " HTTP/1.1", "Host: x", "Connection: close", *lines[1:]])
        with self.raw(text.encode("latin-1") + b"\r\n\r\n" + body) as connection:
            return connection.answer()


@dataclass
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes  # what came; may be short of content-length

    @property
    def code(self) -> str:
        return self.body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()


class RawConnection:
    """A socket that says what it is told and reads answers one by one."""

    def __init__(self, port: int, data: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._buffer = b""
        self.send(data)

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _more(self) -> bool:
        data = self.socket.recv(65536)
        self._buffer += data
        return bool(data)

    def answer(self, *, head_request: bool = False) -> RawAnswer:
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                raise ConnectionError(f"closed after {self._buffer!r}")
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        if status == 100:
            return self.answer(head_request=head_request)
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        if head_request or status in (204, 304):
            return RawAnswer(status, headers, b"")
        length = int(headers["content-length"]) if "content-length" in headers else 1 << 60
        while len(self._buffer) < length and self._more():
            pass
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return RawAnswer(status, headers, body)

    def is_closed(self) -> bool:
        """Has the server closed the connection, with nothing more to say?"""
        return not self._buffer and not self._more()


class _Server:
    """One uvicorn for all tests, in a thread: starting and stopping it takes longer than most."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._clients: dict[str, Any] = {}
        ready = threading.Event()

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                ready.set()

        config = uvicorn.Config(
            self._current,
            interface="asgi3",
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self._server = Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert ready.wait(WAIT_S)

    async def _current(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None, "a request outside of a test"
        await self.app(scope, receive, send)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._server.serve(sockets=[self._listener]))

    def client(self, **config: Any) -> Any:
        """boto3, one for each configuration."""
        key = repr(config)
        if key not in self._clients:
            options = {
                "s3": {"addressing_style": "path"},
                "retries": {"max_attempts": 1, "mode": "standard"},
            }
            self._clients[key] = boto3.session.Session().client(
                "s3",
                endpoint_url=f"http://127.0.0.1:{self.port}",
                aws_access_key_id="any",
                aws_secret_access_key="any",
                region_name="us-east-1",
                config=Config(**{**options, **config}),
            )
        return self._clients[key]

    def stop(self) -> None:
        for client in self._clients.values():
            client.close()
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[_Server]:
    _running.append(_Server())
    yield _running[0]
    _running.pop().stop()


_running: list[_Server] = []


@contextmanager
def serving(app: ASGIApp, service: StoreService) -> Iterator[Door]:
    """Let the server run `app` for as long as the block lasts."""
    server = _running[0]
    former, server.app = server.app, app
    try:
        yield Door(server.port, service, server.client(), server.client)
    finally:
        server.app = former


@contextmanager
def running_door(
    service: StoreService, *, read_only: bool = False, tuning: S3DoorTuning | None = None
) -> Iterator[Door]:
    with serving(S3App(service, None if read_only else service, tuning=tuning), service) as door:
        yield door


@pytest.fixture
def service() -> StoreService:
    return StoreService(MemoryObjectStore([BUCKET]))


@pytest.fixture
def door(service: StoreService) -> Iterator[Door]:
    """The door of a hub."""
    with running_door(service) as door:
        yield door
