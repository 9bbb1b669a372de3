"""What Linux and Leap would fetch ahead of a reader, in pages of the object that is read."""

from typing import Protocol

import numpy as np

from hubspoke.sim.prediction.belady import Ints
from hubspoke.sim.prediction.compiled import compiled

Span = tuple[int, int]  # first page, past the last


class Ahead(Protocol):
    """A rule that sees each read and says what to fetch besides."""

    def after(
        self, client: int, obj: int, first: int, end: int, used: int, missed: bool
    ) -> list[Span]:
        """Pages first .. end - 1 are read. used: pages of them that had been fetched ahead and
        are read for the first time. missed: something of them was neither here nor under way."""
        ...


class NoAhead:
    """Fetches what is asked for."""

    def after(
        self, client: int, obj: int, first: int, end: int, used: int, missed: bool
    ) -> list[Span]:
        return []


class ReadAhead:
    """Linux's on-demand read-ahead (mm/readahead.c), for each open file of each worker.

    A read at the start of a file, or where the last one ended, opens a window of a few times its
    size; a read that reaches the mark in the window opens the next one behind it, of twice the
    size (four times while small). Anything else is a random read and fetches nothing more.
    """

    def __init__(self, pages_max: int) -> None:
        self._max = max(1, pages_max)
        self._files: dict[tuple[int, int], list[int]] = {}  # last end, window's start, size, mark

    def after(
        self, client: int, obj: int, first: int, end: int, used: int, missed: bool
    ) -> list[Span]:
        file = self._files.get((client, obj))
        if file is None:
            file = self._files[client, obj] = [0, 0, 0, -1]
        came_from, start, size, mark = file
        file[0] = end
        if first <= mark < end:
            start, size = start + size, self._next(size)
            mark = start
        elif missed and (first == 0 or first in (came_from, came_from - 1)):
            wanted = end - first
            start, size = first, self._initial(wanted)
            mark = start + wanted if size > wanted else start + size
        else:
            return []
        file[1:] = start, size, mark
        return [(start, start + size)]

    def _initial(self, wanted: int) -> int:
        size = 1 << (wanted - 1).bit_length()
        if size <= self._max // 32:
            return size * 4
        return size * 2 if size <= self._max // 4 else self._max

    def _next(self, size: int) -> int:
        return min(size * (4 if size < self._max // 16 else 2), self._max)


HISTORY = (
    32  # strides; the majority is looked for in the last half, then in all: the paper's choice
)
RECENT = HISTORY // 2


class Leap:
    """Leap: when a read misses, fetch along the stride that most of the last reads had.

    The window is a power of two that grows with the hits since the last miss, and shrinks by
    half at most. A unit is what the reader reads at a time, where the paper has pages; its limit
    of 8 pages is for microseconds of latency, here it is the same bytes as read-ahead has.
    Histories are by worker, as the paper's are by process.
    """

    def __init__(self, pages_max: int) -> None:
        self._max = max(1, pages_max)
        self._readers: dict[int, _Reader] = {}

    def after(
        self, client: int, obj: int, first: int, end: int, used: int, missed: bool
    ) -> list[Span]:
        reader = self._readers.get(client)
        if reader is None:
            reader = self._readers[client] = _Reader()
        stride = reader.stride(obj, first)
        reader.hits += used > 0
        if not missed:
            return []
        trend = majority(reader.strides, reader.count)
        unit = end - first
        window = min(reader.window(trend != 0 and stride == trend), max(1, self._max // unit))
        reader.last_window = window
        if not window:
            return []
        step = trend or stride
        if step == unit:
            return [(end, end + window * unit)]
        return [(first + i * step, end + i * step) for i in range(1, window + 1)] if step else []


class _Reader:
    def __init__(self) -> None:
        self.strides = np.zeros(HISTORY, np.int64)
        self.count = self.hits = self.last_window = 0
        self._at: tuple[int, int] | None = None

    def stride(self, obj: int, first: int) -> int:
        """From the last read to this one; 0 from one object to another."""
        at, self._at = self._at, (obj, first)
        stride = first - at[1] if at is not None and at[0] == obj else 0
        self.strides[self.count % HISTORY] = stride
        self.count += 1
        return stride

    def window(self, follows: bool) -> int:
        """Units to fetch. follows: this read keeps to the trend."""
        hits, self.hits = self.hits, 0
        size = 1 << hits.bit_length() if hits else int(follows)
        return max(size, self.last_window // 2)


@compiled
def majority(strides: Ints, count: int) -> int:
    """The stride that more than half of the last 16 reads had, or of the last 32; 0 if none.
    Boyer and Moore's vote: one pass for the candidate, one to count it."""
    size = len(strides)
    span = min(RECENT, count)
    while span:
        candidate = votes = 0
        for i in range(count - span, count):
            stride = strides[i % size]
            if votes == 0:
                candidate = stride
            votes += 1 if stride == candidate else -1
        found = 0
        for i in range(count - span, count):
            found += strides[i % size] == candidate
        if 2 * found > span and candidate != 0:
            return candidate
        if span >= min(size, count):
            break
        span = min(2 * span, size, count)
    return 0
