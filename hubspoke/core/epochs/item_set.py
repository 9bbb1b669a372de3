"""A data set that is read by items: its jobs, what is here of it, what goes and what comes.

The cache asks it which item goes (`ItemOrder`), the prediction what should come. A data set goes
by items only while a job on it is believed; before and after, the cache knows its blocks alone.
"""

from collections import deque
from collections.abc import Callable

import numpy as np

from hubspoke.core.cache import Cache
from hubspoke.core.epochs.data_sets import ItemReads
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.job import Job, Numbers
from hubspoke.core.epochs.jobs import Jobs
from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.epochs.shelf import IDLE_S, SOON, Shelf
from hubspoke.core.epochs.survey import Survey
from hubspoke.core.epochs.trust import Trust
from hubspoke.core.eviction.by_item import ItemPages, Wanted
from hubspoke.core.eviction.data_set import DataSet
from hubspoke.core.generators import blind_fill, known_order
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES, ObjectName, ReadState, page_span
from hubspoke.core.page_codes import IS_ABSENT, IS_COMING
from hubspoke.core.streams import Access

ITEM_BYTES_MAX = BLOCK_BYTES  # larger ones are read for long: their own streams know more
# Of the cache, kept free of what is filled blindly: demands must find room.
SLACK_SHARE = 1 / 64
FIRSTS_MAX = 16_384
PROPOSED_MAX = 64  # calls that are looked after
LOOKED_PART = 32  # of an epoch: not more often is it looked for what is missing

Relearned = Callable[[str], None]  # told why an order that was believed is none


