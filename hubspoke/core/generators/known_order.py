"""Known order: what a job reads next, where a seed or a former epoch says it exactly.

Assumes: the order is the job's (`core.epochs.follow` drops it when it is not). Proposes what lies
between the first place that may still be read and what the job reaches within `ahead_s`, which
hides latency or, if somebody buys it, lasts through an outage; each with the time of its place.
What lies farther on comes into the room of what was read (`Farther`): a path that carries hardly
more than is read must not wait until it is wanted. Goes on into the next epoch where that is known,
or may be one of a few: what is brought for a guess is read some time in that epoch in any case.
"""

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.follow import Follower
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.shelf import Shelf
from hubspoke.core.generators.blind_fill import Known, place
from hubspoke.core.generators.candidates import Candidate

# Times what hides latency: a path that was idle, as when an epoch begins with what is kept, starts
# with small windows, and what is known for certain costs nothing but its room.
AHEAD = 2
ITEMS_MAX = 4_096  # proposed at once
LOOKED_ITEMS = 16_384  # farther on, at once


def ahead(
    job: Job, shelf: Shelf, ahead_s: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Items of the job's order that are not here, nearest first, and the seconds until each."""
    f = job.follower
    assert f is not None
    near = f.front + int(job.rate * ahead_s) + 1
    numbers = f.order.items[f.base : near + f.reach]
    places = np.arange(f.base, f.base + len(numbers))
    wanted = ~job.read[numbers] & ~shelf.here[numbers]
    numbers, places = numbers[wanted], places[wanted]
    # Of the next epoch all workers begin their first batches at once.
    beyond = near + f.order.window - len(f.order.items)
    coming = _next_epochs(f) if beyond > 0 else []
    for g in coming:
        later = g.order.items[:beyond]
        absent = np.flatnonzero(~shelf.here[later])
        numbers = np.concatenate((numbers, later[absent]))
        places = np.concatenate((places, len(f.order.items) + absent))
    if len(coming) > 1:
        nearest = np.argsort(places, kind="stable")
        numbers, places = numbers[nearest], places[nearest]
    numbers, places = numbers[:ITEMS_MAX], places[:ITEMS_MAX]
    times = np.maximum(places - f.front, 0) / max(job.rate, 1e-3)
    return numbers.astype(np.int32), times


def _next_epochs(f: Follower) -> list[Follower]:
    """What comes after the order that is followed, or may come."""
    following = f.following()
    return f.guesses() if following is None else [following]


class Farther:
    """What a job reads later than `ahead` has it, up to the first batches of the next epoch: each
    place is looked at once."""

    def __init__(self) -> None:
        self._follower: Follower | None = None
        self._at = 0

    def kept(self, job: Job) -> int:
        """So many items that were read make no room: the first of whatever the next epoch may be,
        until that comes next."""
        f = job.follower
        assert f is not None
        if f is self._follower and self._at >= len(f.order.items):
            return 0
        return sum(g.head for g in _next_epochs(f))

    def again(self) -> None:
        """Something that was proposed did not come, or was dropped."""
        self._follower = None

    def take(
        self, job: Job, shelf: Shelf, ahead_s: float, most: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """At most so many that are not here, the nearest first, and the seconds until each."""
        f = job.follower
        assert f is not None
        order = f.order.items
        if f is not self._follower:
            self._follower, self._at = f, 0
        near = f.front + f.reach + int(job.rate * ahead_s) + 1
        at = self._at if self._at > len(order) else min(max(self._at, near), len(order))
        if at < len(order):
            numbers = order[at : at + LOOKED_ITEMS]
            places = at + np.flatnonzero(~job.read[numbers] & ~shelf.here[numbers])[:most]
            numbers = order[places]
            at = int(places[-1]) + 1 if len(places) == most else min(at + LOOKED_ITEMS, len(order))
        elif at == len(order):
            numbers, places = _firsts(f, shelf)
            if len(numbers) <= most:
                at += 1  # that is all
            numbers, places = numbers[:most], places[:most]
        else:
            numbers, places = order[:0], np.zeros(0, np.int64)
        self._at = at
        return numbers, np.maximum(places - f.front, 0) / max(job.rate, 1e-3)


def _firsts(f: Follower, shelf: Shelf) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """What is not here of the next epoch's first batches, the likeliest one's if it is a guess."""
    for g in _next_epochs(f)[:1]:
        first = g.order.items[: g.head]
        absent = np.flatnonzero(~shelf.here[first])
        return first[absent], len(f.order.items) + absent
    return np.zeros(0, np.int32), np.zeros(0, np.int64)


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
