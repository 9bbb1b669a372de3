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
