"""Which pages of a token file go: the one that is read last of all (Belady), as far as is known.

What is not to be read as far as the future is known goes first, then from the future's end
downwards. What is wanted for earlier than all that is here passes the cache by. Other objects of
the folder (an index, a validation set) are small and stay as long as there is anything else.
"""

from collections import deque
from collections.abc import Iterator

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.eviction.by_item import ItemPages, Wanted
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.page_codes import IS_COMING, PAGES_PER_BLOCK
from hubspoke.core.tokens.future import NEVER, Future

SCAN = 1_024  # numbers looked at at once, from the end downwards
# Page reads, until what was read since may be farther than what is listed: of a small cache soon.
LOOK_AGAIN_MAX, LOOK_AGAIN_PART, LOOK_AGAIN_MIN = 4_096, 64, 32
BLOCKS_AT_ONCE = 64  # of what was here before, looked at in one call
SOON = -1


class Victims:
    """The cache's `ItemOrder` for the folder of one object."""

    def __init__(self, obj: CachedObject, future: Future, cache: Cache) -> None:
        self.obj = obj
        self._cache = cache
        self.future = future
        self.followed = True
        self._before = obj.pages.blocks()
        self._unknown: deque[int] = deque()  # pages that were here before
        self._listed: list[tuple[int, int]] = []  # number, page: the farthest last
        self._cursor = 0
        part = cache.capacity // PAGE_BYTES // LOOK_AGAIN_PART
        self._look_again = max(LOOK_AGAIN_MIN, min(part, LOOK_AGAIN_MAX))
        self._looked_at = -self._look_again
        self._others: Iterator[ItemPages] = iter(())

    def look_around(self) -> bool:
        """Take in some of what was here before; returns whether there was more."""
        found = False
        for _ in range(BLOCKS_AT_ONCE):
            block = next(self._before, None)
            if block is None:
                break
            found = True
            first = block * PAGES_PER_BLOCK
            last = min(first + PAGES_PER_BLOCK, len(self.obj.pages))
            for a, b in self.obj.runs(first, last, IS_COMING):
                self.future.came(a, b)
                self._unknown.extend(range(a, b))
        return found

    def dropped(self) -> None:
        """See ItemOrder."""
        self.followed = False
        self.future.all_gone()

    def victim(self, wanted: Wanted | None, *, last_resort: bool) -> ItemPages | None:
        """See ItemOrder."""
        least = self._wanted_at(wanted, last_resort=last_resort)
        if wanted is not None and least == NEVER:
            return None
        page = self._never()
        if page is None and least < NEVER:
            page = self._farthest(least)
        if page is not None:
            return self._goes(page)
        return self._of_others() if least == SOON else None

    def _wanted_at(self, wanted: Wanted | None, *, last_resort: bool) -> int:
        """What is read before this number stays for it."""
        if wanted is None:
            return SOON if last_resort else int(NEVER)
        if wanted.obj is not self.obj:
            return SOON
        due = int(self.future.due[wanted.page])
        return self.future.after(due) if wanted.demand else due

    def _goes(self, page: int) -> ItemPages:
        self.future.gone(page)

        def stays() -> None:
            self.future.came(page, page + 1)
            if self.future.due[page] == NEVER:
                self.future.unneeded.append(page)

        return ItemPages(self.obj, page, page + 1, stays)

    def _is_here(self, page: int) -> bool:
        if not self.future.here[page]:
            return False
        if self.obj.pages.any(page, page + 1, IS_COMING):
            return True
        self.future.gone(page)
        return False

    def _never(self) -> int | None:
        future = self.future
        for waiting in (future.unneeded, self._unknown):
            while waiting:
                page = waiting.popleft()
                if future.due[page] == NEVER and self._is_here(page):
                    return page
        return None

    def _farthest(self, least: int) -> int | None:
        future = self.future
        if future.front - self._looked_at >= self._look_again:
            self._looked_at, self._cursor, self._listed = future.front, future.end, []
        while True:
            while self._listed:
                number, page = self._listed[-1]
                if number <= least:
                    return None
                self._listed.pop()
                if future.due[page] == number and self._is_here(page):
                    return page
            if self._cursor <= max(least, future.base):
                return None
            start = max(self._cursor - SCAN, future.base)
            numbers, pages = future.due_here(start, self._cursor)
            self._listed = list(zip(numbers.tolist(), pages.tolist(), strict=True))
            self._cursor = start

    def _of_others(self) -> ItemPages | None:
        found = next(self._others, None)
        if found is None:
            self._others = self._blocks_of_others()
            found = next(self._others, None)
        return found

    def _blocks_of_others(self) -> Iterator[ItemPages]:
        """Those read longest ago first."""
        for number in list(self.obj.data_set.objects):
            obj = self._cache.objects.get(number)
            if obj is None or obj is self.obj or not obj.resident:
                continue
            for block in list(obj.pages.blocks()):
                first = block * PAGES_PER_BLOCK
                last = min(first + PAGES_PER_BLOCK, len(obj.pages))
                if obj.pages.any(first, last, IS_COMING):
                    yield ItemPages(obj, first, last, _stays)


def _stays() -> None:
    """In use: it comes up again when all others have."""
