"""Replay: an epoch that begins as the one before is read in the same order to its end.

Assumes: a sampler that is seeded anew for each epoch with the same seed, or a list that is never
shuffled. That is believed when the first reads of an epoch lie about as far from one another as
in the epoch before. Reads of workers overtake each other, so places are compared with a
tolerance, and the chance that items drawn at random fit as well is what decides.

An epoch that goes on in the middle of the former one (a job resumed) is found too: what counts
is the distance between places, not where they begin.
"""

import math
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.follow import NOWHERE, places
from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.known import KnownOrder

LOOK_AT = (8, 16, 32, 64, 128, 256)  # reads of an epoch
CHANCE_MAX = 1e-7  # of one look; there are six an epoch
STRANGERS_PART = 16  # one read in so many may be out of place
WINDOW_MIN = 64
NEAR_MAX = 16  # items; of few, a sixteenth
APART_SHARE = 1 / 8  # of all items; of orders drawn at random it is a quarter
FAMILY = "former epoch"

Numbers = npt.NDArray[np.int32]


class Replay:
    """Looks at jobs as their epochs begin."""

    def __init__(self) -> None:
        self._looked = WeakKeyDictionary[Job, tuple[int, int]]()  # epoch, reads

    def look(self, job: Job) -> KnownOrder | None:
        """The order of the present epoch, if it is found now. One that is followed is
        dropped if the epoch begins otherwise: of few items a follower would never notice."""
        follower = job.follower
        if follower is None and job.former is None:
            return None
        ready = max((k for k in LOOK_AT if k <= job.count), default=0)
        if ready == 0 or self._looked.get(job, (-1, 0)) >= (job.epoch, ready):
            return None
        self._looked[job] = job.epoch, ready
        read = np.array(job.order[:ready], np.int32)
        if follower is not None:
            if begins_otherwise(follower.order.items, read, job.n):
                job.lose()
            return None
        assert job.former is not None
        return resumed(job.former, read, job.n)


def _jumps(read: Numbers, n: int) -> int:
    """How many of these reads tell something: workers that begin with neighbours in the listing
    do so wherever they are."""
    near = min(NEAR_MAX, n // NEAR_MAX)
    return 1 + int(np.count_nonzero(np.abs(np.diff(read.astype(np.int64))) > near))


def begins_otherwise(order: Numbers, read: Numbers, n: int) -> bool:
    """Whether these first reads of an epoch lie so far from one another in the order that no
    workers who overtake each other explain it."""
    apart = places(order, n)[read].astype(np.int64) - np.arange(len(read))
    return bool(np.median(np.abs(apart - np.median(apart))) > n * APART_SHARE)


def resumed(former: Numbers, read: Numbers, n: int) -> KnownOrder | None:
    """The order of `former` from where these first reads of an epoch are in it; None if they
    are elsewhere. n: items of the data set."""
    at = places(former, n)[read].astype(np.int64)
    known = at != NOWHERE
    if not known.any():
        return None
    apart = at - np.arange(len(at))
    start = int(np.median(apart[known]))
    strangers = len(read) // STRANGERS_PART
    moved = np.sort(np.where(known, np.abs(apart - start), n))[: len(read) - strangers]
    window = int(moved[-1])
    share = min(1.0, (2 * window + 1) / n)
    starts = 1 if abs(start) <= window else n
    log_p = min(len(moved), _jumps(read, n)) * math.log(share) + math.log(starts)
    log_p += math.log(math.comb(len(read), strangers))
    if log_p > math.log(CHANCE_MAX):
        return None
    odds = math.ceil(log_p / math.log(10))
    why = f"{len(read)} reads as in the epoch before, by chance 1e{odds}"
    window = max(4 * window, WINDOW_MIN)

    def again() -> KnownOrder:
        return KnownOrder(former, window, FAMILY, why, again)

    if starts == 1:
        return again()
    return KnownOrder(former[start:], window, FAMILY, why, again)
