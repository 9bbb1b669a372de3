"""What is resident, in flight and pinned: the cache's book of pages.

It decides HIT, LATE or MISS and which blocks are dropped; it never touches a disk, and it never
marks a page present before the shell says that the frame that brought it has passed its digest
and is written. How pages are kept is `pages`' business, which block goes is `eviction`'s.

    ABSENT -> QUEUED (prefetch, not sent) -> FLIGHT (asked of the hub) -> PRESENT
       ^         a demand turns ABSENT and QUEUED into FLIGHT at once        |
       +------------- dropped, failed, corrupt <- UNVERIFIED (after a start)-+

A read that finds QUEUED pages is a miss: the hub has not been asked for them yet.
"""

from collections.abc import Iterable

from hubspoke.core import page_codes as codes
from hubspoke.core.away import Away
from hubspoke.core.cached_object import CacheCounters, CachedObject, Runs
from hubspoke.core.eviction.by_item import TRIES_MAX, ItemPages, Wanted
from hubspoke.core.eviction.policy import BLOCK_BITS
from hubspoke.core.eviction.victims import Victims
from hubspoke.core.frames import Frames, StoredFrame
from hubspoke.core.ids import (
    BLOCK_BYTES,
    PAGE_BYTES,
    ObjectEntry,
    ObjectName,
    ReadState,
    Version,
    page_span,
)
from hubspoke.core.page_codes import PAGES_PER_BLOCK
from hubspoke.core.pages import BLOCKS_PER_GROUP, PageMap
from hubspoke.core.pins import Pins

__all__ = ["PAGES_PER_BLOCK", "Cache", "CachedObject", "StoredFrame"]

NUMBERS_SKIPPED = 1 << 20  # more than is cached while a drive is away; the index has 32 bits


Dropped = tuple[CachedObject, int, int]  # offset and length, in whole pages


