"""The spoke's connections to its hub, over aiohttp.

Each lane is exactly one connection (fetch_lane.py), so that the scheduler's idea of a lane's window
is about one TCP connection; control messages (lease, snapshot) and the feed have connections of
their own, so that they never wait behind bulk bytes.

Traffic is counted where it cannot be missed, by the kernel: TCP_INFO of each connection, read
at the end of each use and whenever somebody asks.
"""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import zstandard
from aiohttp.connector import AddrInfoType

from hubspoke import wire
from hubspoke.adapters.fetch_answers import Answer
from hubspoke.adapters.fetch_lane import LaneProtocol, take
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
# Handed on together at most: each batch costs a task switch and a hop to a thread of the disk,
# 0.1 ms. The ends of ranges come behind it.
BATCH_BYTES = 2 << 20
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


class _Counted:
    """What the kernel counted on a connection, from its first byte on."""

    def __init__(self, counters: dict[str, int]) -> None:
        self._socket: Any = None  # the transport's own; typed by tcp_info.HasSockopt
        self._seen = TcpInfo(0, 0, 0)
        self._counters = counters

    def count(self, sock: Any) -> None:
        """The connection is made anew."""
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


class _Lane(_Counted):
    """One connection for fetches, made when it is needed and again when it is lost."""

    def __init__(self, url: str, counters: dict[str, int], connect_s: float) -> None:
        super().__init__(counters)
        parts = urlsplit(url)
        if parts.hostname is None:
            raise ValueError(f"{url}: no host")
        self._host = parts.hostname
        self._port = parts.port or 80
        self._netloc = parts.netloc
        self._path = parts.path
        self._connect_s = connect_s
        self._protocol: LaneProtocol | None = None
        self._connecting = asyncio.Lock()
        self.traffic_class = TrafficClass.PREFETCH.value

    async def protocol(self) -> LaneProtocol:
        """The live connection. Raises OSError, TimeoutError."""
        async with self._connecting:
            if self._protocol is None or self._protocol.transport is None:
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(self._connect_s):
                    _, self._protocol = await loop.create_connection(
                        LaneProtocol, self._host, self._port
                    )
                assert self._protocol.transport is not None
                self.count(self._protocol.transport.get_extra_info("socket"))
            return self._protocol

    def post(self, path: str, body: bytes) -> bytes:
        """A whole request."""
        head = f"POST {self._path}{path} HTTP/1.1\r\nHost: {self._netloc}\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.fail(HubUnavailable("the link is closed"))


