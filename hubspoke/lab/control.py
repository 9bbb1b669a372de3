"""The control port of a WAN emulator: one line of JSON in, one line of JSON out, then closed.

Decides nothing: it hands each request to the emulator's `handle` and sends back what that returns.
A request that is not a JSON object, or that the emulator refuses with ValueError, is answered
{"error": "..."}; it must never end the emulator.
"""

import json
import select
import socket
from collections.abc import Callable, Mapping
from typing import Final

from hubspoke.lab.loop import Loop

_REQUEST_BYTES_MAX: Final = 64 << 10
Reply = Mapping[str, object]
Handle = Callable[[dict[str, object]], Reply]


def parse_address(text: str) -> tuple[str, int]:
    """ "HOST:PORT" -> (host, port). Raises ValueError saying what would be right."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"address {text!r}: expected HOST:PORT, like 127.0.0.1:0")
    return host, int(port)


def number(request: Mapping[str, object], key: str) -> float:
    """The number under `key`. Raises ValueError when it is none or negative."""
    value = request[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{key}: expected a number >= 0, got {value!r}")
    return float(value)


class ControlServer:
    """Listens on loopback inside the emulator's own loop."""

    def __init__(self, loop: Loop, address: tuple[str, int], handle: Handle) -> None:
        self._loop = loop
        self._handle = handle
        self._listener = socket.create_server(address)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        loop.add(self._listener.fileno(), select.EPOLLIN, self._accept)

    def _accept(self, _events: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        request = bytearray()
        self._loop.add(sock.fileno(), select.EPOLLIN, lambda _e: self._receive(sock, request))

    def _receive(self, sock: socket.socket, request: bytearray) -> None:
        try:
            data = sock.recv(4096)
            request += data
            if data and b"\n" not in request and len(request) < _REQUEST_BYTES_MAX:
                return
            # A reply fits the socket's empty buffer, so sending does not wait.
            sock.sendall(json.dumps(self._answer(bytes(request))).encode() + b"\n")
        except BlockingIOError:
            return
        except OSError:
            pass  # the asker is gone: nobody is left to tell
        self._loop.remove(sock.fileno())
        sock.close()

    def _answer(self, line: bytes) -> Reply:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError(f"expected a JSON object, got {request!r}")
            return self._handle(request)
        except ValueError as e:
            return {"error": str(e)}
