"""What one job will read, where that is known exactly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class KnownOrder:
    """What one job reads in one epoch: items of one data set, all ranks and workers merged.

    items: numbers in the order of reading; an item may occur twice (padding). window: how far a
    read may be displaced: workers x batch x ranks. family: "torch DistributedSampler", "former
    epoch", ... why: for people: seed, epoch, how sure. following: the next epoch's order, None if
    it is not known. guesses: orders one of which may be the next epoch's, if it is not known: the
    first reads of that epoch decide, and nothing is dropped for the sake of a guess.
    """

    items: npt.NDArray[np.int32]
    window: int
    family: str
    why: str
    following: "Callable[[], KnownOrder | None]"
    guesses: "Callable[[], Sequence[KnownOrder]]" = tuple
