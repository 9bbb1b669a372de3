"""How a training worker reads: by path, by a lean S3 client of our own, or by boto3.

A reader answers `read(file, offset, length)` with the bytes and the cache state the server named.
Only the standard library is imported (boto3 when asked for), because a worker starts in
milliseconds that way, and a read must cost little: the job shares two cores with what it measures.
It never judges the bytes (worker.py does).
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from hubspoke.errors import ConfigError, HubSpokeError

# Codes of the `state` field of a read's record; STATE_NAMES[code] is its name.
STATE_NAMES = ("unread", "hit", "late", "miss", "stale", "none")
STATE_NONE = 5
_STATES = {name.encode(): code for code, name in enumerate(STATE_NAMES)}
_STATE_HEADER = b"\r\nx-hubspoke-cache:"
_LENGTH_HEADER = b"\r\ncontent-length:"

READ_TIMEOUT_S = 60.0  # like botocore's: a stalled network is waited for, not retried at once
_POLL_S = 1.0  # how often a blocked read looks whether the job is still there
_BACKOFF_S = (0.02, 0.5)  # first and longest pause before the next try
_HEAD_BYTES_MAX = 64 << 10
_RETRYABLE_STATUS = frozenset((429, 500, 502, 503, 504))

Data = bytes | bytearray
T = TypeVar("T")


class ReadFailed(HubSpokeError):
    """A read of the job that can not be repeated any more; says which and what came back."""


class JobGone(HubSpokeError):
    """The job's own process is gone: the worker has nobody to read for."""


class Reader(Protocol):
    """retries: how often this reader has repeated a read so far."""

    retries: int

    def connect(self) -> None: ...
    def read(self, file: int, offset: int, length: int) -> tuple[Data, int]: ...
    def close(self) -> None: ...


