"""Reads of a spoke: state on arrival, what is missing fetched and waited for, bytes handed out.

A read belongs to its reader and a fetch to the filler: a reader that goes away takes only its
own wait with it. Bytes leave as a buffer when they are few and as a span of the cache file when
they are many, so that the kernel moves them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from hubspoke.core.cache import CachedObject
from hubspoke.core.ids import BLOCK_BYTES, ObjectName, ReadState, page_span
from hubspoke.core.spoke import SpokeCore
from hubspoke.errors import CorruptFrame, DeadlineExceeded, HubUnavailable, VersionChanged
from hubspoke.ports import BlockStore, Clock, FileSpan, ReadResult, Resolved
from hubspoke.spoke.filler import Filler
from hubspoke.spoke.tuning import SpokeTuning

log = logging.getLogger(__name__)

# Up to here a copy through Python is cheaper than the three calls that sendfile takes.
COPIED_BYTES_MAX = 64 << 10
# A lent span pins its blocks for as long as its client takes; longer reads go piece by piece.
LENT_BYTES_MAX = 64 << 20


class SpokeReads:
    """The reading half of a spoke; touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        filler: Filler,
        blocks: BlockStore,
        clock: Clock,
        tuning: SpokeTuning,
        *,
        predict_soon: Callable[[float], None],
        noted: Callable[[ObjectName], None],
    ) -> None:
        """predict_soon: accesses wait for the predictor since then. noted: the object is read."""
        self.core = core
        self.filler = filler
        self.blocks = blocks
        self.clock = clock
        self.tuning = tuning
        self.ledger = core.ledger
        self._predict_soon = predict_soon
        self._noted_name = noted

    async def read(self, resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        """See ports.Reader."""
        if length == 0:
            return ReadResult(resolved, offset, 0, b"", ReadState.HIT)
        started = self.clock.now()
        obj = self._open(resolved)
        core = self.core
        state, cause = core.arrive(obj, offset, length)
        missed = 0 if state is ReadState.HIT else core.missing(obj, offset, length)
        stale = resolved.staleness_s is not None
        if length > self.tuning.whole_bytes_max:
            self._noted_name(resolved.name)
            body = self._long(obj, offset, length, client, started)
            noted = self._noted(body, state, length, missed, cause, started, stale)
            return ReadResult(resolved, offset, length, noted, state)
        self._noted_name(resolved.name)
        core.access(obj, offset, length, client, state, started)
        if state is not ReadState.HIT:
            self.filler.ask(obj, offset, length)
        self._predict_soon(started)
        data = await self._piece(obj, offset, length, started + self.tuning.read_deadline_s)
        took = self.clock.now() - started
        wait = 0.0 if state is ReadState.HIT else took
        self.ledger.read(state, length, missed, cause, took, wait, started, stale)
        return ReadResult(resolved, offset, length, data, state)

    def read_now(
        self, resolved: Resolved, offset: int, length: int, client: str
    ) -> bytes | FileSpan | None:
        """See ports.DirectReader."""
        core = self.core
        obj = core.cache.current(resolved.name)
        if obj is None or obj.version != resolved.entry.version:
            return None
        first, last = page_span(offset, length)
        if not core.cache.readable(obj, first, last):
            return None
        started = self.clock.now()
        body = self._local(obj, offset, length)
        if body is None:
            return None
        self._noted_name(resolved.name)
        core.access(obj, offset, length, client, ReadState.HIT, started)
        self._predict_soon(started)
        took = self.clock.now() - started
        self.ledger.read(ReadState.HIT, length, 0, None, took, 0.0, started)
        return body

    def _local(self, obj: CachedObject, offset: int, length: int) -> bytes | FileSpan | None:
        """Readable bytes without waiting for a disk, or None."""
        if length <= COPIED_BYTES_MAX:
            return self.blocks.read_now(obj.number, offset, length)
        if length > LENT_BYTES_MAX:
            return None
        lent = self.blocks.lend_now(obj.number, offset, length)
        if lent is None:
            return None
        cache = self.core.cache
        first, last = page_span(offset, length)
        cache.pin(obj, first, last)

        def release() -> None:
            lent.release()
            cache.unpin(obj, first, last)
            self.filler.drop(cache.reap(obj))

        return FileSpan(lent.descriptor, offset, length, release)

    def _open(self, resolved: Resolved) -> CachedObject:
        obj = self.core.cache.current(resolved.name)
        if obj is not None and obj.version == resolved.entry.version:
            return obj
        obj, obsolete = self.core.open(resolved.name, resolved.entry)
        self.filler.drop(obsolete)
        return obj

    async def _long(
        self, obj: CachedObject, offset: int, length: int, client: str, started: float
    ) -> AsyncIterator[bytes | FileSpan]:
        """Pieces of a long range; asks ahead of the reader by at most a window."""
        end, asked, at = offset + length, offset, offset
        while at < end:
            # Pieces end at block bounds, so that each pins one block.
            n = min(end - at, BLOCK_BYTES - at % BLOCK_BYTES)
            if asked < end and asked - at < self.tuning.window_bytes // 2:
                until = min(end, at + self.tuning.window_bytes)
                self.filler.ask(obj, asked, until - asked)
                asked = until
            now = self.clock.now()
            state, _ = self.core.arrive(obj, at, n)
            self.core.access(obj, at, n, client, state, now)
            self._predict_soon(now)
            yield await self._piece(obj, at, n, now + self.tuning.read_deadline_s)
            at += n

    async def _noted(
        self,
        body: AsyncIterator[bytes | FileSpan],
        state: ReadState,
        length: int,
        missed: int,
        cause: str | None,
        started: float,
        stale: bool,
    ) -> AsyncIterator[bytes | FileSpan]:
        """Account a long read when its first byte is there: what follows is paced by the
        reader and says nothing about latency."""
        noted = False
        async for piece in body:
            if not noted:
                took = self.clock.now() - started
                wait = 0.0 if state is ReadState.HIT else took
                self.ledger.read(state, length, missed, cause, took, wait, started, stale)
                noted = True
            yield piece

    async def _piece(
        self, obj: CachedObject, offset: int, length: int, deadline: float
    ) -> bytes | FileSpan:
        """The bytes of a range of at most one window, fetched if need be."""
        first, last = page_span(offset, length)
        cache, failures = self.core.cache, 0
        while True:
            if cache.readable(obj, first, last):
                data = self._local(obj, offset, length)
                if data is None:
                    data = await self.filler.from_disk(obj, first, last, offset, length)
                return data
            frames = cache.unverified(obj, first, last)
            if frames:
                await self.filler.verify(obj, frames)
                continue
            if obj.dead:
                raise VersionChanged(f"{obj.name} is no longer version {obj.version}")
            try:
                self.filler.ask(obj, offset, length)
                waiting = self.filler.waiters.add(obj.number, first, last)
                await self.filler.waiters.wait(waiting, deadline - self.clock.now(), obj.name)
            except (HubUnavailable, CorruptFrame, DeadlineExceeded) as e:
                failures += 1
                if failures >= self.tuning.fetch_attempts or self.clock.now() >= deadline:
                    raise
                log.info("fetch retried object=%s offset=%d error=%s", obj.name, offset, e)
                await asyncio.sleep(0.05 * 4**failures)
            except VersionChanged:
                # The hub has another version; its change is on the way over the feed.
                await self.filler.waiters.next_change(
                    obj.name, min(2.0, deadline - self.clock.now())
                )
                raise
