"""Where a job is in its known order.

Workers and ranks read ahead of one another, so reads come up to `window` places from where the
order has them. `base` is the first place that may still be read, `front` the last that was. Reads
outside of the window again and again mean that the order is not this job's: it is dropped.
"""

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.known import KnownOrder

JUDGED = 64  # reads
MISFITS = 16  # of them, to drop the order
NOWHERE = np.int32(2**31 - 1)

Numbers = npt.NDArray[np.int32]


def places(items: Numbers, n: int) -> Numbers:
    """Where each of n items comes first; NOWHERE if it does not."""
    found = np.full(n, NOWHERE, np.int32)
    found[items[::-1]] = np.arange(len(items) - 1, -1, -1, dtype=np.int32)
    return found


class Follower:
    """Follows one `KnownOrder` through one epoch."""

    def __init__(self, order: KnownOrder, n: int) -> None:
        self.order = order
        self.n = n
        self.place = places(order.items, n)
        self.base = 0
        self.front = 0
        self._judged = self._misfits = 0
        self._next: Follower | None = None
        self._guessed: dict[KnownOrder, Follower] = {}

    def moved(self, items: Numbers, read: npt.NDArray[np.bool_]) -> bool:
        """Items were read, and `read` says so. Returns whether the order still fits."""
        at = self.place[items]
        slack = 2 * self.order.window + JUDGED
        fits = (at >= self.base - slack) & (at <= self.front + slack)
        if len(items) > JUDGED:  # what was read before the order was known, from wherever
            middle = int(np.median(at[-JUDGED:]))
            fits = (at >= middle - slack) & (at <= middle + slack)
            fits[:-JUDGED] &= at[:-JUDGED] <= middle
        within = at[fits]
        if len(within):
            self.front = max(self.front, int(within.max()) + 1)
        self._advance(read)
        late = min(len(items), JUDGED)
        self._judged += late
        self._misfits += late - int(np.count_nonzero(fits[-late:]))
        if self._misfits >= MISFITS and self._misfits * 4 >= self._judged:
            return False
        if self._judged >= JUDGED:
            self._judged, self._misfits = self._judged // 2, self._misfits // 2
        return True

    def _advance(self, read: npt.NDArray[np.bool_]) -> None:
        self.base = max(self.base, self.front - 2 * self.order.window)
        while self.base < self.front:
            step = read[self.order.items[self.base : min(self.base + 256, self.front)]]
            done = len(step) if step.all() else int(step.argmin())
            self.base += done
            if done < len(step):
                return

    def following(self) -> "Follower | None":
        """The next epoch's, as soon as it is known."""
        if self._next is None:
            order = self.order.following()
            if order is not None:
                self._next = Follower(order, self.n)
        return self._next

    @property
    def head(self) -> int:
        """So many places are read by the workers' first batches."""
        return 2 * self.order.window + JUDGED

    def guesses(self) -> "list[Follower]":
        """Of orders that the next epoch may have, as long as its own is not known."""
        if self.following() is not None:
            return []
        found = self.order.guesses()
        self._guessed = {o: self._guessed.get(o) or Follower(o, self.n) for o in found}
        return list(self._guessed.values())