class PathReader:
    """Reads the files themselves with pread: what a job beside the data does."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self._paths = [os.path.join(folder, name) for name in names]
        self._files: list[int] = []
        self.retries = 0

    def connect(self) -> None:
        self._files = [os.open(path, os.O_RDONLY) for path in self._paths]

    def read(self, file: int, offset: int, length: int) -> tuple[Data, int]:
        data = os.pread(self._files[file], length, offset)
        if len(data) != length:
            raise ReadFailed(f"{self._paths[file]} {offset}+{length}: only {len(data)} bytes")
        return data, STATE_NONE

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


class _TryAgain(Exception):
    """The server asked for another try."""


class S3Reader:
    """Ranged GETs over one kept HTTP/1.1 connection, unsigned, written for low CPU per read.

    A lost connection or a 503 is tried again for at most `retry_s` seconds a read, so that a
    restart of the server costs time and nothing else. alive: raises JobGone when nobody waits.
    """

    def __init__(
        self, url: str, names: Sequence[str], *, retry_s: float, alive: Callable[[], None]
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.path.strip("/"):
            raise ConfigError(f"source {url}: must be http://HOST:PORT/BUCKET[/PREFIX]")
        self._address = (parts.hostname, parts.port or 80)
        self._names = names
        base = parts.path.rstrip("/")
        self._requests = [
            (
                f"GET {quote(f'{base}/{name}')} HTTP/1.1\r\nhost: {parts.netloc}\r\nrange: bytes="
            ).encode()
            for name in names
        ]
        self._retry_s = retry_s
        self._alive = alive
        self._socket: socket.socket | None = None
        self._buffer = bytearray(_HEAD_BYTES_MAX)
        self.retries = 0

    def connect(self) -> None:
        """Open the kept connection; tried again like a read."""
        self._persist(self._connection, f"connect to {self._address[0]}:{self._address[1]}")

    def read(self, file: int, offset: int, length: int) -> tuple[Data, int]:
        last = offset + length - 1
        request = b"%s%d-%d\r\n\r\n" % (self._requests[file], offset, last)
        try:
            return self._exchange(request, length)
        except (OSError, _TryAgain):
            self._drop()
            self.retries += 1
        what = f"{self._names[file]} {offset}+{length}"
        return self._persist(lambda: self._exchange(request, length), what)

    def close(self) -> None:
        self._drop()

    def _persist(self, attempt: Callable[[], T], what: str) -> T:
        deadline = time.monotonic() + self._retry_s
        pause, pause_max = _BACKOFF_S
        while True:
            try:
                return attempt()
            except (OSError, _TryAgain) as e:
                self._drop()
                self._alive()
                if time.monotonic() + pause > deadline:
                    raise ReadFailed(f"{what}: gave up after {self._retry_s:g} s: {e}") from e
                self.retries += 1
                time.sleep(pause)
                pause = min(2 * pause, pause_max)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connection(self) -> socket.socket:
        if self._socket is None:
            s = socket.create_connection(self._address, timeout=5)
            s.settimeout(None)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The kernel's own timeout spares the poll() that settimeout() puts before each recv.
            timeval = struct.pack("ll", int(_POLL_S), 0)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self._socket = s
        return self._socket

    def _receive(self, s: socket.socket, view: memoryview, have: int) -> int:
        """Read more bytes behind the `have` first ones; returns how many there are then."""
        deadline = 0.0
        while True:
            try:
                got = s.recv_into(view[have:])
            except BlockingIOError:
                self._alive()
                now = time.monotonic()
                deadline = deadline or now - _POLL_S + READ_TIMEOUT_S
                if now > deadline:
                    raise TimeoutError(f"no byte for {READ_TIMEOUT_S:g} s") from None
                continue
            if not got:
                raise ConnectionResetError("the server closed the connection")
            return have + got

    def _exchange(self, request: bytes, length: int) -> tuple[Data, int]:
        s = self._connection()
        s.sendall(request)
        buffer = self._buffer
        if len(buffer) < _HEAD_BYTES_MAX + length:
            buffer = self._buffer = bytearray(_HEAD_BYTES_MAX + length)
        view = memoryview(buffer)
        have = self._receive(s, view, 0)
        while (end := buffer.find(b"\r\n\r\n", 0, have)) < 0:
            have = self._receive(s, view, have)
        head = bytes(buffer[: end + 2]).lower()
        status = int(head[9:12])
        body = _number(head)
        start = end + 4
        if body > len(buffer) - start:
            raise ReadFailed(f"status {status} with a body of {body} bytes, {length} expected")
        while have < start + body:
            have = self._receive(s, view, have)
        if b"\r\nconnection: close" in head:
            self._drop()
        if status in (200, 206) and body == length:
            return buffer[start : start + length], _state(head)
        text = bytes(buffer[start : start + min(body, 300)]).decode(errors="replace")
        if status in _RETRYABLE_STATUS:
            raise _TryAgain(f"status {status}: {text}")
        line = request.partition(b"\r\n")[0].decode()
        raise ReadFailed(f"{line}: status {status}, {body} bytes, {length} expected: {text}")


def _number(head: bytes) -> int:
    at = head.find(_LENGTH_HEADER)
    if at < 0:
        raise ReadFailed(f"answer without Content-Length: {head[:200]!r}")
    at += len(_LENGTH_HEADER)
    return int(head[at : head.index(b"\r", at)])


def _state(head: bytes) -> int:
    at = head.find(_STATE_HEADER)
    if at < 0:
        return STATE_NONE
    at += len(_STATE_HEADER)
    return _STATES.get(head[at : head.index(b"\r", at)].strip(), STATE_NONE)


class Boto3Reader:
    """The same reads by boto3: slower, and a client that we did not write.

    botocore opens its connection with the first read, so that one pays for it.
    """

    def __init__(self, url: str, names: Sequence[str], *, retry_s: float) -> None:
        parts = urlsplit(url)
        bucket, _, prefix = parts.path.strip("/").partition("/")
        if not parts.netloc or not bucket:
            raise ConfigError(f"source {url}: must be http://HOST:PORT/BUCKET[/PREFIX]")
        self._endpoint = f"{parts.scheme}://{parts.netloc}"
        self._bucket = bucket
        self._keys = [f"{prefix}/{name}" if prefix else name for name in names]
        self._attempts = max(2, int(retry_s))  # botocore counts tries, its pauses grow to 20 s
        self._client: Any = None  # boto3 makes its clients at run time; there is no type to name
        self._errors: tuple[type[Exception], ...] = ()
        self.retries = 0

    def connect(self) -> None:
        try:
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config
            from botocore.exceptions import (
                BotoCoreError,
                ClientError,
            )
        except ImportError as e:
            raise ConfigError("--client boto3 needs the package boto3: pip install boto3") from e
        self._errors = (BotoCoreError, ClientError)
        session = boto3.session.Session()
        signed = session.get_credentials() is not None
        self._client = session.client(
            "s3",
            endpoint_url=self._endpoint,
            region_name=session.region_name or "us-east-1",
            config=Config(
                signature_version=None if signed else UNSIGNED,
                s3={"addressing_style": "path"},
                retries={"mode": "standard", "total_max_attempts": self._attempts},
            ),
        )

    def read(self, file: int, offset: int, length: int) -> tuple[Data, int]:
        try:
            answer = self._client.get_object(
                Bucket=self._bucket,
                Key=self._keys[file],
                Range=f"bytes={offset}-{offset + length - 1}",
            )
            data: bytes = answer["Body"].read()
        except self._errors as e:
            raise ReadFailed(f"{self._keys[file]} {offset}+{length}: {e}") from e
        if len(data) != length:
            raise ReadFailed(f"{self._keys[file]} {offset}+{length}: {len(data)} bytes came")
        meta = answer["ResponseMetadata"]
        self.retries += meta["RetryAttempts"]
        state = meta["HTTPHeaders"].get("x-hubspoke-cache", "none")
        return data, _STATES.get(state.encode(), STATE_NONE)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
