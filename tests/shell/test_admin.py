"""The admin ports over real sockets: status codes, validation, metrics and the offline docs."""

import asyncio
import io
import json
import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from hubspoke.core.hints.samplers import Sampler
from hubspoke.core.ids import ReadState
from hubspoke.core.ledger import Ledger
from hubspoke.errors import HubUnavailable, InvalidRequest, NoSuchBucket, Overloaded
from hubspoke.frontends.admin import SpokeReport, hub_admin_app, spoke_admin_app
from hubspoke.frontends.admin_trace import TraceStream
from hubspoke.frontends.server import HttpServer, address, bind
from hubspoke.report.cost import PriceOverride
from hubspoke.report.facts import CacheFacts, HubFacts, MetadataFacts, SpokeFacts, WanFacts
from hubspoke.spoke.hints import Located, PlanItem

FACTS = SpokeFacts(
    spoke="spoke-1",
    region="us-west-2",
    hub_region="us-east-2",
    model="rules: no model yet",
    wan=WanFacts(3 << 30, 1 << 30, 0, 2 << 30, {"demand": 1 << 30}, 60.5, None, 2 << 30),
    cache=CacheFacts(10, 100, 1, 1, 0, 10, 0),
    metadata=MetadataFacts(5, 6, 4, 0.5, "valid", None),
    prefetch_in_flight_bytes=0,
    runway_seconds=None,
    full_copy_bytes=None,
)


class FixedClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def unix_ns(self) -> int:
        return int((1_700_000_000 + self.seconds) * 1_000_000_000)


class FixedHints:
    """Nobody posts any."""

    async def plan(
        self, job: str, items: list[PlanItem], *, append: bool, ttl_s: float, window: int
    ) -> dict[str, Any]:
        return {"job": job, "items": len(items)}

    async def sampler(
        self, job: str, sampler: Sampler, located: Located, *, ttl_s: float, window: int
    ) -> dict[str, Any]:
        return {"job": job, "items": sampler.n}

    def held(self) -> dict[str, Any]:
        return {"hints": [], "dropped": []}

    def drop(self, job: str | None) -> int:
        return 0


class FixedCache:
    """Warm jobs that never move."""

    def __init__(self) -> None:
        self.started: list[tuple[object, ...]] = []
        self.refusal: Exception | None = None

    async def usage(self, prefix: str, after: str, limit: int) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        return {"prefix": prefix, "entries": [], "truncated": False, "next": None, "limit": limit}

    async def start(
        self, action: str, paths: list[str], *, force: bool = False, threads: int | None = None
    ) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        self.started.append((action, paths, force, threads))
        return {"id": f"w{len(self.started)}", "state": "matching"}

    def jobs(self) -> list[dict[str, Any]]:
        return [{"id": "w1"}]

    def job(self, job_id: str) -> dict[str, Any] | None:
        return {"id": "w1", "paths": []} if job_id == "w1" else None

    async def cancel(self, job_id: str) -> dict[str, Any] | None:
        return {"id": "w1", "state": "cancelled"} if job_id == "w1" else None


