"""The admin port: health, metrics, the report and a job's own meter, as JSON over HTTP.

Decides status codes and validates what comes in; the numbers come from the spoke or the hub
behind it. It must never wait for the hub or the disk: every answer is made from memory. Warm jobs
and the cache's content are in admin_cache.py, hints in admin_hints.py, recording in
admin_trace.py.

/docs is a page of our own (docs/), a table of contents with a send button. FastAPI's would load
swagger-ui from a CDN, which a spoke inside a private network cannot reach; the packages that
bring swagger-ui along are wrappers by single authors around 1.5 MB of script, for nine operations.
"""

import json
import logging
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field

import hubspoke
from hubspoke.core.ids import ReadState
from hubspoke.core.jobs import AMOUNT_MAX, JobMeters
from hubspoke.core.ledger import Ledger
from hubspoke.errors import Overloaded
from hubspoke.frontends.admin_cache import CacheView, cache_router
from hubspoke.frontends.admin_hints import HintsView, hints_router
from hubspoke.frontends.admin_trace import TraceView, trace_router
from hubspoke.frontends.body_limit import BodyLimit
from hubspoke.ports import Clock
from hubspoke.report.cost import PriceOverride, prices_for
from hubspoke.report.facts import HubFacts, SpokeFacts
from hubspoke.report.metrics import CONTENT_TYPE, hub_metrics, spoke_metrics
from hubspoke.report.report import build_report, finite, job_section, rfc3339

log = logging.getLogger(__name__)

# The page and its script come from here and talk to here; the browser refuses anything else.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)
_ASSETS = {"docs.css": "text/css", "docs.js": "text/javascript"}


class SpokeView(Protocol):
    """What the spoke's admin port needs to see of the service."""

    @property
    def ledger(self) -> Ledger: ...
    async def facts(self) -> SpokeFacts: ...
    def ready(self) -> list[str]: ...  # reasons why not
    def streams(self) -> list[dict[str, Any]]: ...
    def data_sets(self) -> list[dict[str, Any]]: ...
    def token_files(self) -> list[dict[str, Any]]: ...
    def model(self) -> dict[str, Any]: ...
    def reset_stats(self) -> None: ...
    @property
    def warm(self) -> CacheView: ...
    @property
    def hints(self) -> HintsView: ...
    @property
    def recorders(self) -> TraceView: ...


class HubView(Protocol):
    """What the hub's admin port needs to see of the service."""

    def facts(self) -> HubFacts: ...
    def ready(self) -> list[str]: ...  # reasons why not
    def limits(self) -> list[str]: ...  # what it cannot do while it serves


Amount = Annotated[float, Field(ge=0, le=AMOUNT_MAX, allow_inf_nan=False, strict=True)]


