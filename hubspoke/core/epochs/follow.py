"""Where a job is in its known order.

Workers and ranks read ahead of one another, so reads come up to `window` places from where the
order has them. `base` is the first place that may still be read, `front` the last that was, and
what `reach` places beyond it is read next. Reads outside of the window again and again mean that
the order is not this job's: it is dropped. So it is where most places are passed by: then other
ranks read those, and elsewhere.
"""

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.known import KnownOrder

JUDGED = 64  # reads
MISFITS = 16  # of them, to drop the order
LONG_JUDGED = 512  # reads
LONG_MISFITS = 32  # of them: what is wrong now and then is fetched for nothing all the time
PASSED = 256  # places that were passed are looked at together:
PASSED_READ = 0.5  # if fewer of them were read, the rest is read elsewhere, by other ranks
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
        self._long_judged = self._long_misfits = 0
        self._looked: int | None = None  # places before were looked at after they were passed
        self._leap, self._leap_before = 0, order.window
        self._next: Follower | None = None
        self._guessed: dict[KnownOrder, Follower] = {}

    @property
    def _slack(self) -> int:
        """Places beside the window that may still be another worker's."""
        return 2 * self.order.window + JUDGED

    def moved(self, items: Numbers, read: npt.NDArray[np.bool_]) -> bool:
        """Items were read, and `read` says so. Returns whether the order still fits."""
        at, slack = self.place[items], self._slack
        fits = (at >= self.base - slack) & (at <= self.front + slack)
        if len(items) > JUDGED:  # what was read before the order was known, from wherever
            middle = int(np.median(at[-JUDGED:]))
            fits = (at >= middle - slack) & (at <= middle + slack)
            fits[:-JUDGED] &= at[:-JUDGED] <= middle
            fits &= at != NOWHERE
        within = at[fits]
        if len(within):
            self._lead(within)
        self._advance(read)
        if not self._dense(read):
            return False
        late = min(len(items), JUDGED)
        misfits = late - int(np.count_nonzero(fits[-late:]))
        self._judged += late
        self._misfits += misfits
        if not self._long(late, misfits):
            return False
        if self._misfits >= MISFITS and self._misfits * 4 >= self._judged:
            return False
        if self._judged >= JUDGED:
            self._judged, self._misfits = self._judged // 2, self._misfits // 2
        return True

    def _lead(self, within: Numbers) -> None:
        """The front moves on. Of a job that was joined in its middle the first read tells none."""
        fronts = np.maximum.accumulate(within)
        if self.front:
            fronts = np.maximum(fronts, self.front - 1)
            self._leap = max(self._leap, int(fronts[0]) + 1 - self.front)
        if len(fronts) > 1:
            self._leap = max(self._leap, int(np.diff(fronts).max()))
        self.front = int(fronts[-1]) + 1

    @property
    def reach(self) -> int:
        """How far beyond the front the next reads are, at most: twice as far as any of the last
        some hundred was, as the window has room for what has never been seen."""
        return min(self.order.window, 2 * max(self._leap, self._leap_before))

    def _long(self, judged: int, misfits: int) -> bool:
        """Whether few of the last some hundred reads were elsewhere."""
        self._long_judged += judged
        self._long_misfits += misfits
        if self._long_judged < LONG_JUDGED:
            return True
        few = self._long_misfits <= LONG_MISFITS
        self._leap, self._leap_before = 0, self._leap
        self._long_judged = self._long_misfits = 0
        return few

    def _dense(self, read: npt.NDArray[np.bool_]) -> bool:
        """Whether most of what was passed since the first reads was read."""
        if self._looked is None:
            self._looked = self.front
        if self.base < self._looked + PASSED:
            return True
        passed = self.order.items[self._looked : self.base]
        self._looked = self.base
        return bool(read[passed].mean() >= PASSED_READ)

    def _advance(self, read: npt.NDArray[np.bool_]) -> None:
        self.base = max(self.base, self.front - 2 * self.order.window)
        while self.base < self.front:
            step = read[self.order.items[self.base : min(self.base + 256, self.front)]]
            done = len(step) if step.all() else int(step.argmin())
            self.base += done
            if done < len(step):
                return

    def awaits(self, item: int) -> bool:
        """Whether the item is among those that may be read next."""
        return bool(self.base - self._slack <= self.place[item] <= self.front + self._slack)

    @property
    def ends(self) -> bool:
        """Whether the next epoch begins soon, or has begun in another order."""
        return self.front + self.head >= len(self.order.items)

    def begins(self, items: Numbers) -> bool:
        """Whether most of these are among the first of the order."""
        near = self.place[items] < self._slack
        return bool(near.mean() >= 0.5)

    def following(self) -> "Follower | None":
        """The next epoch's, as soon as it is known."""
        if self._next is None:
            order = self.order.following()
            if order is not None:
                self._next = Follower(order, self.n)
        return self._next

    @property
    def head(self) -> int:
        """So many places are read by the workers' first batches, of which each has two at a time,
        and until more of a new epoch can be here."""
        return 4 * self.order.window + JUDGED

    def guesses(self) -> "list[Follower]":
        """Of orders that the next epoch may have, as long as its own is not known."""
        if self.following() is not None:
            return []
        found = self.order.guesses()
        self._guessed = {o: self._guessed.get(o) or Follower(o, self.n) for o in found}
        return list(self._guessed.values())
