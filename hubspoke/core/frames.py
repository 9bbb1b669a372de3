"""Frames found in the index after a start, 13 bytes each.

They are there to be checked on first touch. Frames of one object do not overlap and are sorted;
all but the object's last one are whole pages, so their byte length follows from its size.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hubspoke.core.ids import PAGE_BYTES, page_span

RECORD = struct.Struct("<IBQ")  # first page, pages, digest
PAGES_MAX = 255


@dataclass(slots=True, frozen=True)
class StoredFrame:
    """One frame; its digest is checked on first touch."""

    offset: int
    length: int
    digest: int


class Frames:
    """The frames of one object, packed."""

    __slots__ = ("packed", "size")

    def __init__(self, size: int, packed: bytes = b"") -> None:
        """size: the object's. packed: RECORDs sorted by page, without overlap."""
        assert len(packed) % RECORD.size == 0, len(packed)
        self.size = size
        self.packed = packed

    @classmethod
    def of(cls, size: int, frames: Iterable[StoredFrame]) -> "Frames":
        """Later frames replace those that they overlap: their pages are what was written last."""
        latest: dict[int, tuple[int, int, int]] = {}  # first page -> (when, pages, digest)
        for when, f in enumerate(frames):
            first, last = page_span(f.offset, f.length)
            latest[first] = when, last - first, f.digest
        kept: list[tuple[int, int, int, int]] = []
        for page in sorted(latest):
            when, pages, digest = latest[page]
            while kept and kept[-1][0] + kept[-1][2] > page and kept[-1][1] < when:
                kept.pop()
            if not kept or kept[-1][0] + kept[-1][2] <= page:
                kept.append((page, when, pages, digest))
        return cls(size, b"".join(RECORD.pack(p, n, digest) for p, _, n, digest in kept))

    def __len__(self) -> int:
        return len(self.packed) // RECORD.size

    def __iter__(self) -> Iterator[StoredFrame]:
        return (self._frame(*r) for r in RECORD.iter_unpack(self.packed))

    def _frame(self, page: int, pages: int, digest: int) -> StoredFrame:
        offset = page * PAGE_BYTES
        return StoredFrame(offset, min(pages * PAGE_BYTES, self.size - offset), digest)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Pages [first, last) of each frame, in order."""
        return ((page, page + pages) for page, pages, _ in RECORD.iter_unpack(self.packed))

    def covering(self, first: int, last: int) -> list[StoredFrame]:
        """Frames that reach into the pages [first, last)."""
        at = bisect_right(range(len(self)), first, key=self._page) - 1
        found = []
        for i in range(max(at, 0), len(self)):
            page, pages, digest = RECORD.unpack_from(self.packed, i * RECORD.size)
            if page >= last:
                break
            if page + pages > first:
                found.append(self._frame(page, pages, digest))
        return found

    def _page(self, i: int) -> int:
        return int.from_bytes(self.packed[i * RECORD.size : i * RECORD.size + 4], "little")
