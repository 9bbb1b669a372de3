"""The two lease machines, alone and against each other over a lossy, slow network."""

import itertools
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hubspoke.core.ids import LogSequence, ObjectName
from hubspoke.core.leases import Grant, HubLeases, LeaseConfig, SpokeLease
from hubspoke.core.namespace import PageSpan, bucket_name

CONFIG = LeaseConfig(term_s=2.0, term_max_s=4.0, margin_s=0.1)
A, B = ObjectName("b", "a"), ObjectName("b", "b")
APPLIED = LogSequence(0)


def hub(now: float = 0.0, former_term_s: float = 0.0) -> HubLeases:
    return HubLeases(CONFIG, now=now, former_term_s=former_term_s)


def renew(
    leases: HubLeases, now: float, *acked: int, spoke: str = "s", rtt_s: float = 0.0
) -> Grant:
    return leases.renew(now=now, spoke=spoke, acked=acked, rtt_s=rtt_s)


def test_without_leases_a_change_goes_on_at_once() -> None:
    leases = hub()
    leases.revoke(now=1.0, revocation_id=1, name=A)
    assert leases.may_go_on(now=1.0, revocation_id=1)


def test_a_change_waits_for_the_acknowledgement_of_every_live_lease() -> None:
    leases = hub()
    renew(leases, 0.0, spoke="s")
    renew(leases, 0.0, spoke="t")
    leases.revoke(now=1.0, revocation_id=5, name=A)
    assert not leases.may_go_on(now=1.0, revocation_id=5)
    renew(leases, 1.1, 5, spoke="s")
    assert not leases.may_go_on(now=1.1, revocation_id=5)
    renew(leases, 1.2, 5, 99, spoke="t")
    assert leases.may_go_on(now=1.2, revocation_id=5)
    assert leases.under_way() == ((5, A),)
    leases.end(5)
    assert leases.under_way() == ()


def test_a_change_waits_at_most_term_and_margin() -> None:
    leases = hub()
    renew(leases, 0.5)
    leases.revoke(now=0.5, revocation_id=1, name=A)
    assert leases.ends_at(1) == 0.5 + 2.0 + 0.1
    assert not leases.may_go_on(now=2.59, revocation_id=1)
    assert leases.may_go_on(now=2.6, revocation_id=1)


def everything(_: ObjectName) -> bool:
    return True


def spoke_lease(until: float = 2.0) -> SpokeLease:
    """One whose answers somebody else keeps, with a lease up to that moment."""
    lease = SpokeLease(CONFIG)
    lease.answered_elsewhere = True
    grant = Grant(until + CONFIG.margin_s, (), 0)
    lease.replied(sent_at=0.0, grant=grant, required=APPLIED, applied=APPLIED, now=0.0)
    assert lease.valid_until(now=0.0, applied=APPLIED) == until
    return lease


def test_a_revocation_is_acknowledged_only_when_nobody_else_answers_for_the_name() -> None:
    lease = spoke_lease()
    assert not lease.revoke(7, A, now=1.0)  # nothing to acknowledge yet
    assert lease.fresh() == [(7, A)] and lease.fresh() == []
    assert lease.is_revoked(A) and lease.acks() == []
    assert lease.gone_elsewhere(7)
    assert lease.acks() == [7]
    assert not lease.gone_elsewhere(7)


def test_until_it_is_acknowledged_the_old_state_may_be_told_under_the_leases_of_before() -> None:
    lease = spoke_lease(until=2.0)
    lease.revoke(7, A, now=1.0)
    # A lease that names the revocation: the change does not wait for it.
    grant = Grant(9.0, ((7, A),), 7)
    lease.replied(sent_at=1.1, grant=grant, required=APPLIED, applied=APPLIED, now=1.2)
    assert not lease.held_back(everything, now=1.9)
    assert lease.held_back(everything, now=2.0)
    assert lease.valid(now=2.0, applied=APPLIED)


def test_what_is_acknowledged_holds_back_at_once() -> None:
    lease = spoke_lease()
    lease.revoke(7, A, now=1.0)
    lease.revoke(8, B, now=1.0)
    lease.gone_elsewhere(7)
    assert lease.held_back(lambda name: name == A, now=1.1)
    assert not lease.held_back(lambda name: name == B, now=1.1)
    lease.ended([7])
    assert not lease.held_back(everything, now=1.1)


