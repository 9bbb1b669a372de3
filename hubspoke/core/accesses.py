"""Accesses on their way into the books: ledger, order of eviction, streams.

A hit under a lease whose pages were all read before changes no page, so that counting it later
changes nothing but when: it costs an append, and the books are kept in batches. Whoever looks at
a counter or adds to one has the hits counted first, so that no order is lost; a kill loses only
counters.

Reads of a batch are held back from the predictor until all of them have begun: a part looks like
the beginning of more. What others read meanwhile is not held up by them.

Who records a trace is told of the reads when they are drained. A long read reaches the predictor
as the pieces that its reader comes to, and a recorder as the one read that was asked for.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import ReadState
from hubspoke.core.ledger import Ledger
from hubspoke.core.streams import Access

HITS_MAX = 4_096  # not counted yet; then they are, on the spot
EVENTS_MAX = 65_536  # waiting for the predictor; more are dropped and counted

# Told of reads in order of time, and how many were dropped before them.
Watch = Callable[[Sequence[Access], int], None]


class PieceOf(str):
    """The client of a piece of a long read: equal to the client of the read."""

    __slots__ = ()


class Accesses:
    """Two bounded rings: hits to be counted, and accesses for the predictor."""

    def __init__(self, ledger: Ledger, read_again: Callable[[Sequence[Access]], None]) -> None:
        """read_again: tells the order of eviction of reads of pages that were read before."""
        self.dropped = 0
        self._ledger = ledger
        self._read_again = read_again
        self._hits: list[Access] = []
        self._took: list[float] = []
        self._events: list[Access] = []
        self._long: list[Access] = []
        self._batches: Counter[str] = Counter()  # that a client is beginning
        self._held: list[Access] = []
        self._told_at = float("-inf")  # the predictor, of the last read
        self._watches: list[Watch] = []
        self._told_dropped = 0

    def watch(self, watch: Watch) -> Callable[[], None]:
        """Tell it of all reads from the next drain on; returns what ends that."""
        if not self._watches:
            self._told_dropped = self.dropped
        self._watches.append(watch)
        return lambda: self._watches.remove(watch)

    def hit(
        self, obj: CachedObject, offset: int, length: int, client: str, at: float, took_s: float
    ) -> None:
        """Pages that were `read_before` were read under a lease. took_s: from the arrival of the
        read to its last byte."""
        self._hits.append(Access(obj, offset, length, client, at, ReadState.HIT))
        self._took.append(took_s)
        if len(self._took) >= HITS_MAX:
            self.count()

    def read(self, access: Access) -> None:
        """Any other read; ledger and pages are its caller's business."""
        self.count()
        self._wait((access,))

    def long(self, access: Access) -> None:
        """A read that will come in pieces; for those who watch."""
        if not self._watches:
            return
        if len(self._long) < EVENTS_MAX:
            self._long.append(access)
        else:
            self.dropped += 1

    @contextmanager
    def batch(self, client: str) -> Iterator[None]:
        """What this client begins to read inside reaches the predictor as a whole, at the end of
        the last of its batches."""
        self._batches[client] += 1
        try:
            yield
        finally:
            self._batches[client] -= 1
            if not self._batches[client]:
                del self._batches[client]

    def count(self) -> None:
        """Bring the hits so far into the books."""
        hits, took = self._hits, self._took
        if not hits:
            return
        self._hits, self._took = [], []
        self._ledger.hits([a.length for a in hits], took, [a.at for a in hits])
        self._read_again(hits)
        self._wait(hits)

    def _wait(self, accesses: Sequence[Access]) -> None:
        room = EVENTS_MAX - len(self._events) - len(self._held)
        self._events += accesses[: max(0, room)]
        self.dropped += max(0, len(accesses) - room)

    def drain(self) -> list[Access]:
        """What came since the last call, in order of time, for the predictor."""
        self.count()
        events, self._events = self._events, []
        if self._watches:
            self._tell(events)
        if self._batches or self._held:
            waited, self._held = self._held, [a for a in events if a.client in self._batches]
            events = [a for a in events if a.client not in self._batches]
            for access in waited:
                if access.client in self._batches:
                    self._held.append(access)
                else:
                    events.append(access._replace(at=max(access.at, self._told_at)))
            events.sort(key=lambda a: a.at)
        if events:
            self._told_at = events[-1].at
        return events

    def _tell(self, events: list[Access]) -> None:
        dropped, self._told_dropped = self.dropped - self._told_dropped, self.dropped
        reads = [a for a in events if type(a.client) is not PieceOf]
        if self._long:
            reads = sorted(reads + self._long, key=lambda a: a.at)
            self._long = []
        for watch in self._watches:
            watch(reads, dropped)
