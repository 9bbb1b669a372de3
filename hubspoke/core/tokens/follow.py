"""Follows a course through a token file: what comes, and whether reads still go that way.

A course is believed when CONFIRM_READS reads have come where it has them, and dropped as soon as a
quarter of the last reads went elsewhere. Until it is believed nothing is fetched and nothing goes
for it.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.generators.columns import Burst
from hubspoke.core.ids import PAGE_BYTES, ReadState, page_span
from hubspoke.core.inference.windows import Stream
from hubspoke.core.page_codes import IS_ABSENT
from hubspoke.core.streams import Access, RateMeter
from hubspoke.core.tokens.future import Course, Future
from hubspoke.core.tokens.victims import Victims

CONFIRM_READS = 64
MISFITS = 16  # of so many reads, at most
# A twentieth of so many reads elsewhere is a rank that has left its place in its stream; one that
# is so far ahead of the others has drawn what they have not.
DRIFT_READS, DRIFT_PART, APART_PART = 256, 20, 32
# How far reads may be from where the course has them, in pages, and as a part of the object: reads
# at random would fit with this probability.
SLACK_PAGES, SLACK_PART = 16_384, 16
BEHIND_PAGES = 1_024
EXTEND_STEPS = 4  # of the future in one call: 2 ms
PAGES_AT_ONCE = 4_096  # proposed
SHARE_AHEAD = 8  # an eighth of the cache is ahead of the reads at most
BURST_MARGIN = 1.5  # the next one has more pages: what is read is known, so it costs nothing
MARK_EVERY = 65_536  # numbers; a mark takes 2.5 KB a rank
LOOKED_AHEAD = 65_536  # to say how far it is here
LOOK_AGAIN_S = 0.1


class Follow:
    """family, why: for people, as of `KnownOrder`."""

    def __init__(
        self, obj: CachedObject, course: Course, cache: Cache, family: str, why: str, now: float
    ) -> None:
        self.obj = obj
        self.family, self.why = family, why
        self.future = Future(course, len(obj.pages), max(1, cache.capacity // PAGE_BYTES))
        self.confirmed = False
        self.lost = False
        self.victims = Victims(obj, self.future, cache)
        self._marks: deque[tuple[int, tuple[Stream, ...]]] = deque([(0, course.mark())])
        self._course = course
        self._cache = cache
        self._rate = RateMeter(now)
        # Ranks draw a batch at once and then compute: over a second that may be little.
        self._burst = Burst()
        self._ahead_s = 0.0
        self._judged = self._misfits = 0
        self._reads = self._elsewhere = 0
        self._slack = min(SLACK_PAGES, len(obj.pages) // SLACK_PART)
        self._proposed = 0
        self._missed = False
        self._looked_at = now
        self.future.extend()

    @property
    def says(self) -> str:
        """What is believed and why, for people."""
        if self.confirmed:
            return f"reads follow the order of {self.family}: {self.why}"
        return f"the order of {self.family} is to be confirmed: {self.why}"

    def read(self, a: Access) -> None:
        """A read of the object."""
        first, last = page_span(a.offset, a.length)
        fits = self.future.read(first, last, self._ahead())
        self._rate.add(last - first, a.at)
        self._burst.add(last - first, a.at, self._ahead_s)
        self._missed |= fits and a.state is ReadState.MISS
        self._judged += 1
        self._misfits += not fits
        self._reads += 1
        self._elsewhere += not fits

    def replay(self, reads: Sequence[tuple[int, int]]) -> None:
        """Reads (offset, length) by which the course was found."""
        for offset, length in reads:
            self.future.read(*page_span(offset, length), self._ahead())

    def _ahead(self) -> int:
        """How far before the front a read may be, in pages: a read of something else that lies
        farther would take the front with it, and leave behind what is read next."""
        return int(min(self._slack, BEHIND_PAGES + self.future.lag))

    def judge(self) -> bool:
        """After some reads. Returns whether the course is followed now."""
        self.future.advance(int(2 * self.future.lag) + BEHIND_PAGES)
        if self._misfits >= MISFITS and self._misfits * 4 >= self._judged:
            self._end()
        elif self._judged >= CONFIRM_READS:
            if not self.confirmed:
                self.confirmed = True
                self._cache.by_items(self.obj.data_set, self.victims)
            self._judged, self._misfits = self._judged // 2, self._misfits // 2
        return self.confirmed

    def drifts(self) -> bool:
        """Whether some of the reads come from elsewhere, or ranks are far apart, for so long that
        it is asked now."""
        if self._reads < DRIFT_READS:
            return False
        apart = self._cache.capacity // PAGE_BYTES // APART_PART
        found = self._elsewhere * DRIFT_PART >= self._reads
        found |= self.future.lag > max(apart, BEHIND_PAGES)
        self._reads = self._elsewhere = 0
        return found

    def _end(self) -> None:
        """Reads went elsewhere, or nobody follows any more."""
        self.lost = True
        self.confirmed = False
        self.release()

    def release(self) -> None:
        """The object's blocks go by themselves again."""
        found = self.obj.data_set
        if found.items is self.victims:
            self._cache.by_blocks(found)

    def extend(self) -> bool:
        """Know more of what comes; returns whether there is still more to know."""
        more = self.victims.look_around()
        for _ in range(EXTEND_STEPS):
            if not self.future.extend():
                return more
            if self.future.end - self._marks[-1][0] >= MARK_EVERY:
                self._marks.append((self.future.end, self._course.mark()))
        while len(self._marks) > 1 and self._marks[1][0] <= self.future.base:
            self._marks.popleft()
        return True

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Those of the course, not far before what is read now."""
        return self._marks[0][1]

    def propose(self, now: float, ahead_s: float, *, given_up: bool) -> list[Candidate]:
        """What is read within `ahead_s`. given_up: some that was proposed found no room."""
        if not self.confirmed:
            return []
        future, rate = self.future, self._rate.per_second(now)
        if (given_up or self._missed) and now - self._looked_at >= LOOK_AGAIN_S:
            self._look_again(now)
        most = min(self._cache.capacity // PAGE_BYTES // SHARE_AHEAD, PAGES_AT_ONCE)
        self._ahead_s = ahead_s
        soon = max(rate * ahead_s, BURST_MARGIN * self._burst.peak)
        stop = future.front + int(future.lag + soon) + 1
        stop = min(stop, max(self._proposed, future.base) + most)
        numbers, pages = future.lacking(self._proposed, stop)
        self._proposed = max(self._proposed, min(stop, future.end))
        if not len(pages):
            return []
        future.here[pages] = True
        breaks = np.flatnonzero(np.diff(pages) != 1) + 1
        starts = np.concatenate((np.zeros(1, np.int64), breaks))
        ends = np.concatenate((breaks, np.array([len(pages)], np.int64)))
        found = []
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True):
            offset = int(pages[a]) * PAGE_BYTES
            length = min((b - a) * PAGE_BYTES, self.obj.size - offset)
            use_in_s = max(0, int(numbers[a]) - future.front) / max(rate, 1.0)
            name = self.obj.name
            found.append(
                Candidate("known_order", 0, name, None, offset, length, use_in_s, future.front)
            )
        return found

    def _look_again(self, now: float) -> None:
        """Some of what was proposed is not there: propose it once more."""
        self._looked_at, self._missed = now, False
        _, pages = self.future.between(self.future.base, self._proposed)
        for page in pages.tolist():
            if self.obj.pages.any(page, page + 1, IS_ABSENT):
                self.future.gone(page)
        self._proposed = self.future.base

    def ahead_seconds(self, now: float) -> float | None:
        """For how long what is here of the course lasts; None without a rate."""
        rate = self._rate.per_second(now)
        if not rate:
            return None
        end = min(self.future.front + LOOKED_AHEAD, self.future.end)
        numbers, _ = self.future.lacking(self.future.front, end)
        end = int(numbers[0]) if len(numbers) else end
        return (end - self.future.front) / rate
