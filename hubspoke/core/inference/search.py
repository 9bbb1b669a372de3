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

from hubspoke.core.inference.documents import Documents, search_documents
from hubspoke.core.inference.evidence import FALSE_POSITIVE_MAX, fit, log_tail, places_of
from hubspoke.core.inference.question import (
    FOLLOW_PARTS,
    MOSAIC,
    Answer,
    Build,
    Follow,
    Followers,
    Found,
    Question,
    Recipe,
    Request,
)
from hubspoke.core.inference.windows import Windows, search_windows
from hubspoke.core.orders import mosaicml
from hubspoke.core.orders.candidates import (
    BY_NAME,
    FAMILIES,
    LOADER,
    LOADER_WORDS,
    PROCESS,
    SEEDS,
    STREAMS,
    TORCH,
    WEBDATASET,
    WORLDS,
    Candidate,
    Family,
    candidates,
)

Order = npt.NDArray[np.int32]

ALL_SEEDS = 2**32
SLICE_SEEDS = 2**21  # 40 ms of one thread
TYPED_SEEDS = 2**24  # people type no larger ones
# All defaults with 1,000 epochs and ranks behind them: 10 ms.
LIKELY_SEEDS = 2**17
PROCESS_SEEDS = 2**14  # of a process: each takes two generators, 60 ms in all
EPOCHS_TRIED, EPOCHS_THOROUGH = 4, 100  # of whole orders
ITEMS_BUILT_MAX = 10_000_000  # of whole orders built for one question: 0.2 s; if it is
ITEMS_BUILT_THOROUGH = 200_000_000  # thorough, 4 s
STREAM_COST = 4  # of an order in the middle of a generator's stream, in those of a fresh one
SAMPLE_COST = 3  # of a sample in shards
NODE_WORLDS = {"py1s": 64}  # canonical nodes for each physical one, if not 1
WALK_ITEMS = 32  # that several workers are apart
ITEMS_MIN, ITEMS_MAX = 16, 2**25  # fewer are no shuffle worth a search; more are 128 MiB an order


class Kernel(Protocol):
    """What is compiled. skip: words that were drawn of the generator before."""

    def order(self, n: int, seed: int) -> Order:
        """`torch.randperm(n)` of a fresh generator."""
        ...

    def shards(self, n: int, buffer: int, seed: int, world: int) -> Order:
        """`core.orders.webdataset.shard_orders` of so many workers, merged."""
        ...

    def samples(self, request: Build) -> Order:
        """`core.inference.question.samples`."""
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
        skip: int = 0,
    ) -> list[int]:
        """Seeds [first, first + count) of whose first `places` items all but `misses` are marked
        in `seen`, and `need` of the first four."""
        ...

    def processes(
        self, first: int, count: int, n: int, seen: npt.NDArray[np.uint8], places: int, misses: int
    ) -> list[int]:
        """Seeds [first, first + count) whose generator's fourth output is the seed of an order
        that begins so."""
        ...

    def streams(self, first: int, count: int, value: int) -> list[int]:
        """Seeds [first, first + count) whose generator's fourth output is `value`."""
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
            yield _built(request.recipe, build(request, kernel), request.count)
        case Follow():
            yield from _follow(request, kernel)
        case Question():
            yield from _question(request, kernel)
        case Windows():
            yield from search_windows(request)
        case Documents():
            yield from search_documents(request)
        case _:
            assert_never(request)


def rank(request: Request) -> int:
    """What is searched for first: the cheapest. All seeds of a question take longest; a process'
    are asked about in parts, each of which may tell all."""
    match request:
        case Build() | Question(thorough=False):
            return 0
        case Windows(thorough=False) | Documents(thorough=False):
            return 1
        case Follow():
            return 2
        case _:
            return 3


def _built(recipe: Recipe, order: Order, n: int) -> Found:
    return Found(recipe, order, places_of(order, n), 0, 0, 0.0)


