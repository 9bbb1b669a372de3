"""Notices what changes in the store without the hub, and brings the log level with it.

    starting -> notifications                 the store tells what changes
             -> rescan every N s: why         it cannot: everything is compared now and then
             -> off                           neither, but for one comparison at the start

Three loops: names that were noticed, parts of the store that were noticed, and everything: at
the start (after the notifications have begun, so that nothing between the two is lost), when
changes were lost, and at the interval. It decides when to look; whether a name has changed is
found out and settled as any change (service.settle). Never: say "notifications" while something
of the store is not watched.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from hubspoke.core.hub import differs
from hubspoke.core.ids import ObjectName
from hubspoke.core.noticed import (
    BucketsNotice,
    LostNotice,
    NameNotice,
    Notice,
    Noticed,
    Part,
)
from hubspoke.errors import HubSpokeError
from hubspoke.hub.index import IndexProgress
from hubspoke.hub.reconcile import Reconciler
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import Clock, NamespaceStore, ObjectStore
from hubspoke.report.facts import WatchFacts

log = logging.getLogger(__name__)


class ChangeSource(Protocol):
    """What tells the changes of a store."""

    async def start(self, tell: Callable[[Sequence[Notice]], None]) -> str | None:
        """Begin, or begin afresh. None: from now on everything is told; else why it cannot be."""
        ...

    async def close(self) -> None: ...
    @property
    def folders(self) -> int: ...  # watched now
    @property
    def events(self) -> int: ...  # since the last start


class Watch:
    """Of one hub. progress: of the comparison with everything."""

    def __init__(
        self,
        store: ObjectStore,
        namespace: NamespaceStore,
        source: ChangeSource | None,
        settle: Callable[[ObjectName], Awaitable[bool]],
        bucket: Callable[[str], Awaitable[None]],
        progress: IndexProgress,
        clock: Clock,
        tuning: HubTuning,
    ) -> None:
        """settle, bucket: bring the log level with the store for a name, for a bucket; raise
        HubSpokeError when that is not known."""
        self._store = store
        self._namespace = namespace
        self._source = source
        self._settle_name = settle
        self._clock = clock
        self._tuning = tuning
        self._noticed = Noticed(tuning.noticed)
        self._reconciler = Reconciler(
            store, namespace, self._settle, bucket, self._noticed.waits, progress, tuning
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: set[asyncio.Task[None]] = set()
        self._tries: dict[ObjectName | Part, int] = {}
        self._buckets = False  # one may have come or gone
        self._lost: str | None = None
        self.trouble: str | None = None  # why the last comparison of everything stopped
        self._wakes = [asyncio.Event() for _ in range(3)]
        self._skipped: dict[str, int] = {}
        self._facts = WatchFacts()

    def start(self, *, level: bool) -> None:
        """level: the log is level with the store now, unless something changed meanwhile."""
        loops = (self._everything(level), self._names(), self._parts())
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        for task in self._tasks:
            task.add_done_callback(_died)

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()
        tasks = [*self._tasks, *self._looking]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def facts(self) -> WatchFacts:
        source = self._source
        return replace(
            self._facts,
            folders=source.folders if source is not None else 0,
            events=source.events if source is not None else 0,
            waiting=len(self._noticed),
            list_requests=self._store.list_requests,
        )

    def notice(self, name: ObjectName) -> None:
        """Something about the name looks different."""
        self._tell([NameNotice(name, writing=False)])

    def _tell(self, notices: Sequence[Notice]) -> None:
        now = self._clock.now()
        for notice in notices:
            match notice:
                case NameNotice(name, writing):
                    self._noticed.name(name, writing=writing, now=now)
                case Part():
                    self._noticed.part(notice, now=now)
                case BucketsNotice():
                    self._buckets = True
                case LostNotice(reason):
                    self._lost = reason
                    self._facts = replace(
                        self._facts, mode="starting", reason=reason, lost=self._facts.lost + 1
                    )
                    log.warning("changes of the store were lost, all is compared: %s", reason)
        self._wake()

    def _wake(self) -> None:
        for event in self._wakes:
            event.set()

    # Everything --------------------------------------------------------------------------------

    async def _everything(self, level: bool) -> None:
        watching, done = False, True
        while True:
            # Also after one that failed: what comes back may be mounted over what is watched.
            if not (watching and done) or self._lost is not None:
                watching = await self._begin()
            began = self._clock.now()
            done = True
            if not level or watching:
                done = await self._reconcile()
            level = False
            took_s = self._clock.now() - began
            await self._next(watching, done=done, took_s=took_s)

    async def _begin(self) -> bool:
        """Have the changes told, if that can be. Returns whether they are."""
        self._lost = None
        rescan_s = self._tuning.rescan_s
        fault: str | None = "this store tells no changes"
        if self._source is not None:
            fault = await self._source.start(self._tell)
        if fault is None:
            rescan_s = rescan_s if self._tuning.rescan_always else None
            self._set_mode("notifications", None, rescan_s)
        else:
            if self._source is not None:
                await self._source.close()
            self._set_mode("rescan" if rescan_s is not None else "off", fault, rescan_s)
        return fault is None

    def _set_mode(self, mode: str, reason: str | None, rescan_s: float | None) -> None:
        before = self._facts
        self._facts = replace(before, mode=mode, reason=reason, rescan_seconds=rescan_s)
        if (before.mode, before.reason) != (mode, reason):
            log.info("changes behind the hub's back: %s", self._facts.text())

    async def _reconcile(self) -> bool:
        self._noticed.begin_all()
        began = self._clock.now()
        try:
            await self._reconciler.everything()
        except (HubSpokeError, OSError) as e:
            log.warning("reconciliation stopped error=%s", e)
            self.trouble = str(e)
            return False
        self.trouble = None
        took_s = self._clock.now() - began
        self._facts = replace(
            self._facts, rescans=self._facts.rescans + 1, last_rescan_seconds=took_s
        )
        self.tell_skipped()
        return True

    def tell_skipped(self) -> None:
        """What a scan of everything left out, when it is another thing than before."""
        skipped = self._store.skipped
        if skipped.counts and skipped.counts != self._skipped:
            log.warning(
                "names in the store that cannot be objects are left out: %s; such as %s",
                ", ".join(f"{n} x {reason}" for reason, n in skipped.counts.items()),
                next(iter(skipped.examples.values()))[0],
            )
        self._skipped = skipped.counts

    async def _next(self, watching: bool, *, done: bool, took_s: float) -> None:
        """Return when everything is to be compared again."""
        tuning, event = self._tuning, self._wakes[0]
        wait_s = tuning.rescan_s if tuning.rescan_always or not watching else None
        if wait_s is not None:
            wait_s = max(wait_s, took_s)  # at most half of the time
        if not done:
            wait_s = min(wait_s or tuning.reconcile_retry_s, tuning.reconcile_retry_s)
        until = self._clock.now() + wait_s if wait_s is not None else None
        while until is None or self._clock.now() < until:
            event.clear()
            if self._lost is not None or self._noticed.everything is not None:
                # Not at once again and again in a storm that is more than can be told.
                await asyncio.sleep(min(max(tuning.reconcile_rest_s, took_s), 60.0))
                return
            await _set_within(event, None if until is None else until - self._clock.now())

    # What was noticed --------------------------------------------------------------------------

    async def _names(self) -> None:
        event, limit = self._wakes[1], self._tuning.refreshes_max
        while True:
            event.clear()
            now = self._clock.now()
            room = limit - len(self._looking)
            for name in self._noticed.due_names(now, room) if room else []:
                task = asyncio.create_task(self._look(name))
                self._looking.add(task)
                task.add_done_callback(self._looked)
            due = self._noticed.next_name() if len(self._looking) < limit else None
            await _set_within(event, None if due is None else max(0.001, due - now))

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking.discard(task)
        self._wakes[1].set()
        _died(task)

    async def _look(self, name: ObjectName) -> None:
        """First without asking for the name: most of what is noticed the hub did itself."""
        record = self._namespace.get(name)
        try:
            async with asyncio.timeout(self._tuning.store_s):
                found = await self._store.head(name)
            if differs(record.entry if record is not None else None, found):
                await self._settle(name)
            else:
                self._tries.pop(name, None)
        except (HubSpokeError, TimeoutError, OSError) as e:
            self._failed(name, e)

    async def _settle(self, name: ObjectName) -> bool:
        try:
            changed = await self._settle_name(name)
        except (HubSpokeError, TimeoutError, OSError) as e:
            self._failed(name, e)
            return False
        self._tries.pop(name, None)
        if changed:
            self._facts = replace(self._facts, changes=self._facts.changes + 1)
        return changed

    async def _parts(self) -> None:
        event = self._wakes[2]
        while True:
            event.clear()
            now = self._clock.now()
            if self._buckets:
                await self._look_at_buckets()
            elif (part := self._noticed.due_part(now)) is not None:
                await self._look_at_part(part)
            else:
                due = self._noticed.next_part()
                await _set_within(event, None if due is None else max(0.001, due - now))

    async def _look_at_buckets(self) -> None:
        self._buckets = False
        try:
            for bucket in await self._reconciler.buckets():
                self._noticed.part(Part(bucket, "", deep=True), now=self._clock.now())
        except (HubSpokeError, TimeoutError, OSError) as e:
            log.warning("buckets of the store not looked at, all is compared: %s", e)
            self._noticed.all(f"buckets: {e}")
            self._wakes[0].set()

    async def _look_at_part(self, part: Part) -> None:
        began = self._clock.now()
        try:
            await self._reconciler.part(part)
            self._tries.pop(part, None)
        except (HubSpokeError, TimeoutError, OSError) as e:
            self._failed(part, e)
        now = self._clock.now()
        self._noticed.part_done(part, now=now, took_s=now - began)

    def _failed(self, what: ObjectName | Part, error: Exception) -> None:
        """Try it again later; not for ever, nor very many things."""
        tries = self._tries.pop(what, 0) + 1
        room = len(self._tries) < self._tuning.noticed.names_max
        if room and self._noticed.failed(what, tries=tries, now=self._clock.now()):
            self._tries[what] = tries
            log.debug("not settled, tried again what=%s tries=%d error=%r", what, tries, error)
        else:
            log.warning("change behind the hub's back not settled what=%s error=%s", what, error)
        self._wake()


async def _set_within(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the watch of the store failed", exc_info=task.exception())
