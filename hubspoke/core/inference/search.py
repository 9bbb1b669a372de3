"""Finds the order that a job's first reads follow: what is likely first, then every seed there is.

The search is a generator that pauses often, so that whoever runs it can stop it, let something
else go first, or give up. It needs a kernel, which is compiled where time matters.

A torch permutation is drawn from its front: its first places depend on its first draws, so a seed
is refused after 400 steps of its generator, and all 2^32 can be tried (`prefix`). That needs the
start of an epoch. Other shuffles are built whole and aligned, and so are the likeliest torch
orders for a job that was joined in mid-epoch; both only for seeds that people use.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt

from hubspoke.core.inference.evidence import FALSE_POSITIVE_MAX, fit, log_tail, places_of
from hubspoke.core.inference.question import (
    MOSAIC,
    PROCESS,
    Answer,
    Build,
    Follow,
    Followers,
    Found,
    Question,
    Recipe,
    Request,
)
from hubspoke.core.orders import mosaicml
from hubspoke.core.orders.candidates import FAMILIES, SEEDS, TORCH, WORLDS, candidates

Order = npt.NDArray[np.int32]

ALL_SEEDS = 2**32
SLICE_SEEDS = 2**21  # 50 ms of one thread
# All defaults with 1,000 epochs and ranks behind them: 10 ms.
LIKELY_SEEDS = 2**17
EPOCHS_TRIED, EPOCHS_THOROUGH = 4, 100  # of whole orders
ITEMS_BUILT_MAX = 10_000_000  # of whole orders built for one question: 0.2 s; if it is
ITEMS_BUILT_THOROUGH = 200_000_000  # thorough, 4 s
SHARDS_MAX = 2_000
SAMPLES_QUICK_MAX = 1_000_000  # built 0.3 us each; more are tried once, thoroughly
ITEMS_MIN, ITEMS_MAX = 16, 2**25  # fewer are no shuffle worth a search; more are 128 MiB an order


class Kernel(Protocol):
    """What is compiled."""

    def order(self, n: int, seed: int) -> Order:
        """`torch.randperm(n)` of a fresh generator."""
        ...

    def scan(
        self,
        first: int,
        count: int,
        n: int,
        seen: npt.NDArray[np.uint8],
        *,
        need: int,
        places: int,
        misses: int,
    ) -> list[int]:
        """Seeds [first, first + count) of whose first `places` items all but `misses` are marked
        in `seen`, and `need` of the first four."""
        ...

    def streams(self, first: int, count: int, value: int) -> list[int]:
        """Seeds [first, first + count) whose generator's fourth output is `value`."""
        ...

    def outputs(self, seed: int, count: int) -> list[int]:
        """The first outputs of a fresh generator."""
        ...


@dataclass(frozen=True, slots=True)
class Prefix:
    """How a torch permutation is told by its first places. log_p: of a false one that passes."""

    need: int
    places: int
    misses: int
    log_p: float


def prefix(n: int, reads: int, candidates: float) -> Prefix | None:
    """The test for so many candidates; None if these reads cannot tell them apart.

    With as many workers as there may be, only a small share of the reads are the first places of
    the order: the test asks for as few of those as are needed.
    """
    p = reads / n
    wanted = math.log(FALSE_POSITIVE_MAX / candidates)
    for places in range(4, min(64, n - 1, reads) + 1):
        misses = 1 + places // 10  # reads that a kernel's page cache answered, or a scan made
        log_p = log_tail(places - misses, places, p)
        if log_p < wanted:
            need = 1 if p < 1e-3 else 2 if p < 0.03 else 3
            return Prefix(need, places, misses, log_p)
    return None


def search(request: Request, kernel: Kernel) -> Iterator[Answer]:
    """Yields None after each piece of work, and at last the answer, if there is one."""
    match request:
        case Build():
            order = build(request.recipe, request.count, request.objects, kernel)
            places = places_of(order, request.count)
            yield Found(request.recipe, order, places, 0, 0, 0.0)
        case Follow():
            yield from _follow(request, kernel)
        case Question():
            yield from _question(request, kernel)
        case _:
            assert_never(request)


