"""How what is wanted is cut into units, and what one lane is dealt of them in one turn."""

from hubspoke.core.fetches import FetchedRange
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.pacing import Lane
from hubspoke.core.page_codes import PAGES_PER_BLOCK

HEAD_BYTES = 1_500  # of an answer, in front of its first frame
ALIGNED_PAGES_MIN = 16  # larger units are powers of two, so that frames are few and whole
# A unit of a long want, on a lane whose window carries it: requests cost as much each.
UNIT_BYTES_MAX = 2 << 20


class Hand:
    """What one lane is dealt in one turn."""

    def __init__(self, lane: Lane, room: int) -> None:
        self.lane = lane
        self.room = room
        self.bytes = 0
        self.ranges: list[FetchedRange] = []

    def unit_pages(self) -> int:
        """The next unit: what a slow start carries in the round trip after what is under way.

        A unit is one frame, which is nothing until it is whole: 32 KiB on a new connection, of
        which the first round trip carries 14.6 kB, came a round trip later than 12 KiB.
        """
        under_way = self.lane.in_flight + self.bytes
        carried = min(int(self.lane.window) + under_way - HEAD_BYTES, UNIT_BYTES_MAX)
        pages = max(1, carried // PAGE_BYTES)
        if pages >= ALIGNED_PAGES_MIN:
            pages = 1 << pages.bit_length() - 1
        return max(1, min(pages, (self.room - self.bytes) // PAGE_BYTES))

    def add(self, unit: FetchedRange) -> None:
        self.bytes += unit.length
        # A range stays inside one block, so that dropping a block drops whole frames.
        for part in unit.by_block():
            before = self.ranges[-1] if self.ranges else None
            if before is not None and part.first % PAGES_PER_BLOCK and before.goes_on_in(part):
                before.last = part.last
            else:
                self.ranges.append(part)


def head(wanted: FetchedRange, last: int, pages: int) -> FetchedRange:
    """Its first pages, at most so many, up to `last`; more than a block only as whole blocks."""
    first = wanted.first
    blocks = max(1, pages // PAGES_PER_BLOCK)
    end = min(last, first + pages, (first // PAGES_PER_BLOCK + blocks) * PAGES_PER_BLOCK)
    return FetchedRange(wanted.obj, first, end, wanted.stored)
