"""Accesses on their way into the books: ledger, order of eviction, streams.

A hit under a lease whose pages were all read before changes no page, so that counting it later
changes nothing but when: it costs an append, and the books are kept in batches. Whoever looks at
a counter or adds to one has the hits counted first, so that no order is lost; a kill loses only
counters.
"""

from collections.abc import Callable, Sequence

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import ReadState
from hubspoke.core.ledger import Ledger
from hubspoke.core.streams import Access

HITS_MAX = 4_096  # not counted yet; then they are, on the spot
EVENTS_MAX = 65_536  # waiting for the predictor; more are dropped and counted


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
        room = EVENTS_MAX - len(self._events)
        self._events += accesses[:room]
        self.dropped += max(0, len(accesses) - room)

    def drain(self) -> list[Access]:
        """What came since the last call, in order, for the predictor."""
        self.count()
        events, self._events = self._events, []
        return events
