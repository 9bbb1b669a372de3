"""The hub's side of the hub-spoke protocol (wire.py) as an ASGI application.

Decides how requests are checked and how answers are streamed; the hub decides what they say. It
must never hold more than a fixed number of bytes for a spoke that reads slowly, and never let
the fault of one range, or of one spoke, end another's.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TypeVar
from urllib.parse import parse_qs

import zstandard

from hubspoke import wire
from hubspoke.errors import FormatError, HubSpokeError, InvalidRequest, Overloaded
from hubspoke.frontends.asgi import Message, Receive, Scope, Send
from hubspoke.frontends.data_protocol import PARTS
from hubspoke.frontends.exchange import Disconnected, answer, read_body, while_connected
from hubspoke.frontends.hub_fetch import Fetch, FetchConfig, Packing, check_fetch
from hubspoke.hub.service import HubService

log = logging.getLogger(__name__)

# A fetch of 4,096 ranges of 4,096 objects with keys of 1 KiB is below 5 MB.
BODY_BYTES_MAX = 8 << 20
LEASE_BODY_BYTES_MAX = 1 << 20
# A fetch that nobody reads holds what it has read ahead. A spoke has 32 lanes with one fetch each;
# twice that is room for a restart whose old connections were not missed yet.
FETCHES_PER_SPOKE_MAX = 64
FETCHES_MAX = 512
AHEAD_BYTES_MAX = 256 << 20  # shared by all; one reads at least a piece (1 MiB) ahead
SEQUENCE_DIGITS_MAX = 18
_OCTETS = [(b"content-type", b"application/octet-stream")]

_M = TypeVar("_M", wire.FetchRequest, wire.CancelRequest, wire.LeaseRequest, wire.ReadIndexRequest)


class HubProtocolApp:
    """ASGI application for the paths under wire.PREFIX."""

    def __init__(self, hub: HubService, config: FetchConfig | None = None) -> None:
        self._hub = hub
        self._config = config or FetchConfig()
        self._packing = Packing(self._config.pieces_untried)
        self._fetches: dict[tuple[str, int], Fetch] = {}
        self._running: Counter[str] = Counter()  # fetches by spoke

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        path = scope["path"].removeprefix(wire.PREFIX)
        routes = {
            ("POST", "fetch"): self._fetch,
            ("POST", "cancel"): self._cancel,
            ("POST", "lease"): self._lease,
            ("POST", "read-index"): self._read_index,
            ("GET", "snapshot"): self._snapshot,
            ("GET", "feed"): self._feed,
        }
        handler = routes.get((scope["method"], path))
        if handler is None:
            return await answer(send, 404, f"no {scope['method']} {path} in this protocol")
        if not_ready := self._hub.ready():
            return await answer(send, 503, "; ".join(not_ready))
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await handler(scope, receive, noted)
        except HubSpokeError as e:
            if started:
                raise  # the server ends the connection: a short answer, never a wrong one
            wrong = isinstance(e, InvalidRequest | FormatError)
            await answer(send, 400 if wrong else 503, str(e))
        except Disconnected:
            log.debug("client has gone away path=%s", path)

    async def _fetch(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await _message(receive, wire.FetchRequest, BODY_BYTES_MAX)
        check_fetch(request, self._config)
        key = (request.spoke, request.number)
        config = self._admit(request.spoke)
        parts = PARTS in scope.get("extensions", ())
        fetch = Fetch(self._hub, request, config, self._packing, parts=parts)
        # A spoke that restarts counts from the start again, and its old connections may not
        # have been missed yet: nobody reads them, and the number is the new request's.
        if (former := self._fetches.get(key)) is not None:
            former.cancel([])
        self._fetches[key] = fetch
        self._running[request.spoke] += 1
        try:
            await _start(send)
            await while_connected(receive, fetch.run(send))
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._running[request.spoke] -= 1
            self._running += Counter()  # forget spokes without any
            if self._fetches.get(key) is fetch:
                del self._fetches[key]

    def _admit(self, spoke: str) -> FetchConfig:
        """How far one more fetch may read ahead. Raises Overloaded when there are too many."""
        running = self._running.total()
        if running >= FETCHES_MAX or self._running[spoke] >= FETCHES_PER_SPOKE_MAX:
            raise Overloaded(
                f"{running} fetches are being answered, {self._running[spoke]} of spoke {spoke}; "
                f"{FETCHES_MAX} and {FETCHES_PER_SPOKE_MAX} at most"
            )
        ahead = min(self._config.ahead_bytes, AHEAD_BYTES_MAX // (running + 1))
        return replace(self._config, ahead_bytes=ahead)

    async def _cancel(self, _: Scope, receive: Receive, send: Send) -> None:
        """204 also when there is nothing (left) to cancel: it may just have ended."""
        request = await _message(receive, wire.CancelRequest, LEASE_BODY_BYTES_MAX)
        fetch = self._fetches.get((request.spoke, request.number))
        if fetch is not None:
            fetch.cancel(request.ranges)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _lease(self, _: Scope, receive: Receive, send: Send) -> None:
        request = await _message(receive, wire.LeaseRequest, LEASE_BODY_BYTES_MAX)
        await _reply(send, await self._hub.lease(request))

    async def _read_index(self, _: Scope, receive: Receive, send: Send) -> None:
        request = await _message(receive, wire.ReadIndexRequest, LEASE_BODY_BYTES_MAX)
        await _reply(send, self._hub.read_index(request))

    async def _snapshot(self, _: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive, 0)
        loop = asyncio.get_running_loop()
        zstd = zstandard.ZstdCompressor(level=3)

        def pack(message: wire.Message) -> bytes:
            return wire.pack_message(zstd.compress(wire.encode(message)))

        async def packed() -> AsyncIterator[bytes]:
            async for message in self._hub.snapshot():
                yield await loop.run_in_executor(None, pack, message)

        await _start(send)
        await while_connected(receive, _stream(send, packed()))

    async def _feed(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive, 0)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        epoch, after = query.get("epoch", [""])[0], query.get("after", ["0"])[0]
        incarnation = query.get("incarnation", [""])[0]
        if not (after.isascii() and after.isdigit() and len(after) <= SEQUENCE_DIGITS_MAX):
            raise InvalidRequest(f"feed: after={after[:40]!r}; expected a sequence number")

        async def packed() -> AsyncIterator[bytes]:
            async for message in self._hub.feed(epoch, int(after), incarnation):
                yield wire.pack_message(wire.encode(message))

        await _start(send)
        await while_connected(receive, _stream(send, packed()))


async def _message(receive: Receive, kind: type[_M], limit: int) -> _M:
    message = wire.decode(await read_body(receive, limit))
    if not isinstance(message, kind):
        raise InvalidRequest(f"{type(message).__name__}; expected {kind.__name__}")
    return message


async def _reply(send: Send, message: wire.Message) -> None:
    body = wire.encode(message)
    headers = [*_OCTETS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _start(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _OCTETS})


async def _stream(send: Send, bodies: AsyncIterator[bytes]) -> None:
    async for body in bodies:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
