"""What spokes are told: the change feed and the snapshot, as sequences of messages.

The effects of the core go into one ring that all feeds share; a feed is a position in it. A spoke
that is slow therefore holds nothing at the hub: its position falls out of the ring, it goes on
from the log, and when the log no longer reaches back it is told to take a snapshot. Nothing here
waits for a spoke, and nothing is sent that is not durable.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from hubspoke import wire
from hubspoke.core.hub import HubCore, Publish, Recall, Withdraw
from hubspoke.core.ids import Epoch, LogSequence, ObjectName
from hubspoke.core.namespace import Incarnation, resume_refusal, shared_history
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import NamespaceStore

Told = Publish | Recall | Withdraw


def revocations(under_way: tuple[tuple[int, ObjectName], ...]) -> list[wire.Revocation]:
    return [wire.Revocation(i, name.bucket, name.key) for i, name in under_way]


class Feeds:
    """The ring of recent events, and the feeds and snapshots that are being told."""

    def __init__(
        self,
        core: HubCore,
        namespace: NamespaceStore,
        tuning: HubTuning,
        lives: Sequence[Incarnation],
    ) -> None:
        """lives: of the log, oldest first; the last is this one."""
        self._core = core
        self._lives = lives
        self._namespace = namespace
        self._tuning = tuning
        self._ring: deque[Told] = deque(maxlen=tuning.tail_entries_max)
        self._told = 0  # events ever; the ring holds the last of them
        self._waiting: dict[asyncio.Event, None] = {}  # in order: spokes are told in turn
        self._closed = False

    def tell(self, event: Told) -> None:
        self._ring.append(event)
        self._told += 1
        self.wake()

    def wake(self) -> None:
        for event in self._waiting:
            event.set()

    def close(self) -> None:
        """Feeds end; their spokes see the connection close."""
        self._closed = True
        self.wake()

    async def published(self, sequence: LogSequence) -> None:
        """Wait until everything up to `sequence` is durable; the caller sets a deadline."""
        with _Waiter(self._waiting) as event:
            while self._core.published < sequence and not self._closed:
                event.clear()
                await event.wait()

    async def feed(
        self, epoch: Epoch, after: LogSequence, incarnation: str
    ) -> AsyncIterator[wire.Message]:
        """incarnation: of the replica's history; "" where the spoke does not know of them."""
        core, namespace = self._core, self._namespace
        shared = shared_history(self._lives, incarnation or self._lives[-1].id, core.published)
        reached = namespace.changes_after(after, 1)
        refusal = resume_refusal(
            replica_epoch=epoch,
            applied=after,
            hub_epoch=core.epoch,
            shared=shared,
            log_reaches=reached is not None,
        )
        if refusal is not None:
            yield wire.FeedResync(core.epoch, refusal)
            return
        buckets = namespace.buckets()
        yield wire.FeedStart(
            core.epoch,
            core.published,
            wire.PROTOCOL_VERSION,
            buckets,
            self._tuning.region,
            self._lives[-1].id,
        )
        at, position = int(after), -1  # -1: go on from the log
        with _Waiter(self._waiting) as event:
            while not self._closed:
                event.clear()
                if position < self._told - len(self._ring):
                    changes = namespace.changes_after(LogSequence(at), self._tuning.feed_batch)
                    if changes is None:
                        yield wire.FeedResync(core.epoch, f"the log has dropped sequence {at + 1}")
                        return
                    entries = [wire.to_wire(c) for c in changes if c.sequence <= core.published]
                    if entries:
                        at = entries[-1].sequence
                        changed = _changed(namespace, buckets)
                        buckets = buckets if changed is None else changed
                        yield wire.FeedChanges(entries, changed)
                        continue
                    # Level with the log: from here on the ring tells everything. What is under
                    # way now may have been told before this position.
                    position = self._told
                    yield wire.FeedRevoke(revocations(core.under_way()))
                elif position < self._told:
                    batch, position = self._next(position)
                    if isinstance(batch[0], Recall):
                        yield _revoke(batch)
                        continue
                    # The list goes with, or ahead of, the change that made it differ, so that a
                    # spoke that has applied the sequence has the buckets too.
                    changed = _changed(namespace, buckets)
                    buckets = buckets if changed is None else changed
                    entries, ended = _published(batch, at)
                    at = entries[-1].sequence if entries else at
                    yield wire.FeedChanges(entries, changed, ended)
                elif not await _set_within(event, self._tuning.heartbeat_s):
                    yield wire.FeedHeartbeat(core.published)

    def _next(self, position: int) -> tuple[list[Told], int]:
        """Events from `position` on that fit one message: revocations, or what ends them."""
        start = position - (self._told - len(self._ring))
        batch = [self._ring[start]]
        for i in range(start + 1, min(len(self._ring), start + self._tuning.feed_batch)):
            if isinstance(self._ring[i], Recall) != isinstance(batch[0], Recall):
                break
            batch.append(self._ring[i])
        return batch, position + len(batch)

    async def snapshot(self) -> AsyncIterator[wire.Message]:
        """All names by key ranges. Fuzzy: records may be newer than the start; the feed after
        it completes them, and the replica is consistent from the end's sequence on."""
        namespace, core = self._namespace, self._core
        start = core.published
        buckets = namespace.buckets()
        yield wire.SnapshotStart(core.epoch, start, len(namespace), buckets, self._lives[-1].id)
        sent = 0
        for bucket in buckets:
            after = ""
            while page := namespace.scan(bucket, after=after, limit=self._tuning.snapshot_batch):
                after = page[-1].name.key
                sent += len(page)
                yield wire.SnapshotBatch(
                    [
                        wire.WireEntry(
                            bucket, r.name.key, r.sequence, r.entry.version, r.entry.size,
                            r.entry.etag, r.entry.modified_ns, r.entry.headers,
                        )
                        for r in page
                    ]
                )  # fmt: skip
        end = core.assigned
        await self.published(end)
        if core.published >= end:  # else the hub is closing, and the spoke begins anew
            yield wire.SnapshotEnd(sent, end)


class _Waiter:
    def __init__(self, waiting: dict[asyncio.Event, None]) -> None:
        self._waiting = waiting
        self._event = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        self._waiting[self._event] = None
        return self._event

    def __exit__(self, *_: object) -> None:
        del self._waiting[self._event]


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _changed(namespace: NamespaceStore, sent: list[str]) -> list[str] | None:
    now = namespace.buckets()
    return now if now != sent else None


def _revoke(batch: list[Told]) -> wire.FeedRevoke:
    return wire.FeedRevoke(
        revocations(tuple((e.revocation_id, e.name) for e in batch if isinstance(e, Recall)))
    )


def _published(batch: list[Told], at: int) -> tuple[list[wire.WireEntry], list[int]]:
    """Entries behind sequence `at`, and the revocations that end with the batch."""
    entries = [
        wire.to_wire(e.change) for e in batch if isinstance(e, Publish) and e.change.sequence > at
    ]
    return entries, [e.revocation_id for e in batch]
