"""What is known of the replica beside its names: whose log it follows, and from where it is whole.

All of it lies in facts of the namespace, so that a restart goes on where a kill ended.
"""

from hubspoke import wire
from hubspoke.core.ids import LogSequence, ObjectName
from hubspoke.core.read_index import History
from hubspoke.ports import NamespaceStore

CONSISTENT_FACT = "consistent_at"  # sequence from which on a loaded replica is one state
INCARNATION_FACT = "incarnation"  # of the hub whose log the replica continues


class Replica:
    def __init__(self, namespace: NamespaceStore) -> None:
        self._namespace = namespace
        self._consistent: tuple[str | None, LogSequence] = (None, LogSequence(0))

    @property
    def consistent_at(self) -> LogSequence:
        fact = self._namespace.fact(CONSISTENT_FACT)
        if fact != self._consistent[0]:
            self._consistent = (fact, LogSequence(int(fact or 0)))
        return self._consistent[1]

    @property
    def sequence(self) -> LogSequence:
        return self._namespace.sequence

    def complete(self) -> bool:
        """Whether it is one whole state of the hub, so that absence means absence."""
        return self._namespace.epoch is not None and self.sequence >= self.consistent_at

    def history(self) -> History:
        return History(self._namespace.epoch, self._namespace.fact(INCARNATION_FACT) or "")

    def continues(self, epoch: str, incarnation: str) -> bool:
        """Whether what a hub says speaks of this history. incarnation: "" from a hub that does
        not know of them."""
        mine = self.history()
        return epoch == mine.epoch and incarnation in ("", mine.incarnation)


def revoked_name(r: wire.Revocation) -> ObjectName:
    return ObjectName(r.bucket, r.key)
