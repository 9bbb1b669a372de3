"""Orders of the real packages, recognised from reads that come through a door.

Each case is an order of tests/golden, which a real package wrote; the recipe that makes it longer
than its head is checked against the file's hash, so what is read here is what the package read. The
first reads of an epoch come by several connections, some twice and some never; then what the spoke
believes must give the rest of the epoch item by item, and the next epoch's order.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from hubspoke.adapters.seed_search import SeedSearch
from hubspoke.core.inference.question import Build, Recipe
from hubspoke.core.inference.search import build
from hubspoke.core.orders import dlio, huggingface, litdata, mosaicml, webdataset
from hubspoke.core.orders.mt19937 import TorchGenerator
from hubspoke.core.orders.torch_samplers import (
    distributed_sampler,
    loader_orders,
    loader_seeds,
    random_sampler,
    torch_randperm,
)
from tests.e2e.order_doors import Doors, Items, Job, doors
from tests.golden.told import cases, told

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
STEP = 32  # reads between two looks
LARGE = 15_000  # items: only the first reads of an epoch are read
FEW = 100  # items: their order is not told by which of them were read first


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """epochs: what all ranks and workers read, one epoch after the other. family: what it is
    recognised as. shards: of the data set, if its items are records. batch: of a worker. files:
    how they are named."""

    name: str
    n: int
    epochs: tuple[Numbers, ...]
    family: str
    shards: tuple[int, ...] = ()
    batch: int = 8
    files: dict[str, Any] = field(default_factory=dict)

    @property
    def items(self) -> Items:
        return Items(self.name, self.n, self.shards, **self.files)


def merged(ranks: Any) -> Numbers:
    """All ranks in lockstep, one item each in turn."""
    parts = [np.asarray(rank) for rank in ranks]
    turns = np.concatenate([np.arange(len(part)) for part in parts])
    return np.concatenate(parts)[np.argsort(turns, kind="stable")].astype(np.int64)


def named(family: str, w: dict[str, Any], **more: Any) -> str:
    parts = [
        f"{k}{v}" for k, v in (w | more).items() if isinstance(v, int | str) and v is not False
    ]
    return f"{family}-" + "-".join(parts).replace("_", "")


def torch_cases() -> Iterator[Case]:
    for w, read in cases("torch", "DistributedSampler"):
        if w["n"] < 1_000 or not w["shuffle"]:
            continue
        given = {k: v for k, v in w.items() if k != "n"}
        assert told(*map(np.ascontiguousarray, distributed_sampler(w["n"], **given))) == read
        one, two = (
            merged(distributed_sampler(w["n"], **(given | {"epoch": epoch})))
            for epoch in (w["epoch"], w["epoch"] + 1)
        )
        records = (w["n"],) if w["n"] > 5_000 else ()
        yield Case(named("distributed", w), w["n"], (one, two), "torch shuffle", records)
        if w["epoch"] == 0:
            name = named("no-set-epoch", w)
            yield Case(name, w["n"], (one, one, one), "torch shuffle", records)
    for w, read in cases("torch", "RandomSampler"):
        if w["replacement"] or w["samples"] < 300:
            continue
        generator = TorchGenerator(w["seed"])
        drawn = [random_sampler(w["n"], generator, samples=w["samples"]) for _ in range(2)]
        assert told(*drawn) == read
        # Of 300 of 1,000 a pass an epoch is never complete; the first is recognised.
        passes = tuple(drawn[: 1 + (w["samples"] == w["n"])])
        family = "torch shuffle" if len(passes) == 1 else "torch RandomSampler with a generator"
        yield Case(named("RandomSampler", w), w["n"], passes, family)
    for w, read in cases("torch", "DataLoader with generator"):
        if w["replacement"] or w["n"] < 300:
            continue
        given = {k: v for k, v in w.items() if k not in ("n", "seed")}
        orders = loader_orders(w["n"], w["seed"], 3, **given)
        assert told(*orders) == read
        kept = ", persistent workers" if w["persistent_workers"] else ""
        family = f"torch DataLoader with a generator{kept}"
        yield Case(named("generator", w), w["n"], tuple(orders), family)
    for w, read in cases("torch", "DataLoader"):
        given = {k: v for k, v in w.items() if k not in ("n", "seed")}
        orders = [torch_randperm(w["n"], s) for s in loader_seeds(w["seed"], 3, **given)]
        assert told(*orders) == read
        if w["words_before"]:
            continue  # the drawn seeds are anybody's: `test_seed_that_nobody_could_guess`
        kept = ", persistent workers" if w["persistent_workers"] else ""
        yield Case(named("loader", w), w["n"], tuple(orders), f"torch DataLoader{kept}")


def huggingface_cases() -> Iterator[Case]:
    for w, read in cases("huggingface", "trainer"):
        if w["n"] < 1_000:
            continue
        given = {k: v for k, v in w.items() if k != "n"}
        assert told(*huggingface.trainer_sampler(w["n"], **given)) == read
        epochs = []
        for epoch in (w["epoch"], w["epoch"] + 1):
            ranks = huggingface.trainer_sampler(w["n"], **(given | {"epoch": epoch}))
            batches = [
                rank[at : at + w["batch"]]
                for at in range(0, max(map(len, ranks)), w["batch"])
                for rank in ranks
            ]
            epochs.append(np.concatenate(batches))
        records = (w["n"],) if w["n"] > 5_000 else ()
        yield Case(named("trainer", w), w["n"], tuple(epochs), "torch shuffle", records)
    for w, read in cases("huggingface", "shuffle"):
        if w["n"] < 1_000:
            continue
        order = huggingface.shuffled_dataset(w["n"], w["seed"])
        assert told(order) == read
        again = order  # shuffled once, read as often as there are epochs
        records = (w["n"],) if w["n"] > 5_000 else ()
        yield Case(named("datasets", w), w["n"], (order, again), "numpy default_rng", records)
    for w, _ in cases("huggingface", "streaming"):
        if w["seed"] is None or w["shards"] % (w["ranks"] * w["workers"]) or w["interleaved"] == 1:
            continue
        given = {k: v for k, v in w.items() if k not in ("shards", "epoch")}
        epochs = []
        for epoch in (w["epoch"], w["epoch"] + 1):
            dealt = huggingface.streaming_shards(w["shards"], epoch=epoch, **given)
            epochs.append(merged([merged(streams) for streams in dealt]))
        if w["shards"] < FEW:
            continue  # `test_few_shards_are_honestly_unknown`
        yield Case(named("streaming", w), w["shards"], tuple(epochs), "datasets streaming", batch=1)


def mosaicml_cases() -> Iterator[Case]:
    for w, read in cases("mosaicml", "work"):
        sizes, canonical = w["shard_sizes"], w["canonical_nodes"]
        n = sum(sizes)
        given = {k: w[k] for k in ("nodes", "ranks", "workers", "batch")}
        places = mosaicml.partition(n, canonical_nodes=canonical, **given)
        epochs = []
        for epoch in (w["epoch"], w["epoch"] + 1):
            order = mosaicml.shuffled_samples(
                sizes, canonical_nodes=canonical, algorithm=w["algorithm"], epoch=epoch
            )
            work = np.where(places >= 0, order[places], -1)
            if epoch == w["epoch"]:
                assert told(work.ravel()) == read
            # [node, rank, worker, batch, sample]: batches in turns of all workers
            batches = work.transpose(3, 2, 0, 1, 4).reshape(-1, w["batch"])
            epochs.append(batches[batches >= 0].astype(np.int64))
        name = named("mosaicml", {k: v for k, v in w.items() if k != "shard_sizes"}, n=n)
        family = f"MosaicML {w['algorithm']}"
        yield Case(name, n, tuple(epochs), family, tuple(sizes), batch=w["batch"])


def webdataset_cases() -> Iterator[Case]:
    for w, read in cases("webdataset", "shards"):
        given = {k: v for k, v in w.items() if k not in ("shards", "epochs")}
        epochs = []
        for epoch in range(max(2, w["epochs"])):
            epochs.append(webdataset.shard_orders(w["shards"], epoch=epoch, **given))
        assert told(*[part for parts in epochs[: w["epochs"]] for part in parts]) == read
        if w["buffer"] not in (100, 1_000):
            continue
        workers = w["ranks"] * w["workers"]
        if w["shards"] < FEW * (workers + 1) // 2:
            continue  # workers draw alike: few of the draws tell
        if workers & (workers - 1):
            continue  # 3 workers are not looked for
        buffer = w["buffer"] if w["shards"] > 100 * workers else 100
        orders = tuple(merged(parts) for parts in epochs)
        family = f"WebDataset, buffer {buffer}"
        yield Case(named("webdataset", w), w["shards"], orders, family, batch=1)


def litdata_cases() -> Iterator[Case]:
    """Chunks are read as a whole, and numbered by their names: 2 before 10."""
    for w, read in cases("litdata", "full"):
        sizes = w["sizes"] * w["times"]
        if w["nodes"] > 1 or len(sizes) < FEW or len(set(w["sizes"][:-1])) > 1:
            continue
        world = litdata.World(1, w["ranks"], w["workers"], w["batch"], w["drop_last"])
        given = {k: w[k] for k in ("seed", "node_fits")}
        epochs = []
        for epoch in (w["epoch"], w["epoch"] + 1):
            workers = litdata.full_shuffle(sizes, world, epoch=epoch, **given)
            if epoch == w["epoch"]:
                assert told(*workers) == read
            chunk_of = np.repeat(np.arange(len(sizes)), sizes)
            epochs.append(merged([list(dict.fromkeys(chunk_of[items])) for items in workers]))
        name = named("litdata", {k: v for k, v in w.items() if k != "sizes"}, n=len(sizes))
        named_ = {"named": "chunk-0-{}.bin", "index": "index.json"}
        yield Case(name, len(sizes), tuple(epochs), "LitData", batch=1, files=named_)


def dlio_cases() -> Iterator[Case]:
    for w, read in cases("dlio", "torch"):
        given = {k: w[k] for k in ("ranks", "seed")}
        epochs = [dlio.torch_loader(w["n"], epoch=e + 1, **given) for e in range(w["epochs"])]
        assert told(*[np.ascontiguousarray(rank) for e in epochs for rank in e]) == read
        if w["ranks"] & (w["ranks"] - 1):
            continue  # 3 ranks are not looked for
        if w["n"] < FEW * (w["ranks"] + 1) // 2:
            continue  # ranks draw alike: few of the draws tell
        records = (w["n"],) if w["n"] > 5_000 else ()
        family = "DLIO" if w["ranks"] > 1 or w["epochs"] > 1 else "numpy RandomState"
        yield Case(named("dlio", w), w["n"], tuple(map(merged, epochs)), family, records)


ALL = [
    *(*torch_cases(), *huggingface_cases(), *mosaicml_cases()),
    *(*webdataset_cases(), *litdata_cases(), *dlio_cases()),
]


SHORT = {"distributed", "generator", "trainer", "mosaicml", "webdataset", "dlio", "streaming"}


def settings() -> list[Any]:
    """One of each family beside `make test`, all in `make soak`."""
    first: set[str] = set()
    found = []
    for number, case in enumerate(ALL):
        kind = case.name.partition("-")[0]
        quick = kind in SHORT and kind not in first and not (kind == "distributed" and case.shards)
        first |= {kind} if quick else set()
        marks = () if quick else (pytest.mark.soak,)
        named_ = replace(case, name=f"{number:02}-{case.name}")
        found.append(pytest.param(named_, id=named_.name, marks=marks))
    return found


SETTINGS = settings()
N = 2_000
CHANGED, JOINED, HALF, TWO = (Items(f"other-{i}", N) for i in range(4))
SHARDS = Items("few", 50)
OTHERS = (CHANGED, JOINED, HALF, TWO, SHARDS)


@pytest.fixture(scope="module")
def a_spoke(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Doors]:
    wanted = {str(item.name) for item in request.session.items}
    all_ = [p.values[0].items for p in SETTINGS if any(f"[{p.id}]" in name for name in wanted)]
    with doors(tmp_path_factory.mktemp("doors"), [*all_, *OTHERS]) as found:
        yield found


def recipe_of(order: dict[str, Any]) -> Recipe:
    """What the words say."""
    words = order["why"].partition(";")[0]
    found = re.fullmatch(r"(.+), seed (\d+)(?:, epoch (\d+))?(?:, world (\d+))?", words)
    assert found is not None, order
    return Recipe(found[1], int(found[2]), int(found[3] or 0), int(found[4] or 1))


def believed(
    spoke: Doors, job: Job, case: Case, order: Numbers, epoch: int
) -> tuple[dict[str, Any], int]:
    """Read the order until one is believed that is not refuted at once; and how much was read."""
    says: list[Any] = []
    for at in range(0, len(order), STEP):
        job.read(order[at : at + STEP], batch=case.batch)
        jobs = spoke.answered(case.items)
        if jobs and jobs[0]["epoch"] == epoch and jobs[0]["order"] and at >= 2 * STEP:
            return jobs[0]["order"], at + STEP
        says.append(jobs and jobs[0]["inference"])
    pytest.fail(f"not recognised: {says[-8:]}")


def gives(order: dict[str, Any], case: Case, read: Numbers) -> None:
    """Assert that the order believed is what is read: item by item, or, where ranks and workers
    take whole batches or are dealt otherwise, or chunks are not all as long, within its window."""
    recipe = recipe_of(order)
    built = build(Build(0, case.n, recipe, case.shards), SeedSearch()).astype(np.int64)
    distinct = np.array(list(dict.fromkeys(read.tolist())))
    in_step = case.batch == 1 or len(case.shards) <= 1
    if in_step and (recipe.world <= 2 or recipe.family == "DLIO"):
        assert np.array_equal(built[: len(distinct)], distinct), (recipe, case.name)
        return
    places = np.empty(case.n, np.int64)
    places[built[::-1]] = np.arange(len(built))[::-1]
    apart = np.abs(places[distinct] - np.arange(len(distinct)))
    # Where two workers meet in a chunk, either may be the first.
    farthest = np.quantile(apart, 0.95) if recipe.family == "LitData" else apart.max()
    assert farthest <= order["window"], recipe


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", SETTINGS)
def test_order_of_a_real_package_is_recognised_and_goes_on(a_spoke: Doors, case: Case) -> None:
    with Job(a_spoke.data, case.items) as job:
        order, read = believed(a_spoke, job, case, case.epochs[0], 0)
        assert recipe_of(order).family == case.family or len(case.epochs) > 1
        assert read <= max(160, case.n // 2), (read, order)
        gives(order, case, case.epochs[0])
        if case.n > LARGE:
            return
        before = case.epochs[0]
        job.read(before[read:], faults=False)
        for epoch, items in enumerate(case.epochs[1:], 1):
            order, read = believed(a_spoke, job, case, items, epoch)
            if order["family"] == "former epoch":
                assert np.array_equal(items, before)
            else:
                gives(order, case, items)
                assert recipe_of(order).family == case.family or epoch < len(case.epochs) - 1
            job.read(items[read:], faults=False)
            before = items


def order_of(job: dict[str, Any]) -> Numbers:
    """What a job is believed to read in this epoch."""
    return build(Build(0, N, recipe_of(job["order"])), SeedSearch()).astype(np.int64)


def read_on(spoke: Doors, job: Job, items: Items, order: Numbers) -> tuple[dict[str, Any], int]:
    """Read an order in parts until one is believed; and how much was read."""
    for at in range(0, len(order), STEP):
        job.read(order[at : at + STEP])
        jobs = spoke.answered(items)
        if jobs and jobs[0]["order"]:
            return jobs[0], at + STEP
    pytest.fail(f"not recognised: {jobs}")


def test_job_that_changes_its_seed_is_recognised_anew(a_spoke: Doors) -> None:
    with Job(a_spoke.data, CHANGED) as job:
        found, read = read_on(a_spoke, job, CHANGED, torch_randperm(N, 1234))
        assert recipe_of(found["order"]).seed == 1234
        job.read(order_of(found)[read:])
        changed = torch_randperm(N, 7)
        for at in range(0, N, STEP):
            job.read(changed[at : at + STEP])
            (now,) = a_spoke.answered(CHANGED)
            if now["epoch"] == 1 and now["order"] and recipe_of(now["order"]).seed == 7:
                break
        assert np.array_equal(order_of(now), changed) and at < N // 4, now


def test_job_joined_in_mid_epoch_is_aligned(a_spoke: Doors) -> None:
    order = torch_randperm(N, 42)
    with Job(a_spoke.data, JOINED) as job:
        found, _ = read_on(a_spoke, job, JOINED, order[700:])
    assert np.array_equal(order_of(found), order)
    assert found["order"]["position"] >= 700


def test_two_jobs_of_different_seeds_are_told_apart_and_recognised(a_spoke: Doors) -> None:
    orders = {seed: torch_randperm(N, seed) for seed in (42, 7)}
    with Job(a_spoke.data, TWO, seed=2) as one, Job(a_spoke.data, TWO, seed=3) as two:
        for at in range(0, N // 2, STEP):
            for job, order in zip((one, two), orders.values(), strict=True):
                job.read(order[at : at + STEP])
            found = a_spoke.answered(TWO)
            if len(found) == 2 and all(job["order"] for job in found):
                break
    assert {recipe_of(job["order"]).seed for job in found} == set(orders), found
    assert at < N // 4, "told apart by what both have read"


def test_order_that_goes_on_otherwise_is_dropped(a_spoke: Doors) -> None:
    order = torch_randperm(N, 2020)
    rest = np.random.default_rng(10**9).permutation(order[N // 2 :])
    with Job(a_spoke.data, HALF) as job:
        found, read = read_on(a_spoke, job, HALF, order)
        job.read(order[read : N // 2], faults=False)
        (found,) = a_spoke.answered(HALF)
        assert np.array_equal(order_of(found), order)
        job.read(rest[:160], faults=False)
        (found,) = a_spoke.answered(HALF)
        assert found["order"] is None, found


def test_few_shards_are_honestly_unknown(a_spoke: Doors) -> None:
    """Which of 50 were read first, by workers that are not in step, fits one order in a few
    thousand by chance."""
    (w, read) = next(c for c in cases("webdataset", "shards") if c[0]["epochs"] == 3)
    (order, *_) = webdataset.shard_orders(w["shards"], buffer=w["buffer"], seed=w["seed"])
    assert order[:8].tolist() == read["head"]
    order[:40] = np.random.default_rng(4).permutation(order[:40])
    with Job(a_spoke.data, SHARDS, workers=1) as job:
        job.read(order[:40], faults=False)
        (found,) = a_spoke.answered(SHARDS)
    assert found["order"] is None
    assert found["inference"].startswith("no seed fits "), found
