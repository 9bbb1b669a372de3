"""What posted plans keep in the cache, and what of it goes: the cache's `HintOrder`."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.eviction.by_item import ItemPages, Wanted
from hubspoke.core.eviction.policy import HINTED, QUEUE
from hubspoke.core.hints.book import Book
from hubspoke.core.hints.plan import Plan
from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES, page_span
from hubspoke.core.page_codes import IS_COMING, PAGES_PER_BLOCK

DONE_MAX = 1 << 18  # runs of pages
VICTIMS_TRIED = 64
LONG_BYTES = 8 * BLOCK_BYTES  # an item that is read for long gives up what was read of it


def blocks_of(obj: CachedObject, offset: int, length: int) -> range:
    """Blocks under a range, of an object that may have become shorter."""
    end = min(offset + length, obj.size)
    return range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES))


class Kept:
    """Blocks in which something is to be read, by the plans of a book."""

    def __init__(self, cache: Cache, book: Book, let_go: Callable[[], None]) -> None:
        """let_go: gives up a part of what plans held that are gone."""
        self._cache, self._book, self._let_go = cache, book, let_go
        self._now = float("-inf")
        self._done: deque[tuple[CachedObject, int, int]] = deque(maxlen=DONE_MAX)  # pages, read
        self._done_aside: list[tuple[CachedObject, int, int]] = []  # that were in use
        self._aside: list[tuple[Plan, int]] = []  # victims that were in use

    @property
    def _plans(self) -> Iterator[Plan]:
        return (h.plan for h in self._book.held.values())

    def look(self, now: float) -> None:
        """It is `now`; what was in use may not be any more."""
        self._now = now
        self._done.extendleft(self._done_aside)
        self._done_aside.clear()
        aside, self._aside = self._aside, []
        for plan, item in aside:
            plan.came(item)

    def needed(self, obj: CachedObject, first: int, last: int) -> bool:
        """Whether plans name something of the pages that is still to be read."""
        start, end = first * PAGE_BYTES, min(last * PAGE_BYTES, obj.size)
        return any(next(p.needed(obj.name, start, end), None) is not None for p in self._plans)

    def release(self, plan: Plan, item: int, *, read: bool = True) -> None:
        """A plan does not hold the item any more; read: because it was."""
        name, offset, length = plan.table.range(item)
        obj = self._cache.current(name)
        if obj is None:
            return
        held = False
        for block in blocks_of(obj, offset, length):
            held |= not self._cache.hinted.release(obj, block, read=read)
        if held:
            self._done.append((obj, *page_span(offset, length)))

    def passed(self, obj: CachedObject, start: int, end: int) -> None:
        """Of a long item these bytes were read."""
        self._done.append((obj, -(-start // PAGE_BYTES), end // PAGE_BYTES))

    def holds(self, obj: CachedObject, block: int) -> bool:
        """See HintOrder."""
        first = block * PAGES_PER_BLOCK
        return bool(self._book.held) and self.needed(obj, first, first + PAGES_PER_BLOCK)

    def consumed(self) -> ItemPages | None:
        """See HintOrder. The last one first: so the same ones stay for the next time."""
        while self._done:
            obj, first, last = self._done.pop()
            if obj.number not in self._cache.objects:
                continue
            pages = self._spared(obj, first, last, None)
            if pages is None or not self._hinted(obj, *pages):
                continue
            return ItemPages(obj, *pages, partial(self._done_aside.append, (obj, *pages)))
        return None

    @staticmethod
    def _hinted(obj: CachedObject, first: int, last: int) -> bool:
        blocks = range(first // PAGES_PER_BLOCK, -(-last // PAGES_PER_BLOCK))
        return any(obj.pages.mark(block) & QUEUE == HINTED for block in blocks)

    def _spared(
        self, obj: CachedObject, first: int, last: int, besides: int | None
    ) -> tuple[int, int] | None:
        """The pages without those at the ends that others need; None if nothing of them is here, or
        others need what lies between. besides: an item that does not count."""
        first, last = first, min(last, len(obj.pages))
        while first < last and self._others(obj, first, first + 1, besides):
            first += 1
        while first < last and self._others(obj, last - 1, last, besides):
            last -= 1
        if first >= last or not obj.pages.any(first, last, IS_COMING):
            return None
        return None if self._others(obj, first, last, besides) else (first, last)

    def _others(self, obj: CachedObject, first: int, last: int, besides: int | None) -> bool:
        start, end = first * PAGE_BYTES, min(last * PAGE_BYTES, obj.size)
        for plan in self._plans:
            for item in plan.needed(obj.name, start, end):
                long = plan.begun(item) and plan.table.range(item)[2] >= LONG_BYTES
                if item != besides and not (besides is None and long):
                    return True
        return False

    def victim(self, wanted: Wanted | None) -> ItemPages | None:
        """See HintOrder. Where several plans need the same bytes they count for the plan that
        comes to them first."""
        self._let_go()
        limit = -1.0
        if wanted is not None and not wanted.demand:
            due = self._due_s(wanted.obj, wanted.page)
            if due is None:
                return None
            limit = due
        for _ in range(VICTIMS_TRIED):
            found = self._farthest()
            if found is None or found[0] <= limit:
                return None
            pages = self._pages(found[1], found[2])
            if pages is not None:
                return pages
        return None

    def _due_s(self, obj: CachedObject, page: int) -> float | None:
        start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, obj.size)
        dues = [
            plan.due_s(plan.place[item], self._now)
            for plan in self._plans
            for item in plan.needed(obj.name, start, end)
        ]
        return min(dues, default=None)

    def _farthest(self) -> tuple[float, Plan, int] | None:
        """Time, plan and place of what is here and is read last of all."""
        best: tuple[float, Plan, int] | None = None
        for plan in self._plans:
            place = plan.farthest()
            if place is not None:
                due = plan.due_s(place, self._now)
                if best is None or due > best[0]:
                    best = due, plan, place
        return best

    def _pages(self, plan: Plan, place: int) -> ItemPages | None:
        """What goes of the item at a place: all, or the end of a long one."""
        item = plan.item(place)
        name, offset, length = plan.table.range(item)
        plan.went(item)
        obj = self._cache.current(name)
        if obj is None or offset >= obj.size:
            return None
        first, last = page_span(offset, min(length, obj.size - offset))
        if length >= LONG_BYTES:
            runs = obj.runs(first, last, IS_COMING)
            if not runs:
                return None
            last = runs[-1][1]
            cut = (last - 1) // PAGES_PER_BLOCK * PAGES_PER_BLOCK
            if runs[0][0] < cut:
                plan.came(item)  # there is more
            first = max(first, cut)
        spared = self._spared(obj, first, last, item)
        if spared is None:
            return None
        plan.back_to(place)
        return ItemPages(obj, *spared, lambda: self._in_use(plan, item))

    def _in_use(self, plan: Plan, item: int) -> None:
        plan.went(item)
        self._aside.append((plan, item))
