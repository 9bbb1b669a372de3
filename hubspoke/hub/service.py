"""The hub: one log in front of one object store, answering readers, writers and spokes.

Collects the facts a decision needs, asks the core (core.hub, core.leases), has the effects
carried out (changes, feed). It must never answer a read of a name whose change is under way, or
acknowledge a change that is not durable.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from hubspoke import wire
from hubspoke.core.hub import HubCore, differs
from hubspoke.core.ids import Epoch, LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.core.leases import HubLeases
from hubspoke.core.namespace import Listed, PageSpan, bucket_name
from hubspoke.errors import (
    HubSpokeError,
    NoSuchKey,
    StoreUnavailable,
    VersionChanged,
)
from hubspoke.hub.changes import Changes, Work
from hubspoke.hub.feed import Feeds, revocations
from hubspoke.hub.index import (
    IndexProgress,
    begin_life,
    first_change_id,
    first_index,
    need_objects,
    settle_buckets,
    settle_intents,
)
from hubspoke.hub.lookups import Lookups
from hubspoke.hub.reconcile import bucket_change
from hubspoke.hub.tuning import HubTuning
from hubspoke.hub.watch import ChangeSource, Watch
from hubspoke.hub.writes import HubWrites
from hubspoke.ports import Clock, NamespaceStore, ObjectStore, ReadResult, Resolved
from hubspoke.report.facts import HubFacts

log = logging.getLogger(__name__)

LEASE_TERM_FACT = "lease_term_s"


class HubService(HubWrites):
    """ports.Reader and ports.Writer (the writing half is in writes.py). `start` first."""

    def __init__(
        self,
        store: ObjectStore,
        namespace: NamespaceStore,
        clock: Clock,
        tuning: HubTuning,
        *,
        source: ChangeSource | None = None,
        new_epoch: Callable[[], str] = lambda: secrets.token_hex(8),
        new_incarnation: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """source: what tells the changes that others make in the store."""
        super().__init__(store, namespace)
        self._clock = clock
        self._tuning = tuning
        self._new_epoch = new_epoch
        self._incarnation = new_incarnation()
        self._started_at = clock.now()
        self._refreshing: dict[ObjectName, asyncio.Task[bool]] = {}
        # The longest term this life has granted or may owe to an earlier one; the first is durable.
        self._noted_term_s = 0.0
        self._granted_term_s = 0.0
        self._former_term_s = 0.0
        self._sent_bytes = 0
        self._lookups = Lookups(store, namespace, self.refresh, clock, tuning)
        self.progress = IndexProgress()
        self._watch = Watch(
            store, namespace, source, self.settle, self._settle_bucket, self.progress, clock, tuning
        )

    async def start(self) -> None:
        """Open the store, bring the log level with it, then serve.

        Raises ConfigError when the store cannot be used, StoreUnavailable when it fails.
        """
        await self._store.open()
        namespace, lease = self._namespace, self._tuning.lease
        fresh = namespace.epoch is None
        if fresh:
            self._not_ready = "first index of the store"
            # Whoever served this store before may have granted leases that still run. Noted
            # before there is an epoch: a start that fails or dies behind it is not fresh again.
            stranger_term_s = self._tuning.stranger_term_s
            longest_term_s = max(lease.term_s, lease.term_max_s)
            former_term_s = longest_term_s if stranger_term_s is None else stranger_term_s
            await namespace.put_fact(LEASE_TERM_FACT, repr(former_term_s))
            epoch = Epoch(self._new_epoch())
            await first_index(self._store, namespace, epoch, self.progress)
            lives = await begin_life(namespace, self._incarnation)
            self._watch.tell_skipped()
        else:
            await need_objects(self._store, namespace)
            self._not_ready = "settling changes that a stop cut short"
            former_term_s = float(namespace.fact(LEASE_TERM_FACT) or 0.0)
            lives = await begin_life(namespace, self._incarnation)
            await settle_intents(self._store, namespace)
            await settle_buckets(self._store, namespace)
        # Every intent is settled, so nothing that is staged belongs to anybody any more.
        await self._store.sweep([])
        assert namespace.epoch is not None
        self._noted_term_s = self._former_term_s = former_term_s
        first_id = await first_change_id(namespace, self._clock.unix_ns() // 1000)
        self._core = HubCore(
            epoch=namespace.epoch,
            sequence=namespace.sequence,
            leases=HubLeases(
                lease,
                now=self._started_at,
                former_term_s=former_term_s,
                through=first_id - 1,
            ),
            first_change_id=first_id,
            config=self._tuning.core,
        )
        self._feeds = Feeds(self._core, namespace, self._tuning, lives)
        self._changes = Changes(
            core=self._core,
            store=self._store,
            namespace=namespace,
            feeds=self._feeds,
            clock=self._clock,
            tuning=self._tuning,
        )
        if fresh:
            self.progress.state = "complete"
        self._watch.start(level=fresh)
        self._not_ready = ""
        log.info("hub serves epoch=%s sequence=%d", namespace.epoch, namespace.sequence)

    def end_feeds(self) -> None:
        """End the answers that never end by themselves, so that the port can drain."""
        if hasattr(self, "_feeds"):
            self._feeds.close()

    async def close(self) -> None:
        """Let changes end, end the feeds, close store and namespace."""
        self._not_ready = "stopping"
        await self._watch.close()
        await self._lookups.close()
        if hasattr(self, "_changes"):
            await self._changes.close()
            self._feeds.close()
            with suppress(StoreUnavailable):  # then the next start waits longer than it must
                await self._note_term()
        refreshing = list(self._refreshing.values())
        if refreshing:
            await asyncio.wait(refreshing)
        await self._namespace.close()
        await self._store.close()

    def ready(self) -> list[str]:
        """Reasons why it does not serve."""
        if self._not_ready:
            seen = self.progress.objects
            return [f"{self._not_ready} ({seen} objects seen)" if seen else self._not_ready]
        return []

    def limits(self) -> list[str]:
        """What it cannot do while it serves, and why."""
        if self._not_ready:
            return []
        limits = []
        if (why := self._namespace.trouble()) is not None:
            limits.append(f"writes are impossible, the log cannot be written: {why}")
        if (why := self._watch.trouble) is not None:
            limits.append(f"the store could not be compared with the log: {why}")
        return limits

    def facts(self) -> HubFacts:
        serving = not self._not_ready
        return HubFacts(
            region=self._tuning.region,
            epoch=self._namespace.epoch or "",
            sequence=self._core.published if serving else self._namespace.sequence,
            objects=len(self._namespace),
            spokes=sorted(self._core.live_leases(now=self._clock.now())) if serving else [],
            requests=dict(self._requests),
            sent_bytes=self._sent_bytes,
            received_bytes=self._received_bytes,
            limits=self.limits(),
            skipped=dict(self._store.skipped.counts),
            skipped_examples={k: list(v) for k, v in self._store.skipped.examples.items()},
            watch=self._watch.facts(),
        )

    # Reading -----------------------------------------------------------------------------------

    async def buckets(self) -> list[str]:
        self._serving("buckets")
        await self._changes.buckets_readable()
        return self._namespace.buckets()

    async def resolve(self, name: ObjectName) -> Resolved:
        self._serving("resolve")
        await self._changes.readable(name)
        record = self._namespace.get(name)
        if record is None:
            await self._changes.readable(bucket_name(name.bucket))
            self._need_bucket(name.bucket)
            await self._lookups.look(name)
            record = self._namespace.get(name)
        if record is None:
            raise NoSuchKey(f"{name}: no such object")
        return Resolved(name, record.entry)

    async def read(self, resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        """The first bytes are read before this returns, so a changed object is noticed in time
        to resolve it again: after VersionChanged the name resolves to what the store has."""
        self._serving("read")
        chunk = self._tuning.read_chunk_bytes
        name, version = resolved.name, resolved.entry.version
        if length == 0:
            return ReadResult(resolved, offset, 0, b"")
        try:
            first = await self.read_version(name, version, offset, min(length, chunk))
        except (VersionChanged, NoSuchKey):
            await self.refresh(name)
            raise
        if length <= chunk:
            return ReadResult(resolved, offset, length, first)
        return ReadResult(resolved, offset, length, self._rest(resolved, offset, length, first))

    async def _rest(
        self, resolved: Resolved, offset: int, length: int, first: bytes
    ) -> AsyncIterator[bytes]:
        """Reads one chunk ahead, so that the disk works while the socket does."""
        chunk = self._tuning.read_chunk_bytes
        name, version = resolved.name, resolved.entry.version
        end, at, data = offset + length, offset + len(first), first
        ahead: asyncio.Task[bytes] | None = None
        try:
            while at < end:
                n = min(chunk, end - at)
                ahead = asyncio.create_task(self.read_version(name, version, at, n))
                yield data
                data = await ahead
                at += n
            yield data
        finally:
            if ahead is not None and not ahead.done():
                ahead.cancel()
                await asyncio.wait([ahead])

    async def read_version(self, name: ObjectName, version: Version, at: int, n: int) -> bytes:
        """Bytes of exactly that version. A version the store no longer has is looked into in
        the background. Raises VersionChanged, NoSuchKey, StoreUnavailable."""
        try:
            async with asyncio.timeout(self._tuning.store_s):
                data = await self._store.read(name, version, at, n)
        except TimeoutError as e:
            raise StoreUnavailable(f"{name} at {at}+{n}: took over {self._tuning.store_s} s") from e
        except (VersionChanged, NoSuchKey):
            self.notice(name)
            raise
        self._sent_bytes += len(data)
        return data

    def read_now(self, name: ObjectName, version: Version, at: int, n: int) -> memoryview | None:
        """As `read_version`, where nothing has to be waited for; None otherwise."""
        if (data := self._store.read_now(name, version, at, n)) is not None:
            self._sent_bytes += n
        return data

    async def list_page(self, bucket: str, *, prefix: str, after: str, limit: int) -> list[Listed]:
        self._serving("list")
        await self._changes.readable(bucket_name(bucket))
        self._need_bucket(bucket)
        while True:
            page = self._namespace.listed(bucket, prefix=prefix, after=after, limit=limit)
            last = page[-1][0] if len(page) == limit else None
            span = PageSpan(bucket, prefix, after, last)
            if self._core.blocked_in(span) is None:
                return page
            await self._changes.page_readable(span)

    def staleness_s(self) -> None:
        """The hub's answers are current."""

    def known(self, name: ObjectName) -> ObjectEntry | None:
        """What the log holds of the name now, for spokes that ask for ranges of a version."""
        record = self._namespace.get(name)
        return record.entry if record is not None else None

    # Changes behind the hub's back -------------------------------------------------------------

    def notice(self, name: ObjectName) -> None:
        """Something about the name looks different in the store: look into it, soon."""
        if self._not_ready or name in self._refreshing:
            return
        if len(self._refreshing) >= self._tuning.refreshes_max:
            self._watch.notice(name)
            return
        task = asyncio.create_task(self._refresh(name))
        self._refreshing[name] = task
        task.add_done_callback(lambda _: self._refreshing.pop(name, None))

    async def refresh(self, name: ObjectName) -> bool:
        """Bring the log level with the store for one name. Returns whether it had changed; a
        store that does not answer has not (a later read finds out)."""
        running = self._refreshing.get(name)
        if running is not None:
            return await asyncio.shield(running)
        return await self._refresh(name)

    async def _refresh(self, name: ObjectName) -> bool:
        try:
            return await self.settle(name)
        except HubSpokeError as e:
            log.warning("change behind the hub's back not settled name=%s error=%s", name, e)
            return False

    async def settle(self, name: ObjectName) -> bool:
        """As `refresh`, but raises HubSpokeError when the store or the log did not answer."""
        changed = False

        async def look(known: ObjectEntry | None) -> bool:
            nonlocal changed
            changed = differs(known, await self._store.head(name))
            return changed

        async def look_again() -> ObjectEntry | None:
            return await self._store.head(name)

        await self._changes.run(Work(name, act=look_again, check=look, intent=False))
        if changed:
            log.debug("changed behind the hub's back name=%s", name)
        return changed

    async def _settle_bucket(self, bucket: str) -> None:
        await self._changes.run(bucket_change(self._store, self._namespace, bucket))

    # Spokes ------------------------------------------------------------------------------------

    async def lease(self, request: wire.LeaseRequest) -> wire.LeaseReply:
        """Grant, renew or refuse. Raises StoreUnavailable when the log cannot be written and no
        lease was ever granted under it."""
        self._serving("lease")
        epoch = self._core.epoch
        if request.epoch != epoch:
            reason = f"epoch {request.epoch or 'none'} at the spoke, {epoch} at the hub"
            return wire.LeaseReply(epoch, 0.0, self._core.published, [], reason)
        rtt_s = request.rtt_s
        self._granted_term_s = max(self._granted_term_s, self._tuning.lease.term_for(rtt_s))
        try:
            await self._note_term()
        except StoreUnavailable:
            if self._noted_term_s < self._tuning.lease.term_for(0.0):
                raise
            rtt_s = 0.0  # no longer a lease than is noted, however far the spoke is
        grant, required, effects = self._core.lease(
            now=self._clock.now(),
            spoke=request.spoke,
            acked=request.acked,
            rtt_s=rtt_s,
        )
        reply = wire.LeaseReply(
            epoch, grant.term_s, required, revocations(grant.revocations), grant.reason,
            grant.through, self._incarnation,
        )  # fmt: skip
        self._changes.execute(effects)
        return reply

    def read_index(self, request: wire.ReadIndexRequest) -> wire.ReadIndexReply:
        """Where the log is now; a spoke of another epoch sees so from the reply."""
        self._serving("read_index")
        sequence, standing = self._core.read_index()
        return wire.ReadIndexReply(
            self._core.epoch, sequence, revocations(standing.revocations), standing.through,
            self._incarnation,
        )  # fmt: skip

    async def _note_term(self) -> None:
        """A restarted hub must know how long to wait before its first change: for the longest
        lease of this life, and of former ones until those have run out."""
        former_until = self._started_at + self._former_term_s + self._tuning.lease.margin_s
        if self._clock.now() >= former_until:
            self._former_term_s = 0.0
        term_s = max(self._granted_term_s, self._former_term_s)
        if term_s != self._noted_term_s:
            await self._namespace.put_fact(LEASE_TERM_FACT, repr(term_s))
            self._noted_term_s = term_s

    def feed(self, epoch: str, after: int, incarnation: str = "") -> AsyncIterator[wire.Message]:
        self._serving("feed")
        return self._feeds.feed(Epoch(epoch), LogSequence(after), incarnation)

    def snapshot(self) -> AsyncIterator[wire.Message]:
        self._serving("snapshot")
        return self._feeds.snapshot()
