"""Many ranges of many objects in one request: what `fsspec`'s cat_ranges is answered with.

    POST /_hubspoke/v1/ranges   {"ranges": [["BUCKET/KEY", start, end], ...]}

start and end are those of a Python slice: null is the beginning and the end, negative counts from
the end. The answer has for each range, in order, twelve bytes (status as uint32, length as uint64,
both little-endian) and then so many bytes: of the object if the status is 200, a message in UTF-8
otherwise. All ranges of an object in one request are of one version.

All reads are begun before the first is waited for, so that a thousand cold ranges cost the round
trips of one, and each is taken in its turn; what is begun and not yet taken by the client is
bounded. A fault of one range is that range's; a body that cannot be finished breaks the connection.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import msgspec

from hubspoke import wire
from hubspoke.core.ids import ObjectName
from hubspoke.errors import HubSpokeError, InvalidRequest
from hubspoke.frontends.asgi import Receive, Scope, Send
from hubspoke.frontends.data_protocol import EXTENSION
from hubspoke.frontends.exchange import Disconnected, answer, read_body, while_connected
from hubspoke.frontends.s3.app import ReadAborted
from hubspoke.frontends.s3.errors import as_s3_error
from hubspoke.frontends.s3.request import client_of
from hubspoke.frontends.s3.response import buffers, close, copied
from hubspoke.frontends.s3.tuning import S3DoorTuning
from hubspoke.ports import FileSpan, ReadResult, Resolved

RANGES_MAX = 16_384
BODY_BYTES_MAX = 8 << 20  # as many ranges with keys of 500 bytes
REQUESTS_MAX = 256  # at a time
# Begun and not yet taken, of all requests together: a path of 1 GB/s and 60 ms is full with it.
AHEAD_BYTES_MAX = 64 << 20
AHEAD_RANGES_MAX = 4_096
# Begun in one turn of the loop: what is asked of the hub leaves when a turn ends, the first few at
# once, then more, but no more than other readers can wait for.
TURN_RANGES_MIN, TURN_RANGES_MAX = 64, 256
# Small answers leave together: a message to the socket each would cost more than their bytes.
JOINED_BYTES = 256 << 10


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    ranges: list[tuple[str, int | None, int | None]]


class BegunRead(Protocol):
    """A read whose bytes are on their way; it is taken or given up."""

    def result_now(self) -> ReadResult | None: ...  # if nothing has to be waited for
    async def result(self) -> ReadResult: ...  # as Reader.read
    async def give_up(self) -> None: ...  # also where it was taken, or failed


class RangeReader(Protocol):
    """What a spoke is to this door."""

    async def resolve(self, name: ObjectName) -> Resolved: ...  # as Reader's
    def begin(
        self, resolved: Resolved, offset: int, length: int, client: str
    ) -> ReadResult | BegunRead:
        """Reader.read without waiting. Raises HubSpokeError."""

    def batch(self, client: str) -> AbstractContextManager[None]:
        """What this client begins inside is asked for, and predicted from, as a whole."""


class _Begun(NamedTuple):
    """A range under way. length: what it counts for while it is begun."""

    length: int
    read: ReadResult | BegunRead | HubSpokeError


class RangesApp:
    """ASGI application for the paths under wire.PREFIX at a spoke."""

    def __init__(
        self,
        reader: RangeReader,
        tuning: S3DoorTuning | None = None,
    ) -> None:
        self._reader = reader
        self._tuning = tuning or S3DoorTuning()
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        path = scope["path"].removeprefix(wire.PREFIX)
        if (scope["method"], path) != ("POST", "ranges"):
            return await answer(send, 404, f"no {scope['method']} {path} at a spoke")
        if self._running >= REQUESTS_MAX:
            return await answer(send, 503, f"{self._running} requests for ranges are under way")
        self._running += 1
        try:
            ranges = _parsed(await read_body(receive, BODY_BYTES_MAX))
            ahead = AHEAD_BYTES_MAX // self._running
            batch = _Batch(self._reader, ranges, client_of(scope), ahead)
            spans = EXTENSION in scope.get("extensions", ())
            out = _Out(send, spans=spans, stall_s=self._tuning.send_stall_s)
            await while_connected(receive, batch.run(out))
        except InvalidRequest as e:
            await answer(send, 400, str(e))
        except Disconnected:
            pass
        finally:
            self._running -= 1


def _parsed(body: bytes) -> list[tuple[ObjectName, int | None, int | None]]:
    """Raises InvalidRequest."""
    try:
        ranges = msgspec.json.decode(body, type=_Request).ranges
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise InvalidRequest(
            f'ranges: {e}; expected {{"ranges": [["BUCKET/KEY", start, end], ...]}}'
        ) from e
    if len(ranges) > RANGES_MAX:
        raise InvalidRequest(f"{len(ranges)} ranges; {RANGES_MAX} at most in one request")
    named: dict[str, ObjectName] = {}
    for path, _, _ in ranges:
        if path not in named:
            bucket, slash, key = path.partition("/")
            if not (bucket and slash and key):
                raise InvalidRequest(f"ranges: {path[:200]!r} is no object; expected BUCKET/KEY")
            named[path] = ObjectName(bucket, key)
    return [(named[path], start, end) for path, start, end in ranges]


class _Batch:
    """The ranges of one request, read ahead of the client by a bounded number of bytes."""

    def __init__(
        self,
        reader: RangeReader,
        ranges: Sequence[tuple[ObjectName, int | None, int | None]],
        client: str,
        ahead: int,
    ) -> None:
        self._reader = reader
        self._left: Iterator[tuple[ObjectName, int | None, int | None]] = iter(ranges)
        self._client = client
        self._ahead = ahead
        self._resolved: dict[ObjectName, Resolved | HubSpokeError] = {}
        self._begun: deque[_Begun] = deque()
        self._held = 0
        self._turn = TURN_RANGES_MIN
        self._more = True

    async def run(self, out: "_Out") -> None:
        try:
            with self._reader.batch(self._client):
                await self._begin()
            await out.start()
            taken = 0
            while self._begun:
                # Kept in the queue until it is sent, for whoever has to give it up.
                length, read = self._begun[0]
                if not isinstance(read, ReadResult | HubSpokeError):
                    read = await self._taken(read)
                    self._begun[0] = _Begun(length, read)
                await out.record(read)
                self._begun.popleft()
                self._held -= length
                taken += 1
                if taken % TURN_RANGES_MAX == 0:
                    await asyncio.sleep(0)
                if self._more:
                    await self._begin()
            await out.end()
        finally:
            for _, left in self._begun:
                if isinstance(left, ReadResult):
                    await _give_up(left)
                elif not isinstance(left, HubSpokeError):
                    await left.give_up()

    async def _taken(self, read: BegunRead) -> ReadResult | HubSpokeError:
        try:
            return read.result_now() or await read.result()
        except HubSpokeError as e:
            return e

    async def _begin(self) -> None:
        begun = 0
        while len(self._begun) < AHEAD_RANGES_MAX and (self._held < self._ahead or not self._begun):
            following = next(self._left, None)
            if following is None:
                self._more = False
                return
            name, start, end = following
            resolved = self._resolved.get(name) or await self._resolve(name)
            if isinstance(resolved, HubSpokeError):
                self._begun.append(_Begun(0, resolved))
                continue
            offset, stop, _ = slice(start, end).indices(resolved.entry.size)
            length = max(0, stop - offset)
            read: ReadResult | BegunRead | HubSpokeError
            try:
                read = self._reader.begin(resolved, offset, length, self._client)
            except HubSpokeError as e:
                read = e
            self._begun.append(_Begun(length, read))
            self._held += length
            begun += 1
            if begun == self._turn:
                begun, self._turn = 0, min(2 * self._turn, TURN_RANGES_MAX)
                await asyncio.sleep(0)

    async def _resolve(self, name: ObjectName) -> Resolved | HubSpokeError:
        try:
            resolved: Resolved | HubSpokeError = await self._reader.resolve(name)
        except HubSpokeError as e:
            resolved = e
        self._resolved[name] = resolved
        return resolved


async def _give_up(result: ReadResult) -> None:
    if isinstance(result.body, FileSpan):
        result.body.release()
    elif not isinstance(result.body, bytes):
        await close(result.body)


class _Out:
    """Records on their way to the client, small ones joined."""

    def __init__(self, send: Send, *, spans: bool, stall_s: float) -> None:
        self._send = send
        self._spans = spans
        self._stall_s = stall_s
        self._joined: list[bytes] = []
        self._joined_bytes = 0

    async def start(self) -> None:
        headers = [(b"content-type", b"application/octet-stream")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def record(self, result: ReadResult | HubSpokeError) -> None:
        if isinstance(result, HubSpokeError):
            error = as_s3_error(result)
            message = error.message.encode("utf-8", "replace")
            await self._add(wire.RANGE_RECORD.pack(error.status, len(message)) + message)
            return
        body = result.body
        if isinstance(body, FileSpan):
            try:
                await self._add(wire.RANGE_RECORD.pack(200, result.length))
                await self._span(body)
            finally:
                body.release()
            return
        await self._add(wire.RANGE_RECORD.pack(200, result.length))
        if isinstance(body, bytes):
            await self._add(body)
            return
        sent = 0
        async for piece in buffers(body):
            sent += len(piece)
            await self._add(piece)
        if sent != result.length:
            # Its length is out already: what is wrong must not look whole.
            raise ReadAborted(f"{result.resolved.name}: {sent} of {result.length} bytes came")

    async def end(self) -> None:
        await self._flush()
        await self._send({"type": "http.response.body", "body": b""})

    async def _span(self, span: FileSpan) -> None:
        if not self._spans or span.length < JOINED_BYTES:
            await self._add(copied(span))
            return
        await self._flush()
        await self._send({"type": EXTENSION, "file": span})

    async def _add(self, data: bytes) -> None:
        self._joined.append(data)
        self._joined_bytes += len(data)
        if self._joined_bytes >= JOINED_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        if not self._joined:
            return
        body, self._joined, self._joined_bytes = b"".join(self._joined), [], 0
        async with asyncio.timeout(self._stall_s):
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
