"""Blocks that somebody has: readers' spans, disk reads and checks under way, readers that wait."""

from itertools import pairwise

from hubspoke.core.cached_object import CachedObject, Runs
from hubspoke.core.eviction.policy import BLOCK_BITS
from hubspoke.core.page_codes import IS_UNASKED, PAGES_PER_BLOCK


class Pins:
    """Counts by block key; page ranges are [first, last)."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._counts

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
        return free

    def any(self, obj: CachedObject, first: int, last: int) -> bool:
        """Whether somebody has any of the blocks under the pages."""
        if not obj.pins:
            return False
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
