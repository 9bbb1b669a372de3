"""Requests offered at a fixed rate, whatever the answers do, and a plain client for one at a time.

Latency counts from the moment a request was due: a server that stalls is seen by every request
that was due meanwhile, which a client that waits for its answers would not ask.
"""

import select
import socket
import time
from collections import deque
from collections.abc import Iterator

_SOCKET_S = 60.0


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=_SOCKET_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def request(address: str, method: str, target: str, *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {address}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Client:
    """One request at a time on one connection; bodies come as bytes, unparsed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = connect(address)

    def get(self, target: str, *headers: str) -> tuple[bytes, float]:
        """The body, and the seconds from the request to its last byte. 2xx or ConnectionError."""
        started = time.perf_counter()
        self._socket.sendall(request(self._address, "GET", target, *headers))
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        left = _length(data[:end]) - (len(data) - end - 4)
        pieces = [data[end + 4 :]]
        while left > 0:
            pieces.append(self._more())
            left -= len(pieces[-1])
        took = time.perf_counter() - started
        if data[9:10] != b"2":
            raise ConnectionError(f"{target}: {data[:500]!r}")
        return b"".join(pieces), took

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError(f"{self._address} closed the connection")
        return data

    def close(self) -> None:
        self._socket.close()


def _length(head: bytes) -> int:
    name = b"\r\ncontent-length:"
    at = head.lower().index(name) + len(name)
    return int((head + b"\r\n")[at : (head + b"\r\n").index(b"\r\n", at)])


class _Connection:
    """What is due waits here; one request is under way."""

    def __init__(self, address: str) -> None:
        self.socket = connect(address)
        self.due: deque[tuple[float, bytes]] = deque()
        self._asked_for: float | None = None
        self._data = b""
        self._left = -1

    def ask(self) -> None:
        if self._asked_for is None and self.due:
            self._asked_for, wanted = self.due.popleft()
            self._data, self._left = b"", -1
            self.socket.sendall(wanted)

    def readable(self, *, bodies: bool) -> float | None:
        """When the request was due whose answer is now whole."""
        data = self.socket.recv(256 << 10)
        if not data:
            raise ConnectionError("the server closed the connection")
        if self._left < 0:
            self._data += data
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return None
            if self._data[9:10] != b"2":
                raise ConnectionError(f"{self._data[:300]!r}")
            whole = _length(self._data[:end]) if bodies else 0
            self._left = whole - (len(self._data) - end - 4)
        else:
            self._left -= len(data)
        if self._left:
            return None
        due, self._asked_for = self._asked_for, None
        return due


def offered(
    address: str,
    requests: Iterator[bytes],
    *,
    rate: int,
    connections: int,
    seconds: float,
    bodies: bool = True,
) -> list[float]:
    """Latencies in ascending order, in seconds. bodies: False for HEAD."""
    lines = [_Connection(address) for _ in range(connections)]
    by_fd = {line.socket.fileno(): line for line in lines}
    total, n = int(rate * seconds), 0
    latencies: list[float] = []
    start = time.perf_counter()
    try:
        while len(latencies) < total:
            now = time.perf_counter()
            while n < total and start + n / rate <= now:
                line = lines[n % connections]
                line.due.append((start + n / rate, next(requests)))
                line.ask()
                n += 1
            wait = max(0.0, start + n / rate - now) if n < total else 1.0
            # Not epoll, whose waits are whole milliseconds: a client that spins takes a core.
            for fd in select.select(list(by_fd), [], [], wait)[0]:
                due = by_fd[fd].readable(bodies=bodies)
                if due is not None:
                    latencies.append(time.perf_counter() - due)
                    by_fd[fd].ask()
    finally:
        for line in lines:
            line.socket.close()
    return sorted(latencies)


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
