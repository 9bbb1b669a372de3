"""How sure it is that reads follow an order, and where in it they are.

Reads of another order are uniform over this one's places. So what counts is how many of them lie
in how small a part of it; the bound is Chernoff's, which never says too much. Workers may
displace reads, read twice or be missed: only the width of the part that holds them grows.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# A false order costs a cache full of wrong items; over all candidates tried (ORDERS, C.1).
FALSE_POSITIVE_MAX = 1e-6
# How far reads may be spread over an order, beside their number: 8 workers with batches of 256 are
# 2,048 places apart. A wider fit may be no chance, as of permuted blocks, and is of no use.
SPREAD_MAX = 0.125
SPREAD_ITEMS = 64  # of a small order
OUTSIDE_MAX = 0.1  # share of reads that may belong elsewhere: evaluation, another job


def log_tail(hits: int, tries: int, p: float) -> float:
    """Upper bound of the logarithm of P(at least `hits` of `tries`), each with probability p."""
    share = hits / tries
    if p <= 0.0:
        return -math.inf if hits else 0.0
    if share <= p:
        return 0.0
    divergence = share * math.log(share / p)
    if share < 1.0:
        divergence += (1 - share) * math.log((1 - share) / (1 - p))
    return -tries * divergence


@dataclass(frozen=True, slots=True)
class Fit:
    """Reads lie at places [first, last] of an order, but for a few.

    log_p: of as good a fit by chance, for one candidate.
    """

    first: int
    last: int
    log_p: float

    def sure(self, candidates: float) -> bool:
        """Whether it is no chance, after so many candidates."""
        return self.log_p + math.log(candidates) < math.log(FALSE_POSITIVE_MAX)


def places_of(order: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    """The first place of each of `count` items in an order; -1: it is not in it."""
    places = np.full(count, -1, np.int32)
    places[order[::-1]] = np.arange(len(order) - 1, -1, -1, dtype=np.int32)
    return places


def fit(places: npt.NDArray[np.int32], length: int, reads: npt.NDArray[np.int32]) -> Fit:
    """Where distinct `reads` lie in an order of this length: the densest part that holds all but
    OUTSIDE_MAX of them."""
    at = places[reads]
    found = np.sort(at[at >= 0]).astype(np.int64)
    most = len(reads) - int(OUTSIDE_MAX * len(reads))
    if len(found) < most:
        return Fit(0, length - 1, 0.0)
    spans = found[most - 1 :] - found[: len(found) - most + 1] + 1
    densest = int(np.argmin(spans))
    inside = log_tail(most, len(reads), min(1.0, int(spans[densest]) / length)) + math.log(length)
    # An order met at its start needs no luck in where it was met.
    begins = log_tail(most, len(reads), min(1.0, (int(found[most - 1]) + 1) / length))
    if int(spans[densest]) > len(reads) + max(SPREAD_ITEMS, SPREAD_MAX * length):
        return Fit(0, length - 1, 0.0)
    if begins <= inside:
        return Fit(0, int(found[most - 1]), begins)
    return Fit(int(found[densest]), int(found[densest + most - 1]), min(0.0, inside))
