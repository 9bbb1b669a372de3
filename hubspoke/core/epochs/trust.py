"""How much may be brought of a data set on the belief that all of it is read.

That no item comes twice says that items are drawn without replacement, not that all are drawn: a
job may read a part of the data set, another one each epoch, or be ended after its first minutes.
So what is brought and unread stays below a multiple of what the jobs have read in this epoch and
the last one, and that is less by the part of what was brought and not read by the end of an
epoch. An order that is known says what comes, not how far the job will go: it is bounded, too.
"""

import numpy as np
import numpy.typing as npt

AHEAD_MAX = 8  # unread items for each that was read: of an epoch's first ninth, all the rest
PRIOR_BYTES = 64 << 20  # outcomes of so many bytes weigh as much as the belief
LEAST_BYTES = 8 << 20  # keeps the path busy at a start

Numbers = npt.NDArray[np.int32]


class Trust:
    """Of one data set."""

    def __init__(self, n: int, bytes_mean: float) -> None:
        """n: items. bytes_mean: of one."""
        self._brought = np.zeros(n, np.bool_)  # and not read since
        self._count = 0  # of these
        self._used = self._wasted = 0.0
        self._prior = PRIOR_BYTES / max(1.0, bytes_mean)
        self._least = LEAST_BYTES / max(1.0, bytes_mean)

    @property
    def precision(self) -> float:
        """The part of what was brought that was read by the end of its epoch, as far as known."""
        of_use = self._used + self._prior
        return of_use / (of_use + self._wasted)

    def more(self, reads: int) -> int:
        """So many more items may be brought after so many reads."""
        most = max(self._least, AHEAD_MAX * self.precision * reads)
        return max(0, int(most) - self._count)

    def came(self, items: Numbers) -> None:
        """They are brought before they are read."""
        self._brought[items] = True
        self._count = int(np.count_nonzero(self._brought))

    def was_read(self, items: Numbers) -> None:
        """By whichever job."""
        used = set(items[self._brought[items]].tolist())
        if used:
            self._brought[list(used)] = False
            self._count -= len(used)
            self._used += len(used)

    def ended(self, still_needed: npt.NDArray[np.bool_]) -> None:
        """A job's epoch, in which all was to be read. still_needed: items that others read."""
        wasted = self._brought & ~still_needed
        n = int(np.count_nonzero(wasted))
        self._brought[wasted] = False
        self._count -= n
        # What earlier epochs said counts half.
        self._used, self._wasted = self._used / 2, self._wasted / 2 + n
