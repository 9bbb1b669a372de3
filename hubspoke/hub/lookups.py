"""Names the log does not have: asks the store before the hub says that there is no such object.

A file put into the store behind the hub's back is found so when it is asked for by name, and
becomes a log entry. A storm of misses is no storm of HEADs: one for each name at a time, a
bounded number together, and a name that was not there is not asked for again for a moment.
Never: say absent when the store did not answer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from hubspoke.core.ids import ObjectName
from hubspoke.errors import HubUnavailable, InvalidKey, NoSuchBucket, StoreUnavailable
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import Clock, NamespaceStore, ObjectStore


class Lookups:
    """Of one hub."""

    def __init__(
        self,
        store: ObjectStore,
        namespace: NamespaceStore,
        refresh: Callable[[ObjectName], Awaitable[bool]],
        clock: Clock,
        tuning: HubTuning,
    ) -> None:
        """refresh: brings the log level with the store for one name."""
        self._store = store
        self._namespace = namespace
        self._refresh = refresh
        self._clock = clock
        self._tuning = tuning
        self._absent: OrderedDict[ObjectName, float] = OrderedDict()  # when, oldest first
        self._running: dict[ObjectName, asyncio.Task[None]] = {}
        self._together = asyncio.Semaphore(tuning.refreshes_max)

    async def look(self, name: ObjectName) -> None:
        """When it returns, the log has the name or the store had not (`absent_s` ago at most).

        Raises StoreUnavailable, and HubUnavailable when the store has what the log cannot take.
        """
        since = self._absent.get(name)
        if since is not None and self._clock.now() - since < self._tuning.absent_s:
            return
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.create_task(self._look(name))
            task.add_done_callback(lambda done: self._ended(name, done))
        await asyncio.shield(task)

    async def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self, name: ObjectName) -> None:
        async with self._together:
            at = self._clock.now()
            try:
                async with asyncio.timeout(self._tuning.store_s):
                    found = await self._store.head(name)
            except (InvalidKey, NoSuchBucket):
                found = None
            except TimeoutError as e:
                waited = self._tuning.store_s
                raise StoreUnavailable(f"{name}: no answer in {waited:.0f} s") from e
        if found is None:
            self._absent[name] = at
            self._absent.move_to_end(name)
            while len(self._absent) > self._tuning.absent_max:
                self._absent.popitem(last=False)
            return
        await self._refresh(name)
        if self._namespace.get(name) is None and await self._store.head(name) is not None:
            raise HubUnavailable(f"{name}: in the store, but the log cannot take it now")

    def _ended(self, name: ObjectName, task: asyncio.Task[None]) -> None:
        del self._running[name]
        if not task.cancelled():
            task.exception()  # told to those who wait, if any is left
