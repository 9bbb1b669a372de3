"""Which parts of a file with a known layout are read, and which of them come next.

A file is read group by group (row groups of Parquet), the same names (columns) of each. So the
names read of the last groups are those of the coming ones, and the file is for its readers one row
of bytes: the wanted parts of one group behind those of the one before. A file with one group
(zip, safetensors) is read name after name, all of them unless many were left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hubspoke.core.layouts.layout import Layout
from hubspoke.core.streams import RateMeter

GROUPS_REMEMBERED = 4
NEAR_GROUPS = 8  # a read further from where a reading is belongs to another one
DENSE_MIN = 0.75  # of the groups, or names of the only one, between the first and the last read
GUESS_MIN = 3  # names at equal distances before more are expected

Places = npt.NDArray[np.int64]


class Row:
    """The wanted parts of a file one after the other; positions are bytes of this row."""

    def __init__(self, layout: Layout, wanted: tuple[int, ...]) -> None:
        self.wanted = wanted
        names = np.array(wanted, np.int64)
        self._rank = np.full(len(layout.names), -1, np.int64)
        self._rank[names] = np.arange(len(names))
        self._names = len(layout.names)
        self._offsets = layout.offsets[:, names].ravel()
        self._lengths = layout.lengths[:, names].ravel()
        self._ends = self._lengths.cumsum()

    @property
    def bytes(self) -> int:
        return int(self._ends[-1])

    def after(self, part: int, end: int) -> int:
        """The position behind a read of a part (group * names + name) up to byte `end` of the
        file; 0 if the part is not wanted."""
        group, name = divmod(part, self._names)
        rank = int(self._rank[name])
        if rank < 0:
            return 0
        i = group * len(self.wanted) + rank
        into = min(max(0, end - int(self._offsets[i])), int(self._lengths[i]))
        return int(self._ends[i]) - int(self._lengths[i]) + into

    def start_of(self, group: int) -> int:
        """The position of a group's first wanted part."""
        i = group * len(self.wanted)
        return int(self._ends[i - 1]) if i else 0

    def pieces(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """(position, offset in the file, length) of what lies at [start, end), adjacent parts as
        one."""
        end = min(end, self.bytes)
        first = int(np.searchsorted(self._ends, start, "right"))
        last = int(np.searchsorted(self._ends, end, "left")) + 1
        found: list[tuple[int, int, int]] = []
        if end <= start:
            return found
        ends = self._ends[first:last].tolist()
        lengths = self._lengths[first:last].tolist()
        for offset, length, stop in zip(
            self._offsets[first:last].tolist(), lengths, ends, strict=True
        ):
            begin = stop - length
            a, b = max(begin, start), min(stop, end)
            if b <= a:
                continue
            place, n = offset + a - begin, b - a
            if found and found[-1][1] + found[-1][2] == place:
                position, place, before = found.pop()
                found.append((position, place, before + n))
            else:
                found.append((a, place, n))
        return found


@dataclass(slots=True)
class Burst:
    """The most that was read within the time that it takes to fetch. A worker reads a batch at
    the speed of its disk and then waits for its turn: over a second that is little a second."""

    since: float = float("-inf")
    bytes: int = 0
    peak: float = 0.0

    def add(self, length: int, now: float, window_s: float) -> None:
        if now - self.since > window_s:
            self.since, self.bytes, self.peak = now, 0, 0.95 * self.peak
        self.bytes += length
        self.peak = max(self.peak, self.bytes)


@dataclass(slots=True, eq=False)
class Reading:
    """One pass of readers over a file; `at` and `planned` are positions of its row."""

    layout: Layout
    rate: RateMeter
    began: float
    row: Row | None = None
    at: int = 0
    planned: int = 0
    head: int = 0  # of the row, brought before the file was opened
    burst: "Burst" = field(default_factory=lambda: Burst())
    again_at: float = float("-inf")
    groups_read: int = 0
    first: int = -1
    group: int = -1  # the furthest
    last_at: float = float("-inf")
    recent: dict[int, set[int]] = field(default_factory=dict)  # group -> names

    def near(self, group: int) -> bool:
        """Whether a read of the group may belong to this pass."""
        if self.group < 0:
            return group < NEAR_GROUPS
        return abs(group - self.group) <= NEAR_GROUPS or group in self.recent

    @property
    def columns(self) -> set[int]:
        """Names read in the last groups."""
        return set().union(*self.recent.values())

    @property
    def settled(self) -> bool:
        """A whole group was read, so that all names are known."""
        return self.groups_read > 1

    @property
    def dense(self) -> bool:
        """Read without leaving out much."""
        if self.layout.groups > 1:
            span = self.group - self.first + 1
            return self.group < 0 or self.groups_read >= DENSE_MIN * span
        names = self.columns
        return not names or len(names) >= DENSE_MIN * (max(names) - min(names) + 1)

    def note(self, parts: Iterable[int]) -> bool:
        """Parts (group * names + name) were read; returns whether a name or group is new."""
        new = False
        for part in parts:
            group, name = divmod(part, len(self.layout.names))
            names = self.recent.get(group)
            if names is None:
                names = self._enter(group)
                new = True
            if name not in names:
                names.add(name)
                new = True
        return new

    def _enter(self, group: int) -> set[int]:
        if self.first < 0 or group < self.first:
            self.first = group
        self.group = max(self.group, group)
        self.groups_read += 1
        names = self.recent[group] = set()
        if len(self.recent) > GROUPS_REMEMBERED:
            del self.recent[next(iter(self.recent))]
        return names

    def want(self, learned: frozenset[str] | None) -> None:
        """Set `row` to what will be read, by what was read; learned: names read of other files of
        the set."""
        layout, names = self.layout, self.columns
        if layout.groups == 1 and self.dense:
            names = set(range(len(layout.names)))
        elif not self.settled:
            if learned:
                names |= {i for i, name in enumerate(layout.names) if name in learned}
            else:
                names |= guess(names, len(layout.names))
        wanted = tuple(sorted(names))
        if self.row is not None and wanted == self.row.wanted:
            return
        self.row = Row(layout, wanted) if wanted else None
        self.at = self.planned = 0
        if self.row is not None and self.group > 0:
            self.at = self.planned = self.row.start_of(self.group)

    def move(self, part: int, end: int) -> None:
        """A read reached byte `end` of the file, in this part."""
        if self.row is None:
            return
        at = self.row.after(part, end)
        if self.layout.groups > 1:
            self.at = max(self.at, at)
        elif at:
            self.at = at  # names in any order: whatever is read now is read to its end
            self.planned = self.planned if 0 <= self.planned - at <= 1 << 28 else at
        self.planned = max(self.planned, self.at)


def guess(names: set[int], count: int) -> set[int]:
    """Names at equal distances go on, for as many as there were: what is guessed in vain is never
    more than what was read."""
    seen = sorted(names)
    if len(seen) < GUESS_MIN:
        return set()
    step = seen[1] - seen[0]
    if any(b - a != step for a, b in pairwise(seen)):
        return set()
    return set(range(seen[-1] + step, min(count, seen[-1] + step * (len(seen) + 1)), step))