def build(request: Build, kernel: Kernel) -> Order:
    """The items of one epoch in the order of reading."""
    n, recipe = request.count, request.recipe
    if recipe.family == TORCH.name:
        return kernel.order(n, recipe.seed)
    if recipe.family in MOSAIC:
        return kernel.samples(request)
    if recipe.family in WEBDATASET:
        return kernel.shards(n, WEBDATASET[recipe.family], recipe.seed, recipe.world)
    made = BY_NAME[recipe.family].build(n, recipe.seed, recipe.epoch, recipe.world)
    return made.astype(np.int32)


def _follow(request: Follow, kernel: Kernel) -> Iterator[Answer]:
    """Of a loader without a generator: per epoch the process' generator gives a base seed and
    then the sampler's, 64 bits each, of which the low half, drawn second, matters (ORDERS, C.1)."""
    found: list[int] = []
    part = ALL_SEEDS // FOLLOW_PARTS
    for first in range(request.part * part, (request.part + 1) * part, SLICE_SEEDS):
        found += kernel.streams(first, SLICE_SEEDS, request.seed)
        yield None
    yield Followers(tuple(found))


def _question(question: Question, kernel: Kernel) -> Iterator[Answer]:
    n = question.count
    if not ITEMS_MIN <= n <= ITEMS_MAX or not len(question.reads):
        return
    if _walks(question):
        return
    likely = range(0, LIKELY_SEEDS, LIKELY_SEEDS)
    yield from _first(
        _named(question, kernel),
        _by_prefix(question, kernel, likely),
        _by_prefix(question, kernel, likely, skip=LOADER_WORDS),
        _by_process(question, kernel),
        _whole(question, kernel, FAMILIES, range(EPOCHS_TRIED), ITEMS_BUILT_MAX),
        _sharded(question, kernel, ITEMS_BUILT_MAX),
        _whole(question, kernel, STREAMS, range(1, EPOCHS_TRIED), ITEMS_BUILT_MAX // STREAM_COST),
        *_thorough(question, kernel),
    )


def _walks(question: Question) -> bool:
    """Whether items are read in listing order but for a few places: others know that better."""
    ahead = question.reads - np.arange(len(question.reads))
    lowest, highest = np.percentile(ahead, (5, 95)).tolist()
    return bool(highest - lowest < min(WALK_ITEMS, question.count / 8))


def _thorough(question: Question, kernel: Kernel) -> list[Iterator[Found | None]]:
    if not question.thorough:
        return []
    typed, all_ = (range(0, most, SLICE_SEEDS) for most in (TYPED_SEEDS, ALL_SEEDS))
    far = range(EPOCHS_THOROUGH)
    return [
        # Of many samples in shards few recipes were tried before, and default seeds are likelier.
        _sharded(question, kernel, ITEMS_BUILT_THOROUGH),
        _by_prefix(question, kernel, typed, skip=LOADER_WORDS),
        # Most loaders are given no seed, and few are met after their first epochs.
        _by_prefix(question, kernel, all_),
        _whole(question, kernel, FAMILIES, far, ITEMS_BUILT_THOROUGH),
        _whole(question, kernel, STREAMS, far, ITEMS_BUILT_THOROUGH // STREAM_COST),
    ]


def _first(*searches: Iterator[Found | None]) -> Iterator[Found | None]:
    for one in searches:
        for found in one:
            yield found
            if found is not None:
                return


def _named(question: Question, kernel: Kernel) -> Iterator[Found | None]:
    """What is expected, such as the next epoch's."""
    for recipe in question.likely:
        yield _tried(question, recipe, kernel, float(len(question.likely)))


def _whole(
    question: Question,
    kernel: Kernel,
    families: tuple[Family, ...],
    epochs: range,
    items: int,
) -> Iterator[Found | None]:
    """Whole orders of the seeds that people use, so many items in all."""
    n = question.count
    most = max(3, items // n)
    all_ = candidates(epochs=epochs.stop, families=families)
    fitting = (c for c in all_ if c.fits(n) and c.epoch >= epochs.start)
    tried = min(most, len(epochs) * len(SEEDS) * sum(len(f.worlds) for f in families))
    for c in islice(fitting, most):
        found = _tried(question, _recipe(c), kernel, float(tried))
        yield found and _closest(question, found, kernel, float(tried))


def _closest(question: Question, found: Found, kernel: Kernel, tried: float) -> Found:
    """Of one seed, orders of other worlds lie within the window where one permutation is dealt, and
    buffered shuffles begin nearly alike whatever the buffer."""
    recipe = found.recipe
    names = WEBDATASET if recipe.family in WEBDATASET else (recipe.family,)
    kin = (
        Candidate(BY_NAME[name], recipe.seed, recipe.epoch, world)
        for name in names
        for world in BY_NAME[name].worlds
    )
    recipes = (
        Recipe(c.family.name, c.seed, c.epoch, c.world) for c in kin if c.fits(question.count)
    )
    others = (_tried(question, other, kernel, tried) for other in recipes if other != recipe)
    return min((found, *(o for o in others if o)), key=lambda f: f.log_p)


def _recipe(c: Candidate) -> Recipe:
    seed, epoch = (c.seed + c.epoch, 0) if c.family.adds else (c.seed, c.epoch)
    return Recipe(c.family.name, seed, epoch, c.world)


def _sharded(question: Question, kernel: Kernel, items: int) -> Iterator[Found | None]:
    """Samples of shards, the default seed first; so many in all."""
    n, shards = question.count, len(question.shards)
    if shards < 2 or n <= shards:
        return
    seeds = (mosaicml.SEED, *(s for s in SEEDS if s != mosaicml.SEED))
    named = product(seeds, range(EPOCHS_TRIED), WORLDS, MOSAIC.items())
    recipes = [
        Recipe(name, seed, epoch, world * NODE_WORLDS.get(algorithm, 1))
        for seed, epoch, world, (name, algorithm) in named
        if n >= 2 * world * NODE_WORLDS.get(algorithm, 1)
    ]
    most = max(3, items // (SAMPLE_COST * n))
    for recipe in recipes[:most]:
        yield _tried(question, recipe, kernel, float(min(most, len(recipes))))


def _tried(question: Question, recipe: Recipe, kernel: Kernel, candidates: float) -> Found | None:
    order = build(Build(0, question.count, recipe, question.shards), kernel)
    return _fitting(question, recipe, order, candidates)


def _fitting(question: Question, recipe: Recipe, order: Order, candidates: float) -> Found | None:
    places = places_of(order, question.count)
    family = BY_NAME.get(recipe.family)
    pool = family.pool * recipe.world if family and family.pool else None
    turns = recipe.world if family and family.alike else 1
    where = fit(places, len(order), question.reads, pool=pool, turns=turns)
    if not where.sure(candidates):
        return None
    log_p = where.log_p + math.log(candidates)
    return Found(recipe, order, places, where.first, where.last, log_p)


def _marked(question: Question) -> npt.NDArray[np.uint8]:
    seen = np.zeros(question.count, np.uint8)
    seen[question.reads] = 1
    return seen


def _by_process(question: Question, kernel: Kernel) -> Iterator[Found | None]:
    """The first epoch of a process that was given a likely seed and drew nothing before."""
    n, tried = question.count, float(PROCESS_SEEDS)
    test = prefix(n, len(question.reads), tried)
    if test is None:
        return
    seen = _marked(question)
    for seed in kernel.processes(0, PROCESS_SEEDS, n, seen, test.places, test.misses):
        found = _tried(question, Recipe(PROCESS.name, seed), kernel, tried)
        if found is not None and found.first == 0:
            yield found
            return
    yield None


def _by_prefix(
    question: Question, kernel: Kernel, slices: range, skip: int = 0
) -> Iterator[Found | None]:
    """skip: words that the generator gave before."""
    n, reads = question.count, question.reads
    test = prefix(n, len(reads), float(slices.stop))
    if test is None:
        return
    seen = _marked(question)
    family = LOADER if skip else TORCH
    for first in slices:
        count = min(slices.step, slices.stop - first)
        for seed in kernel.scan(
            first,
            count,
            n,
            seen,
            need=test.need,
            places=test.places,
            misses=test.misses,
            skip=skip,
        ):
            # The places passed; where the other reads lie must fit as well.
            recipe = Recipe(family.name, seed)
            found = _tried(question, recipe, kernel, float(slices.stop))
            if found is not None and found.first == 0:
                yield found
                return
        yield None
