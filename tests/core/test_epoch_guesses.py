"""Orders that the next epoch may have: its first reads decide, and nothing is lost until then."""

import numpy as np
import pytest

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.follow import Follower
from hubspoke.core.epochs.guesses import REFUTED_AT, Guesses
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.epochs.large_files import LargeFiles
from hubspoke.core.epochs.shelf import Shelf
from hubspoke.core.eviction.by_item import Wanted
from hubspoke.core.generators.known_order import Farther, ahead
from hubspoke.core.streams import NEVER
from tests.core.virtual_wan import Names

N = 1_000
MIB = 1 << 20


def order(seed: int, *guesses: KnownOrder, n: int = N, window: int = 16) -> KnownOrder:
    items = np.random.default_rng(seed).permutation(n).astype(np.int32)
    return KnownOrder(items, window, "planted", str(seed), lambda: None, lambda: guesses)


def read(job: Job, items: "np.ndarray[tuple[int], np.dtype[np.int32]]", now: float = 1.0) -> None:
    for item in items.tolist():
        job.take(np.array([item], np.int32), [0], now)


def at_the_end(first: KnownOrder, n: int = N) -> Job:
    """A job that has read all of its first epoch but for one item."""
    job = Job(1, n)
    job.rate = 10.0
    job.adopt(first)
    read(job, first.items[:-1])
    return job


def followed(job: Job) -> str | None:
    return None if job.known is None else job.known.why


@pytest.mark.parametrize("n", [64, N])
def test_first_reads_of_an_epoch_choose_among_the_guesses(n: int) -> None:
    second, third = order(2, n=n), order(3, n=n)
    job = at_the_end(order(1, second, third, n=n, window=4), n)
    read(job, np.concatenate((order(1, n=n).items[-1:], third.items[:1])))
    assert job.epoch == 1 and job.guessing and job.known is None
    read(job, third.items[1:8])
    assert followed(job) == "3" and not job.guessing
    assert job.follower is not None and job.follower.front == 8


def test_reads_that_workers_displace_choose_as_well() -> None:
    second, third = order(2), order(3)
    job = at_the_end(order(1, second, third))
    firsts = np.random.default_rng(9).permutation(third.items[:40])[:12]
    read(job, np.concatenate((order(1).items[-1:], firsts)))
    assert followed(job) == "3"


def test_an_epoch_of_another_order_is_followed_by_no_guess() -> None:
    job = at_the_end(order(1, order(2), order(3)))
    other = order(4).items
    read(job, np.concatenate((order(1).items[-1:], other[: REFUTED_AT - 1])))
    assert job.guessing
    read(job, other[REFUTED_AT - 1 : REFUTED_AT + 1])
    assert not job.guessing and job.known is None
    assert job.believed, "it is read by items all the same"


