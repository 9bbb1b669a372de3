"""The order of a change at the hub, and who waits for it.

    enter    one change per name at a time, first come first served
             (conditions are checked and the intent is made durable by the shell)
    revoke   every live lease is called back; from here on readers of the name wait
    proceed  all leases are acknowledged or have run out: the store may complete
    complete the store has the new version: the change gets its sequence and is appended
    durable  published in sequence, readers go on, the next change of the name enters

Decides all of it from events and times that come in; effects go out, the shell executes them.
It must never publish a change before it is durable or out of sequence, let two changes of one
name overlap, or let a reader of a name pass between revoke and durable.
"""

import enum
from collections import deque
from dataclasses import dataclass, field

from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectEntry, ObjectName
from hubspoke.core.leases import Grant, HubLeases
from hubspoke.core.namespace import PageSpan
from hubspoke.errors import Overloaded


@dataclass(frozen=True, slots=True)
class Enter:
    """The change has its name to itself."""

    change_id: int


@dataclass(frozen=True, slots=True)
class Recall:
    """Tell every spoke: the lease on `name` is called back."""

    revocation_id: int
    name: ObjectName


@dataclass(frozen=True, slots=True)
class Proceed:
    """No lease covers the old state any more: the store may complete the change."""

    change_id: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Durable, in sequence: tell the spokes; the revocation ends with it."""

    change: Change
    revocation_id: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The revocation ends without a change."""

    revocation_id: int


@dataclass(frozen=True, slots=True)
class Readable:
    """Readers of `name` that waited may look again."""

    name: ObjectName


Effect = Enter | Recall | Proceed | Publish | Withdraw | Readable


@dataclass(frozen=True, slots=True)
class HubCoreConfig:
    # Changes that wait for one name; each may hold staged bytes, so the queue has an end.
    waiting_per_name_max: int = 256


@dataclass(slots=True)
class _Change:
    name: ObjectName
    revocation_id: int | None = None
    proceeding: bool = False
    sequence: LogSequence | None = None


@dataclass(slots=True)
class _Line:
    active: int
    waiting: deque[int] = field(default_factory=deque)


