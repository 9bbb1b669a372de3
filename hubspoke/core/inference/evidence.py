"""How sure it is that reads follow an order, and where in it they are.

Two things are counted, and the better one tells. Reads of another order are uniform over this one's
places, so many of them in a small part of it are no chance, in whatever order they came. And place
by place a seed that is not the job's draws, whatever was read, one of the items that are left: that
often enough it draws one that was read at about that time is no chance either. The second needs
workers that are not far apart, but holds for buffered shuffles, too, where few items are left to
draw from and any seed reads the front of the list first. The bounds are Chernoff's, which never say
too much. Workers may displace reads, read twice or be missed: only the width of the part, or of
what counts as the same time, grows.
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


def spread(length: int) -> float:
    """How far reads may be spread over an order of this length, beside their number."""
    return max(SPREAD_ITEMS, SPREAD_MAX * length)


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


def fit(
    places: npt.NDArray[np.int32],
    length: int,
    reads: npt.NDArray[np.int32],
    *,
    pool: int | None = None,
    turns: int = 1,
) -> Fit:
    """Where distinct `reads`, in order of arrival, lie in an order of this length: all but
    OUTSIDE_MAX of them. pool: each item of the order is drawn among at least so many, as long as
    there are as many left; None: among all that are left. turns: workers of a part of the items
    each that take turns in the order and draw all alike, so that their hits come together."""
    at = places[reads].astype(np.int64)
    most = len(reads) - int(OUTSIDE_MAX * len(reads))
    if int((at >= 0).sum()) < most:
        return Fit(0, length - 1, 0.0)
    in_step = _in_step(at, length, most, pool, turns)
    together = in_step if pool is not None else _together(at, length, most, turns)
    best = min(in_step, together, key=lambda f: f.log_p)
    return Fit(best.first, best.last, min(0.0, best.log_p + math.log(2)))


def _densest(values: npt.NDArray[np.int64], most: int) -> tuple[int, int]:
    """The narrowest [low, high] that holds so many of these, which are in order."""
    spans = values[most - 1 :] - values[: len(values) - most + 1]
    at = int(np.argmin(spans))
    return int(values[at]), int(values[at + most - 1])


def _together(at: npt.NDArray[np.int64], length: int, most: int, turns: int) -> Fit:
    """By the densest part of the order."""
    found = np.sort(at[at >= 0])
    low, high = _densest(found, most)
    span = high - low + 1
    inside = log_tail(most, len(at), min(1.0, span / length)) / turns + math.log(length)
    # An order met at its start needs no luck in where it was met.
    begins = log_tail(most, len(at), min(1.0, (int(found[most - 1]) + 1) / length)) / turns
    if span > len(at) + spread(length):
        return Fit(0, length - 1, 0.0)
    if begins <= inside:
        return Fit(0, int(found[most - 1]), begins)
    return Fit(low, high, min(0.0, inside))


def _in_step(
    at: npt.NDArray[np.int64], length: int, most: int, pool: int | None, turns: int
) -> Fit:
    """By the narrowest band about the reads' own order.

    A place is hit if its item was one of the reads that the band has at that time: with a
    probability of at most their number by that of the items it may be, whatever was drawn before.
    So the hits of all places are no more than those of as many tries with the mean of these
    probabilities (Hoeffding, 1963; Freedman, 1975), for each choice of the band; narrow ones, and
    those of an order met at its start, are thought likelier. A band that all reads lie in may tell
    more than a narrower one of most of them.
    """
    arrived = np.flatnonzero(at >= 0)
    ahead = at[arrived] - arrived
    in_order = np.sort(ahead)
    best = Fit(0, length - 1, 0.0)
    for hits in sorted({most, (most + len(arrived)) // 2, len(arrived)}):
        low, high = _densest(in_order, hits)
        if high - low + 1 > spread(length):
            break
        steps = -(-(high - low + 1) // turns)  # workers that draw alike are hit at once
        low = high - steps * turns + 1
        found = at[arrived][(ahead >= low) & (ahead <= high)]
        latest = np.minimum(np.arange(len(at)) + high, length - 1)
        left = np.minimum(length - latest, pool or length)
        tries = min(length, len(at) + high) - max(0, low)
        tries = -(-tries // turns) * turns
        expected = float((steps * turns / left).sum())
        choices = math.log(2 * steps * (steps + 1))  # 1 / s (s + 1) is one in all
        choices += math.log(steps * turns if -steps * turns < low <= 0 else length + len(at))
        log_p = log_tail(len(found), tries, expected / tries) / turns + choices
        first = int(found.min())
        if log_p < best.log_p:
            best = Fit(0 if first <= steps * turns else first, int(found.max()), log_p)
    return best
