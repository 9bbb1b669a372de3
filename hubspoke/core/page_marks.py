"""Which pages below a moving frontier were read: a ring of marks, no larger than it has to be.

Marks are bytes and not bits: they are set, searched and counted in C. A ring begins small and
doubles while its stream's front is wide, so that four thousand streams at once are some MiB and
not 64 (bench/prediction_cost.py).
"""

from hubspoke.core.ids import PAGE_BYTES

PAGES_MIN = 512  # 2 MiB
PAGES_MAX = 16_384  # 64 MiB: the widest front that is still told from random reads


class PageMarks:
    """Marks of the last pages below `top`; what is older is forgotten."""

    __slots__ = ("_lost", "_most", "_ring", "bytes_known", "top")

    def __init__(self, top: int, pages: int) -> None:
        """top: first page above all marks. pages: of the object."""
        self._most = max(1, min(PAGES_MAX, pages))
        self._ring = bytearray(min(PAGES_MIN, self._most))
        self.bytes_known = len(self._ring) * PAGE_BYTES
        self.top = top
        self._lost = 0  # pages below this one were forgotten before the ring grew

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def floor(self) -> int:
        """First page the ring still knows."""
        return max(self._lost, self.top - len(self._ring))

    @property
    def full_size(self) -> bool:
        return len(self._ring) >= self._most

    def mark(self, first: int, last: int) -> None:
        """The pages [first, last) were read."""
        ring, n = self._ring, len(self._ring)
        top = self.top
        if last > top:
            self.top = last
            if first > top:
                # What comes into the ring anew must be cleared of the marks of what falls out.
                for a, b in self._slices(top, first):
                    ring[a:b] = bytes(b - a)
            floor = last - n
        else:
            floor = top - n
        if first < floor:
            first = floor
        if first >= last:
            return
        a, b = first % n, last % n
        if last - first == 1:
            ring[a] = 1
        elif a < b:
            ring[a:b] = b"\1" * (b - a)
        else:
            ring[a:] = b"\1" * (n - a)
            ring[:b] = b"\1" * b

    def grow(self) -> None:
        """Know twice as many pages from now on."""
        self._lost = self.floor
        old = [(page, bytes(self._ring[a:b])) for page, a, b in self._known()]
        self._ring = bytearray(min(2 * len(self._ring), self._most))
        self.bytes_known = len(self._ring) * PAGE_BYTES
        for page, marks in old:
            done = 0
            for a, b in self._slices(page, page + len(marks)):
                self._ring[a:b] = marks[done : done + b - a]
                done += b - a

    def _known(self) -> list[tuple[int, int, int]]:
        """(first page, index range) of the parts of the ring in the order of pages."""
        found, page = [], self.floor
        for a, b in self._slices(page, self.top):
            found.append((page, a, b))
            page += b - a
        return found

    def lower(self, top: int) -> None:
        """Forget what is above a page that is lower than before."""
        n = len(self._ring)
        for a, b in self._slices(max(top, self.top - n), self.top):
            self._ring[a:b] = bytes(b - a)
        self.top = top

    def share(self, first: int, last: int) -> float:
        """Share of the pages [first, last) that were read, as far back as the ring goes."""
        first = max(first, self.floor)
        if first >= last:
            return 0.0
        marked = sum(self._ring.count(1, a, b) for a, b in self._slices(first, min(last, self.top)))
        return marked / (last - first)

    def all(self, first: int, last: int) -> bool:
        """Whether all of the pages are known to have been read."""
        ring, n, top = self._ring, len(self._ring), self.top
        if last > top or first < top - n or first < self._lost:
            return False
        if first >= last:
            return True
        a, b = first % n, (last - 1) % n + 1
        if a < b:
            return ring.find(0, a, b) < 0
        return ring.find(0, a) < 0 and ring.find(0, 0, b) < 0

    def first_unread(self, first: int) -> int:
        """The first page from `first` on that nobody has read, at most `top`."""
        at = max(first, self.floor)
        for a, b in self._slices(at, self.top):
            hole = self._ring.find(0, a, b)
            if hole >= 0:
                return at + hole - a
            at += b - a
        return max(at, first)

    def _slices(self, first: int, last: int) -> list[tuple[int, int]]:
        """Index ranges of pages [first, last) in the ring, in the order of pages."""
        n = len(self._ring)
        first = max(first, last - n)
        if last <= first:
            return []
        a, b = first % n, (last - 1) % n + 1
        return [(a, b)] if a < b else [(a, n), (0, b)]
