"""The workloads, against their definition: what is read, how much, in which order."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from hubspoke.core.orders.webdataset import shard_orders
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size
from hubspoke.sim.prediction.workloads import BY_NAME


def of_epoch(job: JobSpec, epoch: int = 0) -> Iterator[Read]:
    for rank in range(job.ranks):
        for step in range(job.steps[epoch]):
            yield from job.reads(epoch, rank, step)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("part", [16, 100])
def test_every_read_lies_inside_its_object(name: str, part: int) -> None:
    made = BY_NAME[name](Size(part))
    assert len(set(made.names)) == len(made.names) == len(made.sizes)
    for job in made.jobs:
        n = 0
        for number, offset, length in of_epoch(job, len(job.steps) - 1):
            assert 0 <= offset < offset + length <= made.sizes[number]
            n += 1
        assert n >= job.steps[-1]


@pytest.mark.parametrize("name", ["W2", "W4", "W5", "W7", "W9", "W10", "W12"])
def test_an_epoch_reads_everything_once(name: str) -> None:
    made = BY_NAME[name](Size(64))
    for job in made.jobs:
        for epoch in (0, 1):
            read: Counter[int] = Counter()
            for number, _, length in of_epoch(job, epoch):
                read[number] += length
            extra = sum(read.values()) - sum(made.sizes)
            # DistributedSampler completes the last round of the ranks from the start.
            assert 0 <= extra <= 3 * 112_640
            assert extra or read == Counter(dict(enumerate(made.sizes)))


@pytest.mark.parametrize(
    ("name", "read_bytes", "capacity"),
    [
        ("W1", 767_232 * 4_096, 4 << 30),
        ("W2", 32 << 30, 16 << 30),
        ("W3", 8_053_063_680, 8_000_000_000),
        ("W9", 24.6e9, 25e9),
        ("W10", 146.9e9, 73.4e9),
    ],
)
def test_full_size_is_that_of_the_table(name: str, read_bytes: float, capacity: float) -> None:
    made = BY_NAME[name](Size())
    total = sum(length for _, _, length in of_epoch(made.jobs[0]))
    assert made.capacity == pytest.approx(capacity, rel=0.001)
    footers = 64 * 2.6e6 if name == "W3" else 0
    assert total == pytest.approx(read_bytes + footers, rel=0.012)


def test_demand_is_that_of_the_table_at_any_part() -> None:
    demands = {"W1": 2.83e6, "W2": 100e6, "W3": 200e6, "W4": 800e6, "W5": 102.4e6}
    demands |= {"W7": 300e6, "W8": 3.94e6, "W9": 3.18e9, "W10": 205e6}
    for name, demand in demands.items():
        for part in (16, 64) if name != "W1" else (1,):
            job = BY_NAME[name](Size(part)).jobs[0]
            steps = job.steps[0]
            total = sum(length for _, _, length in of_epoch(job))
            footers = 0.025 * total if name == "W3" else 0
            found = (total - footers) * part / (steps * job.compute_s)
            assert found == pytest.approx(demand, rel=0.03), (name, part)


def test_a_seed_gives_another_order_and_the_same_one_again() -> None:
    for name in ("W2", "W3", "W4", "W5", "W8", "W9", "W10", "W12"):
        first, again, other = (
            list(of_epoch(BY_NAME[name](Size(16, seed)).jobs[0])) for seed in (0, 0, 1)
        )
        assert first == again
        assert first != other, name


def shuffled(shards: int) -> list[int]:
    (order,) = shard_orders(shards, buffer=100, seed=7)
    found: list[int] = order.tolist()
    return found


def test_few_shards_are_shuffled_as_a_whole() -> None:
    """WebDataset's buffer emits nothing before all are in: then draws and swaps."""
    rng, held, expected = random.Random(7), list(range(32)), []
    while held:
        k = rng.randint(0, len(held) - 1)
        expected.append(held[k])
        held[k] = held[-1]
        held.pop()
    assert shuffled(32) == expected
    many = shuffled(1_000)
    assert sorted(many) == list(range(1_000))
    assert max(many[:10]) < 150  # from the first full buffer
