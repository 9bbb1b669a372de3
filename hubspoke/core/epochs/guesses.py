"""Which of the orders that an epoch may have it does have: its first reads decide.

Reads of any other order are uniform over a guess's places, so few that lie near its start are
enough. Until then nobody relies on a guess: what it names next may be fetched, since all of it is
read in this epoch by any order, but nothing is dropped for it.
"""

import math
from collections.abc import Sequence

import numpy as np

from hubspoke.core.epochs.follow import NOWHERE, Follower, Numbers
from hubspoke.core.inference.evidence import fit

READS_MAX = 64  # of an epoch; by then the right one would have been told
REFUTED_AT, REFUTED_PART = 16, 8  # reads, most of which lie beyond this part of the order
CHANCE_MAX = 1e-4  # of a false one: it is one of a few, and its follower goes on watching


class Guesses:
    """Of one epoch of one job."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self.followers = list(followers)

    def decide(self, reads: Numbers, n: int) -> Follower | None:
        """The right one, if these first reads of the epoch tell; the rest is forgotten then, and
        all are after READS_MAX. n: items of the data set."""
        best: tuple[float, Follower] | None = None
        k, living = len(reads), list[Follower]()
        for f in self.followers:
            at = f.place[reads]
            places = np.where(at == NOWHERE, np.int32(-1), at)
            where = fit(places, len(f.order.items), np.arange(k, dtype=np.int32))
            if where.first == 0 and where.log_p < math.log(CHANCE_MAX):
                best = min(best or (0.0, f), (where.log_p, f), key=lambda x: x[0])
            beyond = int((at > max(f.head + k, n // REFUTED_PART)).sum())
            if k < REFUTED_AT or 2 * beyond <= k:
                living.append(f)
        self.followers = [] if best or k >= min(READS_MAX, max(1, n // 4)) else living
        return None if best is None else best[1]