def test_without_a_lease_from_before_nothing_is_told_of_a_revoked_name() -> None:
    lease = SpokeLease(CONFIG)
    lease.answered_elsewhere = True
    grant = Grant(2.1, ((7, A),), 7)
    lease.replied(sent_at=0.0, grant=grant, required=APPLIED, applied=APPLIED, now=0.1)
    assert lease.valid(now=0.1, applied=APPLIED)
    assert lease.held_back(everything, now=0.1)


def test_a_revocation_that_ends_before_it_went_elsewhere_wants_nothing() -> None:
    lease = spoke_lease()
    lease.revoke(7, A, now=1.0)
    lease.ended([7])
    assert not lease.gone_elsewhere(7) and lease.acks() == []
    lease.revoke(8, A, now=1.0)
    lease.forget(now=1.5)
    assert lease.fresh() == [] and not lease.gone_elsewhere(8)


def test_a_renewal_in_mid_revocation_carries_it_and_does_not_prolong_the_wait() -> None:
    leases = hub()
    renew(leases, 0.0)
    leases.revoke(now=0.1, revocation_id=1, name=A)
    grant = renew(leases, 0.3)
    assert grant.term_s == 2.0
    assert grant.revocations == ((1, A),)
    assert grant.through == 1
    assert leases.ends_at(1) == 2.1


def test_a_spoke_that_does_not_acknowledge_is_not_renewed() -> None:
    leases = hub()
    renew(leases, 0.0)
    leases.revoke(now=0.1, revocation_id=1, name=A)
    refused = renew(leases, 0.7)
    assert refused.term_s == 0.0
    assert "revocation 1 of b/a unacknowledged for 0.6 s" in refused.reason
    assert refused.revocations == ((1, A),)
    assert leases.live(0.7) == {"s": 2.1 - 0.7}
    assert renew(leases, 0.8, 1).term_s == 2.0


def test_on_a_long_path_an_acknowledgement_may_take_two_round_trips() -> None:
    leases = hub()
    leases.renew(now=0.0, spoke="s", acked=(), rtt_s=0.9)
    leases.revoke(now=0.1, revocation_id=1, name=A)
    assert leases.renew(now=1.8, spoke="s", acked=(), rtt_s=0.9).term_s == 3.6
    assert "for 1.9 s" in leases.renew(now=2.0, spoke="s", acked=(), rtt_s=0.9).reason


def test_one_that_had_no_lease_at_the_revocation_is_not_waited_for() -> None:
    leases = hub()
    leases.revoke(now=0.0, revocation_id=1, name=A)
    assert renew(leases, 5.0).term_s == 2.0
    assert leases.may_go_on(now=5.0, revocation_id=1)
    assert renew(leases, 9.0).term_s == 2.0


def test_after_a_restart_the_first_change_waits_out_the_former_term_and_reads_do_not() -> None:
    leases = hub(now=10.0, former_term_s=2.0)
    assert renew(leases, 10.1).term_s == 2.0
    leases.revoke(now=10.2, revocation_id=1, name=A)
    renew(leases, 10.3, 1)
    assert not leases.may_go_on(now=12.0, revocation_id=1)
    assert leases.ends_at(1) == 12.1
    assert leases.may_go_on(now=12.1, revocation_id=1)


def test_the_term_is_at_least_four_round_trips_up_to_its_maximum() -> None:
    assert renew(hub(), 0.0, rtt_s=0.06).term_s == 2.0
    assert renew(hub(), 0.0, rtt_s=0.9).term_s == 3.6
    assert renew(hub(), 0.0, rtt_s=30.0).term_s == 4.0


def spoke_after(
    grant: Grant, *, sent: float, now: float, required: int = 0, applied: int = 0
) -> SpokeLease:
    lease = SpokeLease(CONFIG)
    lease.replied(
        sent_at=sent,
        grant=grant,
        required=LogSequence(required),
        applied=LogSequence(applied),
        now=now,
    )
    return lease


