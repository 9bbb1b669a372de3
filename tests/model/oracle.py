"""What a linearizable map of names to versions, replicated under leases, must never do.

Knows nothing of leases, messages or clocks: it is told what the store and the log hold, and what
readers and replicas say, and asserts that it fits.

    read       never older than what was acknowledged, or than what anybody has read before
    log        each sequence is published once, in order, and never another change than before
    replica    at sequence n it holds exactly what the log up to n says; n never falls
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectName, Version

Value = Version | None  # None: absent
Content = Mapping[ObjectName, Version]


@dataclass
class _Name:
    """values: all that the store ever had, in order; `floor` is the oldest that may be read."""

    values: list[Value] = field(default_factory=lambda: [None])
    floor: int = 0


class Oracle:
    """One namespace over all lives and epochs of its hub."""

    def __init__(self) -> None:
        self._names: dict[ObjectName, _Name] = {}
        self._base: dict[Epoch, dict[ObjectName, Version]] = {}
        self._logs: dict[Epoch, list[Change]] = {}
        self._replicas: dict[str, tuple[Epoch, LogSequence]] = {}

    def _name(self, name: ObjectName) -> _Name:
        return self._names.setdefault(name, _Name())

    # What happens at the hub -------------------------------------------------------------------

    def epoch_began(self, epoch: Epoch) -> None:
        """A log that begins with what the store holds."""
        assert epoch not in self._logs, epoch
        self._base[epoch] = self.store()
        self._logs[epoch] = []

    def store(self) -> dict[ObjectName, Version]:
        held = {name: n.values[-1] for name, n in self._names.items()}
        return {name: value for name, value in held.items() if value is not None}

    def completed(self, name: ObjectName, value: Value) -> None:
        """The store has it: from now on it may be read, by whoever finds out."""
        self._name(name).values.append(value)

    def published(self, epoch: Epoch, change: Change) -> None:
        """Durable in the log: its writer is told, so nothing older may be read any more."""
        log = self._logs[epoch]
        assert change.sequence == len(log) + 1, (change, len(log))
        log.append(change)
        name = self._name(change.name)
        value = change.entry.version if change.entry is not None else None
        newest = len(name.values) - 1
        assert name.values[newest] == value, (change, name.values)
        name.floor = newest

    # What is seen ------------------------------------------------------------------------------

    def read(self, who: str, name: ObjectName, value: Value) -> None:
        """An answer that promises to be current."""
        known = self._name(name)
        fits = [i for i in range(known.floor, len(known.values)) if known.values[i] == value]
        assert fits, f"{who} read {value} of {name}, may be one of {known.values[known.floor :]}"
        known.floor = fits[0]

    def listed(
        self, who: str, names: Iterable[ObjectName], page: Mapping[ObjectName, Version]
    ) -> None:
        """A page reads every name it covers, also those it leaves out."""
        for name in names:
            self.read(who, name, page.get(name))

    def replica(self, who: str, epoch: Epoch, sequence: LogSequence, content: Content) -> None:
        """A replica that says it is complete."""
        before = self._replicas.get(who)
        if before is not None and before[0] == epoch:
            assert sequence >= before[1], f"{who} went back from {before[1]} to {sequence}"
        self._replicas[who] = (epoch, sequence)
        log = self._logs[epoch]
        assert sequence <= len(log), f"{who} at {sequence} is ahead of {len(log)}"
        right = dict(self._base[epoch])
        for change in log[:sequence]:
            if change.entry is None:
                right.pop(change.name, None)
            else:
                right[change.name] = change.entry.version
        assert content == right, f"{who} at {sequence}: {content} is not {right}"

    def replica_lost(self, who: str) -> None:
        """It begins anew: a snapshot may be older than what was there."""
        self._replicas.pop(who, None)
