"""How reads lie in an order that was found: how far apart, and whether all of it is read."""

from array import array

import numpy as np
import numpy.typing as npt

DISPLACED_READS = 256
# How much farther than ever before a read may be displaced; of few items a smaller part, since what
# lies within is brought.
SLACK_ITEMS, SLACK_ITEMS_MIN, SLACK_PART = 64, 8, 64
# Where only one rank of several is seen, most places that follow upon a read one are not read.
# Where ranks take whole batches they are, so all places are counted, too: those that no worker is
# still to come to, as eight with batches of 256 are 1,800 places apart; so many at least.
DENSE_SHARE, DENSE_READS = 0.5, 512


def displacement(places: npt.NDArray[np.int32], order: "array[int]") -> int:
    """How many places apart workers read at a time: reads that come one after the other lie so far
    apart, whatever their number. A few that lie elsewhere do not count. places: of each item;
    order: items in the order of reading."""
    reads = np.array(order[-DISPLACED_READS:], np.int32)
    ahead = places[reads].astype(np.int64) - np.arange(len(reads))
    lowest, highest = np.percentile(ahead, (5, 95)).tolist()
    return int(highest - lowest) + min(SLACK_ITEMS, max(SLACK_ITEMS_MIN, len(places) // SLACK_PART))


def passed(places: npt.NDArray[np.int32], order: "array[int]") -> int:
    """In how many places one read lies where most are left out; 0: few are."""
    at = np.sort(places[np.array(order, np.int32)]).astype(np.int64)
    at = at[at >= 0]
    gaps = np.diff(at)
    if not len(gaps):
        return 0
    dense = (gaps <= 1).mean() >= DENSE_SHARE
    behind = int(at[-1]) - displacement(places, order)
    if behind - at[0] >= DENSE_READS:
        dense &= (at <= behind).sum() >= DENSE_SHARE * (behind - at[0] + 1)
    return 0 if dense else max(2, round(float(np.median(gaps))))
