"""What goes next: the list of it follows what was read since it was made."""

import numpy as np
import pytest

from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.epochs.shelf import LIST_MIN, Shelf
from hubspoke.core.ids import ObjectEntry, ObjectName, Version

N = 400


class Names:
    """A listing of N files."""

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        first = int(name.key[4:]) + 1 if name.key[4:] else 0
        entry = ObjectEntry(Version("v"), 4096, "e", 0)
        return [(ObjectName("b", f"dir/{i:05}"), entry) for i in range(first, N)][:limit]


@pytest.fixture
def shelf() -> Shelf:
    items = ListedItems(("b", "dir/"), Names(), record=None)
    while not items.complete:
        items.grow()
    job = Job(1, N)
    job.rate = 10.0
    order = np.arange(N, dtype=np.int32)
    job.adopt(KnownOrder(order, 4, "planted", "", lambda: KnownOrder(order, 4, "", "", _none)))
    made = Shelf(items, [job], 0.0)
    job.take(order[:200], [0] * 200, 1.0)
    assert made.look_at_jobs(1.0, began=True) and made.exact
    return made


def _none() -> None:
    return None


def test_what_was_read_since_the_list_was_made_goes_again(shelf: Shelf) -> None:
    (job,) = shelf.counted
    unread = np.arange(200, 200 + LIST_MIN, dtype=np.int32)
    shelf.came(unread)
    assert shelf.victim(399, demand=False, last_resort=False) is None, "it is read later than all"
    job.take(unread, [0] * LIST_MIN, 8.0)
    job.rate = 10.0
    shelf.look_at_jobs(8.0, began=False)
    shelf.was_read(unread)
    assert shelf.victim(270, demand=False, last_resort=False) in unread.tolist()


def test_nothing_goes_for_what_is_read_later(shelf: Shelf) -> None:
    shelf.came(np.arange(200, 210, dtype=np.int32))
    assert shelf.victim(300, demand=False, last_resort=False) is None
    assert shelf.victim(205, demand=False, last_resort=False) == 209


def test_what_was_read_goes_before_what_the_list_has_if_it_is_farther(shelf: Shelf) -> None:
    """A scan reads 390 and 201: the first is needed last of all, the second next."""
    shelf.came(np.arange(200, 200 + 2 * LIST_MIN, dtype=np.int32))
    assert shelf.victim(210, demand=False, last_resort=False) == 200 + 2 * LIST_MIN - 1
    scanned = np.array([390, 201], np.int32)
    shelf.came(scanned)
    shelf.was_read(scanned)
    gone = [shelf.victim(210, demand=False, last_resort=False) for _ in range(2)]
    assert gone == [390, 200 + 2 * LIST_MIN - 2]


def test_what_was_read_stays_for_what_is_read_later_still(shelf: Shelf) -> None:
    shelf.came(np.arange(200, 210, dtype=np.int32))
    scanned = np.array([300], np.int32)
    shelf.came(scanned)
    shelf.was_read(scanned)
    assert shelf.victim(390, demand=False, last_resort=False) is None
    assert shelf.here[300]


def test_items_that_are_read_after_a_runway_are_counted(shelf: Shelf) -> None:
    """Ten items a second, of which 200 to 229 are here: from 0 to 2.9 s."""
    shelf.came(np.arange(200, 230, dtype=np.int32))
    assert shelf.farther(1.95) == 10
    shelf.came(np.array([399], np.int32))
    shelf.was_read(np.array([399], np.int32))
    assert shelf.farther(1.95) == 11
    assert shelf.farther(1_000.0) == 0


def test_a_walk_over_all_objects_lists_what_it_found(shelf: Shelf) -> None:
    shelf.came(np.arange(200, 210, dtype=np.int32))
    assert shelf.farther(0.85) == 1
    shelf.came(np.array([350], np.int32))
    shelf.surveyed()
    assert shelf.farther(0.85) == 2


def test_one_item_is_due_when_many_say_it_is() -> None:
    """With and without an order, before and after its read, of one job and of two."""
    items = ListedItems(("b", "dir/"), Names(), record=None)
    while not items.complete:
        items.grow()
    rng = np.random.default_rng(3)
    orders = [rng.permutation(N).astype(np.int32) for _ in range(4)]
    guesses = [KnownOrder(o, 4, "guess", "", _none) for o in orders[2:]]
    known = KnownOrder(orders[0], 4, "planted", "", lambda: KnownOrder(orders[1], 4, "", "", _none))
    last = KnownOrder(orders[0], 4, "last", "", _none, lambda: guesses)
    for adopted in ([known], [last], [None], [known, last], [known, None]):
        jobs = [Job(i, N) for i in range(len(adopted))]
        for job, order in zip(jobs, adopted, strict=True):
            if order is not None:
                job.adopt(order)
            job.take(orders[0][: 150 + 7 * job.number], [0] * (150 + 7 * job.number), 1.0)
            job.rate = 3.7 + job.number
        shelf = Shelf(items, jobs, 0.3)
        assert shelf.look_at_jobs(2.1, began=True)
        for after in (False, True):
            for item in range(N):
                due = float(shelf.due(np.array([item], np.int32), after=after)[0])
                assert shelf._due_of(item, after=after) == due, (adopted, item, after)


def test_what_a_scan_reads_next_stays_while_it_goes_on(shelf: Shelf) -> None:
    scan, items = Job(2, N), np.arange(150, dtype=np.int32)
    shelf._jobs.append(scan)  # type: ignore[attr-defined]
    scan.take(items[:75], [1] * 75, 0.0)
    scan.take(items[75:], [1] * 75, 15.0)
    (job,) = shelf.counted
    job.last_at = 15.0
    shelf.look_at_jobs(15.0, began=True)
    here = np.concatenate((np.arange(100, 110), np.arange(150, 160))).astype(np.int32)
    shelf.came(here)
    gone = [shelf.victim(201, demand=False, last_resort=False) for _ in range(10)]
    assert sorted(i for i in gone if i is not None) == list(range(100, 110))
    assert shelf._due_of(150) == pytest.approx(float(shelf.due(np.array([150], np.int32))[0]))
