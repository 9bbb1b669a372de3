"""The admin port's door for hints: what jobs say that they will read.

Decides status codes and validates what can be seen without the names; objects and ranges are
checked by the spoke. An answer never waits for the hub.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, Self

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hubspoke.core.hints.book import (
    ITEMS_PER_POST_MAX,
    TTL_DEFAULT_S,
    TTL_MAX_S,
    WINDOW_DEFAULT,
    WINDOW_MAX,
)
from hubspoke.core.hints.samplers import Sampler
from hubspoke.errors import (
    HubSpokeError,
    HubUnavailable,
    InvalidField,
    NoSuchKey,
    Overloaded,
    PlansFull,
    PrefetchOff,
    TooLarge,
)
from hubspoke.spoke.hints import Located, PlanItem

RETRY_S = 1.0
NUMBER_MAX = 2**63 - 1


class HintsView(Protocol):
    """What the admin port needs to see of a spoke's hints."""

    async def plan(
        self, job: str, items: list[PlanItem], *, append: bool, ttl_s: float, window: int
    ) -> dict[str, Any]: ...
    async def sampler(
        self, job: str, sampler: Sampler, located: Located, *, ttl_s: float, window: int
    ) -> dict[str, Any]: ...
    def held(self) -> dict[str, Any]: ...
    def drop(self, job: str | None) -> int: ...


ObjectPath = Annotated[str, Field(min_length=3, max_length=1_100, description="BUCKET/KEY")]
Whole = Annotated[int, Field(strict=True, ge=-NUMBER_MAX, le=NUMBER_MAX)]
Count = Annotated[int, Field(strict=True, ge=1, le=NUMBER_MAX)]
_FORBID = ConfigDict(extra="forbid")


class PlanItemPost(BaseModel):
    """One read to come."""

    model_config = _FORBID

    object: ObjectPath
    ranges: Annotated[
        list[tuple[Whole, Whole]] | None,
        Field(min_length=1, description="[[offset, length], ...] in bytes; the whole if not set"),
    ] = None
    deadline: Annotated[
        float | None,
        Field(
            ge=0, le=TTL_MAX_S, allow_inf_nan=False, description="seconds from now until the read"
        ),
    ] = None


class SamplerPost(BaseModel):
    """A sampler whose order can be computed, and where its items are: one of prefix, object."""

    model_config = _FORBID

    kind: Literal[
        "torch.RandomSampler",
        "torch.DistributedSampler",
        "transformers.Trainer",
        "dlio",
        "webdataset",
        "numpy.permutation",
        "sequential",
    ]
    n: Annotated[Count, Field(description="items")]
    seed: Annotated[Whole, Field(description="what the generator is seeded with, plus the epoch")]
    epoch: Annotated[int, Field(strict=True, ge=0, le=2**31)] = 0
    world: Annotated[int, Field(strict=True, ge=1, le=2**20, description="ranks")] = 1
    rank: Annotated[
        int | None, Field(strict=True, ge=0, description="all ranks in turn if not set")
    ] = None
    batch: Annotated[int, Field(strict=True, ge=1, le=2**31, description="of one rank")] = 1
    drop_last: bool = False
    replacement: bool = False
    prefix: Annotated[
        str | None,
        Field(max_length=1_100, description="BUCKET/PREFIX: item i is the i-th name below it"),
    ] = None
    object: Annotated[
        ObjectPath | None, Field(description="item i is the i-th record of this object")
    ] = None
    record: Annotated[
        Count | None, Field(description="bytes of a record; items are whole objects if not set")
    ] = None

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if (self.prefix is None) == (self.object is None):
            raise ValueError("one of prefix and object says where the items are")
        if self.object is not None and self.record is None:
            raise ValueError("object needs record, the bytes of one item")
        return self


