"""Which orders the next epoch may have, after the recipes of the epochs so far.

One epoch does not tell how the next one is drawn: `default_rng(s)`, `default_rng([s, 0])` and the
first draw of a generator that is kept are the same order, and all of them go on differently; so do
a sampler with `set_epoch` and one without. So each rule that explains the epochs so far is kept. It
is shown, and no guess any more, when it has foretold an epoch and every other rule has not.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hubspoke.core.inference.question import Recipe
from hubspoke.core.orders.candidates import (
    KEPT_GENERATOR,
    KEPT_LEGACY,
    LISTED,
    LOADER,
    LOADER_KEPT,
    NUMPY,
    NUMPY_LEGACY,
    PROCESS,
    PROCESS_KEPT,
    SAMPLER,
    TORCH,
)

STEPS = (1, 0)  # with the epoch in the seed, and without
# Rules that draw the same first epoch.
ALIKE = {
    NUMPY.name: (LISTED.name, KEPT_GENERATOR.name),
    NUMPY_LEGACY.name: (KEPT_LEGACY.name,),
    TORCH.name: (SAMPLER.name,),
    LOADER.name: (LOADER_KEPT.name,),
    PROCESS.name: (PROCESS_KEPT.name,),
}
FIRST = {other: name for name, others in ALIKE.items() for other in others}

History = Sequence[tuple[int, Recipe]]  # of epochs in order


class Continuations(NamedTuple):
    """recipes: of the next epoch, the likeliest first. shown: it is the only one, and its rule
    foretold an epoch before."""

    recipes: tuple[Recipe, ...]
    shown: bool


def aliases(recipe: Recipe) -> tuple[Recipe, ...]:
    """All recipes of the same order, the plainest first."""
    plain = recipe
    if recipe.family in FIRST and recipe.epoch == 0:
        plain = Recipe(FIRST[recipe.family], recipe.seed)
    others = ALIKE.get(plain.family, ()) if plain.epoch == 0 else ()
    return (plain, *(Recipe(family, plain.seed, 0) for family in others))


def continuations(history: History) -> Continuations:
    """What may come after the last of these epochs, whose recipes are known. If no rule explains
    all of them, the job was changed: then what its last epochs have in common counts."""
    epoch, last = history[-1]
    rules = [(recipe, step) for recipe in aliases(last) for step in STEPS]
    for first in range(len(history)):
        earlier = history[first:-1]
        living = [rule for rule in rules if all(_explains(*rule, epoch, was) for was in earlier)]
        if living:
            found = dict.fromkeys(aliases(recipe.moved(step))[0] for recipe, step in living)
            return Continuations(tuple(found), len(found) == 1 and bool(earlier))
    raise AssertionError("every rule explains a single epoch")


def _explains(recipe: Recipe, step: int, epoch: int, was: tuple[int, Recipe]) -> bool:
    before, known = was
    return recipe.moved(step * (before - epoch)) in aliases(known)
