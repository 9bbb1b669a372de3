"""A replay against an endpoint that answers as it is told."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from hubspoke.errors import ConfigError
from hubspoke.traces import replay as module
from hubspoke.traces.replay import Replay, ReplayConfig, Replayed, ReplayFailed
from hubspoke.traces.trace import Trace

from .samples import trace

SIZE = 100_000


class Endpoint:
    """Objects of SIZE bytes; by connection what was asked for, in order."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: dict[object, list[tuple[str, str]]] = defaultdict(list)
        self.states = ["miss", "late", "hit", "stale", None]
        self.answer: Callable[[web.BaseRequest], web.Response | None] = lambda request: None
        self.open = 0
        self.most_open = 0
        self.pause = asyncio.Event()
        self.pause.set()

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        raw = request.raw_path
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        self.asked[peer].append((raw, request.headers["range"]))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await self.pause.wait()
        await asyncio.sleep(0)
        self.open -= 1
        if (answer := self.answer(request)) is not None:
            return answer
        first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
        state = self.states[sum(map(len, self.asked.values())) % len(self.states)]
        headers = {} if state is None else {"x-hubspoke-cache": state}
        return web.Response(status=206, body=bytes(last + 1 - first), headers=headers)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    server = web.Server(endpoint)
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    endpoint.url = f"http://{host}:{port}"
    yield endpoint
    await runner.cleanup()


def some(reads: int, clients: int, every_us: int = 1_000, name: str = "b/a") -> Trace:
    return trace(
        [(name, SIZE)],
        [(every_us * i, 0, 10 * i, 10 + i, i % clients, 2 * (i % 2)) for i in range(reads)],
    )


async def replayed(endpoint: Endpoint, t: Trace, **options: float | None) -> Replayed:
    async with asyncio.timeout(30):
        return await Replay(t, ReplayConfig(endpoint.url, **options)).run()  # type: ignore[arg-type]


async def test_each_client_is_a_connection_and_keeps_its_order(endpoint: Endpoint) -> None:
    found = await replayed(endpoint, some(40, clients=4), speed=None)
    assert sorted(endpoint.asked.values()) == sorted(
        [("/b/a", f"bytes={10 * i}-{11 * i + 9}") for i in range(c, 40, 4)] for c in range(4)
    )
    assert 1 < endpoint.most_open <= 4
    assert (found.reads, found.bytes) == (40, sum(10 + i for i in range(40)))
    by_state = [getattr(found, f"{w}_requests") for w in ("hit", "late", "miss", "stale")]
    assert by_state == [8, 8, 8, 8] and found.unknown_requests == 8
    assert found.hit_ratio == 8 / 32 and found.recorded_hit_ratio == 0.5
    assert set(found.latency_ms) == {"hit", "late", "miss", "stale", "unknown"}
    for latencies in found.latency_ms.values():
        assert 0 < latencies["p50"] <= latencies["p99"] <= latencies["max"]


async def test_clients_beyond_the_connections_share_them(endpoint: Endpoint) -> None:
    found = await replayed(endpoint, some(60, clients=30), speed=None, connections=3)
    assert (found.reads, len(endpoint.asked)) == (60, 3)


async def test_reads_come_at_their_pace(endpoint: Endpoint) -> None:
    t = some(5, clients=5, every_us=100_000)
    assert (await replayed(endpoint, t)).seconds >= 0.4
    assert (await replayed(endpoint, t, speed=2.0)).seconds >= 0.2


async def test_a_client_that_waits_is_behind_and_says_so(endpoint: Endpoint) -> None:
    endpoint.pause.clear()
    asyncio.get_running_loop().call_later(0.3, endpoint.pause.set)
    found = await replayed(endpoint, some(2, clients=1))
    assert found.lag_seconds > 0.2


async def test_names_are_asked_for_exactly(endpoint: Endpoint) -> None:
    t = some(1, 1, name="b/é /../x//%2e?#")
    await replayed(endpoint, t)
    ((asked,),) = endpoint.asked.values()
    assert asked[0] == "/b/%C3%A9%20/../x//%252e%3F%23"


async def test_an_object_that_is_missing_is_asked_for_once_and_told(endpoint: Endpoint) -> None:
    endpoint.answer = lambda r: web.Response(status=404) if r.path == "/b/gone" else None
    t = trace([("b/a", 100), ("b/gone", 100)], [(i, i % 2, 0, 10, 0, 255) for i in range(10)])
    found = await replayed(endpoint, t, speed=None)
    assert (found.reads, found.missing_requests, found.missing_objects) == (5, 5, 1)
    assert found.missing == ["b/gone"] and found.recorded_hit_ratio is None
    assert sum(path == "/b/gone" for path, _ in next(iter(endpoint.asked.values()))) == 1


async def test_reads_that_fail_are_counted_and_the_first_is_told(endpoint: Endpoint) -> None:
    def answer(request: web.BaseRequest) -> web.Response | None:
        match request.headers["range"]:
            case "bytes=10-20":
                return web.Response(status=503)
            case "bytes=20-31":
                return web.Response(status=206, body=b"short")
            case "bytes=30-42":
                assert request.transport is not None
                request.transport.close()
        return None

    endpoint.answer = answer
    found = await replayed(endpoint, some(6, clients=1), speed=None)
    assert (found.reads, found.failed_requests) == (3, 3)
    assert found.failure == "b/a at 10, 11 bytes: answered 503 with 0 bytes"


async def test_an_endpoint_that_only_fails_is_given_up(endpoint: Endpoint) -> None:
    endpoint.answer = lambda request: web.Response(status=500)
    with pytest.raises(ReplayFailed, match="100 reads failed one after the other; the first: b/a"):
        await replayed(endpoint, some(5_000, clients=3), speed=None)
    assert sum(map(len, endpoint.asked.values())) < 110


async def test_nobody_there_is_told_at_once(endpoint: Endpoint) -> None:
    endpoint.url = "http://127.0.0.1:1"
    with pytest.raises(ReplayFailed, match=r"http://127\.0\.0\.1:1: cannot be reached"):
        await replayed(endpoint, some(1, 1))


async def test_a_read_that_hangs_fails(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_S", 0.2)
    endpoint.pause.clear()
    found = await replayed(endpoint, some(1, 1))
    assert found.failed_requests == 1 and "Timeout" in str(found.failure)
    endpoint.pause.set()


async def test_a_trace_without_reads(endpoint: Endpoint) -> None:
    assert (await replayed(endpoint, some(0, 1))).reads == 0


@pytest.mark.parametrize(
    ("endpoint", "speed", "what"),
    [
        ("127.0.0.1:8080", 1.0, "--endpoint: '127.0.0.1:8080': expected such as http://"),
        ("http://host/bucket", 1.0, "--endpoint"),
        ("http://host", 0.0, "--speed: 0: expected 0.001 to 1000000"),
        ("http://host", float("nan"), "--speed: nan"),
    ],
)
def test_wrong_settings_are_told(endpoint: str, speed: float, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        ReplayConfig(endpoint, speed)
