"""Orders worth trying on a job whose seed nobody has told: the defaults, the likeliest first.

Only families whose order is one of the items of a folder by itself: what Megatron and nanoGPT read
of one large file is tried elsewhere (core.inference.documents, windows), MosaicML's samples where
records lie in objects of one size (core.inference.search). Ranks and workers matter only where they
change the merged order by more than a batch or two: torch's samplers deal one permutation to all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders.dealing import in_turns
from hubspoke.core.orders.dlio import torch_loader
from hubspoke.core.orders.huggingface import shuffled_dataset, streaming_shards
from hubspoke.core.orders.litdata import chunk_order
from hubspoke.core.orders.mt19937 import TorchGenerator
from hubspoke.core.orders.torch_samplers import loader_seeds, randperm, torch_randperm
from hubspoke.core.orders.webdataset import INITIAL, shard_orders

Order = npt.NDArray[np.int64]

# Defaults whose source was read, then what people like to type, which is a guess.
SEEDS = (
    *(0, 42, 1234, 123, 1337, 9176),
    *(1, 2, 7, 10, 17, 100, 1000, *range(2020, 2027)),
    *(3407, 12345, 31337, 65536, 1111, 9999),
)
WORLDS = (1, 2, 4, 8, 16, 32, 64)
# What WebDataset takes for shardshuffle=True, and what its examples say.
WEBDATASET = {f"WebDataset, buffer {buffer}": buffer for buffer in (100, 1_000)}
SHARDS_MAX = 2_000  # more are no shards


@dataclass(frozen=True, slots=True)
class Family:
    """Of orders by a seed. build(n, seed, epoch, world): the items of one epoch in the order of
    reading, all ranks merged. adds: the order is that of seed + epoch. worlds: in which it differs.
    divides: n must be a multiple of the world. first: False if another family says the
    same of epoch 0, and is tried there. most: items that it is tried for. pool: an item is drawn
    among at least so many by each of the world, if it is not among all that are left. alike: each
    of the world shuffles a part of its own, all by the same draws.
    """

    name: str
    build: Callable[[int, int, int, int], Order]
    adds: bool
    worlds: tuple[int, ...] = (1,)
    divides: bool = False
    first: bool = True
    most: int = 2**31
    pool: int | None = None
    alike: bool = False


def _torch(n: int, seed: int, epoch: int, world: int) -> Order:
    return torch_randperm(n, seed + epoch)


def _numpy_generator(n: int, seed: int, epoch: int, world: int) -> Order:
    return shuffled_dataset(n, seed + epoch)


def _numpy_legacy(n: int, seed: int, epoch: int, world: int) -> Order:
    return np.random.RandomState((seed + epoch) % 2**32).permutation(n)


def _listed(n: int, seed: int, epoch: int, world: int) -> Order:
    """As numpy's manual has it for parallel streams: `default_rng([seed, epoch])`."""
    return np.random.default_rng([seed, epoch]).permutation(n)


def _kept_generator(n: int, seed: int, epoch: int, world: int) -> Order:
    """One generator for all epochs."""
    rng = np.random.default_rng(seed)
    for _ in range(epoch):
        rng.permutation(n)
    return rng.permutation(n)


def _kept_legacy(n: int, seed: int, epoch: int, world: int) -> Order:
    rng = np.random.RandomState(seed % 2**32)
    for _ in range(epoch):
        rng.permutation(n)
    return rng.permutation(n)


def _dlio(n: int, seed: int, epoch: int, world: int) -> Order:
    return torch_loader(n, ranks=world, seed=seed, epoch=epoch + 1).T.ravel()


def _webdataset(buffer: int) -> Callable[[int, int, int, int], Order]:
    def build(n: int, seed: int, epoch: int, world: int) -> Order:
        return in_turns(shard_orders(n, buffer=buffer, seed=seed + epoch, workers=world))

    return build


def _streaming(n: int, seed: int, epoch: int, world: int) -> Order:
    """Each worker takes turns between its streams, and all shards are as long."""
    dealt = streaming_shards(n, seed=seed, epoch=epoch, workers=world)
    return in_turns([in_turns(streams) for streams in dealt])