class ItemSet:
    """One data set: jobs, shelf, and the cache's `ItemOrder`."""

    def __init__(self, items: ListedItems, cache: Cache, now: float) -> None:
        self.items = items
        self.jobs = Jobs(items.count)
        self.shelf = Shelf(items, self.jobs.all, now)
        self.trust = Trust(items.count, items.bytes_mean)
        self.data_set: DataSet | None = None  # the cache's, while it goes by items
        self._cache = cache
        self._survey: Survey | None = None
        self._surveyed = False
        self._reads = self._looked_for = 0
        self._firsts: dict[int, int | None] = {}  # the first item of a cached object
        self._proposed: deque[Numbers] = deque(maxlen=PROPOSED_MAX)
        self._farther = known_order.Farther()

    @property
    def small(self) -> bool:
        """Whether items are read at once, so that one that was begun was read."""
        return self.items.whole and self.items.bytes_mean <= ITEM_BYTES_MAX

    @property
    def comes(self) -> bool:
        """Whether all that is unread is fetched, as soon as the path carries it."""
        return self.data_set is not None

    def explains(self, now: float) -> bool:
        """Whether the order of all that is read of it is known."""
        jobs = [j for j in self.jobs.all if now - j.last_at < IDLE_S]
        return self.small and bool(jobs) and all(j.follower is not None for j in jobs)

    def take(self, reads: ItemReads, now: float, relearned: Relearned) -> None:
        """Reads in order of time."""
        self._reads += len(reads.items)
        before = [(j, j.follower) for j in self.jobs.all]
        next_epochs = self.jobs.take(reads.items, [a.client for a in reads.accesses], now)
        began = bool(next_epochs)
        self.trust.was_read(reads.items)
        if any(j in next_epochs and f is None for j, f in before):
            needed = np.zeros(self.items.count, np.bool_)
            for job in self.jobs.all:
                if job not in next_epochs:
                    needed |= ~job.read
            self.trust.ended(needed)
        for job in self.jobs.all:
            if job.lost is not None:
                relearned(f"{'/'.join(self.items.folder)}: reads left the order of {job.lost}")
                job.lost, began = None, True
        began |= any(j.follower is not f for j, f in before)
        if not self.small:
            return
        believed = self.shelf.look_at_jobs(now, began=began)
        self._note(reads)
        self._order(reads.accesses[-1].obj.data_set, believed=believed, began=began)

    def _note(self, reads: ItemReads) -> None:
        """What these reads say of what is here."""
        each = [_is_here(a) for a in reads.accesses]
        if all(each):
            self.shelf.came(reads.items)
        else:
            here = np.array(each, np.bool_)
            self.shelf.went(reads.items[~here])
            self.shelf.came(reads.items[here])
        self.shelf.was_read(reads.items)

    def _order(self, data_set: DataSet, *, believed: bool, began: bool) -> None:
        """Go by items, or by blocks again."""
        if self.data_set is not None and self.data_set.items is not self:
            self.data_set = None
        if believed and self.data_set is None:
            self._cache.by_items(data_set, self)
            self.data_set, self._surveyed = data_set, False
            self._survey = Survey(self.items, self._cache)
        elif not believed and self.data_set is not None:
            self._cache.by_blocks(self.data_set)
            self.data_set = None
        elif began and self._survey is None:
            self._survey = Survey(self.items, self._cache)

    def adopt(self, job: Job, order: KnownOrder, now: float) -> None:
        """The job reads this in the present epoch."""
        job.adopt(order)
        if self.small:
            self.shelf.look_at_jobs(now, began=True)

    def end(self) -> None:
        """It is not read by items any more."""
        if self.data_set is not None and self.data_set.items is self:
            self._cache.by_blocks(self.data_set)
        self.data_set = None

    # -- what comes ---------------------------------------------------------------------------

    def propose(
        self,
        now: float,
        want: int,
        queued: int,
        ahead_s: float,
        runway_s: float,
        *,
        given_up: bool,
    ) -> list[Candidate]:
        """Exactly what comes next where that is known, and `want` bytes of what comes within
        `runway_s`, in the place of what comes later; else `want` bytes of what will come, while a
        job still reads. queued: bytes that are to come and have no room yet. given_up: some that
        were proposed of late found none."""
        if self.data_set is None:
            return []
        if self._survey is not None:
            self._survey.step(self.shelf)
            if self._survey.done:
                self._survey, self._surveyed = None, True
                self.shelf.surveyed()
                self._farther.again()
        self._look_after(given_up=given_up)
        ahead_s *= known_order.AHEAD
        found: list[Candidate] = []
        for job in self.shelf.counted:
            if job.follower is not None:
                numbers, times = known_order.ahead(job, self.shelf, max(ahead_s, runway_s))
                more = self._items_that_fit(want, queued)
                if runway_s:  # what is bought takes the room of what is read later
                    each = max(1, int(want / self.items.bytes_mean))
                    more = max(more, min(each, self.shelf.farther(runway_s)))
                most = int(np.searchsorted(times, ahead_s, "right")) + more
                numbers, times = numbers[:most], times[:most]
                found += known_order.candidates(job, self.items, numbers, times, self._known)
                self._come(numbers)
        reading = any(now - j.last_at < j.patience_s for j in self.shelf.counted)
        alone = self.shelf.counted[0] if len(self.shelf.counted) == 1 else None
        if alone is not None and alone.follower is None:
            alone = None  # it was lost since the shelf was looked at
        if alone is not None and self.shelf.exact and reading and self._surveyed:
            found += self._fill_on(alone, want, queued, ahead_s)
        deciding = any(j.guessing for j in self.shelf.counted)  # what comes first is here already
        if not self.shelf.exact and self._surveyed and reading and not deciding:
            found += self._fill(want, queued)
        return found

    def _fill_on(self, job: Job, want: int, queued: int, ahead_s: float) -> list[Candidate]:
        fits = self._items_that_fit(want, queued, self._farther.kept(job))
        if not fits:
            return []
        numbers, times = self._farther.take(job, self.shelf, ahead_s, fits)
        self._come(numbers)
        return known_order.candidates(job, self.items, numbers, times, self._known)

    def _fill(self, want: int, queued: int) -> list[Candidate]:
        fits = self._items_that_fit(want, queued)
        numbers = self.shelf.missing(fits)
        if not len(numbers):
            # All is here that is needed, or was dropped by somebody else, or never came.
            if fits and self._looked_for + self.items.count // LOOKED_PART < self._reads:
                self._survey = Survey(self.items, self._cache)
                self._looked_for = self._reads
            return []
        self._come(numbers)
        return blind_fill.fill(self.items, numbers, 64, self._known)

    def _come(self, numbers: Numbers) -> None:
        """They were proposed."""
        if len(numbers):
            self.shelf.came(numbers)
            self.trust.came(numbers)
            self._proposed.append(numbers)

    def _look_after(self, *, given_up: bool) -> None:
        """What was proposed of late and was given up is not here, and may be proposed again."""
        if not given_up:
            return
        self._farther.again()
        numbers = [i for part in self._proposed for i in part.tolist()]
        self._proposed.clear()
        lost = [i for i in numbers if not self._is_coming(i)]
        self.shelf.went(np.array(lost, np.int32))
        part = self._looked_for + self.items.count // LOOKED_PART < self._reads
        if part and self._survey is None:
            # It may have waited for longer than `_proposed` is kept.
            self._survey = Survey(self.items, self._cache)
            self._looked_for = self._reads

    def _is_coming(self, item: int) -> bool:
        number, offset, length = self.items.range(item)
        obj = self._cache.current(self.items.object_name(number))
        if obj is None or offset + length > obj.size:
            return False
        return not obj.pages.any(*page_span(offset, length), IS_ABSENT)

    def _known(self, name: ObjectName) -> bool:
        return self._cache.current(name) is not None

    def _items_that_fit(self, want: int, queued: int, kept: int = 0) -> int:
        """How many items of `want` bytes have room: free, or of all but `kept` items that were
        read."""
        cache, shelf = self._cache, self.shelf
        each = self.items.bytes_mean + PAGE_BYTES / 2
        slack = max(cache.limit * SLACK_SHARE, 16 * each)
        read = max(0, shelf.held - shelf.unread - kept)
        room = cache.room - queued + read * self.items.bytes_mean - slack
        most = self.trust.more(sum(j.count + j.former_count for j in shelf.counted))
        return max(0, min(int(min(want, room) / each), most))

    # -- what goes ----------------------------------------------------------------------------

    def victim(self, wanted: Wanted | None, *, last_resort: bool) -> ItemPages | None:
        """See ItemOrder."""
        shelf, number, demand = self.shelf, None, False
        if wanted is not None and not shelf.exact:
            number = SOON  # whatever it is, only what was read goes
        elif wanted is not None:
            number, demand = self._number(wanted), wanted.demand
            # What was proposed here counts as here already; what others fetch is read at once.
            if number is not None and not demand and not shelf.here[number]:
                number = SOON
        while True:
            item = shelf.victim(number, demand=demand, last_resort=last_resort)
            if item is None:
                return None
            found = self._pages(item)
            if found is not None:
                return found

    def _number(self, wanted: Wanted) -> int | None:
        obj, record = wanted.obj, self.items.record
        first = self._firsts.get(obj.number)
        if first is None:
            if len(self._firsts) >= FIRSTS_MAX:
                self._firsts.clear()
            begin, most = (0, obj.size) if record is None else (record.first, record.length)
            head = min(most, obj.size - begin)
            first = self._firsts[obj.number] = self.items.number(obj.name, begin, head)
        if first is None or record is None:
            return first
        # The page that two records share is missing with the second: the first would begin before.
        at = wanted.page * PAGE_BYTES
        item = -((record.first - at) // record.step)
        if record.first + item * record.step >= min(at + PAGE_BYTES, obj.size):
            item -= 1
        return first + item if item >= 0 else None

    def _pages(self, item: int) -> ItemPages | None:
        """The pages of an item but those it shares with a neighbour that is here or will be."""
        number, offset, length = self.items.range(item)
        obj = self._cache.current(self.items.object_name(number))
        if obj is None or offset + length > obj.size:
            return None
        first, last = page_span(offset, length)
        if self.items.record is not None:
            wanted = self.shelf.wanted
            begin, step, most, _ = self.items.record
            before, behind = offset - step + most, offset + step
            if offset > begin and before > first * PAGE_BYTES and wanted(item - 1):
                first += 1
            if behind < min(last * PAGE_BYTES, obj.size) and wanted(item + 1):
                last -= 1
        if first >= last or not obj.pages.any(first, last, IS_COMING):
            return None
        return ItemPages(obj, first, last, lambda: self.shelf.put_back(item))

    def dropped(self) -> None:
        """See ItemOrder."""
        self.data_set = None
        self.shelf.clear()


def _is_here(a: Access) -> bool:
    obj, offset, length, _, _, state = a
    if state is ReadState.HIT:
        return True
    first, last = offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)
    return not obj.dead and obj.pages.all(first, last, IS_COMING)
