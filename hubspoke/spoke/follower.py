"""Keeps a spoke's replica behind its hub's log, and its lease alive.

    snapshot (replica empty, other epoch, log too short) -> feed from the last applied sequence
    lease round each 500 ms, and at once when a revocation wants acknowledging

Answers, at once and from memory, whether a name may be read now. It must never let the replica
move backwards, acknowledge a revocation that does not hold back reads yet, count a lease from
the arrival of its reply, or take a hub that does not answer for one that says "deleted". While
the replica cannot be written it has no lease and takes nothing from the hub.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable

from hubspoke import wire
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectName
from hubspoke.core.leases import LeaseState, SpokeLease
from hubspoke.core.namespace import PageSpan, accept, bucket_name
from hubspoke.errors import (
    DeadlineExceeded,
    FormatError,
    HubSpokeError,
    HubUnavailable,
    StoreUnavailable,
)
from hubspoke.ports import Clock, HubLink, NamespaceRecord, NamespaceStore
from hubspoke.spoke.renewal import CURRENT_FACT, FollowerTuning, LeaseRenewal, revoked_name

log = logging.getLogger(__name__)

CONSISTENT_FACT = "consistent_at"  # sequence from which on a loaded replica is one state


class Follower:
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
        self._link = link
        self._namespace = namespace
        self._clock = clock
        self._spoke_id = spoke_id
        self._on_change = on_change
        self._on_reset = on_reset
        self._tuning = tuning or FollowerTuning()
        self._rng = rng or random.Random()
        self._lease = SpokeLease(self._tuning.lease)
        self._renewal = LeaseRenewal(
            link, namespace, clock, self._lease, spoke_id, self._tuning,
            heard=self._heard, down=self._went_down,
        )  # fmt: skip
        self._changed = asyncio.Event()  # replaced at each wake: waiters look again
        self._tasks: list[asyncio.Task[None]] = []
        self._consistent_at = LogSequence(int(namespace.fact(CONSISTENT_FACT) or 0))
        self._resync = False
        self._hub_sequence: LogSequence | None = None
        self._hub_region = ""
        self._behind_since: float | None = clock.now()
        self._loading: tuple[int, int] | None = None  # loaded, of
        self._down: tuple[float, str] | None = (clock.now(), "not connected yet")
        self._feeding = False
        self._stuck: str | None = None  # why the replica cannot be written

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
        self._wake()

    # Answers -----------------------------------------------------------------------------------

    @property
    def sequence(self) -> LogSequence:
        return self._namespace.sequence

    @property
    def hub_sequence(self) -> LogSequence | None:
        """The hub's last sequence heard of; None before the first contact."""
        return self._hub_sequence

    def hub_region(self) -> str:
        return self._hub_region

    def rtt_s(self) -> float | None:
        """Least round trip of a lease request so far."""
        return self._renewal.rtt_s

    def lag_seconds(self) -> float | None:
        """For how long the replica has been behind the hub's log; None before any contact."""
        if self._hub_sequence is None:
            return None
        return 0.0 if self._behind_since is None else self._clock.now() - self._behind_since

    def complete(self) -> bool:
        """Whether the replica is one whole state of the hub, so that absence means absence."""
        return self._namespace.epoch is not None and self.sequence >= self._consistent_at

    def lease_state(self) -> LeaseState:
        if not self.complete():
            return "none"
        return self._lease.state(now=self._clock.now(), applied=self.sequence)

    def staleness_s(self) -> float | None:
        """Seconds since the replica was surely current; None under a valid lease, and when it
        is not known."""
        if self.lease_state() == "valid":
            return None
        age = self._age_s()
        return None if math.isinf(age) else age

    def admit(self, name: ObjectName, *, below: bool = False) -> float | None:
        """May the name be answered from the replica now? Returns the staleness in seconds, None
        under a valid lease. below: a listing of what begins with it. Raises HubUnavailable."""
        if not self.complete():
            raise HubUnavailable(f"{name}: replica incomplete: {'; '.join(self.ready())}")
        if self._lease.state(now=self._clock.now(), applied=self.sequence) == "valid":
            return None
        age = self._age_s()
        if (refusal := self._tuning.policy.refusal(name, age, below=below)) is not None:
            raise HubUnavailable(f"{name}: {refusal}; {self._why_down()}")
        return age

    def absent(self, name: ObjectName) -> None:
        """An admitted name is not in the replica: may that be told? Raises HubUnavailable while
        the replica stands still although its hub goes on."""
        if self._stuck is not None:
            raise HubUnavailable(f"{name}: not in the replica; {self._why_down()}")

    def current(self, name: ObjectName) -> bool:
        """Whether the replica's entry may be answered at once: under a valid lease, not revoked."""
        if not self.complete() or self._lease.is_revoked(name):
            return False
        return self._lease.state(now=self._clock.now(), applied=self.sequence) == "valid"

    def revoked(self, page: PageSpan) -> bool:
        """Whether a listing page speaks for a name whose change is under way."""
        return self._lease.revoked_in(page)

    async def settled(self, name: ObjectName, deadline: float) -> None:
        """Wait while a revocation covers the name or its bucket. deadline: in the clock's
        seconds. When it returns, `admit` and the replica's `get` may follow without an await
        between. A name with key "" is the bucket itself.

        Raises DeadlineExceeded.
        """
        bucket, revoked = bucket_name(name.bucket), self._lease.is_revoked
        await self._wait_while(lambda: revoked(name) or revoked(bucket), str(name), deadline)

    async def buckets_settled(self, deadline: float) -> None:
        """Like `settled`, for the list of buckets."""
        await self._wait_while(self._lease.revoked_bucket, "list of buckets", deadline)

    async def page_settled(self, page: PageSpan, deadline: float) -> None:
        """Like `settled`, for all names that a listing page speaks for."""
        what = f"listing of {page.bucket}/{page.prefix}"
        await self._wait_while(lambda: self._lease.revoked_in(page), what, deadline)

    def ready(self) -> list[str]:
        """Reasons why answers are not fresh; empty under a valid lease."""
        if self.lease_state() == "valid":
            return []
        reasons = [self._why_down()] if self._down or self._stuck else []
        if self._loading is not None:
            loaded, of = self._loading
            reasons.append(f"snapshot {100 * loaded // max(of, 1)} % loaded")
        elif not self.complete():
            reasons.append(
                f"replica at sequence {self.sequence}, complete at {self._consistent_at}"
            )
        elif not reasons:
            reasons.append("waiting for a lease")
        if self.complete() and not math.isinf(age := self._age_s()):
            reasons.append(f"answers may be {age:.1f} s old")
        return reasons

    # Following ---------------------------------------------------------------------------------

    async def _follow_forever(self) -> None:
        pause = self._tuning.backoff_s
        while True:
            reached = False
            try:
                await self._replica_writable()
                if self._namespace.epoch is None or self._resync:
                    await self._load_snapshot()
                async for message in self._link.feed(self._namespace.epoch or "", self.sequence):
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
        start: wire.SnapshotStart | None = None
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
                    return
                case _:
                    raise FormatError(f"{type(message).__name__} in a snapshot")
        raise HubUnavailable("the snapshot ended before its end")

    async def _begin_loading(self, start: wire.SnapshotStart) -> None:
        log.info("snapshot started epoch=%s entries=%d", start.epoch, start.entries)
        self._loading = (0, start.entries)
        self._hub_sequence = None  # another epoch may be at a lower one
        self._lease.forget()
        await self._namespace.reset(Epoch(""), LogSequence(0))
        await self._namespace.set_buckets(start.buckets)
        self._on_reset()
        self._heard(start.sequence)

    async def _end_loading(self, start: wire.SnapshotStart, end: wire.SnapshotEnd) -> None:
        loaded, _ = self._loading or (0, 0)
        if end.entries != loaded:
            raise FormatError(f"snapshot of {end.entries} entries, {loaded} arrived")
        self._consistent_at = LogSequence(end.sequence)
        await self._namespace.put_fact(CONSISTENT_FACT, str(end.sequence))
        await self._namespace.adopt(Epoch(start.epoch), LogSequence(start.sequence))
        self._loading = None
        self._resync = False
        log.info("snapshot complete entries=%d sequence=%d", loaded, start.sequence)
        self._advance()

    async def _take(self, message: wire.Message) -> None:
        match message:
            case wire.FeedStart():
                if message.epoch != self._namespace.epoch:
                    self._resync = True
                    return
                if message.buckets != self._namespace.buckets():
                    await self._namespace.set_buckets(message.buckets)
                self._hub_region = message.region
                self._feeding = True
                log.info("feed started after=%d hub=%d", self.sequence, message.sequence)
                self._heard(message.sequence)
            case wire.FeedChanges():
                await self._take_changes(message)
            case wire.FeedRevoke():
                revoke = self._lease.revoke
                if any([revoke(r.revocation_id, revoked_name(r)) for r in message.revocations]):
                    self._renewal.kick()
            case wire.FeedHeartbeat():
                self._heard(message.sequence)
            case wire.FeedResync():
                log.warning("snapshot needed reason=%s", message.reason)
                self._resync = True
            case _:
                raise FormatError(f"{type(message).__name__} in the feed")

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

    def _heard(self, sequence: int) -> None:
        """Anything heard from the hub means that it can be reached."""
        self._down = None
        self._hub_sequence = LogSequence(max(sequence, self._hub_sequence or 0))
        self._advance()

    def _advance(self) -> None:
        """The replica or the lease has moved: note it, let waiting readers look again."""
        now = self._clock.now()
        self._lease.advance(applied=self.sequence, now=now)
        if self._feeding and self.sequence >= (self._hub_sequence or 0):
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        self._wake()

    # Inside ------------------------------------------------------------------------------------

    def _age_s(self) -> float:
        until = self._lease.current_until()
        if until is not None:
            return max(0.0, self._clock.now() - until)
        noted = self._namespace.fact(CURRENT_FACT)
        if noted is None:
            return math.inf
        return max(0.0, (self._clock.unix_ns() - int(noted)) / 1e9)

    async def _wait_while(self, covered: Callable[[], bool], what: str, deadline: float) -> None:
        while self.lease_state() == "valid" and covered():
            now = self._clock.now()
            if now >= deadline:
                raise DeadlineExceeded(f"{what}: a change of it is under way")
            # Nothing wakes us when the lease runs out, so look again before long.
            patience = min(deadline - now, self._tuning.lease.renew_s)
            changed = self._changed
            try:
                async with asyncio.timeout(patience):
                    await changed.wait()
            except TimeoutError:
                continue

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("following stopped error=%r", error, exc_info=error)
            self._went_down(f"{type(error).__name__}: {error}")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _went_down(self, reason: str) -> None:
        if self._down is None:
            log.warning("hub lost url=%s reason=%s", self._link.url, reason)
            self._down = (self._clock.now(), reason)
        else:
            self._down = (self._down[0], reason)

    def _why_down(self) -> str:
        if self._stuck is not None:
            return f"the replica cannot be written: {self._stuck}"
        if self._down is None:
            return "waiting for a lease"
        since, reason = self._down
        return f"hub {self._link.url} unreachable since {self._clock.now() - since:.1f} s: {reason}"


def _record(entry: wire.WireEntry) -> NamespaceRecord:
    change = wire.from_wire(entry)
    if change.entry is None:
        raise FormatError(f"{change.name}: a tombstone in a snapshot")
    return NamespaceRecord(change.name, change.entry, change.sequence)
