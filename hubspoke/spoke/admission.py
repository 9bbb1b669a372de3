"""May a name be answered from the replica now, and as of when?

    valid lease, not called back  -> yes, current
    called back                   -> wait for its change
    no lease                      -> ask the hub where the log is, wait until the replica is there
    hub not to be reached         -> what the policy says: refuse, or answer with the age

Never: take a hub that does not answer for one that says "deleted", or answer without an age what
neither a lease nor the hub itself, asked after the reader came, has shown to be current.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from hubspoke.core.ids import LogSequence, ObjectName
from hubspoke.core.leases import LeaseState, SpokeLease
from hubspoke.core.namespace import PageSpan, bucket_name
from hubspoke.errors import DeadlineExceeded, HubUnavailable
from hubspoke.ports import Clock, HubLink, NamespaceStore
from hubspoke.spoke.hub_calls import HubCalls
from hubspoke.spoke.index_rounds import IndexRounds
from hubspoke.spoke.renewal import CURRENT_FACT, FollowerTuning
from hubspoke.spoke.replica import Replica

log = logging.getLogger(__name__)

NOT_CONNECTED = "not connected yet"

Covered = Callable[[ObjectName], bool]


class Admission:
    """The answering half of a follower."""

    def __init__(
        self,
        link: HubLink,
        namespace: NamespaceStore,
        clock: Clock,
        spoke_id: str,
        tuning: FollowerTuning,
    ) -> None:
        self._link = link
        self._namespace = namespace
        self._clock = clock
        self._tuning = tuning
        self._replica = Replica(namespace)
        self._lease = SpokeLease(tuning.lease)
        self._calls = HubCalls(clock, down=self._went_down)
        self._index_rounds = IndexRounds(
            link, self._calls, self._replica, self._lease, clock, spoke_id,
            patience_s=self._patience_s, heard=self._heard,
        )  # fmt: skip
        self._changed = asyncio.Event()  # replaced at each wake: waiters look again
        self._loading: tuple[int, int] | None = None  # loaded, of
        self._down: tuple[float, str] | None = (clock.now(), NOT_CONNECTED)
        self._stuck: str | None = None  # why the replica cannot be written
        self._resync = False  # the replica's history is not the hub's: a snapshot is needed
        self._feeding = False
        self._hub_sequence: LogSequence | None = None
        self._behind_since: float | None = clock.now()
        self._elsewhere: Callable[[ObjectName], asyncio.Future[None] | None] | None = None
        self._acknowledge: Callable[[], None] = lambda: None  # soon; set by who renews the lease

    # Answers -----------------------------------------------------------------------------------

    @property
    def sequence(self) -> LogSequence:
        return self._namespace.sequence

    @property
    def hub_sequence(self) -> LogSequence | None:
        """The hub's last sequence heard of; None before the first contact."""
        return self._hub_sequence

    def rtt_s(self) -> float | None:
        """Least round trip of a lease request so far."""
        return self._calls.rtt_s

    def lag_seconds(self) -> float | None:
        """For how long the replica has been behind the hub's log; None before any contact."""
        if self._hub_sequence is None:
            return None
        return 0.0 if self._behind_since is None else self._clock.now() - self._behind_since

    def complete(self) -> bool:
        """Whether the replica is one whole state of the hub, so that absence means absence."""
        return self._replica.complete()

    def lease_state(self) -> LeaseState:
        if not self.complete():
            return "none"
        return self._lease.state(now=self._clock.now(), applied=self._replica.sequence)

    def staleness_s(self) -> float | None:
        """Seconds since the replica was surely current; None under a valid lease, and when it
        is not known."""
        if self.lease_state() == "valid":
            return None
        age = self._age_s()
        return None if math.isinf(age) else age

    async def admitted(self, name: ObjectName, deadline: float) -> float | None:
        """Wait until the name, or its bucket for a key "", may be answered. deadline: in the
        clock's seconds. The replica's `get` may follow without an await between.

        Returns the staleness in seconds, None when the replica is current for the name. Raises
        DeadlineExceeded while a change of it goes on, HubUnavailable.
        """
        return None if await self.settled(name, deadline) else self.admit(name)

    async def page_admitted(self, page: PageSpan, deadline: float) -> bool:
        """Like `admitted`, for a page of a listing. Returns whether a lease admits it: that speaks
        for the names of the span, which are known when it has been read, so ask `revoked` then,
        and once more. Anything else speaks for every name that the page may come to show."""
        what = f"listing of {page.bucket}/{page.prefix}"
        wide = replace(page, last=None)
        by = await self._authority(page.covers, wide.covers, what, deadline)
        if by is None:
            self.admit(ObjectName(page.bucket, page.prefix), below=True)
        return by == "lease"

    async def path_admitted(
        self, covered: Covered, name: ObjectName, deadline: float
    ) -> float | None:
        """Like `admitted`, for a name and all others that `covered` is true for."""
        if await self._authority(covered, covered, str(name), deadline):
            return None
        return self.admit(name)

    def kept_until(self, covered: Covered) -> float | None:
        """Until when others may keep what the replica says now of names that `covered` is true
        for, in the clock's seconds; 0.0: it is right, but not to be kept. None: only `admitted`
        can tell."""
        if not self.complete():
            return None
        now = self._clock.now()
        until = self._lease.valid_until(now=now, applied=self._replica.sequence)
        if until is None or not self._lease.revoked_of(covered):
            return until
        return None if self._lease.held_back(covered, now=now) else 0.0

    def call_back(self, elsewhere: "Callable[[ObjectName], asyncio.Future[None] | None]") -> None:
        """Somebody keeps answers (see `kept_until`): no revocation is acknowledged before it was
        told of the name and what it holds of it has gone; None: nothing."""
        self._lease.answered_elsewhere = True
        self._elsewhere = elsewhere

    async def buckets_admitted(self, deadline: float) -> float | None:
        """Like `admitted`, for the list of buckets."""

        def covered(name: ObjectName) -> bool:
            return not name.key

        if await self._authority(covered, covered, "list of buckets", deadline):
            return None
        return self.admit(ObjectName("", ""))

    async def settled(self, name: ObjectName, deadline: float) -> bool:
        """The waiting half of `admitted`: False if the policy has to decide."""
        bucket = bucket_name(name.bucket)

        def covered(other: ObjectName) -> bool:
            return other in (name, bucket)

        return await self._authority(covered, covered, str(name), deadline) is not None

    def admit(self, name: ObjectName, *, below: bool = False) -> float | None:
        """What the policy says now, without asking the hub. Returns the staleness in seconds,
        None under a valid lease. below: a listing of what begins with it. Raises
        HubUnavailable."""
        if not self.complete():
            raise HubUnavailable(f"{name}: replica incomplete: {'; '.join(self.ready())}")
        if self.lease_state() == "valid":
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
        return self._lease.valid(now=self._clock.now(), applied=self._replica.sequence)

    def revoked(self, page: PageSpan) -> bool:
        """Whether a listing page speaks for a name whose change is under way."""
        return self._lease.held_back(page.covers, now=self._clock.now())

    def ready(self) -> list[str]:
        """Reasons why answers are not fresh; empty under a valid lease."""
        if self.lease_state() == "valid":
            return []
        reasons = [self._why_down()] if self._down or self._stuck else []
        if self._loading is not None:
            loaded, of = self._loading
            reasons.append(f"snapshot {100 * loaded // max(of, 1)} % loaded")
        elif not self.complete():
            at, whole = self._replica.sequence, self._replica.consistent_at
            reasons.append(f"replica at sequence {at}, complete at {whole}")
        elif not reasons:
            reasons.append("waiting for a lease")
        if self.complete() and not math.isinf(age := self._age_s()):
            reasons.append(f"answers may be {age:.1f} s old")
        return reasons

    # Inside ------------------------------------------------------------------------------------

    async def _authority(
        self, leased: Covered, indexed: Covered, what: str, deadline: float
    ) -> Literal["lease", "index", None]:
        """What makes the replica current; None: nothing does, and the policy has to decide.

        leased, indexed: the names that a lease, or a read index, has to speak for."""
        while True:
            if self.lease_state() == "valid":
                if not self._lease.held_back(leased, now=self._clock.now()):
                    return "lease"
                if self._clock.now() >= deadline:
                    raise DeadlineExceeded(f"{what}: a change of it is under way")
                await self._change(deadline)
                continue
            until = min(deadline, self._clock.now() + self._patience_s())
            if await self._is_at_index(indexed, until):
                return "index"
            if self.lease_state() != "valid":
                return None

    async def _is_at_index(self, covered: Covered, until: float) -> bool:
        """Ask the hub where the log is, and wait until the replica is there."""
        index = None
        while self._may_ask() and self._clock.now() < until:
            if index is None or index.history != self._replica.history():
                try:
                    async with asyncio.timeout(until - self._clock.now()):
                        index = await self._index_rounds.index()
                except TimeoutError:
                    return False
            if index is not None and index.admits(
                history=self._replica.history(),
                applied=self._replica.sequence,
                covered=covered,
                in_force=self._lease.in_force,
            ):
                return True
            if self.lease_state() == "valid":
                return False
            await self._change(until)
        return False

    def _may_ask(self) -> bool:
        """Whether the answer could be of use: there is a replica that the hub's log continues."""
        if self._calls.unanswered is not None or self._stuck is not None or self._resync:
            return False
        return self.complete()

    async def _change(self, deadline: float) -> None:
        """Wait until something has moved. Nothing tells when a lease runs out: not for long."""
        patience = min(deadline - self._clock.now(), self._tuning.lease.renew_s)
        changed = self._changed
        try:
            async with asyncio.timeout(patience):
                await changed.wait()
        except TimeoutError:
            return

    def _patience_s(self) -> float:
        """For one answer of the hub. A lease's reply that takes longer grants nothing, and its
        connection may be dead."""
        return self._tuning.lease.term_for(self._calls.rtt_s or 0.0)

    def _age_s(self) -> float:
        until = self._lease.current_until()
        if until is not None:
            return max(0.0, self._clock.now() - until)
        noted = self._namespace.fact(CURRENT_FACT)
        if noted is None:
            return math.inf
        return max(0.0, (self._clock.unix_ns() - int(noted)) / 1e9)

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
        self._call_back()
        self._wake()

    def _call_back(self) -> None:
        """Tell whoever keeps answers of what has just been revoked."""
        for revocation_id, name in self._lease.fresh():
            assert self._elsewhere is not None, name
            going = self._elsewhere(name)
            if going is None:
                self._gone_elsewhere(revocation_id)
            else:
                going.add_done_callback(partial(self._went, revocation_id, name))

    def _went(self, revocation_id: int, name: ObjectName, gone: "asyncio.Future[None]") -> None:
        if not gone.cancelled() and gone.exception() is None:
            self._gone_elsewhere(revocation_id)
        else:  # not acknowledged: the change waits for the lease to run out
            log.warning("answers kept elsewhere not called back name=%s", name)

    def _gone_elsewhere(self, revocation_id: int) -> None:
        if self._lease.gone_elsewhere(revocation_id):
            self._acknowledge()
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _went_down(self, reason: str) -> None:
        if self._down is None:
            log.warning("hub lost url=%s reason=%s", self._link.url, reason)
            self._down = (self._clock.now(), reason)
        else:
            if self._down[1] == NOT_CONNECTED:
                log.warning("hub not reached url=%s reason=%s", self._link.url, reason)
            self._down = (self._down[0], reason)
        self._wake()

    def _why_down(self) -> str:
        if self._stuck is not None:
            return f"the replica cannot be written: {self._stuck}"
        if self._down is None:
            return f"waiting for a lease, at sequence {self.sequence} of {self._hub_sequence}"
        since, reason = self._down
        return f"hub {self._link.url} unreachable since {self._clock.now() - since:.1f} s: {reason}"
