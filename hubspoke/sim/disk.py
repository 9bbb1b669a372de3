"""A namespace whose process can be killed: what was not durable then is lost.

Changes are visible at once, as the port says, and committed in groups; a group is written whole or
not at all. Of a killed process the group that was being written may have made it or not, and
nobody was told; what came after it is lost.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectName
from hubspoke.core.namespace import Listed
from hubspoke.ports import Intent, NamespaceRecord

Write = Callable[[MemoryNamespace], Coroutine[Any, Any, None]]


class Disk:
    """What outlives a process."""

    def __init__(self, *, keep_log: bool, log_entries_max: int = 1_000_000) -> None:
        self.state = MemoryNamespace(keep_log=keep_log, log_entries_max=log_entries_max)


class DurableNamespace:
    """ports.NamespaceStore of one process on a disk. commit_s: least and longest time of one."""

    def __init__(
        self,
        disk: Disk,
        rng: random.Random,
        *,
        commit_s: tuple[float, float],
        applied: Callable[["DurableNamespace"], None] = lambda _: None,
    ) -> None:
        """applied: called after each change, for those who watch."""
        self._disk = disk
        self._rng = rng
        self._commit_s = commit_s
        self._applied = applied
        self._seen = disk.state.copy()
        self._writing: list[tuple[Write, asyncio.Future[None]]] = []
        self._waiting: list[tuple[Write, asyncio.Future[None]]] = []

    def killed(self) -> None:
        """The process is gone; what it was writing is on the disk or is not."""
        if self._writing and self._rng.random() < 0.5:
            self._write_group()
        self._writing, self._waiting = [], []

    @property
    def epoch(self) -> Epoch | None:
        return self._seen.epoch

    @property
    def sequence(self) -> LogSequence:
        return self._seen.sequence

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, name: ObjectName) -> NamespaceRecord | None:
        return self._seen.get(name)

    def scan(
        self, bucket: str, *, prefix: str = "", after: str = "", limit: int
    ) -> list[NamespaceRecord]:
        return self._seen.scan(bucket, prefix=prefix, after=after, limit=limit)

    def listed(self, bucket: str, *, prefix: str = "", after: str = "", limit: int) -> list[Listed]:
        return self._seen.listed(bucket, prefix=prefix, after=after, limit=limit)

    def buckets(self) -> list[str]:
        return self._seen.buckets()

    def changes_after(self, sequence: LogSequence, limit: int) -> list[Change] | None:
        return self._seen.changes_after(sequence, limit)

    def fact(self, key: str) -> str | None:
        return self._seen.fact(key)

    def intents(self) -> list[Intent]:
        return self._seen.intents()

    async def apply(self, changes: Sequence[Change]) -> None:
        taken = list(changes)
        _now(self._seen.apply(taken))
        self._applied(self)
        await self._submit(lambda state: state.apply(taken))

    async def begin_load(self) -> None:
        await self._do(lambda state: state.begin_load())

    async def load(self, records: Sequence[NamespaceRecord]) -> None:
        taken = list(records)
        await self._do(lambda state: state.load(taken))

    async def adopt(
        self,
        epoch: Epoch,
        sequence: LogSequence,
        *,
        buckets: Sequence[str],
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        await self._do(lambda state: state.adopt(epoch, sequence, buckets=buckets, facts=facts))

    async def set_buckets(self, buckets: Sequence[str]) -> None:
        await self._do(lambda state: state.set_buckets(buckets))

    async def put_fact(self, key: str, value: str) -> None:
        await self._do(lambda state: state.put_fact(key, value))

    async def put_intent(self, intent: Intent) -> None:
        await self._do(lambda state: state.put_intent(intent))

    async def drop_intent(self, intent_id: int) -> None:
        await self._do(lambda state: state.drop_intent(intent_id))

    def trouble(self) -> str | None:
        return None

    async def written(self) -> None:
        await self._submit(_nothing)

    async def close(self) -> None:
        await self.written()

    async def _do(self, write: Write) -> None:
        _now(write(self._seen))
        await self._submit(write)

    def _submit(self, write: Write) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((write, done))
        if not self._writing:
            self._begin(loop)
        return done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._writing, self._waiting = self._waiting, []
        loop.call_later(self._rng.uniform(*self._commit_s), self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._write_group()
        ended, self._writing = self._writing, []
        for _, done in ended:
            if not done.done():
                done.set_result(None)
        if self._waiting:
            self._begin(loop)

    def _write_group(self) -> None:
        for write, _ in self._writing:
            _now(write(self._disk.state))


async def _nothing(_: MemoryNamespace) -> None:
    pass


def _now(work: Coroutine[Any, Any, None]) -> None:
    """The memory namespace never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("the memory namespace waited")
