"""Takes the plans that jobs post: finds their objects, checks every range, and tells the core.

A post is worked on a slice at a time between reads, and one post after the other, so that what a
job appends comes in its order. What is wrong is said before anything is held.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.records import packed
from hubspoke.core.hints.book import SAMPLER_ITEMS_MAX, HintedRange
from hubspoke.core.hints.hints import Hints
from hubspoke.core.hints.plan import PLACE_BYTES
from hubspoke.core.hints.samplers import Sampler
from hubspoke.core.hints.table import ITEM_BYTES
from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.errors import (
    HubUnavailable,
    InvalidField,
    InvalidRequest,
    NoSuchKey,
    Overloaded,
    PrefetchOff,
    TooLarge,
)
from hubspoke.ports import Clock, NamespaceStore
from hubspoke.spoke.follower import Follower

SLICE = 256  # names looked up, or ranges handed on, before readers get their turn
WAITING_MAX = 16  # posts
UNKNOWN_SHOWN_MAX = 100
LOOK_AGAIN_MAX_S = 60.0


class PlanItem(NamedTuple):
    """One read as it was posted. ranges: (offset, length), None: the whole object. deadline_s: from
    now."""

    object: str
    ranges: Sequence[tuple[int, int]] | None = None
    deadline_s: float | None = None


class Located(NamedTuple):
    """Where a sampler's items are: objects below a prefix or one object, whole or cut in records of
    so many bytes."""

    path: str
    below: bool
    record: int | None


class HintPosts:
    """Touched only on the loop."""

    def __init__(
        self,
        hints: Hints,
        namespace: NamespaceStore,
        follower: Follower,
        clock: Clock,
        predict_soon: Callable[[float], None],
        *,
        prefetch: bool,
    ) -> None:
        self._hints = hints
        self._namespace = namespace
        self._follower = follower
        self._clock = clock
        self._predict_soon = predict_soon
        self._prefetch = prefetch
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._next_look: asyncio.TimerHandle | None = None
        hints.entry = self._entry

    def _entry(self, name: ObjectName) -> ObjectEntry | None:
        record = self._namespace.get(name)
        return None if record is None else record.entry

    def look_again(self, at: float | None) -> None:
        """What a plan wants is asked for at this time, although nobody reads; None: never."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if at is not None:
            delay = min(max(0.0, at - self._clock.now()), LOOK_AGAIN_MAX_S)
            self._next_look = asyncio.get_running_loop().call_later(
                delay, lambda: self._predict_soon(self._clock.now())
            )

    # -- posts --------------------------------------------------------------------------------

    async def plan(
        self, job: str, items: Sequence[PlanItem], *, append: bool, ttl_s: float, window: int
    ) -> dict[str, Any]:
        """Hold an ordered plan. Objects that do not exist are left out and named in the answer.

        Raises InvalidField for a wrong item, NoSuchKey if none of the objects exists, PrefetchOff,
        TooLarge, PlansFull, Overloaded, HubUnavailable while names are not known.
        """
        async with self._turn():
            ranges: list[HintedRange] = []
            unknown: list[dict[str, Any]] = []
            missing = 0
            now = self._clock.now()
            for i, item in enumerate(items):
                if i % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                name = _name(item.object, f"plan.{i}.object")
                entry = self._entry(name)
                if entry is None:
                    missing += 1
                    if len(unknown) < UNKNOWN_SHOWN_MAX:
                        unknown.append(
                            {"index": i, "object": item.object, "message": "no such object"}
                        )
                    continue
                due = None if item.deadline_s is None else now + item.deadline_s
                ranges += _checked(name, entry.size, item.ranges, due, i)
            if missing and missing == len(items):
                raise NoSuchKey(f"{items[0].object}: no such object, nor is any of the plan's")
            await self._hold(job, ranges, append=append, ttl_s=ttl_s, window=window)
            return self._answer(job, len(ranges)) | {"unknown_items": missing, "unknown": unknown}

    async def _hold(
        self, job: str, ranges: list[HintedRange], *, append: bool, ttl_s: float, window: int
    ) -> None:
        memory = sum(len(r.name.key) for r in ranges) + len(ranges) * (ITEM_BYTES + PLACE_BYTES)
        self._hints.book.check(job, len(ranges), memory, append=append)
        for at in range(0, max(1, len(ranges)), SLICE):
            part = ranges[at : at + SLICE]
            self._hints.post(
                job,
                part,
                self._clock.now(),
                append=append or at > 0,
                ttl_s=ttl_s,
                window=window,
            )
            self._predict_soon(self._clock.now())
            await asyncio.sleep(0)

    async def sampler(
        self, job: str, sampler: Sampler, located: Located, *, ttl_s: float, window: int
    ) -> dict[str, Any]:
        """Hold the order that a sampler describes. Raises as `plan`."""
        async with self._turn():
            items = await self._listed(located)
            if items.count != sampler.n:
                what = "objects" if located.record is None else f"records of {located.record:,}"
                raise InvalidField(
                    "sampler.n", f"{sampler.n:,}: {located.path} has {items.count:,} {what}"
                )
            try:
                order = await asyncio.to_thread(sampler.order)
            except InvalidRequest as e:
                raise InvalidField("sampler", str(e)) from e
            now = self._clock.now()
            self._hints.post_order(job, items, order, sampler.kind, now, ttl_s=ttl_s, window=window)
            self._predict_soon(now)
            return self._answer(job, len(order))

    async def _listed(self, located: Located) -> ListedItems:
        field = "sampler.prefix" if located.below else "sampler.object"
        record = None if located.record is None else packed(located.record)
        if located.below:
            bucket, _, prefix = located.path.partition("/")
            if not bucket:
                raise InvalidField(field, f"{located.path!r}: BUCKET or BUCKET/PREFIX")
            listing = _Below(self._namespace, bucket, prefix)
            items = ListedItems((bucket, prefix), listing, record=record)
        else:
            name = _name(located.path, field)
            entry = self._entry(name)
            if entry is None:
                raise NoSuchKey(f"{located.path}: no such object")
            if located.record is not None and located.record > entry.size:
                raise InvalidField(
                    "sampler.record",
                    f"{located.record:,}: {located.path} has {entry.size:,} bytes",
                )
            one = _One(name, entry)
            items = ListedItems((name.bucket, name.key[:-1]), one, record=record)
        while not items.complete:
            items.grow()
            if items.listed > SAMPLER_ITEMS_MAX:
                raise TooLarge(f"{located.path}: more than {SAMPLER_ITEMS_MAX:,} objects")
            await asyncio.sleep(0)
        if items.count > SAMPLER_ITEMS_MAX:
            raise TooLarge(f"{located.path}: {items.count:,} items, at most {SAMPLER_ITEMS_MAX:,}")
        return items

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if not self._prefetch:
            raise PrefetchOff("this spoke runs with --prefetch off: hints would have no effect")
        if not self._follower.complete():
            raise HubUnavailable("; ".join(self._follower.ready()) or "names are being loaded")
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} posts of hints are being worked on: try again soon")
        self._waiting += 1
        try:
            async with self._lock:
                yield
        finally:
            self._waiting -= 1

    def _answer(self, job: str, items: int) -> dict[str, Any]:
        held = self._hints.book.held.get(job)
        left = 0 if held is None else held.plan.left
        return {"job": job, "items": items, "items_left": left}

    # -- what is held -------------------------------------------------------------------------

    def held(self) -> dict[str, Any]:
        """See Book.describe."""
        return self._hints.book.describe(self._clock.now())

    def drop(self, job: str | None) -> int:
        """Hold a job's plan, or all (None), no longer; returns how many were held."""
        book = self._hints.book
        found = [h for h in list(book.held.values()) if job is None or h.job == job]
        for held in found:
            self._hints.drop(held, "deleted")
        self._predict_soon(self._clock.now())
        return len(found)


