"""The spoke's lease rounds: one each 500 ms, and one at once for an acknowledgement.

Never: count a lease from the arrival of its reply, or take over a reply that belongs to another
history than the replica.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hubspoke import wire
from hubspoke.core.ids import LogSequence
from hubspoke.core.leases import Grant, LeaseConfig, SpokeLease
from hubspoke.core.policy import PartitionPolicy
from hubspoke.errors import StoreUnavailable
from hubspoke.ports import Clock, HubLink, NamespaceStore
from hubspoke.spoke.hub_calls import HubCalls
from hubspoke.spoke.replica import Replica, revoked_name

log = logging.getLogger(__name__)

CURRENT_FACT = "current_unix_ns"  # when the replica was last known to be current


@dataclass(frozen=True, slots=True)
class FollowerTuning:
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    policy: PartitionPolicy = field(default_factory=PartitionPolicy)
    # Between attempts to reach the hub; doubled up to the maximum, each cut by up to a half at
    # random, so that spokes that lost one hub together do not return together.
    backoff_s: float = 0.2
    backoff_max_s: float = 2.0
    # Lease rounds in flight: the regular one, and acknowledgements that must not wait for it.
    rounds_max: int = 4
    # The age of a replica after a restart is known this exactly.
    note_current_s: float = 5.0


class LeaseRenewal:
    """The rounds of one spoke; what they grant goes into the lease machine."""

    def __init__(
        self,
        link: HubLink,
        calls: HubCalls,
        namespace: NamespaceStore,
        replica: Replica,
        clock: Clock,
        lease: SpokeLease,
        spoke_id: str,
        tuning: FollowerTuning,
        *,
        wanted: Callable[[], bool],
        heard: Callable[[int], None],
    ) -> None:
        """wanted: whether to ask for a lease now. heard: the hub answered and is at this
        sequence."""
        self._link = link
        self._calls = calls
        self._replica = replica
        self._namespace = namespace
        self._clock = clock
        self._lease = lease
        self._spoke_id = spoke_id
        self._tuning = tuning
        self._wanted = wanted
        self._heard = heard
        self._kick = asyncio.Event()
        self._rounds: set[asyncio.Task[None]] = set()
        self._noted_current_at = -math.inf

    def kick(self) -> None:
        """Do a round now: a revocation wants acknowledging."""
        self._kick.set()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            for task in self._rounds:
                task.cancel()
            await asyncio.gather(*self._rounds, return_exceptions=True)

    async def _run(self) -> None:
        renew_s = self._tuning.lease.renew_s
        while True:
            if len(self._rounds) >= self._tuning.rounds_max:
                await asyncio.wait(self._rounds, return_when=asyncio.FIRST_COMPLETED)
                continue
            self._kick.clear()
            if self._wanted():
                task = asyncio.create_task(self._round())
                self._rounds.add(task)
                task.add_done_callback(self._round_ended)
            try:
                async with asyncio.timeout(renew_s):
                    await self._kick.wait()
            except TimeoutError:
                continue

    def _round_ended(self, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("lease round failed error=%r", error)

    async def _round(self) -> None:
        calls, history = self._calls, self._replica.history()
        sent_at = self._clock.now()
        applied, acks = self._namespace.sequence, self._lease.acks()
        rtt_s = calls.rtt_s or 0.0
        request = wire.LeaseRequest(self._spoke_id, history.epoch or "", applied, acks, rtt_s)
        # A reply that takes longer grants nothing, and its connection may be dead.
        reply = await calls.ask(self._link.lease(request), self._tuning.lease.term_for(rtt_s))
        if reply is None or self._namespace.trouble() is not None:
            return
        now = self._clock.now()
        if calls.rtt_s is None or now - sent_at < calls.rtt_s:
            calls.rtt_s = now - sent_at
        if history != self._replica.history() or not self._replica.continues(
            reply.epoch, reply.incarnation
        ):
            # Another life of the hub, or the replica was replaced meanwhile: the feed sorts it out.
            log.info("lease reply ignored hub_epoch=%s reason=%s", reply.epoch, reply.reason)
            return
        if reply.term_s <= 0:
            log.warning("lease refused reason=%s", reply.reason)
        revocations = tuple((r.revocation_id, revoked_name(r)) for r in reply.revocations)
        grant = Grant(reply.term_s, revocations, reply.through, reply.reason)
        if self._lease.replied(
            sent_at=sent_at,
            grant=grant,
            required=LogSequence(reply.required),
            applied=self._namespace.sequence,
            now=now,
        ):
            self._kick.set()
        self._heard(reply.required)
        await self._note_current(now)

    async def _note_current(self, now: float) -> None:
        """So that a spoke that restarts without its hub knows how old its replica is."""
        if now - self._noted_current_at < self._tuning.note_current_s:
            return
        if self._lease.state(now=now, applied=self._namespace.sequence) == "valid":
            self._noted_current_at = now
            # A name that is called back may have changed since: current until then, no longer.
            current_at = min(now, self._lease.current_until() or now)
            noted_ns = self._clock.unix_ns() - int((now - current_at) * 1e9)
            with suppress(StoreUnavailable):  # the namespace has said so, and the follower waits
                await self._namespace.put_fact(CURRENT_FACT, str(noted_ns))
