"""Orders that a job describes instead of listing: the recipes of `core.orders` by name."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from hubspoke.core.hints.book import SAMPLER_ITEMS_MAX
from hubspoke.core.orders import distributed_sampler, dlio, huggingface, webdataset
from hubspoke.core.orders.mt19937 import TorchGenerator
from hubspoke.core.orders.torch_samplers import random_sampler
from hubspoke.errors import ConfigError, InvalidRequest, TooLarge

Order = npt.NDArray[np.int64]
_RANKED = frozenset({"seed", "epoch", "world", "rank"})


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler of n items. rank: None is all ranks together, in turns. batch: of one rank."""

    kind: str
    n: int
    seed: int = 0
    epoch: int = 0
    world: int = 1
    rank: int | None = None
    batch: int = 1
    drop_last: bool = False
    replacement: bool = False

    def order(self) -> Order:
        """Items in the order of reading.

        Raises TooLarge, and InvalidRequest naming the field for what makes no sense.
        """
        if self.n > SAMPLER_ITEMS_MAX:
            raise TooLarge(f"n {self.n:,}: at most {SAMPLER_ITEMS_MAX:,} items")
        if self.rank is not None and self.rank >= self.world:
            raise InvalidRequest(f"rank {self.rank}: below world, which is {self.world}")
        build, goes_by = _KINDS[self.kind]
        for field in fields(self)[2:]:
            given = getattr(self, field.name)
            if field.name not in goes_by and given != field.default:
                raise InvalidRequest(
                    f"{field.name} {given}: {self.kind} goes by {', '.join(sorted(goes_by))}"
                )
        try:
            return build(self)
        except ConfigError as e:
            raise InvalidRequest(f"{self.kind}: {e}") from e


def _dealt(s: Sampler, by_rank: list[Order], run: int) -> Order:
    """One rank's order, or all: `run` items of each rank in turn."""
    if s.rank is not None:
        return by_rank[s.rank]
    turns = np.concatenate([np.arange(len(part)) // run for part in by_rank])
    return np.concatenate(by_rank)[np.argsort(turns, kind="stable")]


def _strided(s: Sampler, order: Order) -> Order:
    return order if s.rank is None else order[s.rank :: s.world]


def _random(s: Sampler) -> Order:
    return random_sampler(s.n, TorchGenerator(s.seed + s.epoch), replacement=s.replacement)


def _distributed(s: Sampler) -> Order:
    ranks = distributed_sampler(
        s.n, ranks=s.world, seed=s.seed, epoch=s.epoch, drop_last=s.drop_last
    )
    return ranks[s.rank] if s.rank is not None else ranks.T.ravel()


def _trainer(s: Sampler) -> Order:
    ranks = huggingface.trainer_sampler(
        s.n,
        ranks=s.world,
        batch=s.batch,
        seed=s.seed,
        epoch=s.epoch,
        drop_last=s.drop_last,
    )
    return _dealt(s, ranks, s.batch)


def _dlio(s: Sampler) -> Order:
    ranks = dlio.torch_loader(s.n, ranks=s.world, seed=s.seed, epoch=s.epoch + 1)
    return _dealt(s, list(ranks), 1)


def _webdataset(s: Sampler) -> Order:
    ranks = webdataset.shard_orders(
        s.n, buffer=100, seed=s.seed, epoch=s.epoch, deterministic=True, ranks=s.world
    )
    return _dealt(s, ranks, 1)


def _numpy(s: Sampler) -> Order:
    return _strided(s, huggingface.shuffled_dataset(s.n, s.seed + s.epoch))


def _sequential(s: Sampler) -> Order:
    return _strided(s, np.arange(s.n, dtype=np.int64))


# What each is made of, and the fields besides n that it goes by.
_KINDS: dict[str, tuple[Callable[[Sampler], Order], frozenset[str]]] = {
    "torch.RandomSampler": (_random, frozenset({"seed", "epoch", "replacement"})),
    "torch.DistributedSampler": (_distributed, _RANKED | {"drop_last"}),
    "transformers.Trainer": (_trainer, _RANKED | {"batch", "drop_last"}),
    "dlio": (_dlio, _RANKED),
    "webdataset": (_webdataset, _RANKED),
    "numpy.permutation": (_numpy, _RANKED),
    "sequential": (_sequential, frozenset({"world", "rank"})),
}
KINDS = tuple(_KINDS)
