"""What is believed of one job: its order, what the next may be, and what was asked."""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.inference.question import FOLLOW_PARTS, Found, Recipe


class ReadingJob(Protocol):
    """core.epochs.job.Job."""

    n: int
    epoch: int
    order: "array[int]"  # distinct items of this epoch in the order of reading
    last_at: float

    @property
    def known(self) -> KnownOrder | None:
        """The order that is followed."""
        ...

    @property
    def guessing(self) -> bool:
        """Whether the next reads decide between orders that are at hand."""
        ...


Adopt = Callable[[KnownOrder, float], None]  # told what the job reads, and the time


@dataclass(slots=True, eq=False)
class Computed:
    """An order of a seed. after: what the epoch before turns out to be if this one is read.
    shown: whether the next epoch's is known, or guessed; next: what of it is built."""

    recipe: Recipe
    known: KnownOrder
    after: Recipe | None = None
    shown: bool = False
    next: "list[Computed]" = field(default_factory=list)
    asked_next: bool = False


@dataclass(slots=True, eq=False)
class Belief:
    """About one job."""

    job: ReadingJob
    adopt: Adopt
    epoch: int
    reads: "array[int]"  # those that were looked at last
    shards: tuple[int, ...] = ()
    numbering: npt.NDArray[np.int32] | None = None
    numbered: bool = False  # by that, and not by the listing, was found what was found
    asked: int = 0  # how many reads the latest question of this epoch had
    pending: int = 0  # its number
    searching: int = 0  # the number of a thorough one, which may take longer than others after it
    unconfirmed: Found | None = None
    current: Computed | None = None
    recipes: list[tuple[int, Recipe]] = field(default_factory=list)  # of which epoch
    processes: tuple[int, tuple[Recipe, ...]] = (0, ())  # whose first epoch this may have been
    searched_at: float = -math.inf
    says: str = "too few reads"
    partly: str = ""  # the order of which only a part is read here
    follows: int = 0  # in vain
    parts: int = FOLLOW_PARTS  # of one that were asked for


@dataclass(frozen=True, slots=True)
class Asked:
    """of: whose next order is built. Of a question, reads: how many it had; numbered: see `Belief`;
    first: it is asked by the other numbering, too, if nothing is found."""

    belief: Belief
    of: Computed | None = None
    after: Recipe | None = None
    reads: int = 0
    numbered: bool = False
    first: bool = False


def numbered(b: Belief) -> int:
    """How many items the loader numbers."""
    return b.job.n if b.numbering is None or not b.numbered else len(b.numbering)


def listed(b: Belief, found: Found) -> Found:
    """The same with items by their place in the listing."""
    if b.numbering is None or not b.numbered:
        return found
    places = np.full(b.job.n, -1, np.int32)
    places[b.numbering] = found.places
    return replace(found, items=b.numbering[found.items], places=places)
