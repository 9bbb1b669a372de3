"""What is asked of whoever searches, and what is answered."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hubspoke.core.inference.documents import Documents, FoundSamples
from hubspoke.core.inference.windows import FoundWindows, Windows
from hubspoke.core.orders.candidates import BY_NAME
from hubspoke.core.orders.mosaicml import Algorithm, merged_samples

FOLLOW_PARTS = 64  # of 2 s of a thread
MOSAIC: dict[str, Algorithm] = {
    "MosaicML py1e": "py1e",
    "MosaicML py1br": "py1br",
    "MosaicML py1s": "py1s",
}
ADDS = {name: family.adds for name, family in BY_NAME.items()} | dict.fromkeys(MOSAIC, False)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an order comes about: see core.orders.candidates. seed: with the epoch added, where that
    is what the family does."""

    family: str
    seed: int
    epoch: int = 0
    world: int = 1

    @property
    def turn(self) -> int:
        """What grows from epoch to epoch."""
        return self.seed if ADDS[self.family] else self.epoch

    def moved(self, epochs: int) -> "Recipe":
        """That of a later epoch."""
        if ADDS[self.family]:
            return replace(self, seed=self.seed + epochs)
        return replace(self, epoch=self.epoch + epochs)

    def __str__(self) -> str:
        epoch = "" if ADDS[self.family] else f", epoch {self.epoch}"
        world = "" if self.world == 1 else f", world {self.world}"
        return f"{self.family}, seed {self.seed}{epoch}{world}"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What order is this?

    number: names the question in its answer. count: of items of the data set. reads: the first
    distinct items that a job read in an epoch, in order of arrival. likely: what comes first to
    mind. thorough: all seeds are to be tried, which takes long. shards: how many items each object
    has, in listing order; empty where items are objects.
    """

    number: int
    count: int
    reads: npt.NDArray[np.int32]
    likely: tuple[Recipe, ...] = ()
    thorough: bool = False
    shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An order that fits.

    places: of each item in `items`, -1: not in it. first, last: places between which the reads
    lay. log_p: of a fit by chance, over all candidates.
    """

    recipe: Recipe
    items: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    first: int
    last: int
    log_p: float


@dataclass(frozen=True, slots=True)
class Build:
    """Build this order, which nobody has read yet. Answered by `Found`."""

    number: int
    count: int
    recipe: Recipe
    shards: tuple[int, ...] = ()


def samples(request: Build) -> npt.NDArray[np.int32]:
    """Of shards, by one of MosaicML's recipes, whose world is the canonical nodes."""
    recipe = request.recipe
    order = merged_samples(
        list(request.shards),
        canonical_nodes=recipe.world,
        algorithm=MOSAIC[recipe.family],
        seed=recipe.seed,
        epoch=recipe.epoch,
    )
    return order.astype(np.int32)


@dataclass(frozen=True, slots=True)
class Follow:
    """Which processes' loaders draw `seed` for their first epoch?

    Answered by `Followers`. part: of FOLLOW_PARTS, of all processes' seeds; together they take as
    long as a thorough search, and each tells what it found.
    """

    number: int
    seed: int
    part: int


@dataclass(frozen=True, slots=True)
class Followers:
    """seeds: of processes; it is one of them, if nothing else was drawn there."""

    seeds: tuple[int, ...]


Request = Question | Build | Follow | Windows | Documents
Answer = Found | Followers | FoundWindows | FoundSamples | None