def _litdata(n: int, seed: int, epoch: int, world: int) -> Order:
    """All chunks are as long; one that two workers share is read by both."""
    order = chunk_order(n, seed=seed, epoch=epoch + 1)
    parts = [order[w * n // world : -(-(w + 1) * n // world)] for w in range(world)]
    return in_turns(parts)


def _process(kept: bool) -> Callable[[int, int, int, int], Order]:
    def build(n: int, seed: int, epoch: int, world: int) -> Order:
        drawn = loader_seeds(seed, epoch + 1, persistent_workers=kept)
        return torch_randperm(n, drawn[-1])

    return build


def _generator(first: int, each: int) -> Callable[[int, int, int, int], Order]:
    """first: words that its generator gave before the first permutation; each: between two, beside
    those of the permutation and of the one that is burnt at its end."""

    def build(n: int, seed: int, epoch: int, world: int) -> Order:
        generator = TorchGenerator(seed)
        generator.draws32(first + epoch * (each + 2 * (n - 1)))
        return randperm(n, generator)

    return build


TORCH = Family("torch shuffle", _torch, adds=True)
NUMPY = Family("numpy default_rng", _numpy_generator, adds=True)
NUMPY_LEGACY = Family("numpy RandomState", _numpy_legacy, adds=True)
LISTED = Family("numpy default_rng of seed and epoch", _listed, adds=False, first=False)
KEPT_GENERATOR = Family("numpy default_rng, kept", _kept_generator, adds=False)
KEPT_LEGACY = Family("numpy RandomState, kept", _kept_legacy, adds=False)
FAMILIES = (
    TORCH,
    NUMPY,
    NUMPY_LEGACY,
    Family("DLIO", _dlio, adds=False, worlds=WORLDS, divides=True, alike=True),
    *(
        Family(
            name,
            _webdataset(buffer),
            adds=True,
            worlds=WORLDS,
            most=SHARDS_MAX,
            pool=INITIAL,
            alike=True,
        )
        for name, buffer in WEBDATASET.items()
    ),
    Family("datasets streaming", _streaming, adds=False, worlds=WORLDS, most=SHARDS_MAX),
    Family("LitData", _litdata, adds=False, worlds=WORLDS, most=SHARDS_MAX),
    LISTED,
)
# Of these an order takes as long as all before it: they are built where an epoch before is known.
KEPT = (KEPT_GENERATOR, KEPT_LEGACY)

# The seed is the process' or a generator's, which goes on from epoch to epoch (loader_seeds,
# loader_orders). Of the first, seeds that the loader drew look like `TORCH`.
PROCESS = Family("torch DataLoader", _process(kept=False), adds=False)
PROCESS_KEPT = Family("torch DataLoader, persistent workers", _process(kept=True), adds=False)
SAMPLER = Family("torch RandomSampler with a generator", _generator(0, 0), adds=False, first=False)
LOADER = Family("torch DataLoader with a generator", _generator(2, 2), adds=False)
LOADER_KEPT = Family(f"{LOADER.name}, persistent workers", _generator(2, 0), adds=False)
LOADER_WORDS = 2  # before the first permutation of the last two
STREAMS = (PROCESS, PROCESS_KEPT, SAMPLER, LOADER, LOADER_KEPT)
BY_NAME = {family.name: family for family in (*FAMILIES, *KEPT, *STREAMS)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """epoch: from 0. world: ranks, or all their workers, that take parts of their own."""

    family: Family
    seed: int
    epoch: int
    world: int

    def fits(self, n: int) -> bool:
        """If such a job can have n items."""
        divides = n % self.world == 0 or not self.family.divides
        return divides and n <= self.family.most

    def order(self, n: int) -> Order:
        """Item numbers in the order of reading; raises ConfigError if it does not fit."""
        return self.family.build(n, self.seed, self.epoch, self.world)


def candidates(*, epochs: int, families: tuple[Family, ...] = FAMILIES) -> Iterator[Candidate]:
    """Each order once, the likeliest first: an epoch of all seeds before the next epoch's, since
    most jobs are seen from their start; in it each seed with every family, and one world first."""
    tried: set[tuple[str, int, int, int]] = set()
    for epoch, seed, world in product(range(epochs), SEEDS, WORLDS):
        for family in families:
            if world not in family.worlds or not (epoch or family.first):
                continue
            same = (seed + epoch, 0) if family.adds else (seed, epoch)
            key = (family.name, *same, world)
            if key not in tried:
                tried.add(key)
                yield Candidate(family, seed, epoch, world)
