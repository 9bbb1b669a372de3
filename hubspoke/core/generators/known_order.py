"""Known order: what a job reads next, where a seed or a former epoch says it exactly.

Assumes: the order is the job's (`core.epochs.follow` drops it when it is not). Proposes what lies
between the first place that may still be read and what the job reaches within `ahead_s`, which
hides latency or, if somebody buys it, lasts through an outage; each with the time of its place.
Goes on into the next epoch where that is known, or may be one of a few: what is brought for a guess
is read some time in that epoch in any case.
"""

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.follow import Follower
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.epochs.shelf import Shelf
from hubspoke.core.generators.blind_fill import Known, place
from hubspoke.core.generators.candidates import Candidate

ITEMS_MAX = 4_096  # proposed at once


def ahead(
    job: Job, shelf: Shelf, ahead_s: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Items of the job's order that are not here, nearest first, and the seconds until each."""
    f = job.follower
    assert f is not None
    window = f.order.window
    end = f.front + window + int(job.rate * ahead_s) + 1
    numbers = f.order.items[f.base : end]
    places = np.arange(f.base, f.base + len(numbers))
    wanted = ~job.read[numbers] & ~shelf.here[numbers]
    numbers, places = numbers[wanted], places[wanted]
    beyond = end - len(f.order.items)
    coming = _next_epochs(f) if beyond > 0 else []
    for order in coming:
        later = order.items[:beyond]
        absent = np.flatnonzero(~shelf.here[later])
        numbers = np.concatenate((numbers, later[absent]))
        places = np.concatenate((places, len(f.order.items) + absent))
    if len(coming) > 1:
        nearest = np.argsort(places, kind="stable")
        numbers, places = numbers[nearest], places[nearest]
    numbers, places = numbers[:ITEMS_MAX], places[:ITEMS_MAX]
    times = np.maximum(places - f.front, 0) / max(job.rate, 1e-3)
    return numbers.astype(np.int32), times


def _next_epochs(f: Follower) -> list[KnownOrder]:
    """What comes after the order that is followed, or may come."""
    following = f.following()
    return [g.order for g in f.guesses()] if following is None else [following.order]


def candidates(
    job: Job,
    items: ListedItems,
    numbers: npt.NDArray[np.int32],
    times: npt.NDArray[np.float64],
    known: Known,
) -> list[Candidate]:
    """These items at these times."""
    found = []
    for (number, offset, length), use_in_s in zip(
        items.ranges(numbers), times.tolist(), strict=True
    ):
        placed = place(items, number, known)
        if placed is not None:
            found.append(
                Candidate("known_order", job.number, *placed, offset, length, use_in_s, job.count)
            )
    return found