class FixedRecorders:
    """What is recorded; without an end if it is told so, until `let_go`."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.pieces = [b"hstr", b"ace1"]
        self.endless = b""
        self.let_go = asyncio.Event()

    def record(self) -> AsyncGenerator[bytes, None]:
        if self.refusal is not None:
            raise self.refusal
        return self._pieces()

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            for piece in self.pieces:
                yield piece
            while self.endless:
                yield self.endless
                await asyncio.sleep(0)
        finally:
            self.let_go.set()


class FixedSpoke:
    def __init__(self, clock: FixedClock) -> None:
        self.clock = clock
        self.ledger = Ledger(clock.now(), clock.unix_ns())
        self.reasons: list[str] = []
        self.current = FACTS
        self.warm = FixedCache()
        self.hints = FixedHints()
        self.recorders = FixedRecorders()

    async def facts(self) -> SpokeFacts:
        return self.current

    def ready(self) -> list[str]:
        return self.reasons

    def streams(self) -> list[dict[str, Any]]:
        return [{"object": "data/tokens.bin", "kind": "sequential"}]

    def data_sets(self) -> list[dict[str, Any]]:
        return [{"folder": "data/", "jobs": []}]

    def token_files(self) -> list[dict[str, Any]]:
        return [{"object": "data/tokens.bin", "order": None}]

    def model(self) -> dict[str, Any]:
        return {"model": "rules: of a test", "columns": [], "scored": [], "outcomes": []}

    def reset_stats(self) -> None:
        self.ledger.reset(self.clock.now(), self.clock.unix_ns())


class FixedHub:
    reasons: list[str]
    limited: list[str]

    def __init__(self) -> None:
        self.reasons, self.limited = [], []

    def facts(self) -> HubFacts:
        return HubFacts(
            "us-east-2", "e1", 7, 3, ["spoke-1"], {"GetObject": 5}, 100, 200, self.limited,
            {"a link to nothing": 2}, {"a link to nothing": ["/store/a"]},
        )  # fmt: skip

    def ready(self) -> list[str]:
        return self.reasons

    def limits(self) -> list[str]:
        return self.limited


class Client:
    """One server's admin port."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(text) if is_json else text

    async def delete(self, path: str) -> tuple[int, Any]:
        async with self.session.delete(self.url + path) as answer:
            return answer.status, await answer.json()

    async def post(
        self, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        headers = {"content-type": content_type}
        async with self.session.post(self.url + path, data=body, headers=headers) as answer:
            return answer.status, await answer.json()


async def serve(app: Any) -> AsyncIterator[Client]:
    sock = bind("127.0.0.1", 0, "--admin")
    server = HttpServer(app, sock, "--admin")
    await server.start()
    async with aiohttp.ClientSession() as session:
        yield Client(session, f"http://{address(sock)}")
    await server.stop()


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def spoke(clock: FixedClock) -> FixedSpoke:
    return FixedSpoke(clock)


@pytest.fixture
async def client(spoke: FixedSpoke, clock: FixedClock) -> AsyncIterator[Client]:
    async for client in serve(spoke_admin_app(SpokeReport(spoke, clock, PriceOverride(0.5, 0.25)))):
        yield client


async def test_health_and_readiness_are_apart(client: Client, spoke: FixedSpoke) -> None:
    assert await client.get("/healthz") == (200, {"status": "ok"})
    assert await client.get("/readyz") == (200, {"ready": True, "reasons": []})
    spoke.reasons = ["the hub at http://127.0.0.1:7070 cannot be reached"]
    assert (await client.get("/healthz"))[0] == 200
    assert await client.get("/readyz") == (503, {"ready": False, "reasons": spoke.reasons})


async def test_report_has_the_spokes_numbers(client: Client, spoke: FixedSpoke) -> None:
    spoke.ledger.read(ReadState.HIT, 4096, 0, None, 0.001, 0.0, 101.0)
    status, report = await client.get("/v1/report")
    assert status == 200
    assert report["schema"] == 1
    assert report["reads"]["hit_ratio"] == 1.0
    assert report["cost"]["usd"] == pytest.approx(3 * 0.5 + 1 * 0.25)


async def test_streams_are_shown(client: Client) -> None:
    status, document = await client.get("/v1/streams")
    assert status == 200
    assert document["streams"][0]["object"] == "data/tokens.bin"
    assert document["data_sets"][0]["folder"] == "data/"
    assert document["token_files"] == [{"object": "data/tokens.bin", "order": None}]


async def test_a_job_posts_its_meter(client: Client, clock: FixedClock) -> None:
    post = b'{"samples": 48, "compute_seconds": 1.9, "wait_seconds": 0.1}'
    assert (await client.post("/v1/jobs/llm", post))[0] == 200
    clock.seconds += 2.0
    status, entry = await client.post("/v1/jobs/llm", post)
    assert status == 200
    assert entry["utilisation"] == pytest.approx(0.95)
    assert entry["samples_per_second"] == pytest.approx(24.0)
    (job,) = (await client.get("/v1/report"))[1]["jobs"]
    assert job == entry


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"samples": -1, "compute_seconds": 1, "wait_seconds": 0}', "samples"),
        (b'{"samples": 1, "compute_seconds": NaN, "wait_seconds": 0}', "compute_seconds"),
        (b'{"samples": 1, "compute_seconds": 1, "wait_seconds": Infinity}', "wait_seconds"),
        (b'{"samples": 1e308, "compute_seconds": 1, "wait_seconds": 0}', "samples"),
        (b'{"samples": 1, "compute_seconds": 1e13, "wait_seconds": 0}', "compute_seconds"),
        (b'{"samples": true, "compute_seconds": 1, "wait_seconds": 0}', "samples"),
        (b'{"samples": "1", "compute_seconds": 1, "wait_seconds": 0}', "samples"),
        (b'{"samples": 1, "compute_seconds": 1}', "wait_seconds"),
        (b'{"samples": 1, "compute_seconds": 1, "wait_seconds": 0, "loss": 2}', "loss"),
        (b"[]", "body"),
        (b"", "body"),
    ],
)
async def test_a_wrong_meter_names_the_field(client: Client, body: bytes, field: str) -> None:
    status, document = await client.post("/v1/jobs/llm", body)
    assert status == 422
    assert [d["field"] for d in document["detail"]] == [field]
    assert (await client.get("/v1/report"))[1]["jobs"] == []


