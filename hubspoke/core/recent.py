"""The last reads of a front, and what is known of them without looking at each again.

A stream is asked for its density, its mean read and its direction with every batch of accesses;
looking at 64 reads for each of these was a third of what random reads of many files cost. So sums
are kept as reads come and go. The lowest start is the stream's own business, since it decides
where its front begins; the highest end is seldom asked for.
"""

RECENT = 64
DESCENDING_MIN = 5  # reads each below the one before
# Of a window read in random order 24 reads have 16 of 23 steps down once in a thousand times.
MOSTLY_DESCENDING_MIN = 24
MOSTLY = 0.7


class Recent:
    """At most RECENT reads. `bytes`: of all of them."""

    __slots__ = ("_down", "_ends", "_starts", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._down = 0  # steps from one read to the next that go down
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> int:
        """One more read. Returns the start of the one that leaves, -1 if none does."""
        starts, ends, leaves = self._starts, self._ends, -1
        if starts:
            if len(starts) == RECENT:
                leaves = starts.pop(0)
                self._down -= starts[0] < leaves
                self.bytes -= ends.pop(0) - leaves
            self._down += start < starts[-1]
        self.bytes += end - start
        starts.append(start)
        ends.append(end)
        return leaves

    @property
    def lowest(self) -> int:
        """Start of the lowest read, of one at least: the first if none goes down."""
        return min(self._starts) if self._down else self._starts[0]

    @property
    def highest(self) -> int:
        """End of the highest read, of one at least."""
        return max(self._ends)

    @property
    def share_down(self) -> float:
        """Share of the steps from one read to the next that go down."""
        return self._down / max(1, len(self._starts) - 1)

    @property
    def descends(self) -> bool:
        """Whether reads go down: each after the other, or most of many."""
        n = len(self._starts)
        if n < DESCENDING_MIN:
            return False
        return self._down == n - 1 or (n >= MOSTLY_DESCENDING_MIN and self.share_down >= MOSTLY)