def _name(text: str, field: str) -> ObjectName:
    bucket, slash, key = text.partition("/")
    if not (bucket and slash and key):
        raise InvalidField(field, f"{text!r}: BUCKET/KEY")
    return ObjectName(bucket, key)


def _checked(
    name: ObjectName,
    size: int,
    ranges: Sequence[tuple[int, int]] | None,
    deadline: float | None,
    index: int,
) -> list[HintedRange]:
    """The ranges of one item, in their order. Raises InvalidField."""
    if ranges is None:
        return [HintedRange(name, 0, size, deadline)] if size else []
    for i, (offset, length) in enumerate(ranges):
        field, given = f"plan.{index}.ranges.{i}", f"[{offset}, {length}] of {name}"
        if offset < 0 or length < 1:
            raise InvalidField(field, f"{given}: [offset, length], from 0 and at least 1 byte")
        if offset + length > size:
            raise InvalidField(
                field, f"{given}: ends at {offset + length:,}, the object at {size:,}"
            )
    ordered = sorted(range(len(ranges)), key=lambda i: ranges[i])
    for a, b in pairwise(ordered):
        if ranges[a][0] + ranges[a][1] > ranges[b][0]:
            raise InvalidField(
                f"plan.{index}.ranges.{b}",
                f"{list(ranges[b])} of {name}: overlaps {list(ranges[a])}; what is read twice is "
                "two items",
            )
    return [HintedRange(name, offset, length, deadline) for offset, length in ranges]


class _Below:
    """core.generators.Listing of all below a prefix, without markers of folders."""

    def __init__(self, namespace: NamespaceStore, bucket: str, prefix: str) -> None:
        self._namespace, self._bucket, self._prefix = namespace, bucket, prefix

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        after = name.key
        while True:
            records = self._namespace.scan(
                self._bucket, prefix=self._prefix, after=after, limit=limit
            )
            found = [
                (r.name, r.entry) for r in records if r.entry.size or not r.name.key.endswith("/")
            ]
            if found or not records:
                return found
            after = records[-1].name.key


class _One:
    """The same of one object."""

    def __init__(self, name: ObjectName, entry: ObjectEntry) -> None:
        self._name, self._entry = name, entry

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        return [(self._name, self._entry)] if name.key < self._name.key else []
