"""An ASGI application served on a socket that is already bound.

Decides how uvicorn is set up; it must never touch signals, which belong to run.py: two servers
live in one loop. A port is bound before anything is built, so that a taken port is the first
thing that fails, and listens only when the application can answer: before that a client is
refused at once instead of left hanging.
"""

import asyncio
import errno
import functools
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn

from hubspoke.errors import ConfigError
from hubspoke.frontends.data_protocol import DataProtocol
from hubspoke.frontends.direct_answers import AnswerNow, DirectAnswers

BACKLOG = 4096  # every worker of every rank connects in the same second
# A loader's connection is idle while its batch is computed, or its epoch validated; reopening
# costs little next to the job but a request on a closing connection is an error at the client.
KEEP_ALIVE_S = 3600
DRAIN_S = 10.0  # a running request may end; a large body on a slow client is cut


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket, not listening yet. Raises ConfigError that names `flag` and the port."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "no name a resolver knows"
        raise ConfigError(f"{flag}: {shown!r}: no such address: {reason}") from e
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as e:
        sock.close()
        raise ConfigError(_refused(flag, shown, e)) from e
    return sock


def _refused(flag: str, shown: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{flag}: {shown!r}: another process listens on this port; expected a free port"
    reason = os.strerror(error.errno or 0)
    return f"{flag}: {shown!r}: cannot be bound: {reason}; expected an address of this machine"


def address(sock: socket.socket) -> str:
    """HOST:PORT as bound, with the port that the kernel chose for port 0."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """uvicorn with httptools on one socket, without logs, lifespan and signals.

    Raises ConfigError from `start` when another process took the port between bind and listen.
    """

    def __init__(
        self, app: Any, sock: socket.socket, flag: str, answer_now: AnswerNow | None = None
    ) -> None:
        """answer_now: see data_protocol; without it every request is the application's."""
        self._socket = sock
        self._flag = flag
        direct = None if answer_now is None else DirectAnswers(answer_now)
        # Access log, Date and Server would cost 25 us of CPU a request, half of what a read of
        # 4 KiB takes; the doors that promise those headers send their own.
        config = uvicorn.Config(
            app,
            http=cast(Any, functools.partial(DataProtocol, direct)),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(DRAIN_S),
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; returns when connections are accepted."""
        try:
            self._socket.listen(BACKLOG)
        except OSError as e:
            raise ConfigError(_refused(self._flag, address(self._socket), e)) from e
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        accepting = asyncio.create_task(self._server.accepting.wait())
        await asyncio.wait({accepting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            accepting.cancel()
            await self._task

    async def stop(self) -> None:
        """Accept no more, let running requests end for at most DRAIN_S. Idempotent."""
        if self._task is None:
            self._socket.close()
            return
        self._server.should_exit = True
        await self._task