class HintsPost(BaseModel):
    """What a job will read: a plan, or a sampler."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"job": "train", "plan": ["data/a.jpg", {"object": "data/b", "ranges": [[0, 9]]}]}
            ]
        },
    )

    job: Annotated[
        str, Field(pattern=r"^[!-.0-~]{1,128}$", description="another post replaces its plan")
    ] = "default"
    plan: Annotated[
        list[ObjectPath | PlanItemPost] | None,
        Field(description="reads in order: a name is the whole object"),
    ] = None
    sampler: SamplerPost | None = None
    append: Annotated[
        bool, Field(description="behind the job's plan, not in its place; for a plan")
    ] = False
    ttl: Annotated[
        float,
        Field(
            gt=0,
            le=TTL_MAX_S,
            allow_inf_nan=False,
            description="seconds without a read or a post after which it is dropped",
        ),
    ] = TTL_DEFAULT_S
    window: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=WINDOW_MAX,
            description="places by which reads may be out of order: ranks x workers x batch",
        ),
    ] = WINDOW_DEFAULT

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.plan is None) == (self.sampler is None):
            raise ValueError("one of plan and sampler")
        if self.sampler is not None and self.append:
            raise ValueError("append is for a plan: a sampler's order is whole")
        return self


_POST: Mapping[int | str, dict[str, Any]] = {
    200: {"description": "held; objects that do not exist are left out and named in `unknown`"},
    404: {"description": "none of the objects exists"},
    409: {"description": "the spoke runs with --prefetch off"},
    413: {"description": "more than is ever held, or more in one post than is taken"},
    422: {"description": "a wrong field; nothing is held of the post"},
    429: {"description": "no more is held now: again after Retry-After seconds"},
    503: {"description": "the names are not known yet: again after Retry-After seconds"},
}
_DROP: Mapping[int | str, dict[str, Any]] = {
    200: {"description": "dropped"},
    404: {"description": "the job has no plan"},
}
Job = Annotated[str, Path(pattern=r"^[!-.0-~]{1,128}$", description="the job's name")]


def _json(document: Any, status: int = 200, retry_s: float | None = None) -> Response:
    body = json.dumps(document, allow_nan=False, separators=(",", ":"))
    headers = None if retry_s is None else {"retry-after": str(math.ceil(retry_s))}
    return Response(body, status, headers, media_type="application/json")


def _refused(error: HubSpokeError) -> Response:
    match error:
        case InvalidField():
            return _json({"detail": [{"field": error.field, "message": str(error)}]}, 422)
        case NoSuchKey():
            return _json({"detail": str(error)}, 404)
        case PrefetchOff():
            return _json({"detail": str(error)}, 409)
        case TooLarge():
            return _json({"detail": str(error)}, 413)
        case PlansFull():
            return _json({"detail": str(error)}, 429, error.retry_after_s)
        case Overloaded():
            return _json({"detail": str(error)}, 429, RETRY_S)
        case HubUnavailable():
            return _json({"detail": str(error)}, 503, RETRY_S)
        case _:
            raise error


def _item(posted: str | PlanItemPost) -> PlanItem:
    if isinstance(posted, str):
        return PlanItem(posted)
    return PlanItem(posted.object, posted.ranges, posted.deadline)


def _reads(posted: str | PlanItemPost) -> int:
    return 1 if isinstance(posted, str) or posted.ranges is None else len(posted.ranges)


def hints_router(hints: HintsView) -> APIRouter:
    """Routes below /v1/hints."""
    router = APIRouter()

    @router.post(
        "/v1/hints",
        summary="What a job will read, in order: fetched ahead of it, and kept for it",
        responses=dict(_POST),
    )
    async def post(post: HintsPost) -> Response:
        try:
            if post.plan is not None:
                reads = sum(map(_reads, post.plan))
                if reads > ITEMS_PER_POST_MAX:
                    raise TooLarge(
                        f"{reads:,} reads: at most {ITEMS_PER_POST_MAX:,} in one post, and more "
                        "with append"
                    )
                items = [_item(i) for i in post.plan]
                return _json(
                    await hints.plan(
                        post.job, items, append=post.append, ttl_s=post.ttl, window=post.window
                    )
                )
            s = post.sampler
            assert s is not None
            sampler = Sampler(
                s.kind, s.n, s.seed, s.epoch, s.world, s.rank, s.batch, s.drop_last, s.replacement
            )
            located = Located(s.prefix or s.object or "", s.prefix is not None, s.record)
            return _json(
                await hints.sampler(post.job, sampler, located, ttl_s=post.ttl, window=post.window)
            )
        except HubSpokeError as e:
            return _refused(e)

    @router.get(
        "/v1/hints", summary="Plans that are held, how far they were read, and dropped ones"
    )
    async def held() -> Response:
        return _json(hints.held())

    @router.delete("/v1/hints", summary="Drop all plans; what is cached stays")
    async def drop_all() -> Response:
        return _json({"dropped": hints.drop(None)})

    @router.delete("/v1/hints/{job}", summary="Drop a job's plan", responses=dict(_DROP))
    async def drop(job: Job) -> Response:
        dropped = hints.drop(job)
        if not dropped:
            return _json({"detail": f"{job}: no plan of this job"}, 404)
        return _json({"dropped": dropped})

    return router