def state(lease: SpokeLease, now: float, applied: int = 0) -> str:
    return lease.state(now=now, applied=LogSequence(applied))


def test_a_lease_counts_from_when_the_renewal_was_sent() -> None:
    lease = spoke_after(Grant(2.0, (), 0), sent=10.0, now=11.5)
    assert state(lease, 11.89) == "valid"
    assert state(lease, 11.9) == "expired"
    assert lease.current_until() == 11.9


def test_a_reply_older_than_its_term_grants_nothing() -> None:
    lease = spoke_after(Grant(2.0, (), 0), sent=10.0, now=12.0)
    assert state(lease, 12.0) == "none"
    assert lease.current_until() is None


def test_a_lease_is_valid_only_once_its_sequence_is_applied() -> None:
    lease = spoke_after(Grant(2.0, (), 0), sent=0.0, now=0.1, required=7, applied=6)
    assert state(lease, 0.2, 6) == "none"
    assert state(lease, 0.3, 7) == "valid"
    late = spoke_after(Grant(2.0, (), 0), sent=0.0, now=0.1, required=7, applied=6)
    assert state(late, 5.0, 7) == "none"


def test_an_earlier_lease_holds_while_a_later_one_waits_for_its_sequence() -> None:
    lease = spoke_after(Grant(2.0, (), 0), sent=0.0, now=0.1, required=3, applied=3)
    lease.replied(
        sent_at=0.5, grant=Grant(2.0, (), 0), required=LogSequence(4),
        applied=LogSequence(3), now=0.6,
    )  # fmt: skip
    assert state(lease, 1.8, 3) == "valid"
    assert state(lease, 2.0, 3) == "expired"
    assert state(lease, 2.0, 4) == "valid"


def test_a_refusal_does_not_shorten_a_lease() -> None:
    lease = spoke_after(Grant(2.0, (), 0), sent=0.0, now=0.1)
    lease.replied(
        sent_at=0.5, grant=Grant(0.0, ((1, A),), 1, "no"), required=LogSequence(0),
        applied=LogSequence(0), now=0.6,
    )  # fmt: skip
    assert state(lease, 1.8) == "valid"
    assert lease.is_revoked(A)


def test_a_revoked_name_is_held_back_until_its_change_is_applied() -> None:
    lease = spoke_after(Grant(2.0, (), 0), sent=0.0, now=0.1)
    assert lease.revoke(3, A, now=10.0)
    assert not lease.revoke(3, A, now=10.0)
    assert lease.is_revoked(A)
    assert not lease.is_revoked(B)
    assert lease.acks() == [3]
    assert lease.revoked_of(PageSpan("b", "", "", None).covers)
    assert not lease.revoked_of(PageSpan("b", "b", "", None).covers)
    lease.ended([3])
    assert not lease.is_revoked(A)
    assert lease.acks() == []


def test_a_revocation_is_in_force_until_it_ends() -> None:
    lease = SpokeLease(CONFIG)
    lease.revoke(3, A, now=10.0)
    lease.revoke(4, bucket_name("new"), now=10.0)
    assert lease.revoked_of(lambda name: not name.key)
    assert (lease.in_force(3), lease.in_force(4), lease.in_force(5)) == (True, True, False)
    lease.ended([4])
    assert not lease.revoked_of(lambda name: not name.key)
    assert (lease.in_force(3), lease.in_force(4)) == (True, False)


def test_two_revocations_of_one_name_end_one_by_one() -> None:
    lease = SpokeLease(CONFIG)
    lease.revoke(3, A, now=10.0)
    lease.revoke(4, A, now=10.0)
    lease.ended([3])
    assert lease.is_revoked(A)
    lease.ended([4])
    assert not lease.is_revoked(A)


def test_a_reply_overtaken_by_the_end_of_its_revocation_does_not_bring_it_back() -> None:
    lease = SpokeLease(CONFIG)
    lease.revoke(3, A, now=10.0)
    lease.ended([3])
    assert not lease.revoke(3, A, now=10.0)
    assert not lease.is_revoked(A)


