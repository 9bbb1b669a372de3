"""A trace read again, from an S3 endpoint such as a spoke's data port.

Each recorded client is a connection of its own and reads one thing after the other, as a spoke
tells streams apart by connections. At pace a read starts at its moment, or when the one before it
on its connection has ended, which is told as lag; without pace it starts at once.

Bytes are thrown away as they come. A name without an object is asked for once.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import numpy as np
from yarl import URL

from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.traces.trace import NOT_KNOWN, STATES, Float64, Trace

STATE_HEADER = "x-hubspoke-cache"
READ_S = 60.0  # a read that takes longer has failed
CONNECT_S = 10.0
FAILURES_MAX = 100  # one after the other: the endpoint is gone
NAMED_MAX = 20

_STALE, _MISSING, _FAILED, _NOT_READ = 3, 252, 253, 254  # beside the codes of traces
_CODES = {word: code for code, word in STATES.items()} | {"stale": _STALE}
_WORDS = {code: word for word, code in _CODES.items()} | {NOT_KNOWN: "unknown"}


class ReplayFailed(HubSpokeError):
    """The endpoint cannot be read from."""


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """endpoint: http://HOST:PORT. speed: of the recorded pace, None for as fast as possible.
    connections: at most; clients beyond share them."""

    endpoint: str
    speed: float | None = 1.0
    connections: int = 1_024

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(
                f"--endpoint: {self.endpoint!r}: expected such as http://127.0.0.1:8080"
            )
        if self.speed is not None and not 1e-3 <= self.speed <= 1e6:
            raise ConfigError(f"--speed: {self.speed:g}: expected 0.001 to 1000000")


@dataclass(slots=True)
class Replayed:
    """hit_ratio: of the reads whose state the endpoint told; None without any. latency_ms: to the
    last byte, by state. lag_seconds: the most that a read started after its moment."""

    reads: int = 0
    bytes: int = 0
    seconds: float = 0.0
    hit_requests: int = 0
    late_requests: int = 0
    miss_requests: int = 0
    stale_requests: int = 0
    unknown_requests: int = 0
    hit_ratio: float | None = None
    recorded_hit_ratio: float | None = None
    latency_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    lag_seconds: float = 0.0
    missing_requests: int = 0
    missing_objects: int = 0
    missing: list[str] = field(default_factory=list)  # the first of them
    failed_requests: int = 0
    failure: str | None = None  # the first
    interrupted: bool = False

    def document(self) -> dict[str, Any]:
        return asdict(self)


class Replay:
    """One run on the running loop; each read has a code and a time in arrays."""

    def __init__(self, trace: Trace, config: ReplayConfig) -> None:
        self._trace = trace
        self._config = config
        self._codes = np.full(len(trace), _NOT_READ, np.uint8)
        self._took: Float64 = np.zeros(len(trace))
        self._base = config.endpoint.rstrip("/")
        self._missing: dict[int, None] = {}
        self._failures = 0
        self._bytes = 0
        self.result = Replayed()

    async def run(self) -> Replayed:
        await self._greet()
        loop = asyncio.get_running_loop()
        start = loop.time()
        readers = [asyncio.create_task(self._client(i, start)) for i in self._by_connection()]
        with _interrupting(readers) as interrupted:
            if readers:
                await asyncio.wait(readers, return_when=asyncio.FIRST_EXCEPTION)
            for reader in readers:
                reader.cancel()
            results = await asyncio.gather(*readers, return_exceptions=True)
        self.result.seconds = loop.time() - start
        self.result.interrupted = bool(interrupted)
        for error in results:
            if isinstance(error, Exception):
                raise error
        return self._summed()

    async def _greet(self) -> None:
        """Fail at once if nobody is there."""
        parts = urlsplit(self._base)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(parts.hostname, port)
        except (OSError, TimeoutError) as e:
            raise ReplayFailed(f"{self._base}: cannot be reached: {e or 'no answer'}") from e
        writer.close()

    def _by_connection(self) -> Iterator[list[int]]:
        """The reads of each connection, in order."""
        _, clients = np.unique(self._trace.clients, return_inverse=True)
        connections = clients % self._config.connections
        order = np.argsort(connections, kind="stable")
        bounds = np.flatnonzero(np.diff(connections[order])) + 1
        for part in np.split(order, bounds):
            if len(part):
                yield part.tolist()

    async def _client(self, reads: list[int], start: float) -> None:
        connector = aiohttp.TCPConnector(limit=1)
        timeout = aiohttp.ClientTimeout(total=READ_S, sock_connect=CONNECT_S)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            for i in reads:
                await self._wait(i, start)
                await self._read(session, i)

    async def _wait(self, i: int, start: float) -> None:
        if self._config.speed is None:
            return
        late = asyncio.get_running_loop().time() - start
        late -= float(self._trace.at[i]) / self._config.speed
        if late < 0:
            await asyncio.sleep(-late)
        else:
            self.result.lag_seconds = max(self.result.lag_seconds, late)

    async def _read(self, session: aiohttp.ClientSession, i: int) -> None:
        number = int(self._trace.objects[i])
        if number in self._missing:
            self._codes[i] = _MISSING
            return
        offset, length = int(self._trace.offsets[i]), int(self._trace.lengths[i])
        # As it stands: a key may have dots and slashes that a URL would lose.
        name = quote(self._trace.names[number], safe="/")
        url = URL(f"{self._base}/{name}", encoded=True)
        headers = {"range": f"bytes={offset}-{offset + length - 1}"}
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with session.get(url, headers=headers) as answer:
                got = 0
                async for chunk in answer.content.iter_any():
                    got += len(chunk)
                status, state = answer.status, answer.headers.get(STATE_HEADER)
        except (aiohttp.ClientError, TimeoutError) as e:
            self._failed(i, f"{type(e).__name__} {e}".strip())
            return
        self._took[i] = loop.time() - began
        if status == 404:
            self._missing[number] = None
            self._codes[i] = _MISSING
        elif status not in (200, 206) or got != length:
            self._failed(i, f"answered {status} with {got} bytes")
        else:
            self._codes[i] = _CODES.get(state or "", NOT_KNOWN)
            self._bytes += got
            self._failures = 0

    def _failed(self, i: int, what: str) -> None:
        self._codes[i] = _FAILED
        self._failures += 1
        trace = self._trace
        place = f"{trace.names[trace.objects[i]]} at {trace.offsets[i]}, {trace.lengths[i]} bytes"
        self.result.failure = self.result.failure or f"{place}: {what}"
        if self._failures >= FAILURES_MAX:
            raise ReplayFailed(
                f"{self._base}: {FAILURES_MAX} reads failed one after the other; the first: "
                f"{self.result.failure}"
            )

    def _summed(self) -> Replayed:
        r, counts = self.result, np.bincount(self._codes, minlength=256)
        for code, word in _WORDS.items():
            setattr(r, f"{word}_requests", int(counts[code]))
            if counts[code]:
                r.latency_ms[word] = _latencies(self._took[self._codes == code])
        r.reads = int(sum(counts[code] for code in _WORDS))
        r.bytes = self._bytes
        told = r.reads - r.unknown_requests
        r.hit_ratio = r.hit_requests / told if told else None
        known = self._trace.states[self._trace.states != NOT_KNOWN]
        r.recorded_hit_ratio = float((known == 0).mean()) if len(known) else None
        r.missing_requests = int(counts[_MISSING])
        r.missing_objects = len(self._missing)
        r.missing = [self._trace.names[n] for n in list(self._missing)[:NAMED_MAX]]
        r.failed_requests = int(counts[_FAILED])
        return r


def _latencies(took: Float64) -> dict[str, float]:
    ms = took * 1e3
    quantiles = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    return {name: float(np.percentile(ms, q)) for name, q in quantiles.items()}


@contextmanager
def _interrupting(readers: list[asyncio.Task[None]]) -> Iterator[list[int]]:
    """SIGINT and SIGTERM end the readers; what they have read counts. The list has the signals."""
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        for reader in readers:
            reader.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        with suppress(RuntimeError, ValueError):  # not in the main thread
            loop.add_signal_handler(number, end, number)
    try:
        yield came
    finally:
        for number in numbers:
            with suppress(RuntimeError, ValueError):
                loop.remove_signal_handler(number)


def replay(trace: Trace, config: ReplayConfig) -> Replayed:
    """Read all of the trace again. Raises ReplayFailed."""
    return asyncio.run(Replay(trace, config).run())
