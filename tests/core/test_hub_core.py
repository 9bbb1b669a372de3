"""The order of a change, alone and as a state machine with several names."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hubspoke.core.hub import (
    Enter,
    HubCore,
    HubCoreConfig,
    Proceed,
    Publish,
    Readable,
    Recall,
    Settlement,
    Withdraw,
    differs,
    settlement,
)
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.core.leases import HubLeases, LeaseConfig
from hubspoke.core.namespace import PageSpan, bucket_name
from hubspoke.errors import Overloaded

A, B = ObjectName("b", "a"), ObjectName("b", "b")


def entry(version: str) -> ObjectEntry:
    return ObjectEntry(Version(version), 1, "e", 0, {})


def make(**kw: int) -> HubCore:
    return HubCore(
        epoch=Epoch("e"),
        sequence=LogSequence(10),
        leases=HubLeases(LeaseConfig(), now=0.0, former_term_s=0.0),
        first_change_id=100,
        config=HubCoreConfig(**kw),
    )


def lease(core: HubCore, now: float, *acked: int) -> list[object]:
    _, _, effects = core.lease(now=now, spoke="s", acked=list(acked), rtt_s=0.0)
    return list(effects)


def test_a_change_runs_through_its_order() -> None:
    core = make()
    lease(core, 0.0)
    change_id, effects = core.enter(A)
    assert effects == [Enter(change_id)]
    assert not core.blocked(A)
    assert core.revoke(change_id, now=1.0) == [Recall(change_id + 1, A)]
    assert core.blocked(A)
    assert core.blocked_in(PageSpan("b", "", "", None)) == A
    assert core.blocked_in(PageSpan("b", "b", "", None)) is None
    assert core.under_way() == ((change_id + 1, A),)
    assert lease(core, 1.1, change_id + 1) == [Proceed(change_id)]
    change = core.completed(change_id, entry("v1"))
    assert change == Change(LogSequence(11), A, entry("v1"))
    assert (core.published, core.assigned, core.blocked(A)) == (10, 11, True)
    assert core.durable(LogSequence(11)) == [Publish(change, change_id + 1), Readable(A)]
    assert (core.published, core.blocked(A), core.changes_open()) == (11, False, 0)


def test_a_grant_requires_everything_published_and_lists_what_is_under_way() -> None:
    core = make()
    change_id, _ = core.enter(A)
    core.revoke(change_id, now=0.0)
    core.completed(change_id, None)
    grant, required, _ = core.lease(now=0.1, spoke="s", acked=[], rtt_s=0.0)
    assert (required, grant.revocations) == (10, ((change_id + 1, A),))
    core.durable(LogSequence(11))
    grant, required, _ = core.lease(now=0.2, spoke="s", acked=[], rtt_s=0.0)
    assert (required, grant.revocations, grant.through) == (11, (), change_id + 1)


def test_a_bucket_that_comes_or_goes_holds_up_its_pages_and_the_list_of_buckets() -> None:
    core = make()
    assert core.blocked_bucket() is None
    for name in (A, bucket_name("new")):
        change_id, _ = core.enter(name)
        core.revoke(change_id, now=0.0)
    assert core.blocked_bucket() == bucket_name("new")
    assert core.blocked_in(PageSpan("new", "any/", "", None)) == bucket_name("new")


def test_changes_of_one_name_enter_one_after_the_other() -> None:
    core = make(waiting_per_name_max=1)
    first, _ = core.enter(A)
    second, effects = core.enter(A)
    assert effects == []
    with pytest.raises(Overloaded, match="b/a: 1 changes wait"):
        core.enter(A)
    other, effects = core.enter(B)
    assert effects == [Enter(other)]
    core.revoke(first, now=0.0)
    core.completed(first, entry("v1"))
    assert Enter(second) in core.durable(LogSequence(11))


def test_a_change_given_up_lets_readers_and_the_next_change_go_on() -> None:
    core = make()
    first, _ = core.enter(A)
    second, _ = core.enter(A)
    third, _ = core.enter(A)
    assert core.leave(second) == []
    core.revoke(first, now=0.0)
    assert core.leave(first) == [Withdraw(third + 1), Readable(A), Enter(third)]
    assert core.leave(third) == []
    assert core.changes_open() == 0
    assert core.under_way() == ()


def test_without_acknowledgement_a_change_goes_on_when_the_lease_has_run_out() -> None:
    core = make()
    assert core.next_tick() is None
    lease(core, 0.0)
    change_id, _ = core.enter(A)
    core.revoke(change_id, now=1.0)
    assert core.next_tick() == pytest.approx(2.1)
    assert core.tick(now=2.0) == []
    assert core.tick(now=2.11) == [Proceed(change_id)]
    assert core.tick(now=2.2) == []
    assert core.next_tick() is None
    assert core.live_leases(now=2.2) == {}


def test_changes_are_published_in_sequence_whatever_becomes_durable_first() -> None:
    core = make()
    a, _ = core.enter(A)
    b, _ = core.enter(B)
    core.revoke(a, now=0.0)
    core.revoke(b, now=0.0)
    core.completed(b, entry("v1"))
    core.completed(a, None)
    assert core.durable(LogSequence(12)) == []
    assert core.published == 10
    published = [e.change.name for e in core.durable(LogSequence(11)) if isinstance(e, Publish)]
    assert published == [B, A]
    assert core.published == 12


def test_the_store_is_the_truth() -> None:
    v1, v2 = entry("v1"), entry("v2")
    assert not differs(None, None)
    assert not differs(v1, entry("v1"))
    assert differs(v1, v2)
    assert differs(v1, None)
    assert differs(None, v1)


@pytest.mark.parametrize(
    ("before", "staged_size", "found", "outcome"),
    [
        (None, 1, None, Settlement.UNDONE),
        ("v1", 1, "v1", Settlement.UNDONE),
        (None, 1, "v1", Settlement.DONE),
        ("v1", 1, "v2", Settlement.DONE),
        ("v1", 2, "v2", Settlement.OTHER),
        ("v1", 1, None, Settlement.OTHER),
        ("v1", None, "v1", Settlement.UNDONE),
        ("v1", None, None, Settlement.OTHER),
        ("v1", None, "v2", Settlement.OTHER),
    ],
)
def test_a_head_tells_what_became_of_a_change(
    before: str | None, staged_size: int | None, found: str | None, outcome: Settlement
) -> None:
    held = entry(found) if found is not None else None
    assert settlement(before=before, staged_size=staged_size, found=held) is outcome


class Orders(RuleBasedStateMachine):
    """Any interleaving of changes, acknowledgements and time keeps the promises."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.core = make()
        self.entered: dict[int, ObjectName] = {}
        self.revoked: set[int] = set()
        self.proceeding: set[int] = set()
        self.completed: dict[int, int] = {}  # sequence -> change id
        self.waiting: dict[int, ObjectName] = {}
        self.recalled: dict[int, ObjectName] = {}
        self.log: list[int] = []
        self.made_durable: set[int] = set()

    def take(self, effects: list[object]) -> None:
        for e in effects:
            match e:
                case Enter(change_id):
                    name = self.waiting.pop(change_id)
                    assert name not in self.entered.values()
                    self.entered[change_id] = name
                case Recall(revocation_id, name):
                    assert revocation_id > max(self.recalled, default=0)
                    self.recalled[revocation_id] = name
                case Proceed(change_id):
                    assert change_id in self.revoked
                    self.proceeding.add(change_id)
                case Publish(change, _):
                    assert change.sequence == (self.log[-1] if self.log else 10) + 1
                    self.log.append(change.sequence)
                    self.forget(self.completed[change.sequence])
                case _:
                    pass

    def forget(self, change_id: int) -> None:
        del self.entered[change_id]
        self.revoked.discard(change_id)
        self.proceeding.discard(change_id)

    @rule(name=st.sampled_from([A, B]))
    def enter(self, name: ObjectName) -> None:
        if len(self.waiting) > 5:
            return
        change_id, effects = self.core.enter(name)
        self.waiting[change_id] = name
        self.take(list(effects))

    @rule(pick=st.integers(0, 9))
    def revoke(self, pick: int) -> None:
        ready = sorted(set(self.entered) - self.revoked)
        if ready:
            change_id = ready[pick % len(ready)]
            self.revoked.add(change_id)
            self.take(list(self.core.revoke(change_id, now=self.now)))

    @rule(seconds=st.sampled_from([0.05, 0.4, 2.2]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(list(self.core.tick(now=self.now)))

    @rule(ack=st.booleans())
    def lease(self, ack: bool) -> None:
        acked = list(self.recalled) if ack else []
        self.take(lease(self.core, self.now, *acked))

    @rule(pick=st.integers(0, 9), gone=st.booleans())
    def complete(self, pick: int, gone: bool) -> None:
        ready = sorted(self.proceeding - set(self.completed.values()))
        if ready:
            change_id = ready[pick % len(ready)]
            change = self.core.completed(change_id, None if gone else entry(f"v{change_id}"))
            assert change.name == self.entered[change_id]
            self.completed[change.sequence] = change_id

    @rule(pick=st.integers(0, 9))
    def durable(self, pick: int) -> None:
        ready = sorted(set(self.completed) - self.made_durable)
        if ready:
            sequence = ready[pick % len(ready)]
            self.made_durable.add(sequence)
            self.take(list(self.core.durable(LogSequence(sequence))))

    @rule(pick=st.integers(0, 9))
    def leave(self, pick: int) -> None:
        numbered = set(self.completed.values())
        ready = sorted((set(self.entered) | set(self.waiting)) - numbered)
        if not ready:
            return
        change_id = ready[pick % len(ready)]
        if change_id in self.entered:
            self.forget(change_id)
        else:
            del self.waiting[change_id]
        self.take(list(self.core.leave(change_id)))

    @invariant()
    def readers_of_a_name_wait_from_revoke_to_durable_and_no_longer(self) -> None:
        blocked = {self.entered[c] for c in self.revoked}
        assert {n for n in (A, B) if self.core.blocked(n)} == blocked
        assert {name for _, name in self.core.under_way()} == blocked

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.core.changes_open() == len(self.entered) + len(self.waiting)
        assert self.core.published == (self.log[-1] if self.log else 10)


Orders.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestOrders = Orders.TestCase
