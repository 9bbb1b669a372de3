"""Carries one change through the order that core.hub decides.

    enter -> check -> intent (durable) -> revoke -> proceed -> complete -> append (durable)

A change belongs to the hub, not to the request that asked for it: once begun it runs to its end,
also when the client goes away. When the store's answer is not known (an error, a timeout), a HEAD
tells what became of it; until it has, the name stays closed to readers and changes. So it does
while a change that the store has cannot be written to the log; new changes are refused then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hubspoke.core.hub import (
    Effect,
    Enter,
    HubCore,
    Proceed,
    Publish,
    Readable,
    Recall,
    Withdraw,
    differs,
)
from hubspoke.core.ids import LogSequence, ObjectEntry, ObjectName
from hubspoke.core.namespace import PageSpan
from hubspoke.errors import DeadlineExceeded, HubSpokeError, StoreUnavailable
from hubspoke.hub.feed import Feeds
from hubspoke.hub.index import settled_entry
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import Clock, Intent, NamespaceStore, ObjectStore, Staged

log = logging.getLogger(__name__)

SETTLE_RETRY_S = 1.0

Check = Callable[[ObjectEntry | None], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Work:
    """One change. act: completes it in the store and returns the new entry, None for gone.

    check: raises (PreconditionFailed) by what the name holds, or returns False when there is
    nothing to do. staged: what to discard when it does not come about. intent: False where the
    store is ahead of the log already, or nothing of an object is at stake.
    """

    name: ObjectName
    act: Callable[[], Awaitable[ObjectEntry | None]]
    check: Check
    staged: Staged | None = None
    intent: bool = True


class Changes:
    """All changes under way at one hub, and the readers that wait for them."""

    def __init__(
        self,
        *,
        core: HubCore,
        store: ObjectStore,
        namespace: NamespaceStore,
        feeds: Feeds,
        clock: Clock,
        tuning: HubTuning,
    ) -> None:
        self._core = core
        self._store = store
        self._namespace = namespace
        self._feeds = feeds
        self._clock = clock
        self._tuning = tuning
        self._entering: dict[int, asyncio.Future[None]] = {}
        self._proceeding: dict[int, asyncio.Future[None]] = {}
        self._readers: dict[ObjectName, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._later: set[asyncio.Task[Any]] = set()  # what waits for the log, and keeps nobody
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    async def run(self, work: Work) -> ObjectEntry | None:
        """Returns the entry the name has now; raises what `check` and `act` raise, Overloaded,
        DeadlineExceeded, StoreUnavailable."""
        return await asyncio.shield(self._spawn(self._through(work)))

    async def readable(self, name: ObjectName) -> None:
        """Wait while a change of the name is between revoke and durable."""
        await self._wait_readable(lambda: name if self._core.blocked(name) else None)

    async def page_readable(self, page: PageSpan) -> None:
        await self._wait_readable(lambda: self._core.blocked_in(page))

    async def buckets_readable(self) -> None:
        await self._wait_readable(self._core.blocked_bucket)

    def execute(self, effects: list[Effect]) -> None:
        """Carry out what the core decided; never blocks."""
        for effect in effects:
            match effect:
                case Enter(change_id):
                    _wake(self._entering.pop(change_id, None))
                case Proceed(change_id):
                    _wake(self._proceeding.pop(change_id, None))
                case Readable(name):
                    if (event := self._readers.pop(name, None)) is not None:
                        event.set()
                case Publish() | Withdraw() | Recall():
                    self._feeds.tell(effect)
        self._arm()

    def need_log(self, what: object) -> None:
        """Raises StoreUnavailable while the log cannot be written, whatever the store could do."""
        if (why := self._namespace.trouble()) is not None:
            raise StoreUnavailable(f"{what}: the hub's log cannot be written: {why}")

    async def close(self) -> None:
        """Let changes that have begun run to their end; settling is left to the next start."""
        self._closing = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._tuning.change_wait_s)
        left = self._tasks | self._later
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        if self._timer is not None:
            self._timer.cancel()

    def _spawn(
        self, work: Coroutine[Any, Any, ObjectEntry | None], *, later: bool = False
    ) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        (self._later if later else self._tasks).add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._later.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.debug("change ended error=%r", task.exception())

    async def _through(self, work: Work) -> ObjectEntry | None:
        core, namespace = self._core, self._namespace
        try:
            change_id = await self._enter(work.name)
        except HubSpokeError:
            await self._discard(work.staged)
            raise
        record = namespace.get(work.name)
        known = record.entry if record is not None else None
        try:
            self.need_log(work.name)
            if not await work.check(known):
                self.execute(core.leave(change_id))
                return known
            if work.intent:
                before = known.version if known is not None else None
                await namespace.put_intent(Intent(change_id, work.name, work.staged, before))
        except BaseException:
            self.execute(core.leave(change_id))
            await self._discard(work.staged)
            raise
        proceed = self._proceeding[change_id] = asyncio.get_running_loop().create_future()
        self.execute(core.revoke(change_id, now=self._clock.now()))
        await proceed
        try:
            async with asyncio.timeout(self._tuning.store_s):
                entry = await work.act()
        except (HubSpokeError, TimeoutError, OSError) as e:
            self._spawn(self._settle(change_id, work, known))
            if isinstance(e, HubSpokeError):
                raise
            raise StoreUnavailable(f"{work.name}: change: {type(e).__name__}: {e}") from e
        await self._append(change_id, work, entry)
        return entry

    async def _enter(self, name: ObjectName) -> int:
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        change_id, effects = self._core.enter(name)
        self._entering[change_id] = entered
        self.execute(effects)
        try:
            async with asyncio.timeout(self._tuning.change_wait_s):
                await entered
        except TimeoutError as e:
            self._entering.pop(change_id, None)
            self.execute(self._core.leave(change_id))
            waited = self._tuning.change_wait_s
            raise DeadlineExceeded(f"{name}: other changes of it took {waited:.0f} s") from e
        return change_id

    async def _append(self, change_id: int, work: Work, entry: ObjectEntry | None) -> None:
        # Numbering and handing over to the log are one step: the log wants them in order.
        change = self._core.completed(change_id, entry)
        try:
            await self._namespace.apply([change])
        except StoreUnavailable:
            # The store is ahead of the log, which takes the change as soon as it can.
            self._spawn(self._once_written(change_id, work, change.sequence), later=True)
            raise
        self._logged(change_id, work, change.sequence)

    async def _once_written(self, change_id: int, work: Work, sequence: LogSequence) -> None:
        await self._namespace.written()
        log.info("change logged late name=%s sequence=%d", work.name, sequence)
        self._logged(change_id, work, sequence)

    def _logged(self, change_id: int, work: Work, sequence: LogSequence) -> None:
        if work.intent:
            # Not awaited: one that survives a crash is settled at start and found done.
            self._spawn(self._namespace.drop_intent(change_id), later=True)
        self.execute(self._core.durable(sequence))

    async def _settle(self, change_id: int, work: Work, known: ObjectEntry | None) -> None:
        """Ask the store what became of a change whose outcome is not known."""
        while True:
            try:
                async with asyncio.timeout(self._tuning.store_s):
                    found = await self._store.head(work.name) if work.name.key else None
                    before = known.version if known is not None else None
                    found = await settled_entry(self._store, work.staged, before, found)
                break
            except (HubSpokeError, TimeoutError, OSError) as e:
                log.warning("settling waits for the store name=%s error=%r", work.name, e)
                if self._closing:
                    return
                await asyncio.sleep(SETTLE_RETRY_S)
        if differs(known, found):
            await self._append(change_id, work, found)
            return
        if work.intent:
            await self._namespace.drop_intent(change_id)
        self.execute(self._core.leave(change_id))

    async def _discard(self, staged: Staged | None) -> None:
        """Staged bytes that cannot be removed now are litter, not an error of the change."""
        if staged is None:
            return
        try:
            async with asyncio.timeout(self._tuning.store_s):
                await self._store.discard(staged)
        except (HubSpokeError, TimeoutError, OSError) as e:
            log.warning("staged bytes left behind name=%s error=%r", staged.name, e)

    async def _wait_readable(self, blocked: Callable[[], ObjectName | None]) -> None:
        name = blocked()
        if name is None:
            return
        try:
            async with asyncio.timeout(self._tuning.read_wait_s):
                while name is not None:
                    event = self._readers.setdefault(name, asyncio.Event())
                    await event.wait()
                    name = blocked()
        except TimeoutError as e:
            waited = self._tuning.read_wait_s
            raise DeadlineExceeded(f"{name}: its change has been under way {waited:.0f} s") from e

    def _arm(self) -> None:
        """Call the core again when a lease runs out, in case nobody acknowledges."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._core.next_tick()
        if at is not None:
            delay = max(0.0, at - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self.execute(self._core.tick(now=self._clock.now()))


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
