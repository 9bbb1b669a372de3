"""Pages in a cache of a fixed size, by the rule that chooses what goes: the peers' eviction.

Pages of all objects are counted through; a page's state is one byte. A store is told of reads and
of arrivals, never of the future; the one that knows it is `future_store`.

    ABSENT --claim--> COMING --admit--> HERE --victim--> ABSENT
                         +-----bypassed---------------------^

AHEAD marks a page that was fetched before it was asked for, until it is read: those that are
never read are the waste of a read-ahead.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hubspoke.sim.prediction.belady import Ints
from hubspoke.sim.prediction.compiled import compiled

States = npt.NDArray[np.uint8]
Pages = npt.NDArray[np.int32]

ABSENT, COMING, HERE = 0, 1, 2
PLACE, AHEAD = 3, 4  # bits of a state
PAGES_MAX = 2**31 - 2


class PageStore(Protocol):
    """states: by page. A store makes COMING pages HERE or ABSENT, HERE ones ABSENT, no others."""

    states: States

    def touch(self, first: int, end: int) -> None:
        """Pages first .. end - 1 are read now, HERE or not."""
        ...

    def admit(self, first: int, end: int) -> int:
        """They have arrived; returns how many were stored."""
        ...


@compiled
def claim(states: States, first: int, end: int, mark: int, runs: Ints) -> int:
    """Make ABSENT pages COMING. Returns how many runs of them there are; run i is runs[2 * i] to
    runs[2 * i + 1] - 1. mark: AHEAD, or 0 for what is asked for."""
    found, page = 0, first
    while page < end:
        if states[page] & PLACE != ABSENT:
            page += 1
            continue
        runs[2 * found] = page
        while page < end and states[page] & PLACE == ABSENT:
            states[page] = COMING | mark
            page += 1
        runs[2 * found + 1] = page
        found += 1
    return found


@compiled
def use(states: States, first: int, end: int) -> int:
    """How many of the pages were fetched ahead and are read now for the first time."""
    used = 0
    for page in range(first, end):
        if states[page] & AHEAD:
            states[page] &= PLACE
            used += 1
    return used


class NoStore:
    """No cache beyond the read itself."""

    def __init__(self, pages: int) -> None:
        self.states = np.zeros(pages, np.uint8)

    def touch(self, first: int, end: int) -> None:
        """Nothing is here."""

    def admit(self, first: int, end: int) -> int:
        self.states[first:end] = ABSENT
        return 0


class PinnedStore:
    """What came first stays for ever; the bound of a data set that is read once an epoch."""

    def __init__(self, capacity: int, pages: int) -> None:
        self.states = np.zeros(pages, np.uint8)
        self._room = capacity

    def touch(self, first: int, end: int) -> None:
        """Reads change nothing."""

    def admit(self, first: int, end: int) -> int:
        stored = _pin(self.states, first, end, self._room)
        self._room -= stored
        return stored


@compiled
def _pin(states: States, first: int, end: int, room: int) -> int:
    stored = 0
    for page in range(first, end):
        if states[page] & PLACE == COMING:
            keep = stored < room
            states[page] = states[page] & AHEAD | HERE if keep else ABSENT
            stored += keep
    return stored


class LruStore:
    """Least recently used goes. A ring of pages: after[pages] is the oldest."""

    def __init__(self, capacity: int, pages: int) -> None:
        self.states = np.zeros(pages, np.uint8)
        self._before, self._after = np.full((2, pages + 1), pages, np.int32)
        self._room = np.array([capacity], np.int64)

    def touch(self, first: int, end: int) -> None:
        _lru_touch(self.states, self._before, self._after, first, end)

    def admit(self, first: int, end: int) -> int:
        return _lru_admit(self.states, self._before, self._after, self._room, first, end)


@compiled
def _unlink(before: Pages, after: Pages, page: int) -> None:
    after[before[page]] = after[page]
    before[after[page]] = before[page]


@compiled
def _link_youngest(before: Pages, after: Pages, page: int) -> None:
    end = len(before) - 1
    before[page], after[page] = before[end], end
    after[before[end]] = page
    before[end] = page


@compiled
def _lru_touch(states: States, before: Pages, after: Pages, first: int, end: int) -> None:
    for page in range(first, end):
        if states[page] & PLACE == HERE:
            _unlink(before, after, page)
            _link_youngest(before, after, page)


@compiled
def _lru_admit(
    states: States, before: Pages, after: Pages, room: Ints, first: int, end: int
) -> int:
    stored = 0
    for page in range(first, end):
        if states[page] & PLACE != COMING:
            continue
        states[page] = states[page] & AHEAD | HERE
        _link_youngest(before, after, page)
        stored += 1
        room[0] -= 1
        if room[0] < 0:
            victim = after[len(after) - 1]
            _unlink(before, after, victim)
            states[victim] = ABSENT
            room[0] += 1
    return stored


SMALL, SMALL_END, MAIN, MAIN_END, GONE = range(5)  # of S3FifoStore's numbers


class S3FifoStore:
    """A small queue (a tenth), a main one with turns for what was read again, and ghosts of what
    left the small one. A page is a ghost while fewer pages than the main queue has have become
    one after it. Source: Yang et al., SOSP 2023, algorithm 1."""

    def __init__(self, capacity: int, pages: int) -> None:
        self.states = np.zeros(pages, np.uint8)
        self._small = np.zeros(capacity + 1, np.int32)  # rings
        self._main = np.zeros(capacity + 1, np.int32)
        self._reads = np.zeros(pages, np.uint8)  # since the page came, at most 3
        self._ghosts = np.zeros(pages, np.int32)  # the number of GONE when it became one
        self._numbers = np.zeros(5, np.int64)

    def touch(self, first: int, end: int) -> None:
        _s3_touch(self.states, self._reads, first, end)

    def admit(self, first: int, end: int) -> int:
        return _s3_admit(
            self.states,
            self._reads,
            self._ghosts,
            self._small,
            self._main,
            self._numbers,
            first,
            end,
        )


@compiled
def _s3_touch(states: States, reads: States, first: int, end: int) -> None:
    for page in range(first, end):
        if states[page] & PLACE == HERE and reads[page] < 3:
            reads[page] += 1


@compiled
def _s3_admit(
    states: States,
    reads: States,
    ghosts: Pages,
    small: Pages,
    main: Pages,
    numbers: Ints,
    first: int,
    end: int,
) -> int:
    stored = 0
    room = len(small) - 1
    if room == 0:
        states[first:end] = ABSENT
        return 0
    for page in range(first, end):
        if states[page] & PLACE != COMING:
            continue
        in_small = numbers[SMALL_END] - numbers[SMALL]
        in_main = numbers[MAIN_END] - numbers[MAIN]
        if in_small + in_main >= room:
            _s3_evict(states, reads, ghosts, small, main, numbers)
        states[page] = states[page] & AHEAD | HERE
        reads[page] = 0
        ghost = ghosts[page] > 0 and numbers[GONE] - ghosts[page] < room - room // 10
        ghosts[page] = 0
        if ghost:
            main[numbers[MAIN_END] % len(main)] = page
            numbers[MAIN_END] += 1
        else:
            small[numbers[SMALL_END] % len(small)] = page
            numbers[SMALL_END] += 1
        stored += 1
    return stored


@compiled
def _s3_evict(
    states: States, reads: States, ghosts: Pages, small: Pages, main: Pages, numbers: Ints
) -> None:
    """Exactly one page goes."""
    room = len(small) - 1
    while True:
        in_small = numbers[SMALL_END] - numbers[SMALL]
        from_small = in_small > 0 and in_small * 10 >= room
        if from_small or numbers[MAIN_END] == numbers[MAIN]:
            page = small[numbers[SMALL] % len(small)]
            numbers[SMALL] += 1
            if reads[page] <= 1:
                numbers[GONE] += 1
                ghosts[page] = numbers[GONE]
                states[page] = ABSENT
                return
            reads[page] = 0
        else:
            page = main[numbers[MAIN] % len(main)]
            numbers[MAIN] += 1
            if reads[page] == 0:
                states[page] = ABSENT
                return
            reads[page] -= 1
        main[numbers[MAIN_END] % len(main)] = page
        numbers[MAIN_END] += 1