def test_a_lost_end_is_found_out_by_the_next_reply_once_its_sequence_is_applied() -> None:
    lease = SpokeLease(CONFIG)
    lease.revoke(3, A, now=10.0)
    lease.revoke(9, B, now=10.0)  # newer than the reply: stays
    lease.replied(
        sent_at=0.0, grant=Grant(2.0, ((4, B),), 4), required=LogSequence(8),
        applied=LogSequence(7), now=0.1,
    )  # fmt: skip
    assert lease.is_revoked(A)
    lease.advance(applied=LogSequence(8), now=0.2)
    assert not lease.is_revoked(A)
    assert lease.is_revoked(B)
    assert sorted(lease.acks()) == [4, 9]


def test_a_replica_is_current_no_longer_than_a_revocation_whose_change_has_not_come() -> None:
    """It was acknowledged, so its change did not wait for the lease to run out."""
    lease = spoke_after(Grant(2.0, (), 0), sent=10.0, now=10.1)
    assert lease.current_until() == 11.9
    lease.revoke(3, A, now=10.5)
    lease.revoke(4, B, now=10.7)
    assert lease.current_until() == 10.5
    lease.ended([3])
    assert lease.current_until() == 10.7
    lease.ended([4])
    assert lease.current_until() == 11.9


def test_a_lease_makes_what_is_called_back_with_it_current_no_longer_than_it_was_asked_for() -> (
    None
):
    """A change does not wait for a lease that was given while it was under way: it may be over
    before the reply arrives, or the revocation that was told before the reply."""
    lease = spoke_after(Grant(2.0, ((3, A),), 3), sent=10.0, now=11.0)
    assert state(lease, 11.0) == "valid"
    assert lease.current_until() == 10.0
    told = SpokeLease(CONFIG)
    told.revoke(3, A, now=10.9)
    grant = Grant(2.0, ((3, A), (4, B)), 4)
    at = LogSequence(0)
    told.replied(sent_at=10.0, grant=grant, required=at, applied=at, now=11.0)
    assert told.current_until() == 10.0
    told.ended([3])
    # A later one does not prove that it was current longer.
    told.replied(sent_at=12.0, grant=grant, required=at, applied=at, now=12.1)
    assert told.current_until() == 10.0


def test_a_refusal_says_nothing_of_how_long_what_is_called_back_was_current() -> None:
    lease = spoke_after(Grant(2.0, (), 0), sent=10.0, now=10.1)
    at = LogSequence(0)
    lease.replied(sent_at=10.2, grant=Grant(0.0, ((3, A),), 3), required=at, applied=at, now=10.5)
    assert lease.current_until() == 10.5


def test_the_revocations_of_a_hub_that_died_end_with_the_first_reply_of_its_next_life() -> None:
    lease = SpokeLease(CONFIG)
    lease.revoke(3, A, now=10.0)
    reborn = HubLeases(CONFIG, now=50.0, former_term_s=2.0, through=99)
    grant = reborn.renew(now=50.0, spoke="s", acked=[3], rtt_s=0.0)
    seventh = LogSequence(7)
    lease.replied(sent_at=12.0, grant=grant, required=seventh, applied=seventh, now=12.1)
    assert not lease.is_revoked(A)


def test_another_replica_forgets_leases_and_revocations() -> None:
    lease = spoke_after(Grant(2.0, ((1, A),), 1), sent=0.0, now=0.1)
    lease.forget(now=0.0)
    assert state(lease, 0.2) == "none"
    assert not lease.is_revoked(A)
    assert lease.current_until() is None
    lease.was_current(0.1)
    assert state(lease, 0.2) == "expired"
    assert lease.current_until() == 0.1


def test_a_reply_asked_for_before_the_replica_was_replaced_grants_nothing() -> None:
    """Its lease may be older than a revocation that was acknowledged and forgotten since."""
    lease = SpokeLease(CONFIG)
    lease.forget(now=10.0)
    for sent_at, expected in ((9.9, "none"), (10.0, "none"), (10.1, "valid")):
        lease.replied(
            sent_at=sent_at,
            grant=Grant(2.0, (), 0),
            required=LogSequence(0),
            applied=LogSequence(0),
            now=10.2,
        )
        assert lease.state(now=10.2, applied=LogSequence(0)) == expected