async def test_what_is_no_json_is_422(client: Client) -> None:
    status, document = await client.post("/v1/jobs/llm", b"{nonsense")
    assert status == 422
    assert document["detail"][0]["message"]


async def test_another_content_type_is_named_with_the_right_one(client: Client) -> None:
    post = b'{"samples": 1, "compute_seconds": 1, "wait_seconds": 0}'
    form = "application/x-www-form-urlencoded"  # what curl -d sends
    status, document = await client.post("/v1/jobs/llm", post, form)
    (detail,) = document["detail"]
    assert (status, detail["field"]) == (422, "content-type")
    assert detail["message"].startswith(f"{form}: expected application/json")
    assert (await client.get("/v1/report"))[1]["jobs"] == []


async def test_a_jobs_name_is_printable_and_short(client: Client) -> None:
    post = b'{"samples": 1, "compute_seconds": 1, "wait_seconds": 0}'
    assert (await client.post("/v1/jobs/" + "x" * 129, post))[0] == 422
    assert (await client.post("/v1/jobs/a%0Ab", post))[0] == 422


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_beyond_a_mebibyte_is_413_before_it_is_read(
    client: Client, declared: bool
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(2000):
            yield b" " * 1024

    data = io.BytesIO(b" " * (2 << 20)) if declared else chunks()
    with suppress(aiohttp.ClientConnectionError):
        async with client.session.post(client.url + "/v1/jobs/llm", data=data) as answer:
            assert (answer.status, "1048576" in await answer.text()) == (413, True)
    assert (await client.get("/v1/report"))[1]["jobs"] == []


async def test_too_many_jobs_are_429(client: Client) -> None:
    post = b'{"samples": 1, "compute_seconds": 1, "wait_seconds": 0}'
    for i in range(256):
        assert (await client.post(f"/v1/jobs/job-{i}", post))[0] == 200
    status, document = await client.post("/v1/jobs/one-more", post)
    assert status == 429
    assert "256 jobs" in document["detail"]


async def test_reset_starts_the_report_from_zero(
    client: Client, spoke: FixedSpoke, clock: FixedClock
) -> None:
    spoke.ledger.read(ReadState.HIT, 4096, 0, None, 0.001, 0.0, 101.0)
    await client.post("/v1/jobs/llm", b'{"samples": 1, "compute_seconds": 1, "wait_seconds": 0}')
    clock.seconds = 200.0
    status, document = await client.post("/v1/reset-stats")
    assert (status, document) == (200, {"since": "2023-11-14T22:16:40.000Z"})
    report = (await client.get("/v1/report"))[1]
    assert (report["reads"]["requests"], report["jobs"], report["seconds"]) == (0, [], 0.0)


async def test_metrics_agree_with_the_report(client: Client, spoke: FixedSpoke) -> None:
    spoke.ledger.read(ReadState.HIT, 4096, 0, None, 0.0003, 0.0, 101.0)
    spoke.ledger.read(ReadState.MISS, 4096, 4096, "cold_start", 0.061, 0.06, 101.0)
    await client.post("/v1/jobs/llm", b'{"samples": 1, "compute_seconds": 3, "wait_seconds": 1}')
    status, text = await client.get("/metrics")
    assert status == 200
    for line in (
        'hubspoke_read_requests_total{state="miss"} 1.0',
        'hubspoke_misses_total{cause="cold_start"} 1.0',
        'hubspoke_read_latency_seconds_bucket{le="0.0005",state="hit"} 1.0',
        'hubspoke_read_latency_seconds_bucket{le="+Inf",state="miss"} 1.0',
        'hubspoke_wan_received_bytes_total{class="demand"} 1.073741824e+09',
        "hubspoke_wan_rtt_seconds 0.0605",
        'hubspoke_job_utilisation{job="llm"} 0.75',
        "hubspoke_metadata_lease_valid 1.0",
        "hubspoke_ready 1.0",
    ):
        assert line in text.splitlines(), line
    # Unknown in the report: no sample, never a made-up 0.
    assert "\nhubspoke_wan_bandwidth_bytes_per_second " not in text


async def test_metrics_survive_a_spoke_that_knows_nothing_yet(
    client: Client, spoke: FixedSpoke
) -> None:
    metadata = MetadataFacts(0, None, 0, None, "none", None)
    wan = replace(FACTS.wan, rtt_ms=None, retransmitted_bytes=None, received_by_class={})
    spoke.current = replace(FACTS, region="", hub_region="", wan=wan, metadata=metadata)
    status, text = await client.get("/metrics")
    assert status == 200
    assert "hubspoke_metadata_lease_valid 0.0" in text.splitlines()


async def test_a_warm_job_is_started_shown_and_cancelled(client: Client, spoke: FixedSpoke) -> None:
    status, job = await client.post("/v1/warm", b'{"paths": ["data/train"]}')
    assert (status, job) == (202, {"id": "w1", "state": "matching"})
    body = b'{"paths": ["a", "b/*"], "action": "evict", "force": true, "threads": 3}'
    assert (await client.post("/v1/warm", body))[0] == 202
    assert spoke.warm.started == [
        ("warm", ["data/train"], False, None),
        ("evict", ["a", "b/*"], True, 3),
    ]
    assert await client.get("/v1/warm") == (200, {"jobs": [{"id": "w1"}]})
    assert await client.get("/v1/warm/w1") == (200, {"id": "w1", "paths": []})
    assert await client.delete("/v1/warm/w1") == (200, {"id": "w1", "state": "cancelled"})
    for ask in (client.get, client.delete):
        assert await ask("/v1/warm/w2") == (404, {"detail": "w2: no such job"})
        assert (await ask("/v1/warm/other"))[0] == 422


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"paths": []}', "paths"),
        (b'{"paths": "data"}', "paths"),
        (b'{"paths": [1]}', "paths.0"),
        (b'{"paths": ["data"], "action": "drop"}', "action"),
        (b'{"paths": ["data"], "threads": 0}', "threads"),
        (b'{"paths": ["data"], "wait": true}', "wait"),
        (b"{}", "paths"),
    ],
)
async def test_a_wrong_warm_job_names_the_field(
    client: Client, spoke: FixedSpoke, body: bytes, field: str
) -> None:
    status, document = await client.post("/v1/warm", body)
    assert status == 422
    assert [d["field"] for d in document["detail"]] == [field]
    assert spoke.warm.started == []