class JobPost(BaseModel):
    """What a job did since its last post."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"samples": 24, "compute_seconds": 1, "wait_seconds": 0}]},
    )

    samples: Annotated[Amount, Field(description="samples trained on since the last post")]
    compute_seconds: Annotated[Amount, Field(description="seconds of compute since then")]
    wait_seconds: Annotated[Amount, Field(description="seconds of waiting for data since then")]


def json_bytes(document: Any) -> bytes:
    """Indented, for people; what JSON does not have is null."""
    return (json.dumps(finite(document), indent=2) + "\n").encode()


def _json(document: Any, status: int = 200) -> Response:
    """Not FastAPI's encoder: it walks a report of 1,000 windows for 6.6 ms of the loop that
    serves reads, before the same JSON (1.2 ms) is made."""
    try:
        body = json.dumps(document, allow_nan=False, separators=(",", ":"))
    except ValueError:  # one number that is none must not take the whole report away
        log.warning("a number that JSON does not have is shown as null")
        body = json.dumps(finite(document), allow_nan=False, separators=(",", ":"))
    return Response(body, status, media_type="application/json")


def _readiness(reasons: list[str], limits: list[str] | None = None, **more: str) -> Response:
    """limits: told too, but 200 all the same, or a probe would take the whole hub from its spokes
    because nothing can be written."""
    document = {"ready": not reasons, "reasons": [*reasons, *(limits or [])], **more}
    return _json(document, 503 if reasons else 200)


def _invalid(request: Request, error: Exception) -> Response:
    """422 naming each wrong field. What was sent is not echoed: it may be no JSON (NaN).

    A body of another type than JSON is refused, not guessed at: a page of another site can make a
    browser post one without asking, JSON it cannot. curl's -d sends such a type, so it is named.
    """
    assert isinstance(error, RequestValidationError)
    sent = request.headers.get("content-type", "")
    if sent and "json" not in sent and any(e["loc"] == ("body",) for e in error.errors()):
        message = f"{sent[:100]}: expected application/json (curl --json '{{...}}')"
        return _json({"detail": [{"field": "content-type", "message": message}]}, 422)
    detail = [
        {"field": ".".join(map(str, e["loc"][1:])) or str(e["loc"][0]), "message": e["msg"]}
        for e in error.errors()
    ]
    return _json({"detail": detail}, 422)


def _app(title: str, description: str) -> FastAPI:
    """An application with the documentation page and /healthz."""
    app = FastAPI(
        title=title,
        description=description,
        version=hubspoke.__version__,
        docs_url=None,
        redoc_url=None,
    )
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(BodyLimit)
    folder = files("hubspoke.frontends").joinpath("docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        page = folder.joinpath("docs.html").read_bytes()
        headers = {"content-security-policy": _POLICY}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    @app.get("/docs/{name}", include_in_schema=False)
    async def docs_asset(name: str) -> Response:
        if name not in _ASSETS:
            return _json({"detail": "Not Found"}, 404)
        return Response(folder.joinpath(name).read_bytes(), media_type=_ASSETS[name])

    @app.get("/healthz", summary="The process is alive")
    async def healthz() -> Response:
        return _json({"status": "ok"})

    return app


_READYZ: Mapping[int | str, dict[str, Any]] = {
    200: {"description": "serving"},
    503: {"description": "not serving; `reasons` says why"},
}
_METRICS: Mapping[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text format", "content": {"text/plain": {}}}
}


class SpokeReport:
    """The report of one spoke, for all who show it. price: what `--price` said, None to use the
    table."""

    def __init__(self, spoke: SpokeView, clock: Clock, price: PriceOverride | None) -> None:
        self.spoke = spoke
        self.clock = clock
        self.jobs = JobMeters()
        self._price = price

    async def document(self) -> dict[str, Any]:
        """As it is now."""
        facts = await self.spoke.facts()
        prices = prices_for(facts.hub_region, facts.region, self._price)
        ledger, now, unix_ns = self.spoke.ledger, self.clock.now(), self.clock.unix_ns()
        return build_report(ledger, facts, self.jobs.jobs(), prices, now, unix_ns)

    def streams(self) -> dict[str, Any]:
        """What is believed of streams and data sets, and known by plans that jobs have posted."""
        plans = self.spoke.hints.held()
        found = {"streams": self.spoke.streams(), "data_sets": self.spoke.data_sets()}
        found |= {"token_files": self.spoke.token_files()}
        return found | {"hints": plans["hints"], "dropped_hints": plans["dropped"]}


def spoke_admin_app(source: SpokeReport) -> FastAPI:
    """The spoke's admin port."""
    app = _app("HubSpoke spoke", "A spoke: its health, its report, and a training job's meter.")
    spoke, clock, jobs, report = source.spoke, source.clock, source.jobs, source.document

    @app.get("/readyz", summary="Serving, or the reasons why not", responses=dict(_READYZ))
    async def readyz() -> Response:
        return _readiness(spoke.ready())

    @app.get("/metrics", summary="For Prometheus", responses=dict(_METRICS))
    async def metrics() -> Response:
        text = spoke_metrics(await report(), spoke.ledger.latency, not spoke.ready())
        return Response(text, media_type=CONTENT_TYPE)

    @app.get("/v1/report", summary="Hit ratio, warm-up, latency, WAN bytes and money")
    async def report_() -> Response:
        return _json(await report())

    @app.get("/v1/streams", summary="Access streams found, and what is predicted for them")
    async def streams() -> Response:
        return _json(source.streams())

    @app.get("/v1/model", summary="What ranks predictions: features, probabilities, outcomes")
    async def model() -> Response:
        return _json(spoke.model())

    @app.post(
        "/v1/jobs/{name}",
        summary="A job's own meter: what it did since its last post",
        responses={429: {"description": "too many jobs"}, 422: {"description": "a wrong field"}},
    )
    async def job(
        name: Annotated[str, Path(pattern=r"^[!-~]{1,128}$", description="the job's name")],
        post: JobPost,
    ) -> Response:
        ledger = spoke.ledger
        try:
            posted = jobs.post(
                name,
                samples=post.samples,
                compute_s=post.compute_seconds,
                wait_s=post.wait_seconds,
                now=clock.now(),
                reads=(ledger.requests[ReadState.HIT], ledger.requests_total),
            )
        except Overloaded as e:
            return _json({"detail": str(e)}, 429)
        return _json(job_section(posted))

    @app.post("/v1/reset-stats", summary="Start every counter of the report again from zero")
    async def reset_stats() -> Response:
        spoke.reset_stats()
        jobs.reset()
        return _json({"since": rfc3339(spoke.ledger.since_unix_ns)})

    app.include_router(cache_router(spoke.warm))
    app.include_router(hints_router(spoke.hints))
    app.include_router(trace_router(spoke.recorders))
    return app


def hub_admin_app(hub: HubView) -> FastAPI:
    """The hub's admin port."""
    app = _app("HubSpoke hub", "A hub: its health and what it serves.")

    @app.get("/readyz", summary="Serving, or the reasons why not", responses=dict(_READYZ))
    async def readyz() -> Response:
        return _readiness(hub.ready(), hub.limits(), watch=hub.facts().watch.text())

    @app.get("/metrics", summary="For Prometheus", responses=dict(_METRICS))
    async def metrics() -> Response:
        return Response(hub_metrics(hub.facts(), not hub.ready()), media_type=CONTENT_TYPE)

    @app.get("/v1/status", summary="Objects, log, spokes, requests and bytes")
    async def status() -> Response:
        return _json(hub.facts().document())

    return app
