"""Faults planted in the pure machines: each must be caught within a few seeds."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from hubspoke.core.ids import Change, LogSequence
from hubspoke.core.leases import Grant, HubLeases, SpokeLease
from hubspoke.core.namespace import Accepted
from hubspoke.sim import scenario
from hubspoke.spoke import follower

SEEDS_MAX = 30

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def lease_counted_from_arrival(patch: pytest.MonkeyPatch) -> None:
    right = SpokeLease.replied

    def replied(self: SpokeLease, **kw: Any) -> bool:
        return right(self, **kw | {"sent_at": kw["now"]})

    patch.setattr(SpokeLease, "replied", replied)


def visible_before_revoked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HubLeases, "may_go_on", lambda self, *, now, revocation_id: True)


def granted_in_mid_revocation(patch: pytest.MonkeyPatch) -> None:
    """A grant that says nothing of what is under way."""
    right = HubLeases.renew

    def renew(
        self: HubLeases, *, now: float, spoke: str, acked: Iterable[int], rtt_s: float
    ) -> Grant:
        grant = right(self, now=now, spoke=spoke, acked=acked, rtt_s=rtt_s)
        return Grant(grant.term_s, (), grant.through, grant.reason)

    patch.setattr(HubLeases, "renew", renew)


def replica_moving_backwards(patch: pytest.MonkeyPatch) -> None:
    """What comes again is applied again, as if it were new."""

    def accept(applied: LogSequence, changes: list[Change]) -> Accepted:
        again = [
            Change(LogSequence(applied + i), change.name, change.entry)
            for i, change in enumerate(changes, 1)
        ]
        return Accepted(tuple(again), gap=False)

    patch.setattr(follower, "accept", accept)


def required_sequence_ignored(patch: pytest.MonkeyPatch) -> None:
    right = SpokeLease.replied

    def replied(self: SpokeLease, **kw: Any) -> bool:
        return right(self, **kw | {"required": LogSequence(0)})

    patch.setattr(SpokeLease, "replied", replied)


def restart_that_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    right = HubLeases.__init__

    def init(self: HubLeases, *a: Any, **kw: Any) -> None:
        right(self, *a, **kw | {"former_term_s": 0.0})

    patch.setattr(HubLeases, "__init__", init)


def age_from_the_lease_s_end(patch: pytest.MonkeyPatch) -> None:
    """What the simulation found first."""
    patch.setattr(SpokeLease, "current_until", lambda self: self._current_until)


PLANTED: list[Plant] = [
    lease_counted_from_arrival,
    visible_before_revoked,
    granted_in_mid_revocation,
    replica_moving_backwards,
    required_sequence_ignored,
    restart_that_does_not_wait,
    age_from_the_lease_s_end,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda p: p.__name__)
def test_a_planted_fault_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        violations = scenario.run(seed).violations
        if any("no order of the changes" in v for v in violations):
            return
    pytest.fail(f"not caught in {SEEDS_MAX} seeds")
