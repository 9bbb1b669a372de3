"""Leases on the namespace: when a spoke may answer from its replica, and when a change may go on.

Source: Gray & Cheriton, "Leases", SOSP 1989, with one lease per spoke on the whole namespace and
single names called back. The two machines:

    hub    change decided -> revoke -> every lease that was live then is acked or has run out
                                       -> the change may go on -> appended -> the revocation ends
    spoke  renewal sent -> reply: revocations, required sequence, term
           valid while  now < sent + term - margin  and  applied >= required

Why a read under a valid lease is never stale: a lease granted before the revocation is waited
for; one granted after it carries the revocation; one granted after the change was appended
requires its sequence. So a renewal given in mid-revocation does not prolong the wait of the
change: the wait ends when the lease *as it was at the revocation* runs out.

Never: count a lease from the arrival of its reply (the reply may be as old as the path is slow),
or let a refused renewal shorten a lease that was already granted. Times are seconds of a clock
that includes suspends; the hub's and a spoke's clocks are never compared, only their rates.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from hubspoke.core.ids import LogSequence, ObjectName

LeaseState = Literal["valid", "expired", "none"]

# Ended revocations a spoke remembers, against a lease reply that was overtaken by the feed.
ENDED_REMEMBERED_MAX = 4096


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """The hub decides the term and waits for the margin longer; a spoke gives the margin up."""

    # Detection of a partition in under 2 s; a change waits at most term + margin in one.
    term_s: float = 2.0
    # A path of 900 ms needs 3.6 s (at least 4 RTT per term).
    term_max_s: float = 4.0
    # Covers clocks whose rates differ by 2.5 % over the longest term; real ones stay below 0.1 %.
    margin_s: float = 0.1
    renew_s: float = 0.5
    # A spoke that has not acknowledged a revocation for so long gets no further renewal; at least
    # two round trips, as an acknowledgement is one round trip old when it comes.
    ack_max_s: float = 0.5
    rtts_per_term: float = 4.0

    def term_for(self, rtt_s: float) -> float:
        return min(max(self.term_s, self.rtts_per_term * rtt_s), max(self.term_max_s, self.term_s))

    def ack_for(self, rtt_s: float) -> float:
        return max(self.ack_max_s, min(2 * rtt_s, self.term_for(rtt_s) / 2))


@dataclass(frozen=True, slots=True)
class Grant:
    """term_s: 0 when not granted, `reason` says why. revocations: all that are under way.

    through: the highest revocation issued so far; one <= `through` that is not in
    `revocations` has ended.
    """

    term_s: float
    revocations: tuple[tuple[int, ObjectName], ...]
    through: int
    reason: str = ""


@dataclass(slots=True)
class _Recall:
    name: ObjectName
    issued_at: float
    waiting: dict[str, float]  # spoke -> when its lease of that moment has surely run out
    unacked: set[str] = field(default_factory=set)


class HubLeases:
    """The hub's machine. Revocations are named by ids that rise, also across restarts."""

    def __init__(
        self, config: LeaseConfig, *, now: float, former_term_s: float, through: int = 0
    ) -> None:
        """former_term_s: longest term an earlier life of this hub may have granted; 0: none.
        through: no revocation of an earlier life has a higher id; all of them are over.

        Reads need no wait after a restart, the first change does: who holds a lease is unknown.
        """
        self._config = config
        self._quiet_until = now + former_term_s + config.margin_s if former_term_s > 0 else now
        self._expiry: dict[str, float] = {}
        self._recalls: dict[int, _Recall] = {}
        self._through = through

    def renew(self, *, now: float, spoke: str, acked: Iterable[int], rtt_s: float) -> Grant:
        """Take the acknowledgements, then grant or refuse. Every reply lists all revocations."""
        for revocation_id in acked:
            recall = self._recalls.get(revocation_id)
            if recall is not None:
                recall.waiting.pop(spoke, None)
                recall.unacked.discard(spoke)
        under_way = self.under_way()
        ack_max_s = self._config.ack_for(rtt_s)
        for revocation_id, recall in self._recalls.items():
            if spoke in recall.unacked and now - recall.issued_at > ack_max_s:
                reason = (
                    f"revocation {revocation_id} of {recall.name} unacknowledged for"
                    f" {now - recall.issued_at:.1f} s"
                )
                return Grant(0.0, under_way, self._through, reason)
        term = self._config.term_for(rtt_s)
        expiry = now + term + self._config.margin_s
        self._expiry[spoke] = max(expiry, self._expiry.get(spoke, 0.0))
        return Grant(term, under_way, self._through)

    def standing(self) -> Grant:
        """What a reply that grants nothing tells: the revocations of this moment."""
        return Grant(0.0, self.under_way(), self._through)

    def revoke(self, *, now: float, revocation_id: int, name: ObjectName) -> None:
        assert revocation_id > self._through, (revocation_id, self._through)
        self._forget_expired(now)
        self._through = revocation_id
        waiting = dict(self._expiry)
        self._recalls[revocation_id] = _Recall(name, now, waiting, set(waiting))

    def may_go_on(self, *, now: float, revocation_id: int) -> bool:
        """Whether every lease live at the revocation is acknowledged or has run out."""
        return now >= self._wait_ends(self._recalls[revocation_id])

    def ends_at(self, revocation_id: int) -> float:
        """When the change may go on at the latest, if nobody acknowledges any more."""
        return self._wait_ends(self._recalls[revocation_id])

    def end(self, revocation_id: int) -> None:
        """The change is appended, or given up: the revocation is over."""
        del self._recalls[revocation_id]

    def under_way(self) -> tuple[tuple[int, ObjectName], ...]:
        return tuple((i, r.name) for i, r in self._recalls.items())

    def live(self, now: float) -> dict[str, float]:
        """Spokes whose lease may still be valid, with the seconds left."""
        self._forget_expired(now)
        return {spoke: expiry - now for spoke, expiry in self._expiry.items()}

    def _wait_ends(self, recall: _Recall) -> float:
        return max(self._quiet_until, *recall.waiting.values(), 0.0)

    def _forget_expired(self, now: float) -> None:
        for spoke in [s for s, expiry in self._expiry.items() if expiry <= now]:
            del self._expiry[spoke]


