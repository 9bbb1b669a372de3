"""An epoch that begins as the one before goes on like it."""

import numpy as np
import pytest

from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.replay import Replay, resumed
from tests.core.test_next_object import COUNT


def order(seed: int, n: int = COUNT) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.random.default_rng(seed).permutation(n).astype(np.int32)


def swapped(
    items: np.ndarray[tuple[int], np.dtype[np.int32]], window: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """As workers read them: out of place by up to `window`."""
    places = np.arange(len(items)) + np.random.default_rng(9).uniform(0, window, len(items))
    return items[np.argsort(places)]


@pytest.mark.parametrize("window", [1, 16, 100])
def test_eight_reads_in_the_same_order_are_enough(window: int) -> None:
    known = resumed(order(1), swapped(order(1), window)[:8], COUNT)
    assert known is not None
    assert known.family == "former epoch"
    assert (known.items == order(1)).all()


def test_an_epoch_of_few_files_is_found_too() -> None:
    known = resumed(order(1, 168), swapped(order(1, 168), 12)[:16], 168)
    assert known is not None


def test_the_epochs_after_it_are_known_from_their_start() -> None:
    known = resumed(order(1), order(1)[:8], COUNT)
    assert known is not None
    following = known.following()
    assert following is not None
    assert (following.items == order(1)).all()


@pytest.mark.parametrize("n", [32, 168, 1_024, COUNT])
def test_another_order_is_not_taken_for_the_same(n: int) -> None:
    for seed in range(2, 300):
        for k in (8, 16, 32):
            assert resumed(order(1, n), order(seed, n)[:k], n) is None


def test_an_epoch_that_goes_on_in_the_middle_is_found() -> None:
    known = resumed(order(1), order(1)[4_000:4_016], COUNT)
    assert known is not None
    assert (known.items == order(1)[4_000:]).all()


def test_items_that_were_not_read_before_are_nowhere() -> None:
    assert resumed(order(1)[:100], order(1)[200:208], COUNT) is None


def job_of(former: int, present: int, reads: int) -> Job:
    job = Job(1, COUNT)
    job.former = order(former)
    job.epoch = 1
    job.take(order(present)[:reads], [0] * reads, 1.0)
    return job


def test_a_job_is_looked_at_when_it_has_read_enough_and_not_again_at_once() -> None:
    replay, job = Replay(), job_of(1, 1, 7)
    assert replay.look(job) is None
    job.take(order(1)[7:8], [0], 1.0)
    assert replay.look(job) is not None
    assert replay.look(job) is None


def test_a_first_epoch_is_not_looked_at() -> None:
    job = job_of(1, 1, 8)
    job.former = None
    assert Replay().look(job) is None


def test_groups_of_neighbours_in_another_order_are_not_taken_for_the_same() -> None:
    """As WebDataset's workers, each with every eighth shard and the same seed."""

    def dealt(seed: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        groups = np.arange(256, dtype=np.int32).reshape(32, 8)
        return groups[np.random.default_rng(seed).permutation(32)].ravel()

    for seed in range(2, 100):
        for k in (8, 16, 32):
            assert resumed(dealt(1), dealt(seed)[:k], 256) is None
    assert resumed(dealt(1), dealt(1)[:128], 256) is not None