async def test_what_the_cache_refuses_has_its_status(client: Client, spoke: FixedSpoke) -> None:
    post = b'{"paths": ["data/[a"]}'
    spoke.warm.refusal = InvalidRequest("'data/[a': no")
    status, document = await client.post("/v1/warm", post)
    assert (status, document) == (
        422, {"detail": [{"field": "paths", "message": "'data/[a': no"}]}
    )  # fmt: skip
    spoke.warm.refusal = Overloaded("16 warm jobs are running")
    assert (await client.post("/v1/warm", post))[0] == 429
    assert (await client.get("/v1/cache"))[0] == 429
    spoke.warm.refusal = NoSuchBucket("nothing: no such bucket")
    assert (await client.get("/v1/cache?prefix=nothing/"))[0] == 404
    spoke.warm.refusal = HubUnavailable("snapshot 3 % loaded")
    assert await client.get("/v1/cache") == (503, {"detail": "snapshot 3 % loaded"})


async def test_the_caches_content_is_asked_by_prefix(client: Client) -> None:
    status, document = await client.get("/v1/cache?prefix=data%2Fa&limit=7")
    assert (status, document["prefix"], document["limit"]) == (200, "data/a", 7)
    assert (await client.get("/v1/cache?limit=1001"))[0] == 422


async def test_the_api_is_described(client: Client) -> None:
    status, document = await client.get("/openapi.json")
    assert status == 200
    assert set(document["paths"]) == {
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/report",
        "/v1/model",
        "/v1/streams",
        "/v1/jobs/{name}",
        "/v1/reset-stats",
        "/v1/warm",
        "/v1/warm/{job_id}",
        "/v1/hints",
        "/v1/hints/{job}",
        "/v1/cache",
        "/v1/trace",
    }


