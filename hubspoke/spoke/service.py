"""The spoke's shell: waits, transfers and disk, around SpokeCore.

A read takes three short steps: what is its state (core), fetch what is missing and wait for it,
read the bytes from the cache file. Fetches belong to the service, never to a reader: a reader
that goes away cancels only its own wait.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hubspoke import wire
from hubspoke.core.cache import CachedObject, StoredFrame
from hubspoke.core.generators.candidates import DepthConfig
from hubspoke.core.ids import (
    BLOCK_BYTES,
    Change,
    ObjectEntry,
    ObjectName,
    ReadState,
    page_span,
)
from hubspoke.core.pacing import PacingConfig
from hubspoke.core.scheduler import Fetch, Punch
from hubspoke.core.spoke import SpokeConfig, SpokeCore
from hubspoke.errors import (
    CorruptFrame,
    DeadlineExceeded,
    HubSpokeError,
    HubUnavailable,
    NoSuchBucket,
    NoSuchKey,
    Overloaded,
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
from hubspoke.spoke.follower import Follower
from hubspoke.spoke.waiters import Waiters

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
    index_flush_s: float = 0.1
    threads: int = 8
    pacing: PacingConfig = field(default_factory=PacingConfig)
    depth: DepthConfig = field(default_factory=DepthConfig)


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
        follower: Follower,
        tuning: SpokeTuning,
    ) -> None:
        self.tuning = tuning
        self.model_name = ranker.name
        self.follower = follower
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
        self._waiters = Waiters()
        self._pool = ThreadPoolExecutor(tuning.threads, thread_name_prefix="blocks")
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetches: set[asyncio.Task[None]] = set()
        self._predict_at: asyncio.TimerHandle | None = None
        self._predicted = float("-inf")
        self._closing = False
        self._facts = FactsCollector(self)
        self._created: set[int] = set()  # objects that have a file in the block store

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the cache's index and follow the hub; returns before the hub was reached."""
        loop = asyncio.get_running_loop()
        for o in await loop.run_in_executor(self._pool, self.blocks.load):
            self.core.cache.restore(o.number, o.name, o.version, o.size, o.frames)
            self._created.add(o.number)
        self._spawn(self._flush_index())
        await self.follower.start()
        cache = self.core.cache
        log.info("cache loaded objects=%d bytes=%d", len(cache.objects), cache.used)

    async def close(self) -> None:
        """Stop fetching; what is on disk stays and is found at the next start."""
        self._closing = True
        if self._predict_at is not None:
            self._predict_at.cancel()
        await self.follower.close()
        for task in (*self._tasks, *self._fetches):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._fetches, return_exceptions=True)
        self._waiters.fail_all(HubUnavailable("the spoke is stopping"))
        await self.link.close()
        self._pool.shutdown(wait=True)
        self.blocks.close()

    def ready(self) -> list[str]:
        """Reasons why this spoke does not serve now; empty when it does."""
        return self.follower.ready()

    def changed(self, change: Change) -> None:
        """The replica applied a change: cached blocks of other versions are of no use."""
        current = self.core.cache.current(change.name)
        if current is None:
            return
        if change.entry is None or change.entry.version != current.version:
            self._drop(self.core.gone(change.name))
        self._waiters.name_changed(change.name)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush_index(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.tuning.index_flush_s)
            try:
                await loop.run_in_executor(self._pool, self.blocks.flush)
            except OSError as e:
                log.warning("cache index not written error=%s", e)

    # -- names --------------------------------------------------------------------------------

    async def buckets(self) -> list[str]:
        self.follower.admit(ObjectName("", ""))
        return self.namespace.buckets()

    async def resolve(self, name: ObjectName) -> Resolved:
        """See ports.Reader."""
        await self.follower.settled(name, self.clock.now() + self.tuning.read_deadline_s)
        staleness = self.follower.admit(name)
        record = self.namespace.get(name)
        if record is None:
            if name.bucket not in self.namespace.buckets():
                raise NoSuchBucket(name.bucket)
            raise NoSuchKey(str(name))
        return Resolved(name, record.entry, staleness)

    async def list_page(
        self, bucket: str, *, prefix: str, after: str, limit: int
    ) -> list[NamespaceRecord]:
        """See ports.Reader. A page under revocation waits until the change is applied."""
        deadline = self.clock.now() + self.tuning.read_deadline_s
        await self.follower.settled_listing(bucket, prefix, deadline)
        self.follower.admit(ObjectName(bucket, prefix))
        if bucket not in self.namespace.buckets():
            raise NoSuchBucket(bucket)
        return self.namespace.scan(bucket, prefix=prefix, after=after, limit=limit)

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
            self._ask(obj, offset, length)
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
        self._drop(obsolete)
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
                self._ask(obj, asked, until - asked)
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
                    data = await self._from_disk(obj, first, last, offset, length)
                return data
            frames = cache.unverified(obj, first, last)
            if frames:
                await self._verify(obj, frames)
                continue
            if obj.dead:
                raise VersionChanged(f"{obj.name} is no longer version {obj.version}")
            try:
                self._ask(obj, offset, length)
                waiting = self._waiters.add(obj.number, first, last)
                await self._waiters.wait(waiting, deadline - self.clock.now(), obj.name)
            except (HubUnavailable, CorruptFrame, DeadlineExceeded) as e:
                failures += 1
                if failures >= self.tuning.fetch_attempts or self.clock.now() >= deadline:
                    raise
                log.info("fetch retried object=%s offset=%d error=%s", obj.name, offset, e)
                await asyncio.sleep(0.05 * 4**failures)
            except VersionChanged:
                # The hub has another version; its change is on the way over the feed.
                await self._waiters.next_change(obj.name, min(2.0, deadline - self.clock.now()))
                raise

    def _ask(self, obj: CachedObject, offset: int, length: int) -> None:
        punched = self.core.demand(obj, offset, length)
        if punched is None:
            raise Overloaded(
                f"{obj.name}: no room for {length} bytes in a cache of {self.tuning.capacity}"
            )
        self._punch(punched)
        self._dispatch()

    async def _from_disk(
        self, obj: CachedObject, first: int, last: int, offset: int, length: int
    ) -> bytes:
        cache = self.core.cache
        cache.pin(obj, first, last)
        try:
            loop = asyncio.get_running_loop()
            read = self.blocks.read
            return await loop.run_in_executor(self._pool, read, obj.number, offset, length)
        finally:
            cache.unpin(obj, first, last)
            self._drop(cache.reap(obj))

    async def _verify(self, obj: CachedObject, frames: list[StoredFrame]) -> None:
        """Check frames from before the start against their digests, on first touch."""
        first = min(page_span(f.offset, f.length)[0] for f in frames)
        last = max(page_span(f.offset, f.length)[1] for f in frames)
        self.core.cache.pin(obj, first, last)
        try:
            loop = asyncio.get_running_loop()
            results = await loop.run_in_executor(self._pool, self._check, obj.number, frames)
            for frame, good in zip(frames, results, strict=True):
                self.core.verified(obj, frame, good=good)
                if not good:
                    log.warning("corrupt frame object=%s offset=%d", obj.name, frame.offset)
        finally:
            self.core.cache.unpin(obj, first, last)
            self._drop(self.core.cache.reap(obj))

    def _check(self, number: int, frames: list[StoredFrame]) -> list[bool]:
        results = []
        for f in frames:
            try:
                data = self.blocks.read(number, f.offset, f.length)
            except OSError:
                results.append(False)
                continue
            results.append(wire.digest(data) == f.digest)
        return results

    # -- fetches ------------------------------------------------------------------------------

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
        self._drop(self.core.predict(self._predicted))
        self._dispatch()

    def _dispatch(self) -> None:
        if self._closing or self.core.scheduler.idle:
            return
        fetches, punched = self.core.dispatch(self.clock.now())
        self._punch(punched)
        loop = asyncio.get_running_loop()
        for fetch in fetches:
            task = loop.create_task(self._run(fetch))
            self._fetches.add(task)
            task.add_done_callback(self._fetches.discard)

    async def _run(self, fetch: Fetch) -> None:
        """Carry out one request; whatever happens, its pages and its lane are settled."""
        delivered = 0

        async def on_frame(header: wire.FrameHeader, data: bytes) -> None:
            nonlocal delivered
            await self._store(fetch, header, data)
            delivered += len(data)

        def on_range(index: int, error: HubSpokeError | None) -> None:
            if error is not None:
                self._range_failed(fetch, index, error)
            fetch.open_ranges.discard(index)

        error: HubSpokeError = HubUnavailable("the fetch was given up")
        try:
            await self.link.fetch(fetch.lane.index, self._request(fetch), on_frame, on_range)
        except HubSpokeError as e:
            error = e
            log.debug("fetch failed number=%d error=%s", fetch.number, e)
        finally:
            left = [fetch.ranges[i] for i in fetch.open_ranges]
            self._drop(self.core.finished(fetch, delivered, self.clock.now()))
            for r in left:
                self._waiters.fail(r.obj.number, r.first, r.last, error)
            self._dispatch()

    def _range_failed(self, fetch: Fetch, index: int, error: HubSpokeError) -> None:
        r = fetch.ranges[index]
        self.core.failed(fetch, index)
        self._waiters.fail(r.obj.number, r.first, r.last, error)

    def _request(self, fetch: Fetch) -> wire.FetchRequest:
        index: dict[int, int] = {}
        objects: list[wire.FetchObject] = []
        ranges: list[wire.FetchRange] = []
        for r in fetch.ranges:
            at = index.setdefault(r.obj.number, len(objects))
            if at == len(objects):
                name = r.obj.name
                objects.append(wire.FetchObject(name.bucket, name.key, r.obj.version))
            ranges.append(wire.FetchRange(at, r.offset, r.length))
        return wire.FetchRequest(
            self.tuning.spoke_id,
            fetch.number,
            fetch.traffic_class.value,
            objects,
            ranges,
            self.core.compress(fetch.sent_at),
        )

    async def _store(self, fetch: Fetch, header: wire.FrameHeader, data: bytes) -> None:
        """Check, write, then tell the core: in this order, so that present means written."""
        r = fetch.ranges[header.range_index]
        obj = r.obj
        if header.offset < r.offset or header.offset + len(data) > r.offset + r.length:
            raise CorruptFrame(f"{obj.name}: frame at {header.offset} outside of its range")
        try:
            if obj.number not in self._created:
                self.blocks.create(obj.number, obj.name, obj.version, obj.size)
                self._created.add(obj.number)
            if len(data) <= INLINE_BYTES:
                self._write(obj, header, data)
            else:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._pool, self._write, obj, header, data)
        except OSError as e:
            raise HubUnavailable(f"{obj.name}: cache folder: {e}") from e
        now = self.clock.now()
        encoded = header.payload_bytes
        self.core.arrived(fetch, header.range_index, header.offset, len(data), encoded, now)
        self._waiters.wake(obj.number, self._readable(obj))

    def _readable(self, obj: CachedObject) -> Callable[[int, int], bool]:
        return lambda first, last: self.core.cache.readable(obj, first, last)

    def _write(self, obj: CachedObject, header: wire.FrameHeader, data: bytes) -> None:
        wire.check_digest(header, data, str(obj.name))
        self.blocks.write(obj.number, header.offset, data, header.digest)

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

    # -- effects ------------------------------------------------------------------------------

    def _punch(self, punched: list[Punch]) -> None:
        for p in punched:
            try:
                self.blocks.punch(p.obj.number, p.offset, p.length)
            except OSError as e:
                log.warning("block not freed object=%s error=%s", p.obj.name, e)

    def _drop(self, objects: list[CachedObject]) -> None:
        for o in objects:
            if o.number not in self._created:
                continue
            self._created.discard(o.number)
            try:
                self.blocks.drop(o.number)
            except OSError as e:
                log.warning("cache file not removed object=%s error=%s", o.name, e)
