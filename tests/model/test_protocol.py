"""Hub, leases and replicas against the oracle: any events in any order; and that it can fail."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.hub import Effect, HubCore
from hubspoke.core.ids import Change, LogSequence, ObjectName
from hubspoke.core.leases import Grant, HubLeases, LeaseConfig, LeaseState, SpokeLease
from hubspoke.core.namespace import Accepted
from tests.model.world import NAMES, Parts, Reply, Spoke, World

T = TypeVar("T")
SOAK_EXAMPLES = int(os.environ.get("HUBSPOKE_SOAK_EXAMPLES", "10000"))
which = st.integers(0, 1)
pick = st.integers(0, 50)
copies = st.sampled_from([1, 1, 1, 2, 0])  # a message is delivered, twice, or lost
names = st.sampled_from(NAMES)


def one_of(items: Iterable[T], index: int) -> T:
    found = list(items)
    return found[index % len(found)]


class Protocol(RuleBasedStateMachine):
    """Rules that need something to be there have preconditions; long ones make depth likely."""

    parts: ClassVar[Parts] = Parts()

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.parts)
        for spoke in self.world.spokes:
            self.follow(spoke)

    def follow(self, spoke: Spoke) -> None:
        self.world.resume(spoke)
        if spoke.snapshot is not None:
            self.world.end_snapshot(spoke)
        while spoke.feed:
            self.world.take_message(spoke, spoke.feed.pop(0))

    @invariant()
    def nobody_reads_what_is_wrong(self) -> None:
        self.world.check()

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.6, 1.2, 1.95, 2.02, 2.15, 4.2]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.tick()

    # Lease rounds

    @rule(i=which)
    def send_request(self, i: int) -> None:
        self.world.send_request(self.world.spokes[i])

    @precondition(lambda self: self.world.requests)
    @rule(i=pick, n=copies)
    def request_arrives(self, i: int, n: int) -> None:
        request = self.world.requests.pop(i % len(self.world.requests))
        for _ in range(n):
            self.world.answer(request)

    @precondition(lambda self: self.world.replies)
    @rule(i=pick, n=copies)
    def reply_arrives(self, i: int, n: int) -> None:
        reply = self.world.replies.pop(i % len(self.world.replies))
        for _ in range(n):
            self.world.take_reply(reply)

    @rule(i=which, there_s=st.sampled_from([0.0, 0.3]), back_s=st.sampled_from([0.0, 0.3, 1.0]))
    def whole_round(self, i: int, there_s: float, back_s: float) -> None:
        world = self.world
        before = len(world.requests)
        world.send_request(world.spokes[i])
        if len(world.requests) > before:
            world.now += there_s
            replies = len(world.replies)
            world.answer(world.requests.pop())
            world.now += back_s
            if len(world.replies) > replies:
                world.take_reply(world.replies.pop())
        world.tick()

    # Changes

    @precondition(lambda self: len(self.world.waiting) < 3)
    @rule(name=names)
    def enter(self, name: ObjectName) -> None:
        self.world.enter(name)

    @precondition(lambda self: self.world.entered)
    @rule(i=pick)
    def revoke(self, i: int) -> None:
        self.world.revoke(one_of(self.world.entered, i))

    @precondition(lambda self: self.world.proceeding)
    @rule(i=pick, gone=st.booleans())
    def complete(self, i: int, gone: bool) -> None:
        self.world.complete(one_of(self.world.proceeding, i), gone=gone)

    @precondition(lambda self: self.world.numbered)
    @rule(i=pick)
    def durable(self, i: int) -> None:
        self.world.durable(one_of(self.world.numbered, i))

    @rule(i=pick)
    def leave(self, i: int) -> None:
        world = self.world
        open_ = [*world.waiting, *world.entered, *world.revoked, *world.proceeding]
        if open_:
            world.leave(one_of(open_, i))

    @rule(name=names, gone=st.booleans())
    def change_as_far_as_it_goes(self, name: ObjectName, gone: bool) -> None:
        world = self.world
        if not any(name in group.values() for group in (world.waiting, world.entered)):
            world.enter(name)
        for change_id in [c for c, n in world.entered.items() if n == name]:
            world.revoke(change_id)
        for change_id in [c for c, n in world.proceeding.items() if n == name]:
            world.durable(world.complete(change_id, gone=gone))

    # Feeds

    @rule(i=which, at=st.sampled_from([0, 0, 0, 1, 2, 3]), n=copies)
    def message_arrives(self, i: int, at: int, n: int) -> None:
        spoke = self.world.spokes[i]
        if spoke.feed:
            message = spoke.feed.pop(at % len(spoke.feed))
            for _ in range(n):
                self.world.take_message(spoke, message)

    @rule(i=which)
    def all_messages_arrive(self, i: int) -> None:
        spoke = self.world.spokes[i]
        while spoke.feed:
            self.world.take_message(spoke, spoke.feed.pop(0))

    @rule(i=which)
    def feed_begins_again(self, i: int) -> None:
        spoke = self.world.spokes[i]
        if spoke.snapshot is None:
            self.world.resume(spoke)
        else:
            self.world.end_snapshot(spoke)

    @rule(i=which)
    def follows_to_the_end(self, i: int) -> None:
        spoke = self.world.spokes[i]
        spoke.snapshot = None
        self.follow(spoke)

    @rule(i=which)
    def snapshot_begins(self, i: int) -> None:
        self.world.cut(self.world.spokes[i])
        self.world.begin_snapshot(self.world.spokes[i])

    # Processes

    @rule(i=which)
    def spoke_restarts(self, i: int) -> None:
        self.world.restart_spoke(self.world.spokes[i])

    @rule(came_about=st.booleans(), state_lost=st.sampled_from([False, False, True]))
    def hub_restarts(self, came_about: bool, state_lost: bool) -> None:
        self.world.crash(came_about=came_about, state_lost=state_lost)


def of(examples: int, steps: int = 60) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=steps, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


@pytest.mark.timeout(300)
def test_no_order_of_events_breaks_a_promise() -> None:
    run_state_machine_as_test(Protocol, settings=of(150))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_order_of_very_many_events_breaks_a_promise() -> None:
    run_state_machine_as_test(Protocol, settings=of(SOAK_EXAMPLES, 100))


# That it can fail: each part broken in one way, and the same rules find it. -----------------------


class CountsFromArrival(SpokeLease):
    def replied(
        self,
        *,
        sent_at: float,
        grant: Grant,
        required: LogSequence,
        applied: LogSequence,
        now: float,
    ) -> bool:
        return super().replied(
            sent_at=now, grant=grant, required=required, applied=applied, now=now
        )


class IgnoresWhatIsRequired(SpokeLease):
    def state(self, *, now: float, applied: LogSequence) -> LeaseState:
        return super().state(now=now, applied=LogSequence(1 << 40))


class AcknowledgesAndReadsOn(SpokeLease):
    def is_revoked(self, name: ObjectName) -> bool:
        return False


class TakesRepliesFromBeforeASnapshot(SpokeLease):
    def forget(self, *, now: float) -> None:
        super().forget(now=float("-inf"))


class GoesOnBeforeRevoked(HubLeases):
    def may_go_on(self, *, now: float, revocation_id: int) -> bool:
        return True


class GrantsWithoutRevocations(HubLeases):
    def renew(self, *, now: float, spoke: str, acked: Iterable[int], rtt_s: float) -> Grant:
        grant = super().renew(now=now, spoke=spoke, acked=acked, rtt_s=rtt_s)
        return replace(grant, revocations=())


class RefusalEndsTheLease(HubLeases):
    def renew(self, *, now: float, spoke: str, acked: Iterable[int], rtt_s: float) -> Grant:
        grant = super().renew(now=now, spoke=spoke, acked=acked, rtt_s=rtt_s)
        if grant.term_s == 0:
            self._expiry.pop(spoke, None)
        return grant


class RequiresTooLittle(HubCore):
    def lease(
        self, *, now: float, spoke: str, acked: list[int], rtt_s: float
    ) -> tuple[Grant, LogSequence, list[Effect]]:
        grant, required, effects = super().lease(now=now, spoke=spoke, acked=acked, rtt_s=rtt_s)
        return grant, LogSequence(max(0, required - 1)), effects


class PublishesOutOfOrder(HubCore):
    def durable(self, sequence: LogSequence) -> list[Effect]:
        if sequence > self._published + 1:
            self._unpublished[self._published + 1], self._unpublished[sequence] = (
                self._unpublished[sequence],
                self._unpublished[self._published + 1],
            )
            sequence = LogSequence(self._published + 1)
        return super().durable(sequence)


class TakesAnything(MemoryNamespace):
    async def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._sequence = change.sequence
            self._put(change)


def accept_all(applied: LogSequence, changes: Sequence[Change]) -> Accepted:
    return Accepted(tuple(changes), gap=False)


BROKEN = {
    "lease used before what it requires is applied": Parts(spoke_lease=IgnoresWhatIsRequired),
    "acknowledged but read all the same": Parts(spoke_lease=AcknowledgesAndReadsOn),
    "visible before revoked": Parts(hub_leases=GoesOnBeforeRevoked),
    "a grant requires too little": Parts(hub_core=RequiresTooLittle),
}


@pytest.mark.parametrize("parts", BROKEN.values(), ids=BROKEN.keys())
def test_a_planted_fault_is_found(parts: Parts) -> None:
    class Broken(Protocol):
        pass

    Broken.parts = parts
    found = settings(
        of(1000), derandomize=True, database=None, phases=[Phase.generate], print_blob=False
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Broken, settings=found)


# Faults that need a rare order of events, in that order. ------------------------------------------


def begun(parts: Parts) -> World:
    """Both spokes follow; nobody holds a lease."""
    world = World(parts)
    for spoke in world.spokes:
        world.resume(spoke)
        world.end_snapshot(spoke)
    world.now += 10
    return world


def asked(world: World, spoke: Spoke) -> Reply:
    """A request that arrives; its reply is on the way."""
    world.send_request(spoke)
    world.answer(world.requests.pop())
    return world.replies.pop()


def called_back(world: World, name: ObjectName) -> None:
    world.enter(name)
    world.revoke(one_of(world.entered, 0))


def finished(world: World) -> None:
    for change_id in [*world.proceeding]:
        world.durable(world.complete(change_id, gone=False))
    world.check()


def snapshot_between_a_reply_and_its_arrival(parts: Parts) -> None:
    world = begun(parts)
    spoke = world.spokes[0]
    late = asked(world, spoke)
    called_back(world, NAMES[0])
    for message in spoke.feed:
        world.take_message(spoke, message)
    asked(world, spoke)  # acknowledges, so the change may go on
    world.begin_snapshot(spoke)
    world.end_snapshot(spoke)
    world.take_reply(late)
    finished(world)


def reply_that_comes_after_the_change(parts: Parts) -> None:
    world = begun(parts)
    spoke = world.spokes[0]
    late = asked(world, spoke)
    called_back(world, NAMES[0])
    world.now += 2.2
    world.tick()
    finished(world)
    world.take_reply(late)
    world.check()


def changes_told_twice(parts: Parts) -> None:
    world = begun(parts)
    spoke = world.spokes[0]
    for _ in range(2):
        called_back(world, NAMES[0])
        finished(world)
    told = list(spoke.feed)
    for message in (*told, next(m for m in told if m.changes)):
        world.take_message(spoke, message)
        world.check()


def lease_granted_in_mid_revocation(parts: Parts) -> None:
    world = begun(parts)
    spoke = world.spokes[0]
    called_back(world, NAMES[0])
    world.take_reply(asked(world, spoke))
    finished(world)


def hub_that_forgot_its_leases(parts: Parts) -> None:
    world = begun(parts)
    spoke = world.spokes[0]
    world.take_reply(asked(world, spoke))
    world.crash(came_about=False, state_lost=False)
    called_back(world, NAMES[0])
    finished(world)


def later_change_durable_first(parts: Parts) -> None:
    world = begun(parts)
    for name in NAMES[:2]:
        called_back(world, name)
    _, second = [world.complete(change_id, gone=False) for change_id in [*world.proceeding]]
    world.durable(second)
    world.check()


def change_after_a_refused_renewal(parts: Parts) -> None:
    world = begun(parts)
    spoke = world.spokes[0]
    world.take_reply(asked(world, spoke))
    called_back(world, NAMES[0])
    world.now += 0.6
    assert asked(world, spoke).grant.term_s == 0
    called_back(world, NAMES[2])
    finished(world)


def change_as_soon_as_the_lease_of_a_slow_clock_ends(parts: Parts) -> None:
    world = begun(parts)
    spoke = world.spokes[1]
    reply = asked(world, spoke)
    world.take_reply(reply)
    called_back(world, NAMES[0])
    world.now += reply.grant.term_s + 0.01
    world.tick()
    finished(world)


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        (
            snapshot_between_a_reply_and_its_arrival,
            Parts(spoke_lease=TakesRepliesFromBeforeASnapshot),
        ),
        (reply_that_comes_after_the_change, Parts(spoke_lease=CountsFromArrival)),
        (lease_granted_in_mid_revocation, Parts(hub_leases=GrantsWithoutRevocations)),
        (hub_that_forgot_its_leases, Parts(waits_after_restart=False)),
        (later_change_durable_first, Parts(hub_core=PublishesOutOfOrder)),
        (changes_told_twice, Parts(replica=TakesAnything, accept=accept_all)),
        (change_after_a_refused_renewal, Parts(hub_leases=RefusalEndsTheLease)),
        (
            change_as_soon_as_the_lease_of_a_slow_clock_ends,
            Parts(config=LeaseConfig(margin_s=0.0)),
        ),
    ],
)
def test_a_rare_order_breaks_no_promise_and_shows_its_fault(
    events: Callable[[Parts], None], broken: Parts
) -> None:
    events(Parts())
    with pytest.raises(AssertionError, match=r"may be one of|went back|Change\("):
        events(broken)