def test_orders_drawn_at_random_are_not_taken_for_a_guess() -> None:
    for n in (64, 168, N):
        followers = [Follower(order(seed, n=n), n) for seed in (1, 2)]
        wrong = 0
        for seed in range(3, 203):
            guesses = Guesses(followers)
            reads = order(seed, n=n).items
            found = [guesses.decide(reads[:k], n) for k in range(1, n // 4)]
            wrong += any(f is not None for f in found)
        assert wrong <= 1


class Shelves:
    """A job on a shelf of `N` items of which a half is here: those it has read last."""

    def __init__(self, first: KnownOrder) -> None:
        names = Names({f"d/{i:04}": 4096 for i in range(N)})
        items = ListedItems(("b", "d/"), names, record=None)
        while not items.complete:
            items.grow()
        self.job = at_the_end(first)
        self.shelf = Shelf(items, [self.job], 0.0)
        self.shelf.look_at_jobs(1.0, began=True)
        self.shelf.came(first.items[N // 2 :])


def test_what_each_guess_reads_first_comes_and_has_room() -> None:
    second, third = order(2), order(3)
    made = Shelves(order(1, second, third))
    numbers, times = ahead(made.job, made.shelf, 1.0)
    wanted = set(second.items[:20].tolist()) | set(third.items[:20].tolist())
    absent = {i for i in wanted if not made.shelf.here[i]}
    assert absent <= set(numbers.tolist()) and (np.diff(times) >= 0).all()
    first = int(next(i for i in third.items[:20].tolist() if not made.shelf.here[i]))
    victim = made.shelf.victim(first, demand=False, last_resort=False)
    assert victim is not None and victim not in wanted


def test_what_is_read_later_is_found_once_and_then_the_likeliest_guess_first_batches() -> None:
    first, second, third = order(1), order(2), order(3)
    made = Shelves(order(1, second, third))
    job = Job(2, N)
    job.rate = 10.0
    job.adopt(order(1, second, third))
    read(job, first.items[:100])
    farther, found = Farther(), list[int]()
    assert farther.kept(job) == 2 * Follower(second, N).head
    for _ in range(8):
        numbers, times = farther.take(job, made.shelf, 1.0, 100)
        made.shelf.came(numbers)
        found += numbers.tolist()
        assert (np.diff(times) >= 0).all()
    assert farther.kept(job) == 0
    nearest = 100 + first.window + 10 + 1
    of_epoch = first.items[nearest : N // 2].tolist()
    assert found[: len(of_epoch)] == of_epoch
    head = second.items[: Follower(second, N).head].tolist()
    assert set(found[len(of_epoch) :]) <= set(head)
    assert len(found) == len(set(found)) > len(of_epoch)


def test_nothing_of_the_epoch_goes_for_what_a_guess_reads_later() -> None:
    second = order(2)
    made = Shelves(order(1, second))
    late = int(next(i for i in second.items[-100:].tolist() if not made.shelf.here[i]))
    assert made.shelf.victim(late, demand=False, last_resort=False) is None


def large_files(
    n: int, here: "np.ndarray[tuple[int], np.dtype[np.int32]]"
) -> tuple[list[CachedObject], LargeFiles, Cache]:
    """A cache that is full of these of n objects of 1 MiB."""
    names = Names({f"d/{i:02}": MIB for i in range(n)})
    cache = Cache(len(here) * MIB)
    objects = [cache.open(name, e)[0] for name, e in names.entries.items()]
    items = ListedItems(("b", "d/"), names, record=None)
    while not items.complete:
        items.grow()
    for number in here.tolist():
        cache.fly(objects[number], 0, len(objects[number].pages))
        cache.arrived(objects[number], 0, len(objects[number].pages))
    return objects, LargeFiles(items, cache), cache


def test_what_each_guess_opens_first_is_kept_of_large_files() -> None:
    n = 64
    first, second, third = order(1, n=n), order(2, n=n), order(3, n=n)
    job = at_the_end(order(1, second, third, n=n, window=4), n)
    kept = {int(i) for o in (second, third) for i in o.items[:2]} - {int(first.items[-1])}
    others = [i for i in first.items[:-1].tolist() if i not in kept]
    objects, files, cache = large_files(n, np.array([*kept, *others[:28]], np.int32))
    for at_once in (2, 1):  # one worker is between two files
        reading = dict.fromkeys(others[28 : 28 + at_once], 0)
        assert files.follow([job], reading, objects[0].data_set)
    wanted = Wanted(objects[int(first.items[-1])], 0, demand=True)
    gone = {objects.index(obj) for obj, _, _ in cache.make_room(28 * MIB, wanted)}
    assert gone == set(others[:28])


def test_large_files_are_kept_while_the_first_reads_decide() -> None:
    n, held = 64, 32
    second, third = order(2, n=n), order(3, n=n)
    job = at_the_end(order(1, second, third, n=n, window=4), n)
    objects, files, cache = large_files(n, order(1, n=n).items[:held])
    reading = dict.fromkeys(order(1, n=n).items[-3:-1].tolist(), 0)
    assert files.follow([job], reading, objects[0].data_set)
    coming = [int(c.name.key[2:]) for c in files.propose(0, 4096, NEVER, hungry=False)]
    assert {int(second.items[0]), int(third.items[0])} <= set(coming)
    read(job, np.concatenate((order(1, n=n).items[-1:], third.items[:1])))
    assert job.guessing
    assert files.follow([job], {int(third.items[0]): 0}, objects[0].data_set)
    assert objects[0].data_set.items is files, "blocks do not change their policy in between"
    later = objects[int(second.items[-1])]
    assert cache.make_room(MIB, Wanted(later, 0, False)) == [], "all is read in this epoch"
    found = files.propose(0, 4096, NEVER, hungry=False)
    assert {int(c.name.key[2:]) for c in found} == {int(second.items[0]), int(third.items[1])}
