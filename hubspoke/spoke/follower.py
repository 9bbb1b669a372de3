"""Keeps a spoke's replica behind its hub's log, and its lease alive.

    snapshot (replica empty, other history, log too short) -> feed from the last applied sequence
    lease round each 500 ms, and at once when a revocation wants acknowledging

Whether a name may be read now is answered by the other half (admission.py). It must never let the
replica move backwards, or acknowledge a revocation that does not hold back reads yet. While the
replica cannot be written it has no lease and takes nothing from the hub.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from hubspoke import wire
from hubspoke.core.ids import Change, Epoch, LogSequence
from hubspoke.core.namespace import accept
from hubspoke.errors import FormatError, HubSpokeError, HubUnavailable, StoreUnavailable
from hubspoke.ports import Clock, HubLink, NamespaceRecord, NamespaceStore
from hubspoke.spoke.admission import Admission
from hubspoke.spoke.renewal import FollowerTuning, LeaseRenewal
from hubspoke.spoke.replica import CONSISTENT_FACT, INCARNATION_FACT, revoked_name

log = logging.getLogger(__name__)


class Follower(Admission):
    """One replica that follows one hub. `start`, ask, `close`."""

    def __init__(
        self,
        link: HubLink,
        namespace: NamespaceStore,
        clock: Clock,
        *,
        spoke_id: str,
        on_change: Callable[[Change], None],
        on_reset: Callable[[], None] = lambda: None,
        tuning: FollowerTuning | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """on_change: each applied change of an object, after the replica has it. on_reset: a
        snapshot replaces everything; what its names hold is not told one by one."""
        super().__init__(link, namespace, clock, spoke_id, tuning or FollowerTuning())
        self._on_change = on_change
        self._on_reset = on_reset
        self._rng = rng or random.Random()
        self._renewal = LeaseRenewal(
            link, self._calls, namespace, self._replica, clock, self._lease, spoke_id,
            self._tuning, wanted=self._may_hold_lease, heard=self._heard,
        )  # fmt: skip
        self._acknowledge = self._renewal.kick
        self._tasks: list[asyncio.Task[None]] = []
        self._hub_region = ""

    async def start(self) -> None:
        """Begin to follow; returns at once, also when the hub cannot be reached."""
        self._tasks = [
            asyncio.create_task(self._follow_forever()),
            asyncio.create_task(self._renewal.run()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._index_rounds.close()
        self._wake()

    def hub_region(self) -> str:
        return self._hub_region

    # Following ---------------------------------------------------------------------------------

    async def _follow_forever(self) -> None:
        pause = self._tuning.backoff_s
        while True:
            reached = False
            try:
                await self._replica_writable()
                if self._namespace.epoch is None or self._resync:
                    await self._load_snapshot()
                at = self._replica.history()
                feed = self._link.feed(at.epoch or "", self.sequence, at.incarnation)
                async for message in feed:
                    reached = True
                    await self._take(message)
                    if self._resync or self._namespace.trouble() is not None:
                        break
                else:
                    self._went_down("the hub ended the feed")
            except HubSpokeError as e:
                self._loading = None
                if not isinstance(e, StoreUnavailable):  # the replica: the next round looks
                    self._went_down(str(e))
            self._feeding = False
            self._advance()  # from now on it falls behind
            pause = self._tuning.backoff_s if reached else pause
            if not self._resync or not reached:
                await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
                pause = min(pause * 2, self._tuning.backoff_max_s)

    def _may_hold_lease(self) -> bool:
        """A replica that falls behind must not hold one: every change at the hub waits for it."""
        known = self._namespace.epoch is not None and not self._resync
        return known and self._namespace.trouble() is None

    async def _replica_writable(self) -> None:
        """Wait until the replica can be written, without a lease that it could not live up to."""
        if (why := self._namespace.trouble()) is None:
            return
        if why != self._stuck:
            log.warning("following waits sequence=%d reason=%s", self.sequence, why)
        self._stuck = why
        self._lease.lose()
        self._advance()
        await self._namespace.written()
        self._stuck = None
        log.info("following goes on sequence=%d", self.sequence)

    async def _load_snapshot(self) -> None:
        """Load beside what is there, which goes on being answered with its age where it may be."""
        start: wire.SnapshotStart | None = None
        asked_at = self._clock.now()
        async for message in self._link.snapshot():
            match message:
                case wire.SnapshotStart():
                    start = message
                    await self._begin_loading(message)
                case wire.SnapshotBatch() if start is not None:
                    records = [_record(entry) for entry in message.entries]
                    await self._namespace.load(records)
                    loaded, of = self._loading or (0, 0)
                    self._loading = (loaded + len(records), of)
                case wire.SnapshotEnd() if start is not None:
                    await self._end_loading(start, message)
                    self._lease.was_current(asked_at)
                    self._renewal.kick()
                    return
                case _:
                    raise FormatError(f"{type(message).__name__} in a snapshot")
        raise HubUnavailable("the snapshot ended before its end")

    async def _begin_loading(self, start: wire.SnapshotStart) -> None:
        log.info("snapshot started epoch=%s entries=%d", start.epoch, start.entries)
        self._loading = (0, start.entries)
        self._hub_sequence = None  # another epoch may be at a lower one
        await self._namespace.begin_load()
        self._heard(start.sequence)

    async def _end_loading(self, start: wire.SnapshotStart, end: wire.SnapshotEnd) -> None:
        loaded, _ = self._loading or (0, 0)
        if end.entries != loaded:
            raise FormatError(f"snapshot of {end.entries} entries, {loaded} arrived")
        self._lease.forget(now=self._clock.now())
        await self._namespace.adopt(
            Epoch(start.epoch),
            LogSequence(start.sequence),
            buckets=start.buckets,
            facts={CONSISTENT_FACT: str(end.sequence), INCARNATION_FACT: start.incarnation},
        )
        self._on_reset()
        self._loading = None
        self._resync = False
        log.info("snapshot complete entries=%d sequence=%d", loaded, start.sequence)
        self._advance()

    async def _take(self, message: wire.Message) -> None:
        match message:
            case wire.FeedStart():
                if message.epoch != self._namespace.epoch:
                    return self._need_snapshot(f"feed of epoch {message.epoch}")
                if message.buckets != self._namespace.buckets():
                    await self._namespace.set_buckets(message.buckets)
                if message.incarnation != self._replica.history().incarnation:
                    # Before any change of this life, which is then committed no earlier.
                    await self._namespace.put_fact(INCARNATION_FACT, message.incarnation)
                self._hub_region = message.region
                self._feeding = True
                log.info("feed started after=%d hub=%d", self.sequence, message.sequence)
                self._heard(message.sequence)
            case wire.FeedChanges():
                await self._take_changes(message)
            case wire.FeedRevoke():
                revoke, now = self._lease.revoke, self._clock.now()
                if any(
                    [revoke(r.revocation_id, revoked_name(r), now=now) for r in message.revocations]
                ):
                    self._renewal.kick()
                self._call_back()
            case wire.FeedHeartbeat():
                self._heard(message.sequence)
            case wire.FeedResync():
                self._need_snapshot(message.reason)
            case _:
                raise FormatError(f"{type(message).__name__} in the feed")

    def _need_snapshot(self, reason: str) -> None:
        """The replica does not follow any more: no lease covers it from here on."""
        log.warning("snapshot needed reason=%s", reason)
        self._resync = True
        self._lease.lose()

    async def _take_changes(self, message: wire.FeedChanges) -> None:
        accepted = accept(self.sequence, [wire.from_wire(entry) for entry in message.entries])
        if message.buckets is not None:
            await self._namespace.set_buckets(message.buckets)
        if accepted.changes:
            try:
                await self._namespace.apply(accepted.changes)
            except StoreUnavailable:
                if self.sequence < accepted.changes[-1].sequence:
                    raise
                # Taken all the same, only not durable yet: it must be told like any other.
            self._heard(accepted.changes[-1].sequence)
        if accepted.gap:
            raise FormatError(
                f"feed jumps from {self.sequence} to {message.entries[-1].sequence}; asking again"
            )
        self._lease.ended(message.ended)
        self._advance()
        for change in accepted.changes:
            if change.name.key:
                self._on_change(change)

    # Inside ------------------------------------------------------------------------------------

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("following stopped error=%r", error, exc_info=error)
            self._went_down(f"{type(error).__name__}: {error}")


def _record(entry: wire.WireEntry) -> NamespaceRecord:
    change = wire.from_wire(entry)
    if change.entry is None:
        raise FormatError(f"{change.name}: a tombstone in a snapshot")
    return NamespaceRecord(change.name, change.entry, change.sequence)
