"""Eviction by items, for data sets whose next reads are known or believed (`core.epochs`).

A packed file that is read at random must give up the records that were read, while their unread
neighbours stay: a block of 1 MiB holds nine records of 110 KiB, and hardly ever are all of them
read. So what goes is a run of pages. A page that two records share goes with the second of them.

Blocks of such a data set are in no queue (`BY_ITEM`); which item goes is its `ItemOrder`'s
business.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.eviction.data_set import DataSet
from hubspoke.core.eviction.policy import BY_ITEM, HINTED, QUEUE, Marks
from hubspoke.core.page_codes import PAGES_PER_BLOCK

TRIES_MAX = 32  # victims that are in use, before another policy is asked


class ItemPages(NamedTuple):
    """Pages [first, last) of a victim; stays: to be told if they cannot go now."""

    obj: CachedObject
    first: int
    last: int
    stays: Callable[[], None]


class Wanted(NamedTuple):
    """Who needs room: the first page of it, and whether a reader waits."""

    obj: CachedObject
    page: int
    demand: bool


class ItemOrder(Protocol):
    """The order of one data set, as the cache asks for it."""

    def victim(self, wanted: Wanted | None, *, last_resort: bool) -> ItemPages | None:
        """What goes next; None if nothing may. wanted: if it is of this data set. last_resort:
        for another one, even what will be read in this epoch."""
        ...

    def dropped(self) -> None:
        """All of the data set is dropped without a question: it was not read for long."""
        ...


class ByItem:
    """See `policy.Policy`: blocks that no queue holds."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self.sets: dict[DataSet, None] = {}  # those that go by items

    def admitted(self, key: int, mark: int) -> None:
        if mark & QUEUE != BY_ITEM:
            self._marks.set_mark(key, BY_ITEM)

    def consumed(self, key: int, mark: int) -> None:
        """The jobs know better what was read."""

    def touched(self, key: int, mark: int) -> None:
        """As `consumed`."""

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """Never a block."""
        return None

    def item(self, wanted: Wanted | None, *, last_resort: bool) -> ItemPages | None:
        """Pages of an item of the data set that needs the room; else of another one."""
        mine = None if wanted is None else wanted.obj.data_set
        if mine is not None and mine.items is not None:
            found = self._of(mine.items, wanted, last_resort=False)
            if found is not None:
                return found
        for other in self.sets:
            if other is not mine and other.items is not None:
                found = self._of(other.items, None, last_resort=last_resort)
                if found is not None:
                    return found
        return None

    def _of(
        self, order: ItemOrder, wanted: Wanted | None, *, last_resort: bool
    ) -> ItemPages | None:
        """What goes next of one data set, but for what a posted plan is to read."""
        for _ in range(TRIES_MAX):
            found = order.victim(wanted, last_resort=last_resort)
            if found is None or not self._hinted(found):
                return found
            found.stays()
        return None

    def _hinted(self, found: ItemPages) -> bool:
        blocks = range(found.first // PAGES_PER_BLOCK, -(-found.last // PAGES_PER_BLOCK))
        return any(found.obj.pages.mark(block) & QUEUE == HINTED for block in blocks)