def test_what_has_ended_is_not_remembered_for_ever() -> None:
    lease = SpokeLease(CONFIG)
    lease.ended(range(10_000))
    assert lease.revoke(1, A, now=10.0)
    assert not lease.revoke(9_999, A, now=10.0)


@dataclass
class Spoke:
    name: str
    rate: float  # its clock against real time
    lease: SpokeLease = field(default_factory=lambda: SpokeLease(CONFIG))
    applied: int = 0
    values: dict[ObjectName, int] = field(default_factory=dict)


class LeaseProtocol(RuleBasedStateMachine):
    """One hub, two spokes with drifting clocks; messages are delayed, dropped, reordered.

    Oracle: once a change of a name is appended (and acknowledged), no spoke may answer an older
    value of it under a lease that it holds valid; and a name read once as new is never old again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ids = itertools.count(1)
        self.hub = HubLeases(CONFIG, now=0.0, former_term_s=0.0)
        self.spokes = [Spoke("s", 1.0), Spoke("t", 0.98)]
        self.log: list[tuple[ObjectName, int]] = []  # (name, revocation id)
        self.open: dict[ObjectName, int] = {}
        self.acknowledged: dict[ObjectName, int] = {A: 0, B: 0}
        # messages under way to (request) and from (reply) the hub, and the feed of each spoke
        self.requests: list[tuple[Spoke, float, list[int]]] = []
        self.replies: list[tuple[Spoke, float, Grant, int]] = []
        self.revokes: list[tuple[Spoke, int, ObjectName]] = []

    def local(self, spoke: Spoke) -> float:
        return 1000.0 + self.now * spoke.rate

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.6, 1.5, 2.2]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=st.integers(0, 1))
    def send_renewal(self, which: int) -> None:
        spoke = self.spokes[which]
        self.requests.append((spoke, self.local(spoke), spoke.lease.acks()))

    @rule(index=st.integers(0, 20), lost=st.booleans())
    def request_arrives(self, index: int, lost: bool) -> None:
        if not self.requests:
            return
        spoke, sent_at, acks = self.requests.pop(index % len(self.requests))
        if lost:
            return
        grant = self.hub.renew(now=self.now, spoke=spoke.name, acked=acks, rtt_s=0.0)
        self.replies.append((spoke, sent_at, grant, len(self.log)))

    @rule(index=st.integers(0, 20), lost=st.booleans(), twice=st.booleans())
    def reply_arrives(self, index: int, lost: bool, twice: bool) -> None:
        if not self.replies:
            return
        spoke, sent_at, grant, required = self.replies.pop(index % len(self.replies))
        for _ in range(0 if lost else 1 + twice):
            spoke.lease.replied(
                sent_at=sent_at,
                grant=grant,
                required=LogSequence(required),
                applied=LogSequence(spoke.applied),
                now=self.local(spoke),
            )

    @rule(which=st.integers(0, 1), seconds=st.sampled_from([0.0, 0.3]))
    def whole_round(self, which: int, seconds: float) -> None:
        """Without loss; makes the deep states likely."""
        self.send_renewal(which)
        self.request_arrives(len(self.requests) - 1, False)
        self.now += seconds
        self.reply_arrives(len(self.replies) - 1, False, False)

    @rule(name=st.sampled_from([A, B]))
    def revoke(self, name: ObjectName) -> None:
        if name in self.open:
            return
        revocation_id = next(self.ids)
        self.open[name] = revocation_id
        self.hub.revoke(now=self.now, revocation_id=revocation_id, name=name)
        self.revokes += [(spoke, revocation_id, name) for spoke in self.spokes]

    @rule(index=st.integers(0, 20), lost=st.booleans())
    def revocation_arrives(self, index: int, lost: bool) -> None:
        if self.revokes:
            spoke, revocation_id, name = self.revokes.pop(index % len(self.revokes))
            if not lost:
                spoke.lease.revoke(revocation_id, name, now=self.now)

    @rule(name=st.sampled_from([A, B]))
    def append(self, name: ObjectName) -> None:
        revocation_id = self.open.get(name)
        if revocation_id is None or not self.hub.may_go_on(
            now=self.now, revocation_id=revocation_id
        ):
            return
        del self.open[name]
        self.log.append((name, revocation_id))
        self.hub.end(revocation_id)
        self.acknowledged[name] = len(self.log)

    @rule(which=st.integers(0, 1), told=st.booleans())
    def spoke_applies_next(self, which: int, told: bool) -> None:
        """told: over the live feed, with the revocation's end; else from the log."""
        spoke = self.spokes[which]
        if spoke.applied == len(self.log):
            return
        name, revocation_id = self.log[spoke.applied]
        spoke.applied += 1
        spoke.values[name] = spoke.applied
        if told:
            spoke.lease.ended([revocation_id])
        spoke.lease.advance(applied=LogSequence(spoke.applied), now=self.local(spoke))

    @invariant()
    def no_stale_read_under_a_lease(self) -> None:
        for spoke in self.spokes:
            now = self.local(spoke)
            if spoke.lease.state(now=now, applied=LogSequence(spoke.applied)) != "valid":
                continue
            for name, acknowledged in self.acknowledged.items():
                if not spoke.lease.is_revoked(name):
                    assert spoke.values.get(name, 0) >= acknowledged, (spoke.name, name)

    @invariant()
    def a_change_never_waits_longer_than_term_and_margin(self) -> None:
        for revocation_id in self.open.values():
            assert self.hub.ends_at(revocation_id) <= self.now + 2.1 + 1e-9


