"""Clients: writers at the hub, readers at hub and spokes, each operation noted in the history.

A *round* is what the product promises about: a change that was acknowledged, and then reads of its
name at the spokes; those answered under a live lease are counted.
"""

import asyncio
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from hubspoke.core.ids import ObjectName
from hubspoke.core.namespace import Listed, PageSpan
from hubspoke.errors import (
    HubSpokeError,
    HubUnavailable,
    NoSuchKey,
    PreconditionFailed,
    VersionChanged,
)
from hubspoke.ports import Resolved
from hubspoke.sim.fleet import HubMachine, Machine, SpokeMachine
from hubspoke.sim.history import History, Moment, Operation, Page, Value

BUCKET = "bkt"
READS = ("GET", "HEAD", "LIST")
# A clock may run this much too fast; what it calls a second is no longer than that.
RATE_MAX = 1.0125
GET_TRIES = 3


class Clients:
    """All clients of one run. counts: rounds, and reads by outcome."""

    def __init__(
        self,
        hub: HubMachine,
        spokes: Sequence[SpokeMachine],
        names: Sequence[ObjectName],
        history: History,
        rng: random.Random,
        every_way: bool,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.torn: list[str] = []
        self._hub = hub
        self._spokes = spokes
        self._names = names
        self._history = history
        self._rng = rng
        self._every_way = every_way
        self._rounds: dict[asyncio.Task[None], None] = {}
        self._bodies = itertools.count(1)

    async def write_forever(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            name = self._rng.choice(self._names)
            if await self.write(name):
                # Not waited for: a spoke that is stopped would hold up the writer.
                reads = asyncio.create_task(self._round(name))
                self._rounds[reads] = None
                reads.add_done_callback(self._rounds.pop)

    async def _round(self, name: ObjectName) -> None:
        """Reads that begin after the acknowledgement, at every spoke."""
        reads = [
            self.read(spoke, name, how)
            for spoke in self._spokes
            for how in (READS if self._every_way else (self._rng.choice(READS),))
        ]
        leased = await asyncio.gather(*reads)  # first: other rounds count meanwhile
        self.counts["rounds"] += any(leased)

    async def read_forever(self, machine: Machine, pause_s: float) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            await self.read(machine, self._rng.choice(self._names), self._rng.choice(READS))

    async def write(self, name: ObjectName) -> bool:
        """One PUT, conditional PUT, copy or DELETE. Returns whether it was acknowledged."""
        rng, history = self._rng, self._history
        kind = rng.choices(("put", "create", "delete"), (6, 1, 3))[0]
        body = b"%d" % next(self._bodies)
        value = None if kind == "delete" else hashlib.md5(body).hexdigest()
        how = "DELETE" if kind == "delete" else "PUT"
        try:
            service = self._hub.serving()
        except HubUnavailable:
            return False
        operation = history.add(Operation(name, "hub", how, value, history.now()))
        try:
            if kind == "delete":
                await self._hub.ask(lambda: service.delete(name))
            else:
                only_new = kind == "create"
                await self._hub.ask(
                    lambda: service.put(name, {}, _chunks(body), if_none_match=only_new)
                )
        except PreconditionFailed:
            history.operations.remove(operation)
            return False
        except HubSpokeError:
            self.counts["writes without answer"] += 1
            return False
        operation.returned = history.now()
        self.counts["writes"] += 1
        return True

    async def read(self, machine: Machine, name: ObjectName, how: str) -> bool:
        """Returns whether it was answered by a spoke under a live lease."""
        called = self._history.now()
        try:
            if isinstance(machine, SpokeMachine):
                spoke = machine
                work = {"GET": self._get, "HEAD": self._head, "LIST": self._list}[how]
                age = await spoke.ask(lambda: work(spoke, name, called))
            else:
                age = await self._hub.ask(lambda: self._at_hub(name, how, called))
        except HubSpokeError:
            self.counts["reads refused"] += 1
            return False
        if age is not None:
            self.counts["reads aged"] += 1
            return False
        # Without a lease the hub was asked where its log is, or is the hub itself.
        leased = isinstance(machine, SpokeMachine) and (
            machine.up and machine.service.follower.lease_state() == "valid"
        )
        self.counts["reads leased" if leased else "reads by the hub"] += 1
        return leased

    # At a spoke, as its door does it -------------------------------------------------------------

    async def _head(self, spoke: SpokeMachine, name: ObjectName, called: Moment) -> float | None:
        value, age = await _resolve(spoke, name)
        self._note(spoke.name, "HEAD", name, value, called, age)
        return age

    async def _get(self, spoke: SpokeMachine, name: ObjectName, called: Moment) -> float | None:
        for _ in range(GET_TRIES):
            resolved, age = await _resolved(spoke, name)
            if resolved is None:
                self._note(spoke.name, "GET", name, None, called, age)
                return age
            entry = resolved.entry
            try:
                data = await spoke.link.read(name, entry.version, entry.size)
            except (VersionChanged, NoSuchKey):
                continue  # replaced meanwhile; resolve again
            if hashlib.md5(data).hexdigest() != entry.etag:
                self.torn.append(f"{name} at {spoke.name}: {data!r} is not {entry.etag}")
            self._note(spoke.name, "GET", name, entry.etag, called, age)
            return age
        raise HubUnavailable(f"{name}: changed {GET_TRIES} times under a reader")

    async def _list(self, spoke: SpokeMachine, name: ObjectName, called: Moment) -> float | None:
        prefix, after, limit = self._span(name)
        service = spoke.service
        page = await service.list_page(BUCKET, prefix=prefix, after=after, limit=limit)
        age = service.staleness_s()
        self._note_page(spoke.name, PageSpan(BUCKET, prefix, after, None), page, limit, called, age)
        return age

    # At the hub ----------------------------------------------------------------------------------

    async def _at_hub(self, name: ObjectName, how: str, called: Moment) -> float | None:
        service = self._hub.serving()
        if how == "LIST":
            prefix, after, limit = self._span(name)
            page = await service.list_page(BUCKET, prefix=prefix, after=after, limit=limit)
            span = PageSpan(BUCKET, prefix, after, None)
            self._note_page("hub", span, page, limit, called, None)
            return None
        try:
            value: Value = (await service.resolve(name)).entry.etag
        except NoSuchKey:
            value = None
        self._note("hub", how, name, value, called, None)
        return None

    def _span(self, name: ObjectName) -> tuple[str, str, int]:
        """A page that speaks for the name, if its limit lets it."""
        key = name.key
        if self._every_way:  # a wide page would wait for ever among so many changes
            return key, "", 1000
        prefix = self._rng.choice(("", key[: key.find("/") + 1], key))
        after = self._rng.choice(("", min(n.key for n in self._names)))
        return prefix, "" if after >= key else after, self._rng.choice((2, 1000))

    def _note(
        self,
        who: str,
        how: str,
        name: ObjectName,
        value: Value,
        called: Moment,
        age_s: float | None,
    ) -> None:
        from_ = called
        if age_s is not None:
            from_ = (called[0] - age_s * RATE_MAX - 1e-6, 0)
        operation = Operation(name, who, how, value, from_, self._history.now(), age_s)
        self._history.add(operation)

    def _note_page(
        self,
        who: str,
        span: PageSpan,
        page: list[Listed],
        limit: int,
        called: Moment,
        age_s: float | None,
    ) -> None:
        last = page[-1][0] if len(page) == limit else None
        span = PageSpan(span.bucket, span.prefix, span.after, last)
        values: dict[ObjectName, Value] = {n: None for n in self._names if span.covers(n)}
        values |= {ObjectName(BUCKET, key): etag for key, _, etag, _ in page}
        self._history.pages.append(Page(who, called[0], values))
        for name, value in values.items():
            self._note(who, "LIST", name, value, called, age_s)


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _resolved(spoke: SpokeMachine, name: ObjectName) -> tuple[Resolved | None, float | None]:
    """What the door asks for, at once if it can be had at once, and the age of the answer."""
    service = spoke.service
    now = service.resolve_now(name)
    if now is not None:
        return now, now.staleness_s
    try:
        resolved = await service.resolve(name)
    except NoSuchKey:
        return None, service.staleness_s()
    return resolved, resolved.staleness_s


async def _resolve(spoke: SpokeMachine, name: ObjectName) -> tuple[Value, float | None]:
    resolved, age = await _resolved(spoke, name)
    return None if resolved is None else resolved.entry.etag, age