class HubCore:
    """State of one hub. Change ids, which are also intent ids, and revocation ids come from one
    rising counter; a revocation is numbered when it is made, so that spokes can say "up to"."""

    def __init__(
        self,
        *,
        epoch: Epoch,
        sequence: LogSequence,
        leases: HubLeases,
        first_change_id: int,
        config: HubCoreConfig | None = None,
    ) -> None:
        """first_change_id: higher than any id an earlier life of this hub has used."""
        self.epoch = epoch
        self._leases = leases
        self._config = config or HubCoreConfig()
        self._next_id = first_change_id
        self._changes: dict[int, _Change] = {}
        self._lines: dict[ObjectName, _Line] = {}
        self._blocked: dict[ObjectName, int] = {}
        self._assigned = int(sequence)
        self._published = int(sequence)
        self._unpublished: dict[
            int, tuple[Change, int, bool]
        ] = {}  # by sequence: (change, change id, durable)

    @property
    def published(self) -> LogSequence:
        """The last change that is durable, together with all before it."""
        return LogSequence(self._published)

    @property
    def assigned(self) -> LogSequence:
        return LogSequence(self._assigned)

    def changes_open(self) -> int:
        return len(self._changes)

    def enter(self, name: ObjectName) -> tuple[int, list[Effect]]:
        """Ask for the name. Raises Overloaded when too many changes of it wait already."""
        line = self._lines.get(name)
        if line is not None and len(line.waiting) >= self._config.waiting_per_name_max:
            raise Overloaded(f"{name}: {len(line.waiting)} changes wait already")
        change_id = self._next_id
        self._next_id += 1
        self._changes[change_id] = _Change(name)
        if line is None:
            self._lines[name] = _Line(change_id)
            return change_id, [Enter(change_id)]
        line.waiting.append(change_id)
        return change_id, []

    def revoke(self, change_id: int, *, now: float) -> list[Effect]:
        """The intent is durable (or none is needed): call the leases back."""
        change = self._active(change_id)
        assert change.revocation_id is None, change_id
        change.revocation_id = self._next_id
        self._next_id += 1
        self._blocked[change.name] = change_id
        self._leases.revoke(now=now, revocation_id=change.revocation_id, name=change.name)
        return [Recall(change.revocation_id, change.name), *self.tick(now=now)]

    def tick(self, *, now: float) -> list[Effect]:
        """Time has passed or a spoke has acknowledged: which changes may go on?"""
        effects: list[Effect] = []
        for change_id in self._blocked.values():
            change = self._changes[change_id]
            assert change.revocation_id is not None
            if not change.proceeding and self._leases.may_go_on(
                now=now, revocation_id=change.revocation_id
            ):
                change.proceeding = True
                effects.append(Proceed(change_id))
        return effects

    def next_tick(self) -> float | None:
        """When `tick` has something to do at the latest, without any acknowledgement."""
        blocked = [self._changes[change_id] for change_id in self._blocked.values()]
        ends = [
            self._leases.ends_at(change.revocation_id)
            for change in blocked
            if change.revocation_id is not None and not change.proceeding
        ]
        return min(ends, default=None)

    def completed(self, change_id: int, entry: ObjectEntry | None) -> Change:
        """The store has the new state: number the change. Append it before anything else."""
        change = self._active(change_id)
        assert change.proceeding and change.sequence is None, change_id
        self._assigned += 1
        change.sequence = LogSequence(self._assigned)
        record = Change(change.sequence, change.name, entry)
        self._unpublished[self._assigned] = (record, change_id, False)
        return record

    def durable(self, sequence: LogSequence) -> list[Effect]:
        """The append is on disk. Publishes it, and those behind it that waited for it."""
        record, change_id, _ = self._unpublished[sequence]
        self._unpublished[sequence] = (record, change_id, True)
        effects: list[Effect] = []
        while True:
            head = self._unpublished.get(self._published + 1)
            if head is None or not head[2]:
                return effects
            del self._unpublished[self._published + 1]
            self._published += 1
            revocation_id = self._changes[head[1]].revocation_id
            assert revocation_id is not None
            effects.append(Publish(head[0], revocation_id))
            effects += self._finish(head[1])

    def leave(self, change_id: int) -> list[Effect]:
        """Give the change up: a condition failed, nothing differs, or its waiter is gone."""
        change = self._changes[change_id]
        assert change.sequence is None, change_id
        line = self._lines[change.name]
        if line.active != change_id:
            line.waiting.remove(change_id)
            del self._changes[change_id]
            return []
        if change.revocation_id is None:
            return self._finish(change_id)
        return [Withdraw(change.revocation_id), *self._finish(change_id)]

    def lease(
        self, *, now: float, spoke: str, acked: list[int], rtt_s: float
    ) -> tuple[Grant, LogSequence, list[Effect]]:
        """A spoke asks for its lease. Returns the grant and the sequence it must have applied.

        Nothing may be awaited between this call and encoding the reply: the grant speaks for
        the revocations and the sequence of this moment.
        """
        grant = self._leases.renew(now=now, spoke=spoke, acked=acked, rtt_s=rtt_s)
        return grant, self.published, self.tick(now=now)

    def read_index(self) -> tuple[LogSequence, Grant]:
        """Where the log is, for a read without a lease; as `lease`, of this very moment."""
        return self.published, self._leases.standing()

    def blocked(self, name: ObjectName) -> bool:
        """Whether readers of the name must wait."""
        return name in self._blocked

    def blocked_in(self, page: PageSpan) -> ObjectName | None:
        """A name of the page whose readers must wait; None if there is none."""
        return next((name for name in self._blocked if page.covers(name)), None)

    def blocked_bucket(self) -> ObjectName | None:
        """A bucket that comes or goes, for which the list of buckets must wait."""
        return next((name for name in self._blocked if not name.key), None)

    def under_way(self) -> tuple[tuple[int, ObjectName], ...]:
        return self._leases.under_way()

    def live_leases(self, *, now: float) -> dict[str, float]:
        return self._leases.live(now)

    def _active(self, change_id: int) -> _Change:
        change = self._changes[change_id]
        assert self._lines[change.name].active == change_id, (change_id, change.name)
        return change

    def _finish(self, change_id: int) -> list[Effect]:
        change = self._changes.pop(change_id)
        effects: list[Effect] = []
        if change.revocation_id is not None:
            self._leases.end(change.revocation_id)
            del self._blocked[change.name]
            effects.append(Readable(change.name))
        line = self._lines[change.name]
        if not line.waiting:
            del self._lines[change.name]
            return effects
        line.active = line.waiting.popleft()
        return [*effects, Enter(line.active)]


def differs(known: ObjectEntry | None, found: ObjectEntry | None) -> bool:
    """Whether the store's state (a HEAD) is another than the log's.

    This one rule settles everything: an intent at start, a completion with unknown outcome, a
    change behind the hub's back. The store is the truth; if it differs, append what was found.
    """
    if known is None or found is None:
        return (known is None) != (found is None)
    return known.version != found.version


class Settlement(enum.Enum):
    """What to do about a change of unknown outcome."""

    UNDONE = "undone"  # the store is as it was before: staged bytes are litter
    DONE = "done"  # it seems to have come about: completing once more gives its entry
    OTHER = "other"  # the store holds something else


def settlement(
    *, before: str | None, staged_size: int | None, found: ObjectEntry | None
) -> Settlement:
    """before: the version the name had, None for none. staged_size: None for a delete.

    Completing again is safe where DONE is wrong (somebody else wrote as many bytes meanwhile):
    the client was never answered, so its change may come about as late as now.
    """
    if (found.version if found is not None else None) == before:
        return Settlement.UNDONE
    if found is not None and found.size == staged_size:
        return Settlement.DONE
    return Settlement.OTHER
