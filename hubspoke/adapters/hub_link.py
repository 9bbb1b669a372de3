"""The spoke's connections to its hub, over aiohttp.

Each lane is a client session that keeps exactly one connection, so that the scheduler's idea of
a lane's window is about one TCP connection; control messages (lease, snapshot) and the feed have
connections of their own, so that they never wait behind bulk bytes.

Traffic is counted where it cannot be missed, by the kernel: TCP_INFO of each connection, read
at the end of each use and whenever somebody asks.
"""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import zstandard
from aiohttp.connector import AddrInfoType

from hubspoke import wire
from hubspoke.adapters.tcp_info import TcpInfo, tcp_info
from hubspoke.core.ids import TrafficClass
from hubspoke.errors import (
    DeadlineExceeded,
    FormatError,
    HubSpokeError,
    HubUnavailable,
    InvalidRange,
    NoSuchKey,
    StoreUnavailable,
    VersionChanged,
    map_errors,
)
from hubspoke.ports import LinkCounters

READ_BUFFER_BYTES = 1 << 20
# Lease rounds at once: with two, an overwrite among eight at a time took 94 ms at 60 ms of round
# trip, with four 66 ms (bench/overwrite.py).
CONTROL_CONNECTIONS = 4
_FOREIGN: dict[type[Exception], type[HubSpokeError]] = {
    TimeoutError: DeadlineExceeded,
    aiohttp.ClientError: HubUnavailable,
    asyncio.IncompleteReadError: HubUnavailable,
    OSError: HubUnavailable,
}
_RANGE_ERRORS: dict[int, type[HubSpokeError]] = {
    wire.ERROR_CHANGED: VersionChanged,
    wire.ERROR_GONE: NoSuchKey,
    wire.ERROR_STORE: StoreUnavailable,
    wire.ERROR_RANGE: InvalidRange,
    wire.ERROR_CANCELLED: HubUnavailable,
}


@dataclass(frozen=True, slots=True)
class LinkConfig:
    connect_s: float = 5.0
    # Without a byte for this long a fetch is given up; at 900 ms of round trip a lost segment
    # takes about 3 s to be repaired.
    stall_s: float = 10.0
    control_s: float = 5.0
    # The feed has a heartbeat each second; three lost ones and the connection is made anew.
    feed_silence_s: float = 4.0


