"""What of a data set is here, which item goes next, and which should come.

Every item has a time at which it will be read next (`due`), as far as the jobs on the data set say
so: exactly where an order is known, else as expected: what a job has not read in this epoch comes
evenly over the rest of it, what it has read comes in the next one. Several jobs share: the nearest
use of all counts. From this follows all:

- What goes is the farthest (Belady). Without an order that is what every job has read, and nothing
  else: what is unread will be read in this epoch, so dropping it would cost its bytes twice.
- What comes is the nearest that is not here, as long as what goes for it is farther. So an epoch
  costs the items that were not here when it began (N - C) in whatever order they are fetched.

Times are worked out for all items at once when the list of those that go has been used up, which
is a thirty-second of what is here.
"""

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.follow import NOWHERE
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.epochs.job import Job

LIST_PART = 32  # of what is here
LIST_MIN = 64
FEW = 4  # items whose times are worked out one by one
FAR_MAX = 4_096  # more than are read between two victims
SCAN_ITEMS = 65_536  # looked at at once, for what is missing
SOON = -1  # in an item's place: one that is read at once
STALE_S = 1.0  # later than listed: more than a job's rate wavers
IDLE_S = 300.0  # a job that read nothing for so long is over, or stands still: others go first

Numbers = npt.NDArray[np.int32]
Times = npt.NDArray[np.float32]


