"""Which items of a data set are in the cache: a walk over its objects, a slice at a time.

What is filled and read is followed as it happens; this finds what was there before, and what else
dropped meanwhile. On the first walk the blocks leave the queues of the other policies.
"""

import numpy as np

from hubspoke.core.cache import Cache
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.shelf import Shelf
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.page_codes import IS_ABSENT, IS_COMING

OBJECTS_AT_ONCE = 256
ITEMS_AT_ONCE = 16_384


class Survey:
    """One walk."""

    def __init__(self, items: ListedItems, cache: Cache) -> None:
        self._items = items
        self._cache = cache
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at >= self._items.objects

    def step(self, shelf: Shelf) -> None:
        """The next objects."""
        items, seen = self._items, 0
        end = min(self._at + OBJECTS_AT_ONCE, items.objects)
        while self._at < end and seen < ITEMS_AT_ONCE:
            first, last = items.of_object(self._at)
            here = self._here(self._at, last - first)
            numbers = np.arange(first, last, dtype=np.int32)
            shelf.came(numbers[here])
            shelf.went(numbers[~here])
            seen += 64 + last - first
            self._at += 1

    def _here(self, number: int, n: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Which items of an object are here as a whole, or coming."""
        obj = self._cache.current(self._items.object_name(number))
        none = np.zeros(n, np.bool_)
        if obj is None or not len(obj.pages):
            return none
        self._cache.goes_by_items(obj)
        if obj.pages.all(0, len(obj.pages), IS_ABSENT):
            return none
        lacks = np.ones(len(obj.pages) + 1, np.int64)
        for a, b in obj.runs(0, len(obj.pages), IS_COMING):
            lacks[a + 1 : b + 1] = 0
        lacks[0] = 0
        lacking = np.cumsum(lacks)  # pages before each that are not here
        begin, step, most = 0, obj.size, obj.size
        if self._items.record is not None:
            begin, step, most, _ = self._items.record
        offset = begin + np.arange(n, dtype=np.int64) * step
        ends = np.minimum(offset + most, obj.size)
        first, last = offset // PAGE_BYTES, -(-ends // PAGE_BYTES)
        return np.asarray(lacking[last] == lacking[first])