class _Connection(_Counted):
    """One session with one kept connection."""

    def __init__(self, counters: dict[str, int]) -> None:
        super().__init__(counters)
        self._session: aiohttp.ClientSession | None = None

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
        self.count(sock)
        return sock

    def using(self, response: aiohttp.ClientResponse) -> None:
        """The response came over this socket: of several tried addresses, the one that is used."""
        connection = response.connection
        transport = connection.transport if connection is not None else None
        sock = transport.get_extra_info("socket") if transport is not None else None
        # By number: uvloop hands out an object of its own for the same socket.
        if sock is not None and (self._socket is None or sock.fileno() != self._socket.fileno()):
            self.count(sock)

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
        connect_s = self._config.connect_s
        self._lanes = [_Lane(self._base, self._counts, connect_s) for _ in range(lanes)]
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

        Raises HubUnavailable, DeadlineExceeded.
        """
        with map_errors(_FOREIGN, f"connecting to {self.url}"):
            await asyncio.gather(*(lane.protocol() for lane in self._lanes))

    async def fetch(
        self,
        lane: int,
        request: wire.FetchRequest,
        on_frames: Callable[[Sequence[wire.Frame]], Awaitable[None]],
        on_range: Callable[[int, HubSpokeError | None], None],
    ) -> None:
        """See ports.HubLink. Ends when the last range has ended."""
        connection = self._lanes[lane]
        what = f"fetch {request.number} of {len(request.ranges)} ranges from {self.url}"
        with map_errors(_FOREIGN, what):
            protocol = await connection.protocol()
        answer = Answer(len(request.ranges))
        protocol.ask(connection.post("fetch", wire.encode(request)), answer)
        try:
            while frames := await take(protocol, answer, self._config.stall_s):
                connection.traffic_class = request.traffic_class
                batch: list[wire.Frame] = []
                ends: list[wire.Frame] = []
                bytes_ = 0
                for frame in frames:
                    header, payload = frame
                    if header.kind != wire.FRAME_DATA:
                        ends.append(frame)
                        continue
                    batch.append(_data(request, header, payload))
                    bytes_ += header.length
                    if bytes_ >= BATCH_BYTES:
                        await on_frames(batch)
                        batch, bytes_ = [], 0
                if batch:
                    await on_frames(batch)
                for header, payload in ends:
                    on_range(header.range_index, _range_error(request, header, payload))
        except HubSpokeError as e:
            raise type(e)(f"{what}: {e}") from e
        finally:
            protocol.done(answer)
            connection.sample(request.traffic_class)

    async def lease(self, request: wire.LeaseRequest) -> wire.LeaseReply:
        """Raises HubUnavailable, DeadlineExceeded, FormatError."""
        reply = await self._ask("lease", request)
        if not isinstance(reply, wire.LeaseReply):
            raise FormatError(f"lease answered with {type(reply).__name__}")
        return reply

    async def read_index(self, request: wire.ReadIndexRequest) -> wire.ReadIndexReply:
        """Raises HubUnavailable, DeadlineExceeded, FormatError."""
        reply = await self._ask("read-index", request)
        if not isinstance(reply, wire.ReadIndexReply):
            raise FormatError(f"read index answered with {type(reply).__name__}")
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

    async def feed(
        self, epoch: str, after: int, incarnation: str = ""
    ) -> AsyncIterator[wire.Message]:
        """The change feed after a sequence number of a history, until the connection ends."""
        path = (
            f"feed?epoch={quote(epoch)}&after={after}&incarnation={quote(incarnation)}"
            f"&spoke={quote(self.spoke_id)}"
        )
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
        for lane in self._lanes:
            lane.sample(lane.traffic_class)
        for c in (*self._control, self._snapshot, self._feed):
            c.sample(TrafficClass.METADATA.value)
        n = self._counts
        by_class = {c.value: n[c.value] for c in TrafficClass}
        return LinkCounters(n["received"], n["sent"], n["retransmitted"], by_class)

    async def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        for c in (*self._control, self._snapshot, self._feed):
            await c.close()


async def _expect_ok(response: aiohttp.ClientResponse, what: str) -> None:
    if response.status != 200:
        told = (await response.content.read(500)).decode("utf-8", "replace")
        raise HubUnavailable(f"{what}: status {response.status}: {told}")


def _data(request: wire.FetchRequest, header: wire.FrameHeader, payload: bytes) -> wire.Frame:
    """A data frame, unpacked. Raises FormatError."""
    if header.range_index >= len(request.ranges):
        raise FormatError(f"frame for range {header.range_index}, not asked for")
    if header.flags & wire.FLAG_ZSTD:
        payload = _decompress(payload, header.length)
    return header, payload


def _range_error(
    request: wire.FetchRequest, header: wire.FrameHeader, payload: bytes
) -> HubSpokeError | None:
    """What the end of a range says. Raises FormatError if it ends none of the request's."""
    if header.range_index >= len(request.ranges):
        raise FormatError(f"end of range {header.range_index}, which was not asked for")
    if header.kind == wire.FRAME_DONE:
        return None
    r = request.ranges[header.range_index]
    o = request.objects[r.object]
    cls = _RANGE_ERRORS.get(header.length, StoreUnavailable)
    return cls(f"{o.bucket}/{o.key} at {r.offset}+{r.length}: {payload.decode('utf-8', 'replace')}")


def _decompress(payload: bytes, length: int) -> bytes:
    try:
        data = zstandard.ZstdDecompressor().decompress(payload, max_output_size=length)
    except zstandard.ZstdError as e:
        raise FormatError(f"compressed frame of {len(payload)} bytes: {e}") from e
    return data
