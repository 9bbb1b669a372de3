"""The admin port's doors to the cache: warm jobs, and how much of what is cached.

Decides status codes and validates what comes in. Jobs run in the spoke; an answer says how far
they are and never waits for them. Counting names takes slices of the loop, within a bound.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from hubspoke.core.selection import PATHS_MAX
from hubspoke.errors import HubUnavailable, InvalidRequest, NoSuchBucket, Overloaded

ENTRIES_MAX = 1_000


class CacheView(Protocol):
    """What the admin port needs to see of a spoke's cache and its warm jobs."""

    async def usage(self, prefix: str, after: str, limit: int) -> dict[str, Any]: ...
    async def start(
        self,
        action: Literal["warm", "check", "evict"],
        paths: list[str],
        *,
        force: bool = False,
        threads: int | None = None,
    ) -> dict[str, Any]: ...
    def jobs(self) -> list[dict[str, Any]]: ...
    def job(self, job_id: str) -> dict[str, Any] | None: ...
    async def cancel(self, job_id: str) -> dict[str, Any] | None: ...


class WarmPost(BaseModel):
    """What to bring into the cache, to count in it, or to drop from it."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"paths": ["data/train/*.bin"]}]}
    )

    paths: Annotated[
        list[str],
        Field(
            min_length=1,
            max_length=PATHS_MAX,
            description="BUCKET, BUCKET/KEY (an object, or all below it) or a pattern with * ? [] "
            "inside a segment and ** for any number of segments",
        ),
    ]
    action: Annotated[
        Literal["warm", "check", "evict"],
        Field(description="bring what is missing, count what is cached, drop what is not in use"),
    ] = "warm"
    force: Annotated[
        bool, Field(description="bring as much as fits and drop data that is still to be read")
    ] = False
    threads: Annotated[
        int | None,
        Field(ge=1, le=1024, description="pieces asked for at a time; as many as help if not set"),
    ] = None


_START: Mapping[int | str, dict[str, Any]] = {
    202: {"description": "started; the job as it is now"},
    422: {"description": "a wrong field, or a path that makes no sense"},
    429: {"description": "too many jobs are running"},
}
_JOB: Mapping[int | str, dict[str, Any]] = {
    200: {"description": "the job"},
    404: {"description": "no such job, or forgotten: the last 64 that have ended are kept"},
}
_USAGE: Mapping[int | str, dict[str, Any]] = {
    200: {"description": "entries in order of names; `truncated` with `next` to go on from"},
    404: {"description": "no such bucket"},
    429: {"description": "too many of these are being answered"},
    503: {"description": "the names are not known yet"},
}
JobId = Annotated[str, Path(pattern=r"^w[0-9]{1,18}$", description="as POST /v1/warm gave it")]


def _json(document: Any, status: int = 200) -> Response:
    body = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return Response(body, status, media_type="application/json")


def _missing(job_id: str) -> Response:
    return _json({"detail": f"{job_id}: no such job"}, 404)


def cache_router(cache: CacheView) -> APIRouter:
    """Routes below /v1 for warm jobs and the cache's content."""
    router = APIRouter()

    @router.post(
        "/v1/warm",
        status_code=202,
        summary="Bring objects into the cache, count them in it, or drop them from it",
        responses=dict(_START),
    )
    async def start(post: WarmPost) -> Response:
        try:
            job = await cache.start(post.action, post.paths, force=post.force, threads=post.threads)
        except InvalidRequest as e:
            return _json({"detail": [{"field": "paths", "message": str(e)}]}, 422)
        except Overloaded as e:
            return _json({"detail": str(e)}, 429)
        return _json(job, 202)

    @router.get("/v1/warm", summary="Warm jobs, newest first")
    async def jobs() -> Response:
        return _json({"jobs": cache.jobs()})

    @router.get("/v1/warm/{job_id}", summary="A warm job, with each path", responses=dict(_JOB))
    async def job(job_id: JobId) -> Response:
        found = cache.job(job_id)
        return _missing(job_id) if found is None else _json(found)

    @router.delete(
        "/v1/warm/{job_id}",
        summary="Cancel a warm job; what has arrived stays",
        responses=dict(_JOB),
    )
    async def cancel(job_id: JobId) -> Response:
        found = await cache.cancel(job_id)
        return _missing(job_id) if found is None else _json(found)

    @router.get(
        "/v1/cache",
        summary="Objects, bytes and cached bytes below each sub-prefix",
        responses=dict(_USAGE),
    )
    async def usage(
        prefix: Annotated[str, Query(max_length=1100, description="BUCKET/PREFIX")] = "",
        after: Annotated[str, Query(max_length=1100, description="`next` of an answer")] = "",
        limit: Annotated[int, Query(ge=1, le=ENTRIES_MAX, description="entries")] = 100,
    ) -> Response:
        try:
            return _json(await cache.usage(prefix, after, limit))
        except NoSuchBucket as e:
            return _json({"detail": str(e)}, 404)
        except InvalidRequest as e:
            return _json({"detail": [{"field": "after", "message": str(e)}]}, 422)
        except Overloaded as e:
            return _json({"detail": str(e)}, 429)
        except HubUnavailable as e:
            return _json({"detail": str(e)}, 503)

    return router
