"""Strict reads without a lease: one round trip to the hub tells where the log is.

Source: the read index of Raft (Ongaro, "Consensus: Bridging Theory and Practice", 2014, 6.4),
with the hub in the leader's place and revocations beside the index.

    reader arrives -> joins the next round that has not been sent
    round sent     -> reply: published sequence, revocations under way
    reader goes on when the replica has applied that sequence, and no change that the reply
    named and that is still under way covers what is read

Why such a read is linearizable: it takes effect when the hub made the reply, which lies between
the reader's arrival and its answer. Whatever anybody had seen by then was published, so the
replica has it. A change under way then had been seen by nobody; its readers wait all the same,
since the store may have the new bytes already.

Never: let a reader use a round that was sent before it arrived, or compare a sequence with a
replica of another history.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hubspoke.core.ids import Epoch, LogSequence, ObjectName


@dataclass(frozen=True, slots=True)
class History:
    """Which log a sequence belongs to: the state of a hub, and the life of it that wrote last."""

    epoch: Epoch | None
    incarnation: str


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """What one round trip told."""

    history: History
    sequence: LogSequence
    revocations: tuple[tuple[int, ObjectName], ...]

    def admits(
        self,
        *,
        history: History,
        applied: LogSequence,
        covered: Callable[[ObjectName], bool],
        in_force: Callable[[int], bool],
    ) -> bool:
        """history, applied: of the replica. covered: is the name part of what is read?"""
        if history != self.history or applied < self.sequence:
            return False
        return not any(covered(name) and in_force(i) for i, name in self.revocations)


class ReadRounds:
    """Which round a reader may use, and when the next is sent. Rounds are numbered from 1."""

    def __init__(self, in_flight_max: int) -> None:
        """in_flight_max: 2 halves the wait of a reader that has just missed a round."""
        self._in_flight_max = in_flight_max
        self._in_flight: set[int] = set()
        self._sent = 0
        self._wanted = False

    def join(self) -> int:
        """A reader has arrived: the number of the round whose reply it may use."""
        self._wanted = True
        return self._sent + 1

    def send(self) -> int | None:
        """The round to be sent now; None: nobody waits for one, or enough are on their way."""
        if not self._wanted or len(self._in_flight) >= self._in_flight_max:
            return None
        self._wanted = False
        self._sent += 1
        self._in_flight.add(self._sent)
        return self._sent

    def ended(self, number: int) -> None:
        """The round has its reply, or has none; ask `send` again."""
        self._in_flight.remove(number)
