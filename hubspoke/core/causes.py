"""Why a read was no hit.

    on its way in full                     late_bandwidth: asked for, and the path did not bring it
    planned, not asked of the hub yet      late_deadline: it was expected later
    most of it read before, dropped since  evicted
    first read of a version that replaced one that was cached    invalidated
    of a data set whose jobs read everything in turn,
      or named by a posted plan,
      while prefetches of it fill the path late_bandwidth: its turn has not come
    of a stream, set or plan that is known not_predicted
    else                                   cold_start

The first that holds is the cause. `bypassed` is the shell's: the disks took no part. What an order
says of an item that was dropped does not count: a larger cache would have spared the read.
"""

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import ReadState
from hubspoke.core.page_codes import IS_ASKED, IS_NOT_LOCAL, IS_QUEUED, PAGES_PER_BLOCK
from hubspoke.core.prediction import Prediction


def cause_of(
    obj: CachedObject,
    state: ReadState,
    first: int,
    last: int,
    prediction: Prediction,
    *,
    replaced: bool,
) -> str:
    """One of `ledger.CAUSES` for a read of pages [first, last) that is no hit; replaced: the object
    is a new version of one that was cached."""
    if state is ReadState.LATE:
        return "late_bandwidth"
    code = obj.pages.alike(first, last)
    if code in IS_QUEUED.members if code >= 0 else obj.pages.any(first, last, IS_QUEUED):
        return "late_deadline"
    if code in IS_ASKED.members if code >= 0 else _most_was_asked(obj, first, last):
        return "evicted"
    if replaced:
        return "invalidated"
    known = prediction.epochs.known(obj.name)
    hinted = prediction.hints.knows(obj, first, last)
    if prediction.busy and (hinted or (known is not None and known.comes)):
        return "late_bandwidth"
    if hinted or known is not None or prediction.knows(obj.number):
        return "not_predicted"
    return "cold_start"


def _most_was_asked(obj: CachedObject, first: int, last: int) -> bool:
    """Whether readers asked before for most of what is not here. A long read is judged by its first
    block: that is quick, and what its reader waits for."""
    near = obj.runs(first, min(last, first + PAGES_PER_BLOCK), IS_NOT_LOCAL)
    # Records share pages: one that a neighbour's read brought says nothing of the rest.
    asked = sum(obj.pages.count(a, b, IS_ASKED) for a, b in near)
    return 2 * asked >= sum(b - a for a, b in near)
