"""The pages that a job reads next of one object, in order, as far as is worth knowing.

A course tells reads to come; here they are pages one behind the other, numbered through. Every
page knows at which number it is read next (`due`), every number at which one its page is read
again, so a read costs the same however far the future is known. Readers overtake each other: a
read fits if its page is due between `base`, the first number that may still be read, and a little
beyond `front`, the farthest that was.

    numbers   base ..... front .......... reach ................. end
              being read       to be here        known, for what goes

The future is known until it tells of nearly every page that is here when it is read again: which of
those goes of which nothing is known is a guess (W6 at 1/64 moved 1.27 x Belady's bytes when as many
pages as the cache holds were known, most of them not here yet).
"""

from collections import deque
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.inference.windows import Stream

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

NEVER = np.int32(2**31 - 1)  # as far as is known
NUMBERS_MAX = 2**30  # of one future; a longer one ends there
PAGES_MAX = 2**25  # of an object: 128 GiB, and 9 bytes here for each
RING_MAX = 2**24  # page reads known at a time, 8 bytes each
RING_ROOMS = 8
SPARE_PART = 64  # of the cache: so many pages here of which nothing is known are few
READS_AT_ONCE = 4_096  # taken from a course: 0.5 ms
LAG_FADES = 0.999  # a read: how far readers were apart is forgotten after some thousand


class Course(Protocol):
    """What is read from here on, of all ranks together, in the order in which it is expected."""

    def take(self, most: int) -> tuple[Int64, Int64]:
        """Offsets and lengths of the next reads, about `most`; none: it is over."""
        ...

    def mark(self) -> tuple[Stream, ...]:
        """The streams of a generator that it comes from, as they are now; none if it does not."""
        ...


class Future:
    """Of one object of `pages` pages. room: pages that the cache holds."""

    def __init__(self, course: Course, pages: int, room: int) -> None:
        assert 0 < pages <= PAGES_MAX, pages
        self.pages = pages
        self.due = np.full(pages, NEVER, np.int32)
        self.here = np.zeros(pages, np.bool_)  # or on its way; `victims` finds out what is gone
        self.spare = 0  # pages that are here and not to be read as far as is known
        self.base = self.front = self.end = 0
        self.lag = 0.0  # how far behind the front reads came of late
        self.over = False
        self.unneeded: deque[int] = deque()  # pages that were read and are not to be again
        self._course = course
        self._last = np.full(pages, -1, np.int32)  # the number at which a page is read last
        self._distinct = 0  # pages with a number to come
        self._room = room
        size = 1 << max(12, (min(RING_ROOMS * room, RING_MAX) - 1).bit_length())
        self._mask = size - 1
        self._page = np.zeros(size, np.int32)
        self._link = np.zeros(size, np.int32)  # the number at which the page is read again

    # -- knowing more -------------------------------------------------------------------------

    def extend(self) -> bool:
        """Know a little more, if more is worth knowing; returns whether it was."""
        enough = self._distinct >= self._room and self.spare * SPARE_PART <= self._room
        if self.over or enough:
            return False
        ring = self._mask + 1
        if self.end - self.base > ring - ring // 4:
            return False
        offsets, lengths = self._course.take(min(READS_AT_ONCE, ring // 16))
        first = offsets // PAGE_BYTES
        count = -(-(offsets + lengths) // PAGE_BYTES) - first
        total = int(count.sum())
        if not total or self.end + total > NUMBERS_MAX:
            self.over = True
            return False
        starts = np.cumsum(count) - count
        pages = np.repeat(first - starts, count) + np.arange(total)
        room = ring - (self.end - self.base)
        self._append(pages[:room].astype(np.int32))
        self.over |= total > room  # reads of a size that this is not for
        return True

    def _append(self, pages: Int32) -> None:
        numbers = np.arange(self.end, self.end + len(pages), dtype=np.int32)
        at = numbers & self._mask
        self._page[at], self._link[at] = pages, NEVER
        order = np.argsort(pages, kind="stable")
        ordered, theirs = pages[order], numbers[order]
        same = ordered[1:] == ordered[:-1]
        self._link[theirs[:-1][same] & self._mask] = theirs[1:][same]
        begins = np.concatenate((np.ones(1, np.bool_), ~same))
        ends = np.concatenate((~same, np.ones(1, np.bool_)))
        heads, first = ordered[begins], theirs[begins]
        known = self.due[heads] != NEVER
        self._link[self._last[heads[known]] & self._mask] = first[known]
        self.due[heads[~known]] = first[~known]
        self.spare -= int(np.count_nonzero(self.here[heads[~known]]))
        self._distinct += int(np.count_nonzero(~known))
        self._last[heads] = theirs[ends]
        self.end += len(pages)

    # -- reads --------------------------------------------------------------------------------

    def read(self, first: int, last: int, slack: int) -> bool:
        """Pages [first, last) were read, and are here. Returns whether one of them was due: between
        the base and `slack` beyond the front."""
        fits = False
        for page in range(first, last):
            number = int(self.due[page])
            self.spare += int(number == NEVER and not self.here[page])
            self.here[page] = True
            if number <= self.front + slack:
                fits = True
                self._pass(number, page)
                self.lag = max(self.lag * LAG_FADES, float(self.front - number))
                self.front = max(self.front, number + 1)
        return fits

    def _pass(self, number: int, page: int) -> None:
        """This number is read, or will not be."""
        at = number & self._mask
        self.due[page] = link = self._link[at]
        if link == NEVER:
            self._distinct -= 1
            if self.here[page]:
                self.spare += 1
                self.unneeded.append(page)
        self._page[at] = -1

    def advance(self, slack: int) -> None:
        """Move the base to the first number that may still be read: reads are not later than
        `slack` behind the front, and what they were to read is passed by."""
        least = self.front - slack
        while self.base < self.front:
            page = int(self._page[self.base & self._mask])
            if page >= 0:
                if self.base >= least:
                    return
                self._pass(self.base, page)
            self.base += 1

    def came(self, first: int, last: int) -> None:
        """Pages [first, last) are here."""
        fresh = ~self.here[first:last]
        self.spare += int(np.count_nonzero(fresh & (self.due[first:last] == NEVER)))
        self.here[first:last] = True

    def gone(self, page: int) -> None:
        """The page is not here any more."""
        self.spare -= int(self.here[page] and self.due[page] == NEVER)
        self.here[page] = False

    def all_gone(self) -> None:
        """Nothing is here any more."""
        self.here[:] = False
        self.spare = 0

    def after(self, number: int) -> int:
        """When the page that is due at a number is due again; NEVER of NEVER."""
        return int(self._link[number & self._mask]) if number < NEVER else int(NEVER)

    # -- what comes, what goes ------------------------------------------------------------------

    def between(self, start: int, stop: int) -> tuple[Int32, Int32]:
        """Numbers of [start, stop) that are still to be read, and their pages."""
        numbers = np.arange(max(start, self.base), min(stop, self.end), dtype=np.int32)
        pages = self._page[numbers & self._mask]
        left = pages >= 0
        return numbers[left], pages[left]

    def lacking(self, start: int, stop: int) -> tuple[Int32, Int32]:
        """Of those the ones that are not here."""
        numbers, pages = self.between(start, stop)
        absent = ~self.here[pages]
        return numbers[absent], pages[absent]

    def due_here(self, start: int, stop: int) -> tuple[Int32, Int32]:
        """Of those the ones whose page is here and read nowhere before that."""
        numbers, pages = self.between(start, stop)
        held = self.here[pages] & (self.due[pages] == numbers)
        return numbers[held], pages[held]
