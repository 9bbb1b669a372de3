"""The spoke's shell: waits, transfers and disk, around SpokeCore.

A read takes three short steps: what is its state (core), fetch what is missing and wait for it,
read the bytes from the cache file. Fetches belong to the service, never to a reader: a reader
that goes away cancels only its own wait.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from hubspoke.core.cache import CachedObject
from hubspoke.core.generators.candidates import DepthConfig
from hubspoke.core.ids import (
    BLOCK_BYTES,
    Change,
    ObjectEntry,
    ObjectName,
    ReadState,
    page_span,
)
from hubspoke.core.namespace import PageSpan, bucket_name
from hubspoke.core.pacing import PacingConfig
from hubspoke.core.spoke import SpokeConfig, SpokeCore
from hubspoke.errors import (
    CorruptFrame,
    DeadlineExceeded,
    HubSpokeError,
    HubUnavailable,
    NoSuchBucket,
    NoSuchKey,
    VersionChanged,
)
from hubspoke.ports import (
    BlockStore,
    Clock,
    HubLink,
    NamespaceRecord,
    NamespaceStore,
    Ranker,
    ReadResult,
    Resolved,
)
from hubspoke.report.facts import SpokeFacts
from hubspoke.spoke.facts import FactsCollector
from hubspoke.spoke.filler import Filler
from hubspoke.spoke.follower import Follower
from hubspoke.spoke.renewal import FollowerTuning

log = logging.getLogger(__name__)

INLINE_BYTES = 64 << 10  # smaller frames are written on the loop: a thread hop costs more
FOLDER_LIST_MAX = 1_024
STREAMS_SHOWN_MAX = 1_000


@dataclass(frozen=True, slots=True)
class SpokeTuning:
    capacity: int
    spoke_id: str
    prefetch: bool = True
    region: str = ""
    # A read is given up after this long; loaders retry a 503, they do not survive a hang.
    read_deadline_s: float = 30.0
    fetch_attempts: int = 3
    # Buffers of one long GET: what it may ask for ahead of what its reader has taken.
    window_bytes: int = 16 << 20
    # Reads up to this size are answered as one buffer.
    whole_bytes_max: int = 1 << 20
    # Accesses are looked at together at most this often, so that hits do not pay for it each.
    predict_interval_s: float = 0.002
    threads: int = 8
    pacing: PacingConfig = field(default_factory=PacingConfig)
    depth: DepthConfig = field(default_factory=DepthConfig)
    follower: FollowerTuning = field(default_factory=FollowerTuning)


class _Listing:
    """core.generators.Listing over the replica."""

    def __init__(self, namespace: NamespaceStore) -> None:
        self._namespace = namespace

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        folder = name.key[: name.key.rfind("/") + 1]
        records = self._namespace.scan(
            name.bucket, prefix=folder, after=name.key, limit=min(limit, FOLDER_LIST_MAX)
        )
        return [(r.name, r.entry) for r in records if "/" not in r.name.key[len(folder) :]]


class SpokeService:
    """ports.Reader of a spoke. All state is the core's and is touched only on the loop."""

    def __init__(
        self,
        link: HubLink,
        namespace: NamespaceStore,
        blocks: BlockStore,
        clock: Clock,
        ranker: Ranker,
        tuning: SpokeTuning,
    ) -> None:
        self.tuning = tuning
        self.model_name = ranker.name
        self.follower = Follower(
            link,
            namespace,
            clock,
            spoke_id=tuning.spoke_id,
            on_change=self._changed,
            tuning=tuning.follower,
        )
        self.link = link
        self.namespace = namespace
        self.blocks = blocks
        self.clock = clock
        config = SpokeConfig(
            tuning.capacity, tuning.prefetch, pacing=tuning.pacing, depth=tuning.depth
        )
        self.core = SpokeCore(
            config, ranker.score, _Listing(namespace), clock.now(), clock.unix_ns()
        )
        self.ledger = self.core.ledger
        self.filler = Filler(self.core, link, blocks, clock, tuning.spoke_id, tuning.threads)
        self._tasks: set[asyncio.Task[None]] = set()
        self._predict_at: asyncio.TimerHandle | None = None
        self._predicted = float("-inf")
        self._facts = FactsCollector(self)

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the cache's index and follow the hub; returns before the hub was reached."""
        await self.filler.load()
        await self.follower.start()
        self._spawn(self._connect())
        cache = self.core.cache
        log.info("cache loaded objects=%d bytes=%d", len(cache.objects), cache.used)

    async def close(self) -> None:
        """Stop fetching; what is on disk stays and is found at the next start."""
        if self._predict_at is not None:
            self._predict_at.cancel()
        await self.follower.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.filler.close()
        await self.link.close()
        self.blocks.close()
        await self.namespace.close()

    def ready(self) -> list[str]:
        """Reasons why this spoke does not serve now; empty when it does."""
        return self.follower.ready()

    def _changed(self, change: Change) -> None:
        """The replica applied a change: cached blocks of other versions are of no use."""
        current = self.core.cache.current(change.name)
        if current is None:
            return
        if change.entry is None or change.entry.version != current.version:
            self.filler.drop(self.core.gone(change.name))
        self.filler.waiters.name_changed(change.name)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        """Open the lanes once the hub answers: the first reads should not pay for that."""
        while True:
            try:
                await self.link.connect()
                return
            except HubSpokeError as e:
                log.debug("lanes not open yet error=%s", e)
                await asyncio.sleep(self.tuning.follower.backoff_max_s)

    # -- names --------------------------------------------------------------------------------

    async def buckets(self) -> list[str]:
        await self.follower.buckets_settled(self.clock.now() + self.tuning.read_deadline_s)
        self.follower.admit(ObjectName("", ""))
        return self.namespace.buckets()

    async def resolve(self, name: ObjectName) -> Resolved:
        """See ports.Reader."""
        await self.follower.settled(name, self.clock.now() + self.tuning.read_deadline_s)
        staleness = self.follower.admit(name)
        record = self.namespace.get(name)
        if record is None:
            if name.bucket not in self.namespace.buckets():
                raise NoSuchBucket(f"{name.bucket}: no such bucket")
            raise NoSuchKey(f"{name}: no such object")
        return Resolved(name, record.entry, staleness)

    async def list_page(
        self, bucket: str, *, prefix: str, after: str, limit: int
    ) -> list[NamespaceRecord]:
        """See ports.Reader. A page under revocation waits until the change is applied."""
        deadline = self.clock.now() + self.tuning.read_deadline_s
        while True:
            await self.follower.settled(bucket_name(bucket), deadline)
            self.follower.admit(ObjectName(bucket, prefix))
            if bucket not in self.namespace.buckets():
                raise NoSuchBucket(f"{bucket}: no such bucket")
            page = self.namespace.scan(bucket, prefix=prefix, after=after, limit=limit)
            last = page[-1].name.key if len(page) == limit else None
            span = PageSpan(bucket, prefix, after, last)
            if not self.follower.revoked(span):
                return page
            await self.follower.page_settled(span, deadline)

    # -- reads --------------------------------------------------------------------------------

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
            self._facts.read(resolved.name)
            body = self._long(obj, offset, length, client, started)
            noted = self._noted(body, state, length, missed, cause, started, stale)
            return ReadResult(resolved, offset, length, noted, state)
        self._facts.read(resolved.name)
        core.access(obj, offset, length, client, state, started)
        if state is not ReadState.HIT:
            self.filler.ask(obj, offset, length)
        self._predict_soon(started)
        data = await self._bytes(obj, offset, length, started + self.tuning.read_deadline_s)
        took = self.clock.now() - started
        wait = 0.0 if state is ReadState.HIT else took
        self.ledger.read(state, length, missed, cause, took, wait, started, stale)
        return ReadResult(resolved, offset, length, data, state)

    def _open(self, resolved: Resolved) -> CachedObject:
        obj = self.core.cache.current(resolved.name)
        if obj is not None and obj.version == resolved.entry.version:
            return obj
        obj, obsolete = self.core.open(resolved.name, resolved.entry)
        self.filler.drop(obsolete)
        return obj

    async def _long(
        self, obj: CachedObject, offset: int, length: int, client: str, started: float
    ) -> AsyncIterator[bytes]:
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
            yield await self._bytes(obj, at, n, now + self.tuning.read_deadline_s)
            at += n

    async def _noted(
        self,
        body: AsyncIterator[bytes],
        state: ReadState,
        length: int,
        missed: int,
        cause: str | None,
        started: float,
        stale: bool,
    ) -> AsyncIterator[bytes]:
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

    async def _bytes(self, obj: CachedObject, offset: int, length: int, deadline: float) -> bytes:
        """The bytes of a range of at most one window, fetched if need be."""
        first, last = page_span(offset, length)
        cache, failures = self.core.cache, 0
        while True:
            if cache.readable(obj, first, last):
                data = self.blocks.read_now(obj.number, offset, length)
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

    # -- prediction ---------------------------------------------------------------------------

    def _predict_soon(self, now: float) -> None:
        if self._predict_at is not None:
            return
        delay = max(0.0, self._predicted + self.tuning.predict_interval_s - now)
        self._predict_at = asyncio.get_running_loop().call_later(delay, self._predict)

    def _predict(self) -> None:
        self._predict_at = None
        self._predicted = self.clock.now()
        rtt = self.follower.rtt_s()
        if rtt is not None:
            self.core.path.round_trip(rtt)
        self.filler.drop(self.core.predict(self._predicted))
        self.filler.dispatch()

    # -- what is told about it ----------------------------------------------------------------

    def streams(self) -> list[dict[str, Any]]:
        """What is believed about each stream, newest first, for /v1/streams."""
        streams = sorted(self.core.streams, key=lambda s: -s.last_at)
        return [s.describe() for s in streams[:STREAMS_SHOWN_MAX]]

    def facts(self) -> SpokeFacts:
        return self._facts.collect()

    def reset_stats(self) -> None:
        """Start the counters of report and metrics anew; the cache stays as it is."""
        self._facts.reset()
        self.core.reset_stats(self.clock.now(), self.clock.unix_ns())