async def test_the_hubs_port_shows_what_it_serves() -> None:
    hub = FixedHub()
    async for client in serve(hub_admin_app(hub)):
        assert await client.get("/healthz") == (200, {"status": "ok"})
        hub.reasons = ["indexing the store: 12 objects so far"]
        assert (await client.get("/readyz"))[0] == 503
        status, document = await client.get("/v1/status")
        assert (status, document["objects"], document["spokes"]) == (200, 3, ["spoke-1"])
        text = (await client.get("/metrics"))[1]
        assert 'hubspoke_hub_requests_total{operation="GetObject"} 5.0' in text.splitlines()
        assert "hubspoke_ready 0.0" in text.splitlines()
        assert document["skipped_examples"] == {"a link to nothing": ["/store/a"]}
        assert 'hubspoke_hub_skipped_names{reason="a link to nothing"} 2.0' in text.splitlines()
        assert "hubspoke_hub_writable 1.0" in text.splitlines()
        assert document["watch"]["mode"] == "starting"
        assert 'hubspoke_hub_watch_mode{mode="starting"} 1.0' in text.splitlines()
        assert 'hubspoke_hub_watch_mode{mode="rescan"} 0.0' in text.splitlines()
        assert "hubspoke_hub_list_requests_total 0.0" in text.splitlines()


async def test_a_hub_that_cannot_write_stays_ready_and_says_so() -> None:
    hub = FixedHub()
    async for client in serve(hub_admin_app(hub)):
        hub.limited = ["writes are impossible, the log cannot be written: No space left on device"]
        told = {"ready": True, "reasons": hub.limited, "watch": "starting"}
        assert await client.get("/readyz") == (200, told)
        assert "hubspoke_hub_writable 0.0" in (await client.get("/metrics"))[1].splitlines()


async def test_docs_are_local_files(client: Client) -> None:
    status, page = await client.get("/docs")
    assert status == 200
    assert "http://" not in page and "https://" not in page
    for asset in ("docs.css", "docs.js"):
        status, text = await client.get(f"/docs/{asset}")
        assert status == 200
        assert "http://" not in text and "https://" not in text
    assert (await client.get("/docs/../admin.py"))[0] == 404
    assert (await client.get("/docs/%2e%2e%2fadmin.py"))[0] == 404


CHROMIUM = shutil.which("chromium")
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--virtual-time-budget=5000",
    "--dump-dom",
]


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
async def test_docs_render_in_a_browser_that_reaches_no_other_host(client: Client) -> None:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as profile:
        browser = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *CHROMIUM_FLAGS,
            f"--user-data-dir={profile}",
            client.url + "/docs",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        out, _ = await asyncio.wait_for(browser.communicate(), 60)
    page = out.decode()
    assert "/v1/jobs/{name}" in page
    assert "A job's own meter" in page


def test_a_taken_port_is_one_line_with_port_and_flag() -> None:
    with bind("127.0.0.1", 0, "--listen") as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Exception, match=rf"^--admin: '127\.0\.0\.1:{port}': another process"):
            bind("127.0.0.1", port, "--admin")


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(Exception, match=r"^--listen: '192\.0\.2\.1:80': cannot be bound"):
        bind("192.0.2.1", 80, "--listen")


async def test_a_drained_server_logs_nothing_alarming(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await client.get("/healthz"))[0] == 200
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_a_trace_is_streamed_as_it_comes(client: Client) -> None:
    async with client.session.get(client.url + "/v1/trace") as answer:
        assert answer.status == 200
        assert answer.content_type == "application/vnd.hubspoke.trace"
        assert await answer.read() == b"hstrace1"


async def test_a_recorder_too_many_is_429(client: Client, spoke: FixedSpoke) -> None:
    spoke.recorders.refusal = Overloaded("4 recorders are at work, at most 4 may")
    assert await client.get("/v1/trace") == (429, {"detail": str(spoke.recorders.refusal)})


async def test_a_recorder_that_goes_is_let_go(client: Client, spoke: FixedSpoke) -> None:
    spoke.recorders.endless = b"x"
    async with client.session.get(client.url + "/v1/trace") as answer:
        await answer.content.readexactly(100)
        answer.close()
    async with asyncio.timeout(10):
        await spoke.recorders.let_go.wait()


async def test_a_recorder_that_takes_nothing_is_given_up(
    spoke: FixedSpoke,
) -> None:
    """By a real server: its buffers are full, and its recorder's are."""
    spoke.recorders.endless = bytes(1 << 20)
    stream = TraceStream(spoke.recorders.record(), stall_s=0.2)
    async for client in serve(stream):
        async with client.session.get(client.url + "/v1/trace"), asyncio.timeout(10):
            await spoke.recorders.let_go.wait()