def build(recipe: Recipe, n: int, objects: int, kernel: Kernel) -> Order:
    """The items of one epoch in the order of reading. objects: see `Question`."""
    if recipe.family == TORCH.name:
        return kernel.order(n, recipe.seed)
    if recipe.family == PROCESS:
        return kernel.order(n, kernel.outputs(recipe.seed, 4 * recipe.epoch + 4)[-1])
    if recipe.family == MOSAIC:
        sizes = [n // objects] * objects
        found = mosaicml.shuffled_samples(
            sizes, canonical_nodes=recipe.world, seed=recipe.seed, epoch=recipe.epoch
        )
        # Each node reads its part, all at the same time.
        return found.reshape(recipe.world, -1).T.ravel().astype(np.int32)
    family = next(f for f in FAMILIES if f.name == recipe.family)
    return family.build(n, recipe.seed, recipe.epoch, recipe.world).astype(np.int32)


def _follow(request: Follow, kernel: Kernel) -> Iterator[Answer]:
    """Of a loader without a generator: per epoch the process' generator gives a base seed and
    then the sampler's, 64 bits each, of which the low half, drawn second, matters (ORDERS, C.1)."""
    found: list[int] = []
    for first in range(0, ALL_SEEDS, SLICE_SEEDS):
        found += kernel.streams(first, SLICE_SEEDS, request.seed)
        yield None
    yield Followers(tuple(found))


def _question(question: Question, kernel: Kernel) -> Iterator[Answer]:
    n = question.count
    if not ITEMS_MIN <= n <= ITEMS_MAX or not len(question.reads):
        return
    # A walk in listing order fits what a small buffer shuffles by any seed; others know it better.
    if fit(np.arange(n, dtype=np.int32), n, question.reads).sure(1.0):
        return
    yield from _first(
        _named(question, kernel),
        _by_prefix(question, kernel, range(0, LIKELY_SEEDS, LIKELY_SEEDS)),
        _whole(question, kernel),
        _sharded(question, kernel),
        _by_prefix(question, kernel, range(0, ALL_SEEDS, SLICE_SEEDS)) if question.thorough else (),
    )


def _first(*searches: Iterator[Found | None] | tuple[()]) -> Iterator[Found | None]:
    for one in searches:
        for found in one:
            yield found
            if found is not None:
                return


def _named(question: Question, kernel: Kernel) -> Iterator[Found | None]:
    """What is expected, such as the next epoch's."""
    for recipe in question.likely:
        yield _tried(question, recipe, kernel, float(len(question.likely)))


def _whole(question: Question, kernel: Kernel) -> Iterator[Found | None]:
    """Whole orders of the seeds that people use."""
    n = question.count
    items, epochs = ITEMS_BUILT_MAX, EPOCHS_TRIED
    if question.thorough:
        items, epochs = ITEMS_BUILT_THOROUGH, EPOCHS_THOROUGH
    most = max(3, items // n)
    # WebDataset draws with Python's own generator, an item at a time; it has shards, not samples.
    families = tuple(f for f in FAMILIES if n <= SHARDS_MAX or f.name != "WebDataset")
    fitting = (c for c in candidates(epochs=epochs, families=families) if c.fits(n))
    tried = min(most, epochs * len(SEEDS) * sum(len(f.worlds) for f in families))
    for c in islice(fitting, most):
        seed, epoch = (c.seed + c.epoch, 0) if c.family.adds else (c.seed, c.epoch)
        yield _tried(question, Recipe(c.family.name, seed, epoch, c.world), kernel, float(tried))


def _sharded(question: Question, kernel: Kernel) -> Iterator[Found | None]:
    """Samples of shards of one size, by the default seed."""
    n, objects = question.count, question.objects
    if objects < 2 or n <= objects or (n > SAMPLES_QUICK_MAX and not question.thorough):
        return
    nodes = [world for world in WORLDS if n % world == 0]
    for epoch, world in product(range(EPOCHS_TRIED), nodes):
        recipe = Recipe(MOSAIC, mosaicml.SEED, epoch, world)
        yield _tried(question, recipe, kernel, float(EPOCHS_TRIED * len(nodes)))


def _tried(question: Question, recipe: Recipe, kernel: Kernel, candidates: float) -> Found | None:
    order = build(recipe, question.count, question.objects, kernel)
    return _fitting(question, recipe, order, candidates)


def _fitting(question: Question, recipe: Recipe, order: Order, candidates: float) -> Found | None:
    places = places_of(order, question.count)
    where = fit(places, len(order), question.reads)
    if not where.sure(candidates):
        return None
    log_p = where.log_p + math.log(candidates)
    return Found(recipe, order, places, where.first, where.last, log_p)


def _by_prefix(question: Question, kernel: Kernel, slices: range) -> Iterator[Found | None]:
    n, reads = question.count, question.reads
    test = prefix(n, len(reads), float(slices.stop))
    if test is None:
        return
    seen = np.zeros(n, np.uint8)
    seen[reads] = 1
    for first in slices:
        count = min(slices.step, slices.stop - first)
        for seed in kernel.scan(
            first, count, n, seen, need=test.need, places=test.places, misses=test.misses
        ):
            # The places passed; where the other reads lie must fit as well.
            found = _tried(question, Recipe(TORCH.name, seed), kernel, float(slices.stop))
            if found is not None and found.first == 0:
                yield found
                return
        yield None