class Cache:
    """All objects of one spoke. `capacity` bytes is a hard cap, bytes being filled included.

    Bytes are counted as a disk does, in whole pages.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= BLOCK_BYTES, capacity
        self.capacity = capacity
        self.limit = capacity  # less while the disk has less
        self.used = 0  # bytes of pages that are FLIGHT, UNVERIFIED or PRESENT
        self.flying = 0  # bytes of pages that are FLIGHT
        self.objects: dict[int, CachedObject] = {}
        self.objects_resident = 0
        self.counters = CacheCounters()
        self._by_name: dict[ObjectName, CachedObject] = {}
        self.pins = Pins()
        self.away = Away()
        self._victims = Victims(capacity, self.objects)
        self.read_again, self.hinted = self._victims.read_again, self._victims.hinted
        self.by_items, self.by_blocks = self._victims.by_items, self._victims.by_blocks
        self.goes_by_items = self._victims.goes_by_items
        self._next_number = 1

    def current(self, name: ObjectName) -> CachedObject | None:
        return self._by_name.get(name)

    def open(self, name: ObjectName, entry: ObjectEntry) -> tuple[CachedObject, list[CachedObject]]:
        """The cached object of this version, made if new, and the versions it made obsolete."""
        obj = self._by_name.get(name)
        if obj is not None and obj.version == entry.version:
            return obj, []
        obsolete = self.forget(name)
        return self._add(self._next_number, name, entry.version, entry.size), obsolete

    def restore(
        self,
        number: int,
        name: ObjectName,
        version: Version,
        size: int,
        found: Iterable[StoredFrame],
    ) -> CachedObject:
        """An object from the index; its pages stay UNVERIFIED until they are touched."""
        obj = self._add(number, name, version, size)
        frames = found if isinstance(found, Frames) else Frames.of(size, found)
        obj.frames = frames
        block, full = -1, bytearray()
        for first, last in frames.spans():
            if first // PAGES_PER_BLOCK != block:
                self._restore_block(obj, block, full)
                block, full = first // PAGES_PER_BLOCK, bytearray(PAGES_PER_BLOCK)
            base = block * PAGES_PER_BLOCK
            full[first - base : last - base] = bytes((codes.UNVERIFIED,)) * (last - first)
        self._restore_block(obj, block, full)
        return obj

    def _restore_block(self, obj: CachedObject, block: int, full: bytearray) -> None:
        if block < 0:
            return
        n = full.count(codes.UNVERIFIED)
        obj.pages.put(block, bytes(full[:PAGES_PER_BLOCK]))
        obj.unverified += n
        self._account(obj, n)
        self._victims.restored(obj, block)

    def skip_numbers(self) -> None:
        """A folder could not be looked at: most of the numbers in it are not given again."""
        self._next_number += NUMBERS_SKIPPED

    def _add(self, number: int, name: ObjectName, version: Version, size: int) -> CachedObject:
        data_set, pages = self._victims.data_set(name), PageMap(-(-size // PAGE_BYTES))
        obj = CachedObject(number, name, version, size, data_set, pages)
        self.objects[number] = obj
        self._by_name[name] = obj
        self._victims.opened(obj)
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
        if not obj.dead or obj.pins or obj.flying or obj.number not in self.objects:
            return []
        for block in obj.pages.blocks():
            self._drop_block(obj, block)
        self._victims.closed(obj)
        self.away.remove(obj)
        del self.objects[obj.number]
        return [obj]

    # -- reading ------------------------------------------------------------------------------

    def state(self, obj: CachedObject, first: int, last: int) -> ReadState:
        """State of the pages [first, last) for a reader who comes now. O(blocks), pages in C."""
        return obj.state(first, last)

    def readable(self, obj: CachedObject, first: int, last: int) -> bool:
        return obj.pages.all(first, last, codes.IS_PRESENT)

    def asked(self, obj: CachedObject, first: int, last: int) -> tuple[int, int]:
        """A reader asked for the pages. Returns (bytes never asked before, of those bytes the
        ones a prefetch had brought)."""
        pages, victims = obj.pages, self._victims
        length = obj.range_bytes(first, last)
        unread = obj.unread(first, last)
        if unread is None:
            victims.read(obj, length, length)
            victims.touched(obj, first // PAGES_PER_BLOCK)
            return 0, 0
        new, used = unread
        # What was there before a start had been read before it.
        known = pages.count(first, last, codes.IS_UNVERIFIED) * PAGE_BYTES if obj.unverified else 0
        pages.change(first, last, codes.TO_ASK)
        victims.read(obj, length, max(length - new, min(known, length)))
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            self._settle(obj, block)
        return new, used

    def _settle(self, obj: CachedObject, block: int) -> None:
        """The block is consumed when all that is there was read: in whatever steps and order,
        and if it is a single page of it."""
        first = block * PAGES_PER_BLOCK
        last = min(first + PAGES_PER_BLOCK, len(obj.pages))
        if not obj.pages.any(first, last, codes.IS_TO_COME):
            self._victims.consumed(obj, block)

    def pin(self, obj: CachedObject, first: int, last: int) -> None:
        self.pins.add(obj, first, last)

    def unpin(self, obj: CachedObject, first: int, last: int) -> None:
        for block in self.pins.remove(obj, first, last):
            self._victims.unpinned(obj, block)

    # -- filling ------------------------------------------------------------------------------

    def queue(self, obj: CachedObject, first: int, last: int) -> bool:
        """Mark absent pages as wanted by a prefetch; returns whether there are any."""
        return obj.pages.change(first, last, codes.TO_QUEUE)

    def unqueue(self, obj: CachedObject, first: int, last: int) -> None:
        obj.pages.change(first, last, codes.TO_UNQUEUE)

    def fly(self, obj: CachedObject, first: int, last: int, *, prefetch: bool = False) -> None:
        """The missing pages [first, last) are now asked of the hub; space must be reserved."""
        obj.pages.change(first, last, codes.TO_FLY_PREFETCHED if prefetch else codes.TO_FLY)
        n = last - first
        obj.flying += n
        self.flying += n * PAGE_BYTES
        self._account(obj, n)
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            self._victims.admitted(obj, block)

    def _account(self, obj: CachedObject, pages: int) -> None:
        before = obj.resident
        self.used += pages * PAGE_BYTES
        self._victims.resident(obj, pages)
        self.away.account(obj, pages)
        self.objects_resident += (obj.resident > 0) - (before > 0)

    def awaited(self, obj: CachedObject, first: int, last: int) -> int:
        """Bytes of a prefetch in flight that a reader has asked for since it was sent."""
        return obj.bytes_of(first, last, codes.IS_AWAITED)

    def arrived(self, obj: CachedObject, first: int, last: int) -> None:
        """A frame passed its digest and is written: its pages are present."""
        n = obj.pages.count(first, last, codes.IS_FLYING)
        obj.flying -= n
        self.flying -= n * PAGE_BYTES
        obj.pages.change(first, last, codes.TO_ARRIVE)
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            self._settle(obj, block)

    def failed(self, obj: CachedObject, first: int, last: int) -> None:
        """Pages that will not come, or that failed their digest on disk."""
        self._drop_pages(obj, first, last)

    def verified(self, obj: CachedObject, frame: StoredFrame, *, good: bool) -> Runs:
        """Result of checking a frame's digest against the disk. Returns the page runs of a bad
        one that are dropped: nobody was ever given them, so they may be punched at once."""
        first, last = page_span(frame.offset, frame.length)
        if good and not obj.unverified:
            return []
        if good:
            obj.unverified -= obj.pages.count(first, last, codes.IS_UNVERIFIED)
            obj.pages.change(first, last, codes.TO_VERIFY)
            if not obj.unverified:
                obj.frames = None
            return []
        self.counters.corrupt_frames += 1
        runs = obj.runs(first, last, codes.IS_UNVERIFIED)
        for a, b in runs:
            self._drop_pages(obj, a, b)
        return runs

    # -- dropping -----------------------------------------------------------------------------

    def _drop_pages(self, obj: CachedObject, first: int, last: int) -> int:
        """Make the pages absent; returns the bytes that this frees."""
        pages, freed = obj.pages, 0
        while first < last:
            block = first // PAGES_PER_BLOCK
            base = block * PAGES_PER_BLOCK
            stop = min(last, base + PAGES_PER_BLOCK)
            freed += self._drop_part(obj, first, stop)
            end = min(base + PAGES_PER_BLOCK, len(pages))
            if not pages.any(base, end, codes.IS_COMING):
                self._victims.removed(obj, block)
            first = stop
        return freed

    def _drop_part(self, obj: CachedObject, first: int, last: int) -> int:
        pages = obj.pages
        n = pages.count(first, last, codes.IS_COMING)
        if obj.flying:
            flying = pages.count(first, last, codes.IS_FLYING)
            obj.flying -= flying
            self.flying -= flying * PAGE_BYTES
        if obj.unverified:
            obj.unverified -= pages.count(first, last, codes.IS_UNVERIFIED)
            if not obj.unverified:
                obj.frames = None
        if unread := obj.bytes_of(first, last, codes.IS_PREFETCHED):
            self.counters.wasted.append((obj.number, first, unread))
        pages.change(first, last, codes.TO_DROP)
        self._account(obj, -n)
        return n * PAGE_BYTES

    def _drop_block(self, obj: CachedObject, block: int) -> Dropped:
        first = block * PAGES_PER_BLOCK
        last = min(first + PAGES_PER_BLOCK, len(obj.pages))
        self._drop_pages(obj, first, last)
        return obj, first * PAGE_BYTES, (last - first) * PAGE_BYTES

    def _evict(self, obj: CachedObject, block: int) -> Dropped:
        before = self.used
        dropped = self._drop_block(obj, block)
        self.counters.evicted_bytes += before - self.used
        return dropped

    def make_room(
        self, need: int, wanted: Wanted | None = None, *, consumed_only: bool = False
    ) -> list[Dropped]:
        """Drop blocks, or pages of items, until `need` more bytes fit, or nothing may go.

        wanted: for what, if that is known. consumed_only: nothing that is still to be read may go.
        Returns: what is to be punched before anything is
        written there again. Whether `need` fits now is for the caller to look at (`room`).
        """
        evictable = self._consumed if consumed_only else self._evictable
        punched, tries = list[Dropped](), TRIES_MAX
        while self.room < need and tries:
            found = self._victims.victim(evictable, wanted, consumed_only=consumed_only)
            if found is None:
                break
            if isinstance(found, ItemPages):
                dropped = self._evict_pages(found)
            else:
                dropped = [self._evict(*found)]
            tries -= not dropped
            punched += dropped
        return punched

    def _evict_pages(self, item: ItemPages) -> list[Dropped]:
        obj, (first, last) = item.obj, item.obj.whole_frames(item.first, item.last)
        flying = obj.pages.any(first, last, codes.IS_FLYING)
        if flying or self.pins.any(obj, first, last) or obj.number in self.away:
            item.stays()
            return []
        runs = obj.runs(first, last, codes.IS_COMING)
        self.counters.evicted_bytes += sum(self._drop_pages(obj, a, b) for a, b in runs)
        return [(obj, a * PAGE_BYTES, (b - a) * PAGE_BYTES) for a, b in runs]

    @property
    def room(self) -> int:
        return self.limit - (self.used - self.away.bytes)

    def bound(self, disk_room: int) -> list[Dropped]:
        """The disk can take `disk_room` bytes more than it holds now (fewer, if negative): a
        shortage is a smaller capacity at once. Returns what is to be punched."""
        stored = self.used - self.away.bytes - self.flying
        self.limit = max(0, min(self.capacity, stored + disk_room))
        return self.make_room(0)

    def resize(self, capacity: int) -> None:
        self.capacity = self._victims.capacity = max(capacity, BLOCK_BYTES)

    def freed(self, obj: CachedObject) -> None:
        """Its folder is back, or nobody has all of it any more: what could not be a victim
        meanwhile may be one."""
        for block in obj.pages.blocks():
            if (obj.number << BLOCK_BITS) + block not in self.pins:
                self._victims.unpinned(obj, block)

    def _here(self, key: int) -> bool:
        return key not in self.pins and key >> BLOCK_BITS not in self.away

    def _evictable(self, key: int) -> bool:
        obj = self.objects[key >> BLOCK_BITS]
        waits = obj.flying and obj.pages.any(*self._span(obj, key), codes.IS_FLYING)
        return self._here(key) and not waits

    def _consumed(self, key: int) -> bool:
        obj = self.objects[key >> BLOCK_BITS]
        return self._here(key) and not obj.pages.any(*self._span(obj, key), codes.IS_TO_COME)

    def _span(self, obj: CachedObject, key: int) -> tuple[int, int]:
        """Pages of the block of a key."""
        first = (key & (1 << BLOCK_BITS) - 1) * PAGES_PER_BLOCK
        return first, min(first + PAGES_PER_BLOCK, len(obj.pages))

    # -- on request ---------------------------------------------------------------------------

    def to_be_read(self, obj: CachedObject) -> None:
        """Somebody knows that the object will be read (again): its blocks count as waiting for
        that, and as the youngest of those."""
        for block in self._resident(obj, 0, len(obj.pages)):
            self._victims.to_be_read(obj, block)

    def evict(self, obj: CachedObject, first: int, last: int) -> tuple[list[Dropped], int]:
        """Drop the blocks under pages [first, last) but those that are pinned or in flight. The
        object stays in the book, empty: a reader may be between two pieces of it.

        Returns: what to punch, as `make_room` does, and the bytes that are freed.
        """
        before = self.used
        base = obj.number << BLOCK_BITS
        blocks = [b for b in self._resident(obj, first, last) if self._evictable(base + b)]
        return [self._evict(obj, b) for b in blocks], before - self.used

    def _resident(self, obj: CachedObject, first: int, last: int) -> list[int]:
        """Blocks under the pages [first, last) that hold bytes, in order."""
        span = range(first // PAGES_PER_BLOCK, -(-last // PAGES_PER_BLOCK))
        if len(span) > BLOCKS_PER_GROUP:
            return sorted(b for b in obj.pages.blocks() if b in span and obj.pages.mark(b))
        return [b for b in span if obj.pages.mark(b)]

    def forget_asked(self) -> None:
        """Start counting anew which pages were asked for; what a prefetch brought stays known."""
        for obj in self.objects.values():
            obj.pages.change_all(codes.TO_FORGET_ASKED)

    @property
    def blocks(self) -> int:
        return self._victims.blocks
