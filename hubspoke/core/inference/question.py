"""What is asked of whoever searches, and what is answered."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What order is this?

    number: names the question in its answer. count: of items of the data set. reads: the first
    distinct items that a job read in an epoch, in order of arrival. likely: seeds that come first
    to mind. thorough: all seeds are to be tried, which takes long.
    """

    number: int
    count: int
    reads: npt.NDArray[np.int32]
    likely: tuple[int, ...] = ()
    thorough: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An order that fits.

    places: of each item in `items`, -1: not in it. first, last: places between which the reads
    lay. log_p: of a fit by chance, over all candidates.
    """

    family: str
    seed: int
    items: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    first: int
    last: int
    log_p: float


@dataclass(frozen=True, slots=True)
class Build:
    """Build the order of this seed, which nobody has read yet. Answered by `Found`."""

    number: int
    count: int
    family: str
    seed: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Which seeds may a process draw next whose loader drew `seed` for its first epoch?

    Answered by `Followers`. Takes as long as a thorough search.
    """

    number: int
    seed: int


@dataclass(frozen=True, slots=True)
class Followers:
    """seeds: one of them, if the process drew nothing else."""

    seeds: tuple[int, ...]


Request = Question | Build | Follow
Answer = Found | Followers | None
