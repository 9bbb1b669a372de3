"""Blocks that somebody has: readers' spans, disk reads and checks under way, readers that wait;
and objects that somebody has as a whole: files that the kernel reads by itself."""

from itertools import pairwise

from hubspoke.core.cached_object import CachedObject, Runs
from hubspoke.core.eviction.policy import BLOCK_BITS
from hubspoke.core.page_codes import IS_UNASKED, PAGES_PER_BLOCK


class Pins:
    """Counts by block key; page ranges are [first, last)."""

    __slots__ = ("_counts", "_whole")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._whole: dict[int, int] = {}  # by object number

    def __contains__(self, key: int) -> bool:
        return key in self._counts or key >> BLOCK_BITS in self._whole

    def holds(self, obj: CachedObject) -> bool:
        """Whether somebody has all of it."""
        return obj.number in self._whole

    def hold(self, obj: CachedObject) -> None:
        """All blocks of the object at once, however many."""
        self._whole[obj.number] = self._whole.get(obj.number, 0) + 1
        obj.pins += 1

    def let_go(self, obj: CachedObject) -> bool:
        """The end of one `hold`. Returns whether it was the last."""
        obj.pins -= 1
        count = self._whole[obj.number] - 1
        if count:
            self._whole[obj.number] = count
        else:
            del self._whole[obj.number]
        return not count

    def add(self, obj: CachedObject, first: int, last: int) -> None:
        counts, base = self._counts, obj.number << BLOCK_BITS
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            counts[base + block] = counts.get(base + block, 0) + 1
            obj.pins += 1

    def remove(self, obj: CachedObject, first: int, last: int) -> list[int]:
        """Returns the blocks that nobody has any more."""
        counts, base = self._counts, obj.number << BLOCK_BITS
        free = []
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            count = counts[base + block] - 1
            obj.pins -= 1
            if count:
                counts[base + block] = count
            else:
                del counts[base + block]
                free.append(block)
        return [] if obj.number in self._whole else free

    def any(self, obj: CachedObject, first: int, last: int) -> bool:
        """Whether somebody has any of the blocks under the pages."""
        if not obj.pins:
            return False
        if obj.number in self._whole:
            return True
        base = obj.number << BLOCK_BITS
        blocks = range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1)
        return any(base + block in self._counts for block in blocks)

    def unused(self, obj: CachedObject, first: int, last: int) -> Runs:
        """Page runs of [first, last) of which the disk may give the space back: neither here nor
        awaited, and in no block that is pinned, for who has it may still read the file."""
        found: Runs = []
        for a, b in obj.runs(first, min(last, len(obj.pages)), IS_UNASKED):
            bounds = [
                a,
                *range((a // PAGES_PER_BLOCK + 1) * PAGES_PER_BLOCK, b, PAGES_PER_BLOCK),
                b,
            ]
            found += [run for run in pairwise(bounds) if not self.any(obj, *run)]
        return found
