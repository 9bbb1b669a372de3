"""What is resident, in flight and pinned: the cache's book of pages.

One byte a page says where the page is. It decides HIT, LATE or MISS and chooses what to drop;
it never touches a disk, and it never marks a page present before the shell says that the frame
that brought it has passed its digest and is written.

    ABSENT -> QUEUED (prefetch, not sent) -> FLIGHT (asked of the hub) -> PRESENT
       ^         a demand turns ABSENT and QUEUED into FLIGHT at once        |
       +------------- dropped, failed, corrupt <- UNVERIFIED (after a start)-+

A read that finds QUEUED pages is a miss: the hub has not been asked for them yet.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from hubspoke.core.eviction import ConsumedFirst
from hubspoke.core.ids import (
    BLOCK_BYTES,
    PAGE_BYTES,
    ObjectEntry,
    ObjectName,
    ReadState,
    Version,
    page_span,
)

ABSENT, QUEUED, FLIGHT, UNVERIFIED, PRESENT = range(5)
PAGES_PER_BLOCK = BLOCK_BYTES // PAGE_BYTES

# What is known of a page's use: asked for by a reader, or brought by a prefetch and not read yet.
UNUSED, ASKED, PREFETCHED = range(3)


@dataclass(slots=True)
class StoredFrame:
    """A frame found in the index after a start: its digest is checked on first touch."""

    offset: int
    length: int
    digest: int


@dataclass(slots=True, eq=False)
class CachedObject:
    """One object version in the cache; `number` is its small interned id."""

    number: int
    name: ObjectName
    version: Version
    size: int
    pages: bytearray
    use: bytearray
    frames: list[StoredFrame] = field(default_factory=list)  # unverified ones, by offset
    dead: bool = False  # the name has another version: kept only while pinned

    def range_bytes(self, first: int, last: int) -> int:
        """Bytes of the pages [first, last); the last page of an object may be short."""
        return min(last * PAGE_BYTES, self.size) - first * PAGE_BYTES

    def runs(self, first: int, last: int, pattern: re.Pattern[bytes]) -> list[tuple[int, int]]:
        """Maximal page runs inside [first, last) whose states match; a search in C."""
        return [m.span() for m in pattern.finditer(self.pages, first, last)]


IS_ABSENT = re.compile(b"\x00+")
IS_QUEUED = re.compile(b"\x01+")
IS_FLYING = re.compile(b"\x02+")
IS_UNVERIFIED = re.compile(b"\x03+")
IS_UNASKED = re.compile(b"[\x00\x01]+")
IS_NOT_LOCAL = re.compile(b"[\x00-\x02]+")
IS_LOCAL = re.compile(b"[\x03\x04]+")
IS_NOT_FLYING = re.compile(b"[^\x02]+")
IS_ACCOUNTED = re.compile(b"[\x02-\x04]+")


@dataclass(slots=True)
class CacheCounters:
    evicted_bytes: int = 0
    corrupt_frames: int = 0
    wasted_bytes: int = 0  # prefetched and dropped unread


class Cache:
    """All objects of one spoke. `capacity` bytes is a hard cap, bytes being filled included."""

    def __init__(self, capacity: int) -> None:
        assert capacity >= BLOCK_BYTES, capacity
        self.capacity = capacity
        self.used = 0  # bytes of pages that are FLIGHT, UNVERIFIED or PRESENT
        self.objects: dict[int, CachedObject] = {}
        self.counters = CacheCounters()
        self._by_name: dict[ObjectName, CachedObject] = {}
        self._pins: dict[tuple[int, int], int] = {}
        self._order = ConsumedFirst()
        self._next_number = 1

    def current(self, name: ObjectName) -> CachedObject | None:
        return self._by_name.get(name)

    def open(self, name: ObjectName, entry: ObjectEntry) -> tuple[CachedObject, list[CachedObject]]:
        """The cached object of this version, made if new, and the versions it made obsolete."""
        obj = self._by_name.get(name)
        if obj is not None and obj.version == entry.version:
            return obj, []
        obsolete = self.forget(name)
        obj = self._add(self._next_number, name, entry.version, entry.size)
        return obj, obsolete

    def restore(
        self,
        number: int,
        name: ObjectName,
        version: Version,
        size: int,
        frames: list[StoredFrame],
    ) -> CachedObject:
        """An object from the index; its pages stay UNVERIFIED until they are touched."""
        obj = self._add(number, name, version, size)
        obj.frames = sorted(frames, key=lambda f: f.offset)
        for f in obj.frames:
            first, last = page_span(f.offset, f.length)
            for a, b in obj.runs(first, last, IS_UNASKED):
                obj.pages[a:b] = bytes((UNVERIFIED,)) * (b - a)
                self._account(obj, a, b)
        return obj

    def _add(self, number: int, name: ObjectName, version: Version, size: int) -> CachedObject:
        n = -(-size // PAGE_BYTES)
        obj = CachedObject(number, name, version, size, bytearray(n), bytearray(n))
        self.objects[number] = obj
        self._by_name[name] = obj
        self._next_number = max(self._next_number, number + 1)
        return obj

    def forget(self, name: ObjectName) -> list[CachedObject]:
        """The name has another version or is gone. Returns what the shell must drop now: an
        object with pinned or flying pages stays, dead, until `reap` finds it free."""
        obj = self._by_name.pop(name, None)
        if obj is None:
            return []
        obj.dead = True
        return self.reap(obj)

    def reap(self, obj: CachedObject) -> list[CachedObject]:
        """Remove a dead object from the book if nothing holds it."""
        if not obj.dead or obj.number not in self.objects:
            return []
        if obj.pages.find(FLIGHT) >= 0 or any(n == obj.number for n, _ in self._pins):
            return []
        del self.objects[obj.number]
        self._drop_pages(obj, 0, len(obj.pages))
        for block in range(-(-len(obj.pages) // PAGES_PER_BLOCK)):
            self._order.removed((obj.number, block))
        return [obj]

    # -- reading ------------------------------------------------------------------------------

    def state(self, obj: CachedObject, first: int, last: int) -> ReadState:
        """State of the pages [first, last) for a reader who comes now. O(pages), in C."""
        pages = obj.pages
        here = pages.count(PRESENT, first, last)
        if here == last - first:
            return ReadState.HIT
        here += pages.count(UNVERIFIED, first, last)
        if here == last - first:
            return ReadState.HIT
        here += pages.count(FLIGHT, first, last)
        return ReadState.LATE if here == last - first else ReadState.MISS

    def readable(self, obj: CachedObject, first: int, last: int) -> bool:
        return obj.pages.count(PRESENT, first, last) == last - first

    def asked(self, obj: CachedObject, first: int, last: int) -> tuple[int, int]:
        """A reader asked for the pages. Returns (bytes never asked before, of those bytes the
        ones a prefetch had brought)."""
        use = obj.use
        if use.count(ASKED, first, last) == last - first:
            self._consumed(obj, first, last)
            return 0, 0
        new = used = 0
        for p in range(first, last):
            if use[p] != ASKED:
                n = obj.range_bytes(p, p + 1)
                new += n
                if use[p] == PREFETCHED:
                    used += n
                use[p] = ASKED
        self._consumed(obj, first, last)
        return new, used

    def _consumed(self, obj: CachedObject, first: int, last: int) -> None:
        # A block counts as consumed when its last page was read: loaders read it as a whole,
        # in whatever small steps.
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            end = min((block + 1) * PAGES_PER_BLOCK, len(obj.pages))
            if last >= end:
                self._order.consumed((obj.number, block))

    def pin(self, obj: CachedObject, first: int, last: int) -> None:
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            key = (obj.number, block)
            self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, obj: CachedObject, first: int, last: int) -> None:
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            key = (obj.number, block)
            count = self._pins[key] - 1
            assert count >= 0, key
            if count:
                self._pins[key] = count
            else:
                del self._pins[key]

    # -- filling ------------------------------------------------------------------------------

    def queue(self, obj: CachedObject, first: int, last: int) -> int:
        """Mark absent pages as wanted by a prefetch; returns how many bytes that are."""
        n = 0
        for a, b in obj.runs(first, last, IS_ABSENT):
            obj.pages[a:b] = bytes((QUEUED,)) * (b - a)
            n += obj.range_bytes(a, b)
        return n

    def unqueue(self, obj: CachedObject, first: int, last: int) -> None:
        for a, b in obj.runs(first, last, IS_QUEUED):
            obj.pages[a:b] = bytes((ABSENT,)) * (b - a)

    def fly(self, obj: CachedObject, first: int, last: int) -> None:
        """The missing pages [first, last) are now asked of the hub; space must be reserved."""
        obj.pages[first:last] = bytes((FLIGHT,)) * (last - first)
        self._account(obj, first, last)

    def _account(self, obj: CachedObject, first: int, last: int) -> None:
        self.used += obj.range_bytes(first, last)
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            self._order.admitted((obj.number, block))

    def arrived(self, obj: CachedObject, first: int, last: int, *, prefetch: bool) -> None:
        """A frame passed its digest and is written: its pages are present."""
        use = obj.use
        for a, b in obj.runs(first, last, IS_FLYING):
            obj.pages[a:b] = bytes((PRESENT,)) * (b - a)
            if prefetch:
                for p in range(a, b):
                    if use[p] == UNUSED:
                        use[p] = PREFETCHED

    def failed(self, obj: CachedObject, first: int, last: int) -> None:
        """Pages that will not come, or that failed their digest on disk."""
        self._drop_pages(obj, first, last)

    def unverified(self, obj: CachedObject, first: int, last: int) -> list[StoredFrame]:
        """Frames from before the start that cover unverified pages of [first, last)."""
        if obj.pages.count(UNVERIFIED, first, last) == 0:
            return []
        lo, hi = first * PAGE_BYTES, last * PAGE_BYTES
        i = bisect_right(obj.frames, lo, key=lambda f: f.offset)
        # Frames may overlap after a partial refill, so step back over all that reach into it.
        while i > 0 and lo - obj.frames[i - 1].offset < BLOCK_BYTES:
            i -= 1
        found = []
        for f in obj.frames[i:]:
            if f.offset >= hi:
                break
            if f.offset + f.length > lo:
                found.append(f)
        return found

    def verified(self, obj: CachedObject, frame: StoredFrame, *, good: bool) -> None:
        """Result of checking a frame's digest against the disk."""
        first, last = page_span(frame.offset, frame.length)
        if frame in obj.frames:
            obj.frames.remove(frame)
        runs = obj.runs(first, last, IS_UNVERIFIED)
        if good:
            for a, b in runs:
                obj.pages[a:b] = bytes((PRESENT,)) * (b - a)
            return
        self.counters.corrupt_frames += 1
        for a, b in runs:
            self._drop_pages(obj, a, b)

    # -- dropping -----------------------------------------------------------------------------

    def _drop_pages(self, obj: CachedObject, first: int, last: int) -> int:
        freed = 0
        for a, b in obj.runs(first, last, IS_ACCOUNTED):
            freed += obj.range_bytes(a, b)
            # Queued pages stay so: the scheduler's account of them must come out even.
            obj.pages[a:b] = bytes(b - a)
        self.used -= freed
        use = obj.use
        p = use.find(PREFETCHED, first, last)
        while p >= 0:
            self.counters.wasted_bytes += obj.range_bytes(p, p + 1)
            use[p] = UNUSED
            p = use.find(PREFETCHED, p + 1, last)
        return freed

    def make_room(
        self, need: int, *, consumed_only: bool = False
    ) -> list[tuple[CachedObject, int, int]]:
        """Drop whole blocks until `need` more bytes fit, or nothing is left that may go.

        consumed_only: nothing that is still to be read may go.
        Returns: (object, offset, length) in whole blocks, to be punched before anything is
        written there again. Whether `need` fits now is for the caller to look at (`room`).
        """
        punched: list[tuple[CachedObject, int, int]] = []
        while self.room < need:
            key = self._order.victim(self._evictable, consumed_only=consumed_only)
            if key is None:
                break
            punched.append(self._evict(key))
        return punched

    def _evict(self, key: tuple[int, int]) -> tuple[CachedObject, int, int]:
        obj = self.objects[key[0]]
        first = key[1] * PAGES_PER_BLOCK
        last = min(first + PAGES_PER_BLOCK, len(obj.pages))
        self.counters.evicted_bytes += self._drop_pages(obj, first, last)
        self._order.removed(key)
        return obj, first * PAGE_BYTES, (last - first) * PAGE_BYTES

    @property
    def room(self) -> int:
        return self.capacity - self.used

    def _evictable(self, key: tuple[int, int]) -> bool:
        if key in self._pins:
            return False
        obj = self.objects[key[0]]
        first = key[1] * PAGES_PER_BLOCK
        return obj.pages.find(FLIGHT, first, first + PAGES_PER_BLOCK) < 0

    # -- on request ---------------------------------------------------------------------------

    def local_bytes(self, obj: CachedObject) -> int:
        """Bytes of the object that are on disk, checked since the start or not."""
        pages = obj.pages
        local = pages.count(PRESENT) + pages.count(UNVERIFIED)
        short = len(pages) * PAGE_BYTES - obj.size
        last_is_local = bool(pages) and pages[-1] >= UNVERIFIED
        return local * PAGE_BYTES - (short if last_is_local else 0)

    def absent(self, obj: CachedObject, first: int, last: int) -> list[tuple[int, int]]:
        """Page runs inside [first, last) that are neither here nor wanted by anybody."""
        return obj.runs(first, last, IS_ABSENT)

    def not_local(self, obj: CachedObject, first: int, last: int) -> list[tuple[int, int]]:
        """Page runs inside [first, last) that are not on disk, in flight or not."""
        return obj.runs(first, last, IS_NOT_LOCAL)

    def to_be_read(self, obj: CachedObject) -> None:
        """Somebody knows that the object will be read (again): its blocks count as waiting for
        that, and as the youngest of those."""
        for key in self._resident(obj, 0, len(obj.pages)):
            self._order.removed(key)
            self._order.admitted(key)

    def evict(
        self, obj: CachedObject, first: int, last: int
    ) -> tuple[list[tuple[CachedObject, int, int]], int]:
        """Drop the blocks under pages [first, last) but those that are pinned or in flight. The
        object stays in the book, empty: a reader may be between two pieces of it.

        Returns: what to punch, as `make_room` does, and the bytes that are freed.
        """
        before = self.used
        resident = self._resident(obj, first, last)
        punched = [self._evict(key) for key in resident if self._evictable(key)]
        return punched, before - self.used

    def _resident(self, obj: CachedObject, first: int, last: int) -> list[tuple[int, int]]:
        """Blocks of the object that hold bytes."""
        blocks: dict[tuple[int, int], None] = {}
        for a, b in obj.runs(first, last, IS_ACCOUNTED):
            for block in range(a // PAGES_PER_BLOCK, (b - 1) // PAGES_PER_BLOCK + 1):
                blocks[obj.number, block] = None
        return list(blocks)

    def forget_asked(self) -> None:
        """Start counting anew which pages were asked for; what a prefetch brought stays known."""
        table = bytes((UNUSED, UNUSED, PREFETCHED)) + bytes(range(3, 256))
        for obj in self.objects.values():
            obj.use = obj.use.translate(table)

    @property
    def blocks(self) -> int:
        return len(self._order)