class Shelf:
    """Of one data set. Times are seconds from the shelf's own start, so that float32 is enough."""

    def __init__(self, items: ListedItems, jobs: Sequence[Job], now: float) -> None:
        """jobs: those on the data set, now and later."""
        self.items = items
        self.here = np.zeros(items.count, np.bool_)  # or on its way
        self.needed = np.zeros(items.count, np.bool_)  # by a job in its present epoch
        self.unread = 0  # that are here and needed
        self._jobs = jobs
        self._began = now
        self.held = 0  # that are here
        self.now = now
        self._exact = False
        self.counted: list[Job] = []  # whose next reads are believed
        self._walks: list[Job] = []  # in listing order: they count for what goes
        self._done: deque[int] = deque()  # read by all since the list was made
        # (-due, item) of what was read since the list was made, where orders are known: a heap.
        self._far: list[tuple[float, int]] = []
        self._in_use: list[int] = []
        self._list = np.zeros(0, np.int32)  # that go next, the last one first
        self._list_due = np.zeros(0, np.float32)
        self._at = 0  # entries of the list that are left
        self._fill_at = 0

    # -- what is known ------------------------------------------------------------------------

    def look_at_jobs(self, now: float, *, began: bool) -> bool:
        """Which jobs' next reads are believed. began: an epoch did, or an order became known.
        Returns whether there are any."""
        self.now = now
        counted = [j for j in self._jobs if j.believed and now - j.last_at < IDLE_S]
        self._walks = [j for j in self._jobs if j.scans(now) and now - j.last_at < IDLE_S]
        if began or counted != self.counted:
            self.counted = counted
            self._recount()
        return bool(counted)

    def _recount(self) -> None:
        self.needed[:] = False
        for job in self.counted:
            self.needed |= self._unread(job)
        self.unread = int(np.count_nonzero(self.needed & self.here))
        self._exact = bool(self.counted) and all(j.follower is not None for j in self.counted)
        self._at = 0
        self._done.clear()
        self._far.clear()

    @staticmethod
    def _unread(job: Job) -> npt.NDArray[np.bool_]:
        f = job.follower
        if f is None:
            return ~job.read
        # What was passed by without a read will not come any more.
        return np.asarray(~job.read & (f.place >= f.base) & (f.place != NOWHERE))

    def was_read(self, items: Numbers) -> None:
        """Jobs read these; they know."""
        if self._in_use:
            self._done.extend(self._in_use)
            self._in_use.clear()
        if self._exact:
            self._may_go(items)
        before = self.needed[items]
        if not before.any():
            return
        needed = np.zeros(len(items), np.bool_)
        for job in self.counted:
            needed |= ~job.read[items]
        self.needed[items] = needed
        done = _distinct(items[before & ~needed])
        done = done[self.here[done]]
        self.unread -= len(done)
        if self._exact:
            self._done.clear()
        else:
            self._done.extend(done.tolist())

    def _may_go(self, items: Numbers) -> None:
        """They were read, by whomever: the list was made when they were still of use."""
        items = items[self.here[items]]
        few = len(items) <= FEW
        dues = map(self._due_of, items.tolist()) if few else self.due(items).tolist()
        for item, due in zip(items.tolist(), dues, strict=True):
            heappush(self._far, (-due, item))
        if len(self._far) > FAR_MAX:
            self._at = 0  # list all anew

    def came(self, items: Numbers) -> None:
        """They are here, or on their way."""
        fresh = _distinct(items[~self.here[items]])
        if not len(fresh):
            return
        self.here[fresh] = True
        self.held += len(fresh)
        self.unread += int(np.count_nonzero(self.needed[fresh]))

    def went(self, items: Numbers) -> None:
        """They are not here any more, or not as a whole."""
        gone = _distinct(items[self.here[items]])
        if not len(gone):
            return
        self.here[gone] = False
        self.held -= len(gone)
        self.unread -= int(np.count_nonzero(self.needed[gone]))

    def wanted(self, item: int) -> bool:
        """Whether it is here, or will be read in this epoch."""
        return bool(self.here[item] or self.needed[item])

    # -- when each is read next ---------------------------------------------------------------

    def due(self, items: Numbers, *, after: bool = False) -> Times:
        """When each of the items is read next; after: their next read, which comes now, aside."""
        at = np.float32(self.now - self._began)
        times = [self._due(job, items, at) for job in self.counted]
        if not times:
            return np.full(len(items), at, np.float32)
        if self._exact:
            times += [at + walk.reaches_in_s(items, self.now) for walk in self._walks]
        if after:
            nearest = min(range(len(times)), key=lambda i: float(times[i][0]))
            later = [self._due(j, items, at, after=True) for j in self.counted[nearest:][:1]]
            times[nearest : nearest + 1] = later  # none of a walk
        if self._exact or len(times) == 1:
            return np.asarray(np.minimum.reduce(times))
        # Uncertain times: two that come evenly within a and b come first after ab / (a + b).
        sooner = np.zeros(len(items), np.float32)
        for t in times:
            sooner += np.float32(1.0) / np.maximum(t - at, np.float32(1e-3))
        return np.asarray(at + np.float32(1.0) / sooner)

    @staticmethod
    def _due(job: Job, items: Numbers, at: np.float32, *, after: bool = False) -> Times:
        each = np.float32(1.0 / max(job.rate, 1e-3))
        read = job.read[items] | after
        f = job.follower
        if f is None:
            left = max(1, job.n - job.count)
            soon, later = at + each * left / 2, at + each * (left + job.n / 2)
            return np.where(read, np.float32(later), np.float32(soon))
        place = f.place[items]
        left = len(f.order.items) - f.front
        following = f.following()
        if following is None:
            later_each: Times = np.full(len(items), left + job.n, np.float32)
            # Whatever comes first of an epoch is kept for it: any set is as good as any other.
            for guess in f.guesses():
                at_place = guess.place[items]
                first = (left + at_place).astype(np.float32)
                later_each = np.where(at_place < guess.head, first, later_each)
        else:
            later_each = left + following.place[items].astype(np.float32)
        passed = read | (place < f.base) | (place == NOWHERE)
        soon_each = (place - f.front).astype(np.float32)
        return at + each * np.where(passed, later_each, soon_each)

    # -- what goes ----------------------------------------------------------------------------

    def farther(self, in_s: float) -> int:
        """How many of those that go next are read later than in so many seconds."""
        if not self._exact:
            return 0
        if not self._at:
            self._look()
        at = self.now - self._began + in_s
        listed = self._at - int(np.searchsorted(self._list_due[: self._at], at, "right"))
        return listed + sum(-due > at for due, _ in self._far)

    @property
    def exact(self) -> bool:
        """Whether every job's order is known."""
        return self._exact

    def victim(self, wanted: int | None, *, demand: bool, last_resort: bool) -> int | None:
        """The item to drop next; None if none may go. It counts as gone.

        wanted: the item that needs the room, if it is of this data set, or SOON: nothing nearer
        goes for it. demand: a reader waits for it. last_resort: for another data set, even what is
        still to be read in this epoch.
        """
        while self._done and not self._exact:
            item = self._done.popleft()
            if self.here[item] and not self.needed[item]:
                return self._goes(item)
        if self._exact and wanted is not None:
            if not self._at:
                self._look()
            read = self._just_read(wanted, demand=demand)
            if read is not None:
                return read
        if self._exact:
            return self._farthest(wanted, demand=demand, last_resort=last_resort)
        if self.held > self.unread + len(self._in_use) or last_resort:
            return self._farthest(wanted, demand=demand, last_resort=last_resort)
        return None

    def _goes(self, item: int) -> int:
        """`went` of one."""
        if self.here[item]:
            self.here[item] = False
            self.held -= 1
            self.unread -= bool(self.needed[item])
        return item

    def surveyed(self) -> None:
        """A walk over all objects has ended; it may have found what no list has. Without an order
        all that was read is as far, and a list anew would only choose others of it."""
        if self._exact:
            self._at = 0

    def clear(self) -> None:
        """Nothing is here any more."""
        self.here[:] = False
        self.held = self.unread = self._at = 0
        self._done.clear()
        self._far.clear()

    def put_back(self, item: int) -> None:
        """The victim is in use: it stays, and comes up again after the next reads."""
        self.came(np.array([item], np.int32))
        self._in_use.append(item)

    def _just_read(self, wanted: int, *, demand: bool) -> int | None:
        """One that was read since the list was made, if none of the list is farther."""
        while self._far:
            due, item = -self._far[0][0], self._far[0][1]
            if self.here[item]:
                listed = float(self._list_due[self._at - 1]) if self._at else -math.inf
                if due < listed or due <= self._wanted_at(wanted, demand=demand):
                    return None
                heappop(self._far)
                return self._goes(item)
            heappop(self._far)
        return None

    def _farthest(self, wanted: int | None, *, demand: bool, last_resort: bool) -> int | None:
        if not self._at:
            self._look()
        while self._at:
            item = int(self._list[self._at - 1])
            if self.here[item]:
                exact = self._exact and wanted is not None
                if self.needed[item] and not (last_resort or exact):
                    return None
                due = self._list_due[self._at - 1]
                if exact and due <= self._wanted_at(wanted, demand=demand):
                    if self._due_of(item) <= due + STALE_S:
                        return None
                    self._look()  # it was read since: the list says nothing any more
                    continue
                self._at -= 1
                return self._goes(item)
            self._at -= 1
        return None

    def _wanted_at(self, item: int | None, *, demand: bool) -> float:
        """When an item that is asked for will be of use: a demand is served in any case, so what
        counts is the use after it."""
        if item is None or item == SOON:
            return 0.0
        return self._due_of(item, after=demand)

    def _due_of(self, item: int, *, after: bool = False) -> float:
        """`due` of one item: one after the other is asked for as victims go, and a dozen arrays of
        one cost ten times as much."""
        at = np.float32(self.now - self._began)
        times = [_due_of_one(job, item, at) for job in self.counted]
        if not times:
            return float(at)
        if self._exact:
            one = np.array([item], np.int32)
            times += [at + walk.reaches_in_s(one, self.now)[0] for walk in self._walks]
        if after:
            nearest = times.index(min(times))
            later = [_due_of_one(j, item, at, after=True) for j in self.counted[nearest:][:1]]
            times[nearest : nearest + 1] = later
        if self._exact or len(times) == 1:
            return float(min(times))
        sooner = np.float32(0.0)
        for t in times:
            sooner += np.float32(1.0) / max(t - at, np.float32(1e-3))
        return float(at + np.float32(1.0) / sooner)

    def _look(self) -> None:
        """List what goes next: the farthest of what is here, those unread last of all."""
        here = np.flatnonzero(self.here).astype(np.int32)
        if not len(here):
            return
        due = self.due(here)
        if not self._exact:
            due = np.where(self.needed[here], due - np.float32(1e9), due)
        most = max(LIST_MIN, len(here) // LIST_PART)
        if len(here) > most:
            top = np.argpartition(due, len(due) - most)[-most:]
            here, due = here[top], due[top]
        order = np.argsort(due, kind="stable")
        self._list, self._list_due, self._at = here[order], due[order], len(order)
        self._far.clear()

    # -- what comes ---------------------------------------------------------------------------

    def missing(self, most: int) -> Numbers:
        """At most so many items, in listing order and round and round, that are needed and not
        here."""
        if most <= 0 or self.unread == int(np.count_nonzero(self.needed)):
            return np.zeros(0, np.int32)
        found: list[Numbers] = []
        n, left = self.items.count, most
        for _ in range(n // SCAN_ITEMS + 2):
            end = min(n, self._fill_at + SCAN_ITEMS)
            part = self.needed[self._fill_at : end] & ~self.here[self._fill_at : end]
            at = np.flatnonzero(part)[:left]
            if len(at):
                found.append((at + self._fill_at).astype(np.int32))
                left -= len(at)
            if not left:
                self._fill_at = int(found[-1][-1]) + 1
                break
            self._fill_at = end if end < n else 0
        return np.concatenate(found) if found else np.zeros(0, np.int32)


def _due_of_one(job: Job, item: int, at: np.float32, *, after: bool = False) -> np.float32:
    """`Shelf._due` of one item, rounded as it is there."""
    each = np.float32(1.0 / max(job.rate, 1e-3))
    read = after or bool(job.read[item])
    f = job.follower
    if f is None:
        left = max(1, job.n - job.count)
        if read:
            return np.float32(at + each * (left + job.n / 2))
        return np.float32(at + each * left / 2)
    place = int(f.place[item])
    if not read and place >= f.base and place != NOWHERE:
        return at + each * np.float32(place - f.front)
    left = len(f.order.items) - f.front
    following = f.following()
    if following is not None:
        return at + each * (np.float32(left) + np.float32(following.place[item]))
    later = np.float32(left + job.n)
    for guess in f.guesses():
        at_place = int(guess.place[item])
        if at_place < guess.head:
            later = np.float32(left + at_place)
    return at + each * later


def _distinct(items: Numbers) -> Numbers:
    """In order, each once. What numpy has for it loads a module of 10 ms at its first call, in
    the middle of the reads that begin a data set."""
    if len(items) < 2:
        return items
    items = np.sort(items)
    first = np.empty(len(items), np.bool_)
    first[0] = True
    np.not_equal(items[1:], items[:-1], out=first[1:])
    return items[first]