@dataclass(frozen=True, slots=True)
class _Held:
    until: float
    required: LogSequence


class SpokeLease:
    """The spoke's machine: which leases it holds and which names are called back."""

    def __init__(self, config: LeaseConfig) -> None:
        self._config = config
        self._held: list[_Held] = []
        self._current_until: float | None = None  # end of the last lease that was valid
        self._revoked: dict[int, ObjectName] = {}
        self._revoked_at: dict[int, float] = {}
        self._names: dict[ObjectName, int] = {}  # how many revocations cover the name
        self._ended: dict[int, None] = {}
        # (through, required, ids under way) of replies whose sequence is not yet applied.
        self._clearing: list[tuple[int, LogSequence, frozenset[int]]] = []
        self._forgot_at = float("-inf")
        # Somebody else answers for names for a while (a kernel that keeps what it was told): what
        # it holds of a name has to go before the revocation may be acknowledged.
        self.answered_elsewhere = False
        self._fresh: list[tuple[int, ObjectName]] = []  # to be told to whoever that is
        self._withheld: dict[int, float] = {}  # told, not gone yet: end of the leases of before

    def replied(
        self,
        *,
        sent_at: float,
        grant: Grant,
        required: LogSequence,
        applied: LogSequence,
        now: float,
    ) -> bool:
        """Take a reply over. Returns whether a revocation is new and wants acknowledging.

        One that was asked for before `forget` is nothing to go by: its lease may be older than a
        revocation that was acknowledged and forgotten since.
        """
        if sent_at <= self._forgot_at:
            return False
        new = False
        for revocation_id, name in grant.revocations:
            new |= self.revoke(revocation_id, name, now=now)
            if grant.term_s > 0 and revocation_id in self._revoked_at:
                # Nor did the change wait for this lease, which the hub gave meanwhile.
                self._revoked_at[revocation_id] = min(sent_at, self._revoked_at[revocation_id])
        self._clearing.append((grant.through, required, frozenset(i for i, _ in grant.revocations)))
        if grant.term_s > 0:
            until = sent_at + grant.term_s - self._config.margin_s
            self._held.append(_Held(until, required))
        self.advance(applied=applied, now=now)
        return new

    def revoke(self, revocation_id: int, name: ObjectName, *, now: float) -> bool:
        """Returns whether it is new and wants acknowledging now. One that has already ended is not
        taken up again."""
        if revocation_id in self._revoked or revocation_id in self._ended:
            return False
        self._revoked[revocation_id] = name
        self._revoked_at[revocation_id] = now
        self._names[name] = self._names.get(name, 0) + 1
        if not self.answered_elsewhere:
            return True
        # A lease that came before the revocation did was granted before it, or its reply would
        # have named it: the change waits for that lease, so the old state is still the only one.
        self._withheld[revocation_id] = max((h.until for h in self._held), default=now)
        self._fresh.append((revocation_id, name))
        return False

    def fresh(self) -> list[tuple[int, ObjectName]]:
        """Revocations that whoever else answers is to be told of, each once."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def gone_elsewhere(self, revocation_id: int) -> bool:
        """Nobody else answers for the name any more. Returns whether it wants acknowledging."""
        return self._withheld.pop(revocation_id, None) is not None

    def ended(self, revocation_ids: Iterable[int]) -> None:
        """The changes of these revocations are applied (or were given up)."""
        for revocation_id in revocation_ids:
            self._ended[revocation_id] = None
            self._drop(revocation_id)
        while len(self._ended) > ENDED_REMEMBERED_MAX:
            del self._ended[next(iter(self._ended))]

    def advance(self, *, applied: LogSequence, now: float) -> None:
        """The replica has reached `applied`, or time has passed: note what follows from it."""
        waiting: list[tuple[int, LogSequence, frozenset[int]]] = []
        for through, required, under_way in self._clearing:
            if applied < required:
                waiting.append((through, required, under_way))
                continue
            for revocation_id in [i for i in self._revoked if i <= through and i not in under_way]:
                self._drop(revocation_id)
        self._clearing = waiting[-64:]  # a newer reply clears all that an older one would
        self._note_current(applied, now)
        # Of those whose sequence is applied the last to end is all that counts.
        best: _Held | None = None
        held: list[_Held] = []
        for one in self._held:
            if one.until <= now:
                continue
            if applied < one.required:
                held.append(one)
            elif best is None or one.until > best.until:
                best = one
        self._held = [best, *held] if best is not None else held

    def state(self, *, now: float, applied: LogSequence) -> LeaseState:
        self._note_current(applied, now)
        if any(h.until > now and applied >= h.required for h in self._held):
            return "valid"
        return "none" if self._current_until is None else "expired"

    def valid(self, *, now: float, applied: LogSequence) -> bool:
        """Whether `state` is "valid", for those who ask at every read: `advance` was told of all
        that can make a lease valid, so there is nothing to note."""
        for held in self._held:  # noqa: SIM110 - any() of a generator takes twice as long
            if held.until > now and applied >= held.required:
                return True
        return False

    def valid_until(self, *, now: float, applied: LogSequence) -> float | None:
        """When the last of the leases that are `valid` ends; None: there is none."""
        ends = [h.until for h in self._held if h.until > now and applied >= h.required]
        return max(ends, default=None)

    def current_until(self) -> float | None:
        """Up to when the replica was surely current; None: no lease was ever valid.

        To the end of the last lease, but not beyond a revocation whose change has not come: it
        was acknowledged, so its change did not wait for the lease to run out. One that came with
        a lease may have ended at the hub as soon as that was asked for.
        """
        if self._current_until is None:
            return None
        return min((self._current_until, *self._revoked_at.values()))

    def is_revoked(self, name: ObjectName) -> bool:
        return name in self._names

    def in_force(self, revocation_id: int) -> bool:
        return revocation_id in self._revoked

    def revoked_of(self, covered: Callable[[ObjectName], bool]) -> bool:
        """Whether a name that `covered` is true for is called back."""
        return any(covered(name) for name in self._names)

    def held_back(self, covered: Callable[[ObjectName], bool], *, now: float) -> bool:
        """The same without those that are not acknowledged and that a lease from before them still
        makes wait: who asks for their names may have the old state, if it is kept nowhere.

        It must not wait: what has to go elsewhere may wait for the answer.
        """
        withheld = self._withheld
        return any(
            covered(name) and withheld.get(i, 0.0) <= now for i, name in self._revoked.items()
        )

    def acks(self) -> list[int]:
        """Revocations in force here: no read of their names is answered under the lease."""
        return [i for i in self._revoked if i not in self._withheld]

    def lose(self) -> None:
        """Give every lease up before it ends; until when the replica was current stays known."""
        self._held.clear()

    def forget(self, *, now: float) -> None:
        """Another replica: leases and revocations of the old one say nothing about it."""
        self._forgot_at = now
        self._held.clear()
        self._clearing.clear()
        self._revoked.clear()
        self._revoked_at.clear()
        self._fresh.clear()
        self._withheld.clear()
        self._names.clear()
        self._ended.clear()
        self._current_until = None

    def was_current(self, at: float) -> None:
        """The replica is one that the hub gave, and the hub was asked for it at that moment."""
        self._current_until = max(at, self._current_until or at)

    def _drop(self, revocation_id: int) -> None:
        name = self._revoked.pop(revocation_id, None)
        if name is None:
            return
        del self._revoked_at[revocation_id]
        self._withheld.pop(revocation_id, None)
        self._names[name] -= 1
        if not self._names[name]:
            del self._names[name]

    def _note_current(self, applied: LogSequence, now: float) -> None:
        """A lease that is valid at some moment makes the replica current to the lease's end.

        One whose required sequence arrives only after it ran out never was valid.
        """
        for held in self._held:
            if applied >= held.required and held.until > now:
                self._current_until = max(held.until, self._current_until or held.until)
