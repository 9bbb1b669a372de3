"""Large files that are read in a known order: what comes next, and what goes.

Assumes: `core.epochs` knows the order in which every job on the folder opens its files, and each
file is read on from its start. A file is kept in part: what goes is the end of the one that is
read last of all (Belady, a block at a time), and of a file that is being read what lies behind
its reader. What comes is the part of the files opened next that hides a round trip; where the
path carries less than is read, whole files in their order, into the room of what was read.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.follow import NOWHERE, Follower
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.job import Job
from hubspoke.core.eviction.by_item import ItemPages, Wanted
from hubspoke.core.eviction.data_set import DataSet
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.page_codes import IS_COMING, PAGES_PER_BLOCK

SLACK_SHARE = 1 / 64  # of the cache, kept free of what is brought for later
NAMES_PER_CALL = 64
HEADED_MAX = 64
NOW = -1.0  # before all places

Numbers = npt.NDArray[np.int32]


class LargeFiles:
    """One folder of them; the cache's `ItemOrder` while all its jobs' orders are known."""

    def __init__(self, items: ListedItems, cache: Cache) -> None:
        self.items = items
        self._cache = cache
        self._jobs: Sequence[Job] = ()
        self._reading: Mapping[int, int] = {}  # item: first byte that is still to be read
        self._at_once = 1  # files at most: at an opening others are between two
        self._data_set: DataSet | None = None
        self._seen: list[tuple[Follower | None, int]] = []
        self._due = np.zeros(0)
        self._victims: Iterator[tuple[float, ItemPages]] = iter(())
        self._next: tuple[float, ItemPages] | None = None
        self._passed: list[tuple[float, ItemPages]] = []  # by readers, what is read soonest first
        self._progress = 0
        self._headed: dict[Follower, tuple[int, int, int, int]] = {}  # when heads were proposed
        self._follower: Follower | None = None
        self._filled = (0, 0)  # place in the order, offset
        self._spare = 0  # bytes of what was read in this epoch

    def follow(self, jobs: Sequence[Job], reading: Mapping[int, int], data_set: DataSet) -> bool:
        """What is read now. Returns whether all of the jobs' orders are known."""
        self._jobs, self._reading = jobs, reading
        self._at_once = max(self._at_once, len(reading))
        known = bool(jobs) and all(j.follower is not None or j.guessing for j in jobs)
        if known and self._data_set is not data_set:
            self._cache.by_items(data_set, self)
            for number in range(self.items.objects):
                obj = self._cache.current(self.items.object_name(number))
                if obj is not None:
                    self._cache.goes_by_items(obj)
            self._data_set = data_set
        elif not known:
            self.end()
        return known

    def end(self) -> None:
        """The order is not known any more."""
        if self._data_set is not None and self._data_set.items is self:
            self._cache.by_blocks(self._data_set)
        self._data_set, self._at_once = None, 1

    def dropped(self) -> None:
        """See ItemOrder."""
        self._data_set = None

    # -- what goes ----------------------------------------------------------------------------

    def victim(self, wanted: Wanted | None, *, last_resort: bool) -> ItemPages | None:
        """See ItemOrder."""
        self._refresh()
        least = self._wanted_at(wanted, last_resort=last_resort)
        return self._take(least)

    def _refresh(self) -> None:
        """After an opening."""
        seen = [(j.follower, j.follower.front if j.follower else j.count) for j in self._jobs]
        if seen == self._seen:
            return
        self._seen, self._due = seen, self._dues()
        self._look()
        self._spare = 0
        for number in np.flatnonzero(self._due >= self._later).tolist():
            obj = self._cache.current(self.items.object_name(number))
            if obj is not None and number not in self._reading:
                self._spare += obj.resident * PAGE_BYTES

    @property
    def _later(self) -> float:
        """What is read in another epoch is due from then on."""
        return min((_left(j) for j in self._jobs), default=0) - 0.5

    def _take(self, least: float) -> ItemPages | None:
        if self._next is None:
            self._next = next(self._victims, None)
        if self._next is None or self._next[0] < self._later:
            # Before anything that is still to be read goes, what readers have passed meanwhile.
            progress = sum(self._reading.values())
            if progress != self._progress:
                self._progress, self._passed = progress, self._behind()
            if self._passed and self._passed[-1][0] > least:
                return self._passed.pop()[1]
        if self._next is None or self._next[0] <= least:
            return None
        found, self._next = self._next[1], None
        return found

    def _look(self) -> None:
        self._victims, self._next = self._farthest(), None
        self._passed, self._progress = [], 0

    def _wanted_at(self, wanted: Wanted | None, *, last_resort: bool) -> float:
        """What is read before this stays for it."""
        number = None if wanted is None else self.items.number(wanted.obj.name, 0, 0)
        if number is not None and wanted is not None:
            if wanted.demand or number in self._reading:
                return NOW
            due = float(self._due[number])
            # But for what is opened next, not for what is read in this epoch, too: that would cross
            # the path twice.
            return due if due <= len(self._reading) else max(due, self._later)
        return NOW if last_resort else self._later

    def _dues(self) -> npt.NDArray[np.float64]:
        """How many files are opened before each is opened next."""
        n = self.items.count
        due = np.full(n, np.inf)
        for job in self._jobs:
            f, left = job.follower, _left(job)
            if f is None:
                # It is one of a few orders: what is unread is read in this epoch.
                due = np.minimum(due, np.where(job.read, left + n, left / 2))
                continue
            place = f.place
            following = f.following()
            later = left + (np.full(n, n) if following is None else following.place)
            # Whatever comes first of an epoch is kept for it: any files are as good as any others.
            for guess in f.guesses():
                first = guess.place < self._at_once
                later = np.where(first, np.minimum(later, left + guess.place), later)
            coming = ~job.read & (place >= f.base) & (place != NOWHERE)
            due = np.minimum(due, np.where(coming, np.maximum(place - f.front, 0), later))
        return due

    def _farthest(self) -> Iterator[tuple[float, ItemPages]]:
        """Blocks that may go of files that are not being read, those that are read last first."""
        for number in np.argsort(-self._due, kind="stable").tolist():
            obj = self._cache.current(self.items.object_name(number))
            if obj is not None and obj.resident and number not in self._reading:
                yield from self._blocks(number, obj, len(obj.pages))

    def _behind(self) -> list[tuple[float, ItemPages]]:
        """Blocks that readers have passed."""
        found: list[tuple[float, ItemPages]] = []
        for number, read_to in self._reading.items():
            obj = self._cache.current(self.items.object_name(number))
            if obj is not None and obj.resident:
                end = read_to // (PAGES_PER_BLOCK * PAGE_BYTES) * PAGES_PER_BLOCK
                found += self._blocks(number, obj, end)
        return sorted(found, key=lambda due_and_pages: -due_and_pages[0])[::-1]

    def _blocks(
        self, number: int, obj: CachedObject, end: int
    ) -> Iterator[tuple[float, ItemPages]]:
        """Of a file before page `end`, the last one first."""
        for first in range((end - 1) // PAGES_PER_BLOCK * PAGES_PER_BLOCK, -1, -PAGES_PER_BLOCK):
            last = min(first + PAGES_PER_BLOCK, end)
            if obj.pages.any(first, last, IS_COMING):
                yield float(self._due[number]), ItemPages(obj, first, last, _stays)

    # -- what comes ---------------------------------------------------------------------------

    def propose(self, want: int, head: int, most: int, *, hungry: bool) -> list[Candidate]:
        """What the jobs open next. head: bytes that hide latency. most: bytes that are read of a
        file. hungry: the path is the bottleneck: `want` bytes of whatever comes next."""
        found: list[Candidate] = []
        for job in self._jobs:
            if job.follower is not None:
                found += self._heads(job, job.follower, head)
                if hungry and len(self._jobs) == 1:
                    found += self._whole(job, job.follower, want, most)
            elif job.guesses is not None:
                for guess in job.guesses.followers:
                    found += self._heads(job, guess, head)
        return found

    def _heads(self, job: Job, f: Follower, head: int) -> list[Candidate]:
        """Of as many files as are being read now: all of them may end at once."""
        # While some have opened their next file, others are between two: there are more soon.
        most = max(1, len(self._reading))
        state = f.base, f.front, head, most
        if self._headed.get(f) == state:
            return []
        if len(self._headed) > HEADED_MAX:
            self._headed.clear()
        self._headed[f] = state
        coming = f.order.items[f.base : f.front + f.order.window + most]
        coming = coming[~job.read[coming]][:most]
        following = f.following()
        later = f.guesses() if following is None else [following]
        coming = np.concatenate((coming, *(g.order.items[: most - len(coming)] for g in later)))
        found = []
        for i, number in enumerate(coming.tolist()):
            found += self._candidate(number, 0, head, (i + 1) / max(job.rate, 1e-3), job)
        return found

    def _whole(self, job: Job, f: Follower, want: int, most: int) -> list[Candidate]:
        self._refresh()
        if f is not self._follower:
            self._follower, self._filled = f, (0, 0)
        at, offset = self._filled
        if at < f.front:
            at, offset = f.base, 0
        order = f.order.items
        found: list[Candidate] = []
        want = min(want, self._cache.room + self._spare - int(self._cache.limit * SLACK_SHARE))
        for _ in range(NAMES_PER_CALL):
            if want <= 0 or at >= len(order):
                break
            number = int(order[at])
            size = min(self.items.range(number)[2], most)
            if job.read[number] or offset >= size or self._here(number, size):
                at, offset = at + 1, 0
                continue
            n = min(want, size - offset)
            use_in_s = max(1, at - f.front) / max(job.rate, 1e-3)
            found += self._candidate(number, offset, n, use_in_s, job)
            offset, want, self._spare = offset + n, want - n, self._spare - n
        self._filled = at, offset
        return found

    def _here(self, number: int, size: int) -> bool:
        """Whether the file is here, as much as is read of it."""
        obj = self._cache.current(self.items.object_name(number))
        return obj is not None and obj.resident * PAGE_BYTES >= size

    def _candidate(
        self, number: int, offset: int, length: int, use_in_s: float, job: Job
    ) -> list[Candidate]:
        name = self.items.object_name(number)
        obj = self._cache.current(name)
        entry = None if obj is not None else self.items.entry(number)
        if obj is None and entry is None:
            return []
        return [
            Candidate("known_order", job.number, name, entry, offset, length, use_in_s, job.count)
        ]


def _left(job: Job) -> int:
    """How many files are opened until this epoch ends."""
    f = job.follower
    return job.n - job.count if f is None else len(f.order.items) - f.front


def _stays() -> None:
    """In use: it comes up again when the list is made anew."""