LeaseProtocol.TestCase.settings = settings(
    max_examples=300, stateful_step_count=50, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
TestLeaseProtocol = LeaseProtocol.TestCase


class KernelProtocol(LeaseProtocol):
    """The same with a kernel at each spoke that keeps answers, and lets them go when it likes.

    Oracle: what it keeps and has not let go of is never older than what was acknowledged; nor is
    what is told of a name whose revocation is not acknowledged yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, ObjectName], tuple[int, float]] = {}  # value, until
        self.told: list[tuple[Spoke, int, ObjectName]] = []
        for spoke in self.spokes:
            spoke.lease.answered_elsewhere = True

    @rule(which=st.integers(0, 1), name=st.sampled_from([A, B]))
    def kernel_asks(self, which: int, name: ObjectName) -> None:
        spoke = self.spokes[which]
        now, applied = self.local(spoke), LogSequence(spoke.applied)
        until = spoke.lease.valid_until(now=now, applied=applied)
        if until is None or spoke.lease.held_back(lambda other: other == name, now=now):
            return
        value = spoke.values.get(name, 0)
        assert value >= self.acknowledged[name], (spoke.name, name)
        if not spoke.lease.revoked_of(lambda other: other == name):
            self.kept[spoke.name, name] = (value, until)

    @rule(which=st.integers(0, 1))
    def kernel_is_told(self, which: int) -> None:
        spoke = self.spokes[which]
        self.told += [(spoke, i, name) for i, name in spoke.lease.fresh()]

    @rule(index=st.integers(0, 20))
    def kernel_lets_go(self, index: int) -> None:
        if self.told:
            spoke, revocation_id, name = self.told.pop(index % len(self.told))
            self.kept.pop((spoke.name, name), None)
            spoke.lease.gone_elsewhere(revocation_id)

    @rule(name=st.sampled_from([A, B]), lets_go=st.booleans())
    def whole_change(self, name: ObjectName, lets_go: bool) -> None:
        """Without loss, and with a kernel that lets go or not."""
        self.revoke(name)
        while self.revokes:
            self.revocation_arrives(0, False)
        for which in (0, 1):
            self.kernel_is_told(which)
        while lets_go and self.told:
            self.kernel_lets_go(0)
        for which in (0, 1):
            self.whole_round(which, 0.0)
        self.append(name)

    @invariant()
    def nothing_stale_is_kept(self) -> None:
        for spoke in self.spokes:
            for name, acknowledged in self.acknowledged.items():
                value, until = self.kept.get((spoke.name, name), (acknowledged, 0.0))
                if until > self.local(spoke):
                    assert value >= acknowledged, (spoke.name, name)


KernelProtocol.TestCase.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
TestKernelProtocol = KernelProtocol.TestCase