class _Connection:
    """One session with one kept connection, and what the kernel counted on it."""

    def __init__(self, counters: dict[str, int]) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._socket: Any = None  # the transport's own; typed by tcp_info.HasSockopt
        self._seen = TcpInfo(0, 0, 0)
        self._counters = counters

    def session(self, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=1,
                keepalive_timeout=3600.0,
                family=socket.AF_UNSPEC,
                socket_factory=self._open,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                read_bufsize=READ_BUFFER_BYTES,
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            )
        return self._session

    def _open(self, address: AddrInfoType) -> socket.socket:
        """A socket that is counted from its first byte on.

        A response cannot always say which socket it came over: a small one is complete, and its
        connection given back, before anybody can ask.
        """
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        self._socket, self._seen = sock, TcpInfo(0, 0, 0)
        return sock

    def using(self, response: aiohttp.ClientResponse) -> None:
        """The response came over this socket: of several tried addresses, the one that is used."""
        connection = response.connection
        transport = connection.transport if connection is not None else None
        sock = transport.get_extra_info("socket") if transport is not None else None
        # By number: uvloop hands out an object of its own for the same socket.
        if sock is not None and (self._socket is None or sock.fileno() != self._socket.fileno()):
            self._socket, self._seen = sock, TcpInfo(0, 0, 0)

    def sample(self, traffic_class: str) -> None:
        """Account what went over the socket since the last sample."""
        now = tcp_info(self._socket) if self._socket is not None else None
        if now is None:
            return
        before, self._seen = self._seen, now
        counters = self._counters
        counters["received"] += now.received - before.received
        counters["sent"] += now.sent - before.sent
        counters["retransmitted"] += now.retransmitted - before.retransmitted
        counters[traffic_class] += now.received - before.received

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class AiohttpHubLink:
    """ports.HubLink to one hub."""

    def __init__(
        self, url: str, spoke_id: str, lanes: int, config: LinkConfig | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.spoke_id = spoke_id
        self._config = config or LinkConfig()
        self._base = self.url + wire.PREFIX
        names = ("received", "sent", "retransmitted", *(c.value for c in TrafficClass))
        self._counts = dict.fromkeys(names, 0)
        self._lanes = [_Connection(self._counts) for _ in range(lanes)]
        self._lane_class = [TrafficClass.PREFETCH.value] * lanes
        # In turns: an acknowledgement must not wait for the round that is under way.
        self._control = deque(_Connection(self._counts) for _ in range(CONTROL_CONNECTIONS))
        self._snapshot = _Connection(self._counts)
        self._feed = _Connection(self._counts)

    def _timeout(self, *, total: float | None = None, silence: float) -> aiohttp.ClientTimeout:
        c = self._config
        return aiohttp.ClientTimeout(
            total=total, connect=None, sock_connect=c.connect_s, sock_read=silence
        )

    async def connect(self) -> None:
        """Open every lane's connection, so that the first reads do not pay for handshakes.

        A cancel of nothing is the smallest request there is. Raises HubUnavailable.
        """
        timeout = self._timeout(silence=self._config.stall_s)
        request = wire.encode(wire.CancelRequest(self.spoke_id, 0))

        async def open_one(lane: _Connection) -> None:
            session = lane.session(timeout)
            async with session.post(self._base + "cancel", data=request) as response:
                lane.using(response)
                await response.read()
                lane.sample(TrafficClass.METADATA.value)

        with map_errors(_FOREIGN, f"connecting to {self.url}"):
            await asyncio.gather(*(open_one(lane) for lane in self._lanes))

    async def fetch(
        self,
        lane: int,
        request: wire.FetchRequest,
        on_frame: Callable[[wire.FrameHeader, bytes], Awaitable[None]],
        on_range: Callable[[int, HubSpokeError | None], None],
    ) -> None:
        """See ports.HubLink. Ends when the last range has ended."""
        connection = self._lanes[lane]
        self._lane_class[lane] = request.traffic_class
        what = f"fetch {request.number} of {len(request.ranges)} ranges from {self.url}"
        timeout = self._timeout(silence=self._config.stall_s)
        with map_errors(_FOREIGN, what):
            session = connection.session(timeout)
            async with session.post(self._base + "fetch", data=wire.encode(request)) as response:
                connection.using(response)
                try:
                    await _expect_ok(response, what)
                    await self._frames(response, request, on_frame, on_range)
                finally:
                    connection.sample(request.traffic_class)

    async def _frames(
        self,
        response: aiohttp.ClientResponse,
        request: wire.FetchRequest,
        on_frame: Callable[[wire.FrameHeader, bytes], Awaitable[None]],
        on_range: Callable[[int, HubSpokeError | None], None],
    ) -> None:
        read = response.content.readexactly
        left = len(request.ranges)
        while left:
            header = wire.unpack_frame(await read(wire.FRAME_HEADER.size))
            if header.range_index >= len(request.ranges):
                raise FormatError(f"frame for range {header.range_index} that was not asked for")
            payload = await read(header.payload_bytes) if header.payload_bytes else b""
            if header.kind == wire.FRAME_DATA:
                if header.flags & wire.FLAG_ZSTD:
                    payload = _decompress(payload, header.length)
                await on_frame(header, payload)
                continue
            left -= 1
            error = None
            if header.kind == wire.FRAME_ERROR:
                r = request.ranges[header.range_index]
                o = request.objects[r.object]
                cls = _RANGE_ERRORS.get(header.length, StoreUnavailable)
                told = payload.decode("utf-8", "replace")
                error = cls(f"{o.bucket}/{o.key} at {r.offset}+{r.length}: {told}")
            on_range(header.range_index, error)
        # The stream has nothing after the last range; reading its end gives the connection back.
        if await response.content.read(1):
            raise FormatError("bytes after the last range of a fetch")

    async def lease(self, request: wire.LeaseRequest) -> wire.LeaseReply:
        """Raises HubUnavailable, DeadlineExceeded, FormatError."""
        reply = await self._ask("lease", request)
        if not isinstance(reply, wire.LeaseReply):
            raise FormatError(f"lease answered with {type(reply).__name__}")
        return reply

    async def _ask(self, path: str, request: wire.Message) -> wire.Message:
        c = self._config
        what = f"{path} at {self.url}"
        timeout = self._timeout(total=c.control_s, silence=c.control_s)
        connection = self._control[0]
        self._control.rotate(-1)
        with map_errors(_FOREIGN, what):
            session = connection.session(timeout)
            async with session.post(self._base + path, data=wire.encode(request)) as response:
                connection.using(response)
                await _expect_ok(response, what)
                body = await response.read()
                connection.sample(TrafficClass.METADATA.value)
        return wire.decode(body)

    async def snapshot(self) -> AsyncIterator[wire.Message]:
        """SnapshotStart, batches, SnapshotEnd. Raises HubUnavailable, FormatError."""
        zstd = zstandard.ZstdDecompressor()
        async for body in self._messages(
            "snapshot", self._snapshot, self._config.stall_s, "snapshot"
        ):
            try:
                plain = zstd.decompress(body, max_output_size=4 * wire.MESSAGE_BYTES_MAX)
            except zstandard.ZstdError as e:
                raise FormatError(f"snapshot message of {len(body)} bytes: {e}") from e
            yield wire.decode(plain)

    async def feed(self, epoch: str, after: int) -> AsyncIterator[wire.Message]:
        """The change feed after a sequence number, until the connection ends."""
        path = f"feed?epoch={quote(epoch)}&after={after}&spoke={quote(self.spoke_id)}"
        silence = self._config.feed_silence_s
        async for body in self._messages(path, self._feed, silence, "feed"):
            yield wire.decode(body)

    async def _messages(
        self, path: str, connection: _Connection, silence: float, what: str
    ) -> AsyncIterator[bytes]:
        what = f"{what} of {self.url}"
        with map_errors(_FOREIGN, what):
            session = connection.session(self._timeout(silence=silence))
            async with session.get(self._base + path) as response:
                connection.using(response)
                await _expect_ok(response, what)
                content = response.content
                try:
                    while True:
                        try:
                            head = await content.readexactly(4)
                        except asyncio.IncompleteReadError as e:
                            if not e.partial:
                                return
                            raise
                        yield await content.readexactly(wire.message_length(head))
                        connection.sample(TrafficClass.METADATA.value)
                finally:
                    connection.sample(TrafficClass.METADATA.value)

    def counters(self) -> LinkCounters:
        for lane, traffic_class in zip(self._lanes, self._lane_class, strict=True):
            lane.sample(traffic_class)
        for c in (*self._control, self._snapshot, self._feed):
            c.sample(TrafficClass.METADATA.value)
        n = self._counts
        by_class = {c.value: n[c.value] for c in TrafficClass}
        return LinkCounters(n["received"], n["sent"], n["retransmitted"], by_class)

    async def close(self) -> None:
        for c in (*self._lanes, *self._control, self._snapshot, self._feed):
            await c.close()


async def _expect_ok(response: aiohttp.ClientResponse, what: str) -> None:
    if response.status != 200:
        told = (await response.content.read(500)).decode("utf-8", "replace")
        raise HubUnavailable(f"{what}: status {response.status}: {told}")


def _decompress(payload: bytes, length: int) -> bytes:
    try:
        data = zstandard.ZstdDecompressor().decompress(payload, max_output_size=length)
    except zstandard.ZstdError as e:
        raise FormatError(f"compressed frame of {len(payload)} bytes: {e}") from e
    return data
