"""How sure a fit is: orders of few items and of buffered shuffles, and what fits by chance."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.inference.evidence import Fit, fit, log_tail, places_of
from hubspoke.core.inference.question import Found, Question, Recipe
from hubspoke.core.inference.search import search
from hubspoke.core.orders import torch_randperm, webdataset
from hubspoke.core.orders.candidates import BY_NAME, FAMILIES
from hubspoke.core.orders.dealing import in_turns
from tests.core.loader_reads import through_workers
from tests.core.seed_kernel import NumpyKernel

Order = npt.NDArray[np.int64]
KERNEL = NumpyKernel()
WEBDATASET = [  # shards, buffer, seed, workers of all ranks, reads asked about
    (250, 100, 0, 1, 64),
    (250, 100, 3, 1, 64),
    (999, 1_000, 7, 1, 64),
    (1_024, 100, 42, 2, 128),
    (301, 100, 1337 + 1, 2, 128),
    (600, 100, 1234, 4, 256),
    (1_500, 1_000, 123, 8, 512),
]


TRIED = 4_000  # candidates of one quick question


def shards(n: int, buffer: int, seed: int, workers: int) -> Order:
    return in_turns(webdataset.shard_orders(n, buffer=buffer, seed=seed, workers=workers))


@pytest.fixture(autouse=True)
def few_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """All take seconds without compiled loops."""
    few = tuple(f for f in FAMILIES if f.alike)
    monkeypatch.setattr("hubspoke.core.inference.search.FAMILIES", few)
    monkeypatch.setattr("hubspoke.core.inference.search.STREAM_COST", 10**6)
    monkeypatch.setattr("hubspoke.core.inference.search.EPOCHS_TRIED", 2)
    monkeypatch.setattr("hubspoke.core.orders.candidates.SEEDS", (0, 42, 1337))


def ask(reads: list[int], n: int) -> Found | None:
    question = Question(1, n, np.array(reads, np.int32))
    found = [answer for answer in search(question, KERNEL) if answer is not None]
    assert all(isinstance(answer, Found) for answer in found)
    return found[-1] if found else None  # type: ignore[return-value]


@pytest.mark.parametrize("run", range(10))
@pytest.mark.parametrize(("n", "buffer", "seed", "workers", "reads"), WEBDATASET)
def test_shards_of_a_buffered_shuffle_are_no_chance(
    n: int, buffer: int, seed: int, workers: int, reads: int, run: int
) -> None:
    order = shards(n, buffer, seed, workers)
    rng = np.random.default_rng(run)
    seen = dict.fromkeys(through_workers(order.tolist(), workers=4, batch=1, rng=rng))
    first = np.array(list(seen)[:reads], np.int32)
    found = fit(places_of(order.astype(np.int32), n), n, first, pool=100 * workers, turns=workers)
    assert found.first == 0 and found.sure(TRIED)


@pytest.mark.parametrize(("racing", "asked"), [(False, 64), (True, 96)])
def test_few_shards_of_many_workers_are_known_before_half_of_an_epoch(
    racing: bool, asked: int
) -> None:
    """A cache that holds half of them need not let go yet of what the next epoch reads first."""
    n, workers = 256, 8
    order = shards(n, 100, 42, workers)
    places = places_of(order.astype(np.int32), n)
    for run in range(10):
        rng = np.random.default_rng(run)
        seen = through_workers(
            order.tolist(), workers=2 if racing else 1, batch=1, rng=rng, missing=0
        )
        first = np.array(list(dict.fromkeys(seen))[:asked], np.int32)
        found = fit(places, n, first, pool=100 * workers, turns=workers)
        assert found.first == 0 and found.sure(TRIED), run


@pytest.mark.parametrize(("buffer", "workers"), [(100, 1), (1_000, 1), (100, 4), (1_000, 4)])
def test_buffer_and_workers_are_told_from_others(buffer: int, workers: int) -> None:
    """Orders of one seed begin nearly alike whatever the buffer."""
    order = shards(1_000, buffer, 42, workers)
    found = ask(order[:256].tolist(), 1_000)
    assert found is not None and np.array_equal(found.items, order)
    assert found.recipe == Recipe(f"WebDataset, buffer {buffer}", 42, 0, workers)


def unlike() -> Iterator[tuple[str, int, int, Order]]:
    """Orders of seeds that nobody tries."""
    for seed in range(1_000_003, 1_000_006):
        for n, world in ((250, 1), (600, 4), (1_280, 8)):
            yield f"shards of {world}", n, world, shards(n, 100, seed, world)
        for n, world in ((640, 64), (1_000, 4)):
            yield f"DLIO of {world}", n, world, BY_NAME["DLIO"].build(n, seed, 0, world)


@pytest.mark.parametrize(("kind", "n", "world", "order"), list(unlike()))
def test_the_same_shuffle_by_another_seed_is_not_found(
    kind: str, n: int, world: int, order: Order
) -> None:
    for count in (64, n // 2):
        assert ask(order[:count].tolist(), n) is None


@pytest.mark.parametrize("most", [0.1, 0.01])
@pytest.mark.parametrize(
    ("n", "pool", "world"), [(250, 100, 1), (600, 100, 4), (640, None, 64), (300, None, 1)]
)
def test_another_seed_fits_no_better_than_the_bound_says(
    most: float, n: int, pool: int | None, world: int
) -> None:
    """Of a few hundred pairs; the bound is of each."""

    def order(seed: int) -> Order:
        if pool:
            return shards(n, pool, seed, world)
        return torch_randperm(n, seed) if world == 1 else BY_NAME["DLIO"].build(n, seed, 0, world)

    orders = [order(10**6 + seed).astype(np.int32) for seed in range(24)]
    places = [places_of(one, n) for one in orders]
    fits: list[Fit] = []
    for i, reads in enumerate(orders):
        for j, at in enumerate(places):
            if i != j:
                whole = pool and pool * world
                fits.append(fit(at, n, reads[:64], pool=whole, turns=world))
    found = np.mean([f.log_p < np.log(most) for f in fits])
    assert found <= 2 * most, found


def test_few_shards_of_one_reader_are_told_by_their_order() -> None:
    order = shards(50, 100, 42, 1)
    found = ask(order[:40].tolist(), 50)
    assert found is not None and found.recipe.seed == 42
    mixed = np.random.default_rng(4).permutation(order[:40])
    assert ask(mixed.tolist(), 50) is None


@pytest.mark.parametrize(
    ("hits", "first", "last"), [(3, 0.01, 0.03), (20, 0.1, 0.5), (2, 0.0, 0.2)]
)
def test_bound_of_unequal_tries_is_never_too_small(hits: int, first: float, last: float) -> None:
    chances = np.linspace(first, last, 32)
    drawn = np.random.default_rng(5).random((200_000, 32)) < chances
    by_chance = (drawn.sum(axis=1) >= hits).mean()
    assert np.exp(log_tail(hits, 32, float(chances.mean()))) >= by_chance
