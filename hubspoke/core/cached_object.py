"""One object version in the cache: its pages, and what the book counts of it."""

from dataclasses import dataclass, field

from hubspoke.core.eviction.data_set import DataSet
from hubspoke.core.frames import Frames, StoredFrame
from hubspoke.core.ids import PAGE_BYTES, ObjectName, ReadState, Version, page_span
from hubspoke.core.page_codes import (
    FLIGHT,
    IS_ABSENT,
    IS_COMING,
    IS_LOCAL,
    IS_NEW,
    IS_NOT_LOCAL,
    IS_PREFETCHED,
    IS_PRESENT_READ,
    IS_READ,
    IS_UNVERIFIED,
    STATE,
    UNVERIFIED,
    Codes,
)
from hubspoke.core.pages import PageMap

Runs = list[tuple[int, int]]  # of pages, [first, last)


@dataclass(slots=True, eq=False)
class CachedObject:
    """`number` is its small interned id. Counts are in pages."""

    number: int
    name: ObjectName
    version: Version
    size: int
    data_set: DataSet
    pages: PageMap
    frames: Frames | None = None  # of before the start, until all of them were touched
    dead: bool = False  # the name has another version: kept only while pinned
    pins: int = 0
    flying: int = 0
    resident: int = 0  # in flight included
    unverified: int = 0
    read_at: int = field(default=0)  # the data set's clock at the last read

    def range_bytes(self, first: int, last: int) -> int:
        """Bytes of the pages [first, last); the last page of an object may be short."""
        return min(last * PAGE_BYTES, self.size) - first * PAGE_BYTES

    def read_before(self, first: int, last: int) -> bool:
        """Whether all of the pages are readable and were asked for before: one more read of them
        changes none."""
        return self.pages.all(first, last, IS_PRESENT_READ)

    def state(self, first: int, last: int) -> ReadState:
        """Of the pages [first, last), for a reader who comes now."""
        code = self.pages.alike(first, last)
        if code >= 0:
            here = code & STATE >= UNVERIFIED
            coming = code & STATE >= FLIGHT
        else:
            here = self.pages.all(first, last, IS_LOCAL)
            coming = here or self.pages.all(first, last, IS_COMING)
        return ReadState.HIT if here else ReadState.LATE if coming else ReadState.MISS

    def unread(self, first: int, last: int) -> tuple[int, int] | None:
        """Of the pages [first, last), bytes that were never asked for, and bytes a prefetch has
        brought since they were; None: all were read and none is to be read."""
        code = self.pages.alike(first, last)
        if code < 0:
            if self.pages.all(first, last, IS_READ):
                return None
            return self.bytes_of(first, last, IS_NEW), self.bytes_of(first, last, IS_PREFETCHED)
        if code in IS_READ.members:
            return None
        length = self.range_bytes(first, last)
        return length * (code in IS_NEW.members), length * (code in IS_PREFETCHED.members)

    def runs(self, first: int, last: int, codes: Codes) -> list[tuple[int, int]]:
        """Maximal page runs inside [first, last) of these codes; a search in C."""
        return self.pages.runs(first, last, codes)

    def bytes_of(self, first: int, last: int, codes: Codes) -> int:
        """Bytes of the pages in [first, last) that are of these codes."""
        code = self.pages.alike(first, last)
        if code >= 0 and first < last:
            return self.range_bytes(first, last) if code in codes.members else 0
        return sum(self.range_bytes(a, b) for a, b in self.pages.runs(first, last, codes))

    def local_bytes(self) -> int:
        """Bytes of the object that are on disk, checked since the start or not."""
        n = (self.resident - self.flying) * PAGE_BYTES
        pages = len(self.pages)
        last_is_local = pages > 0 and self.pages[pages - 1] >= UNVERIFIED
        return n - (pages * PAGE_BYTES - self.size if last_is_local else 0)

    def absent(self, first: int, last: int) -> list[tuple[int, int]]:
        """Page runs inside [first, last) that are neither here nor wanted by anybody."""
        return self.runs(first, last, IS_ABSENT)

    def not_local(self, first: int, last: int) -> list[tuple[int, int]]:
        """Page runs inside [first, last) that are not on disk, in flight or not."""
        return self.runs(first, last, IS_NOT_LOCAL)

    def unverified_frames(self, first: int, last: int) -> list[StoredFrame]:
        """Frames from before the start that cover unverified pages of [first, last)."""
        if self.frames is None or not self.pages.any(first, last, IS_UNVERIFIED):
            return []
        found = []
        for f in self.frames.covering(first, last):
            a, b = page_span(f.offset, f.length)
            if self.pages.any(max(a, first), min(b, last), IS_UNVERIFIED):
                found.append(f)
        return found

    def whole_frames(self, first: int, last: int) -> tuple[int, int]:
        """The pages, and of the frames from before the start that reach into them all the others:
        the rest of a frame has no digest to be checked against."""
        if self.frames is not None:
            for f in self.unverified_frames(first, last):
                a, b = page_span(f.offset, f.length)
                first, last = min(first, a), max(last, b)
        return first, last


@dataclass(slots=True)
class CacheCounters:
    evicted_bytes: int = 0
    corrupt_frames: int = 0
    wasted: list[tuple[int, int, int]] = field(default_factory=list)  # unread: object, page, bytes
