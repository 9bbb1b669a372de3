"""Which policy has a block, and which of them gives the next victim.

A folder of few bytes goes to S3-FIFO, any other is a data set and goes to the pinned set. Small
folders hold a quarter of the cache at most: beyond that, the folder whose turn it is becomes a
data set too, because a data set may be spread over thousands of small folders.

A pinned set must not stay for ever when its job is over. Time is counted in bytes read: a folder
that was not read while readers took twice all active data (or twice the cache) is stale, and so
is an object that was skipped while twice its folder was read. What is stale goes first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.eviction.by_item import ByItem, ItemOrder, ItemPages, Wanted
from hubspoke.core.eviction.data_set import DataSet
from hubspoke.core.eviction.hinted import HintedBlocks
from hubspoke.core.eviction.pinned_set import PinnedSet
from hubspoke.core.eviction.policy import (
    BLOCK_BITS,
    BY_ITEM,
    HELD,
    HINTED,
    MAIN,
    PINNED,
    PROBATION,
    QUEUE,
    SMALL,
    Policy,
    Read,
)
from hubspoke.core.eviction.s3_fifo import S3Fifo
from hubspoke.core.ids import PAGE_BYTES, ObjectName, page_span
from hubspoke.core.page_codes import PAGES_PER_BLOCK

SMALL_FOLDER_SHARE = 1 / 16  # of the capacity: a folder of fewer bytes is small
SMALL_SHARE = 1 / 16  # of the capacity, for all small folders
# Of the capacity, in bytes read: a data set that saw something new since then is being read for
# the first time. More, and the folders of a set of many that come late in its second epoch lose
# their blocks to those that come early.
YOUNG_SHARE = 1 / 8
LEFT_AT_ONCE = 64  # blocks, or a million of them would stop the loop
STALE_TURNS = 2  # an epoch may be late, or another job may read faster

_BLOCK = (1 << BLOCK_BITS) - 1


class Victims:
    """The order of eviction over all blocks of the cache."""

    def __init__(self, capacity: int, objects: Mapping[int, CachedObject]) -> None:
        self.capacity = capacity
        self.blocks = 0  # resident ones
        self._objects = objects
        self._s3 = S3Fifo(self)
        self._pinned = PinnedSet(self, self._proven, self._blocks)
        self._folders: dict[tuple[str, str], DataSet] = {}
        self._active: OrderedDict[DataSet, None] = OrderedDict()  # by last read
        self._active_total = 0
        self._again: set[DataSet] = set()  # those that were read again
        self._small_pages = 0
        self._clock = 0
        self._going: Iterator[int] = iter(())  # blocks of what is stale
        self._items = ByItem(self)
        self.hinted = HintedBlocks(self._unqueued, self._policy)
        self._left: Iterator[int] = iter(())  # blocks of what no longer goes by items

    # -- marks, for the policies --------------------------------------------------------------

    def mark(self, key: int) -> int:
        obj = self._objects.get(key >> BLOCK_BITS)
        return 0 if obj is None else obj.pages.mark(key & _BLOCK)

    def set_mark(self, key: int, mark: int) -> None:
        self._objects[key >> BLOCK_BITS].pages.set_mark(key & _BLOCK, mark)

    def _proven(self, key: int) -> bool:
        """Whether the block's data set is more than a scan under way: it was read again, or its
        first reading is over. As long as nothing was read again, all are alike."""
        if not self._again:
            return True
        found = self._objects[key >> BLOCK_BITS].data_set
        return found.read_again or self._clock - found.new_at > YOUNG_SHARE * self.capacity

    def _blocks(self, key: int) -> int:
        return -(-len(self._objects[key >> BLOCK_BITS].pages) // PAGES_PER_BLOCK)

    # -- objects ------------------------------------------------------------------------------

    def data_set(self, name: ObjectName) -> DataSet:
        folder = (name.bucket, name.key[: name.key.rfind("/") + 1])
        found = self._folders.get(folder)
        if found is None:
            found = self._folders[folder] = DataSet(folder)
        return found

    def opened(self, obj: CachedObject) -> None:
        found = obj.data_set
        found.objects[obj.number] = None
        obj.read_at = found.clock
        self._use(found)
        found.total += obj.size
        self._active_total += obj.size
        if found.small and found.total > SMALL_FOLDER_SHARE * self.capacity:
            self._grow(found)

    def closed(self, obj: CachedObject) -> None:
        """The object leaves the book; its pages are dropped already, its marks go with it."""
        found = obj.data_set
        found.objects.pop(obj.number, None)
        found.total -= obj.size
        if found in self._active:
            self._active_total -= obj.size
        for block in obj.pages.blocks():
            self.removed(obj, block)
        if not found.objects:
            self._folders.pop(found.folder, None)
            self._active.pop(found, None)
            self._again.discard(found)
            self._items.sets.pop(found, None)

    def _use(self, found: DataSet) -> None:
        if found not in self._active:
            self._active_total += found.total
        self._active[found] = None
        self._active.move_to_end(found)
        found.read_at = self._clock

    def _grow(self, found: DataSet) -> None:
        found.small = False
        self._small_pages -= found.resident

    def resident(self, obj: CachedObject, pages: int) -> None:
        """So many pages more, or fewer."""
        obj.resident += pages
        obj.data_set.resident += pages
        if obj.data_set.small:
            self._small_pages += pages

    # -- blocks -------------------------------------------------------------------------------

    def _policy(self, obj: CachedObject, mark: int) -> Policy:
        if mark & QUEUE == HINTED:
            return self.hinted
        if obj.data_set.items is not None:
            return self._items
        if mark:
            return self._s3 if mark & QUEUE in (SMALL, MAIN) else self._pinned
        return self._s3 if obj.data_set.small else self._pinned

    def admitted(self, obj: CachedObject, block: int) -> None:
        """The block has pages that are to be read."""
        mark = obj.pages.mark(block)
        self.blocks += not mark
        if not mark and self.hinted.order.holds(obj, block):
            obj.pages.set_mark(block, HINTED)
            return
        self._policy(obj, mark).admitted((obj.number << BLOCK_BITS) + block, mark)

    def restored(self, obj: CachedObject, block: int) -> None:
        """The block was there before the start; that it has been read is the best guess."""
        self.blocks += 1
        key = (obj.number << BLOCK_BITS) + block
        if obj.data_set.small:
            self._s3.admitted(key, 0)
        elif obj.data_set.items is not None:
            self._items.admitted(key, 0)
        else:
            self._pinned.consumed(key, 0)

    def consumed(self, obj: CachedObject, block: int) -> None:
        """All that is resident of the block was read."""
        mark = obj.pages.mark(block)
        if mark:
            self._policy(obj, mark).consumed((obj.number << BLOCK_BITS) + block, mark)

    def read(self, obj: CachedObject, length: int, again: int) -> None:
        """`length` bytes were read, of which `again` had been read before."""
        found = obj.data_set
        self._clock += length
        found.clock += length
        found.again += again
        if again < length:
            found.new_at = self._clock
        if again and found.read_again:
            self._again.add(found)
        obj.read_at = found.clock
        found.objects.move_to_end(obj.number)
        self._use(found)

    def read_again(self, reads: Iterable[Read]) -> None:
        """`read` and `touched` for reads of pages that had all been read before, in order and
        some time later: an object may be gone by now."""
        current: CachedObject | None = None
        total = 0
        for read in reads:
            obj = read.obj
            if obj.number not in self._objects:
                continue
            if obj is not current:
                if current is not None:
                    self.read(current, total, total)
                current, total = obj, 0
            first, last = page_span(read.offset, read.length)
            total += obj.range_bytes(first, last)
            self.touched(obj, first // PAGES_PER_BLOCK)
        if current is not None:
            self.read(current, total, total)

    def touched(self, obj: CachedObject, block: int) -> None:
        if not obj.data_set.small:
            return  # a data set counts reads as a whole
        mark = obj.pages.mark(block)
        if mark:
            self._policy(obj, mark).touched((obj.number << BLOCK_BITS) + block, mark)

    def to_be_read(self, obj: CachedObject, block: int) -> None:
        """Somebody knows that the resident block will be read (again)."""
        if obj.pages.mark(block) & QUEUE == HINTED:
            return
        self._unqueued(obj, block)
        self._pinned.admitted((obj.number << BLOCK_BITS) + block, 0)

    def _unqueued(self, obj: CachedObject, block: int) -> None:
        self.removed(obj, block)
        self.blocks += 1

    def unpinned(self, obj: CachedObject, block: int) -> None:
        """No reader has the block any more."""
        mark = obj.pages.mark(block)
        if mark & QUEUE == HELD:
            self._pinned.consumed((obj.number << BLOCK_BITS) + block, mark)

    def removed(self, obj: CachedObject, block: int) -> None:
        """Nothing of the block is resident."""
        mark = obj.pages.mark(block)
        if not mark:
            return
        self.blocks -= 1
        queue = mark & QUEUE
        if queue in (SMALL, MAIN):
            self._s3.left(queue)
        else:
            self._pinned.left((obj.number << BLOCK_BITS) + block, queue)
        obj.pages.set_mark(block, 0)

    # -- data sets that go by items -----------------------------------------------------------

    def by_items(self, found: DataSet, order: ItemOrder) -> None:
        """Of this data set items go, in this order. Its blocks leave their queues as `take` or
        a search for a victim comes to them."""
        if found.small:
            self._grow(found)
        found.items = order
        self._items.sets[found] = None
        self._again.add(found)

    def by_blocks(self, found: DataSet) -> None:
        """The same no longer."""
        found.items = None
        self._items.sets.pop(found, None)
        self._left = chain(self._left, self._blocks_of(found, list(found.objects)))

    def goes_by_items(self, obj: CachedObject) -> None:
        """The object's blocks leave their queues."""
        for block in obj.pages.blocks():
            if obj.pages.mark(block) & QUEUE not in (0, HINTED):
                self._taken((obj.number << BLOCK_BITS) + block)

    def _taken(self, key: int) -> bool:
        """Whether the block goes with its items, and so is no victim."""
        mark = self.mark(key)
        if self._objects[key >> BLOCK_BITS].data_set.items is None:
            return False
        if mark & QUEUE in (SMALL, MAIN):
            self._s3.left(mark & QUEUE)
        else:
            self._pinned.left(key, mark & QUEUE)
        self.set_mark(key, BY_ITEM)
        return True

    # -- victims ------------------------------------------------------------------------------

    def victim(
        self,
        evictable: Callable[[int], bool],
        wanted: Wanted | None = None,
        *,
        consumed_only: bool = False,
    ) -> tuple[CachedObject, int] | ItemPages | None:
        """The block to drop next, which is `removed` then, or pages of an item; None if none may
        go.

        wanted: what needs the room. consumed_only: spare what is still to be read.
        """
        for left in islice(self._left, LEFT_AT_ONCE):
            if self.mark(left) & QUEUE == BY_ITEM and not self._taken(left):
                self._pinned.consumed(left, BY_ITEM)
        key = self._next(evictable, wanted)
        if isinstance(key, ItemPages):
            return key
        mine = wanted is not None and wanted.obj.data_set.items is not None
        if key is None and not consumed_only:
            key = None if mine else self._pinned.unread_victim(evictable)
            if key is None:
                other = None if mine else self._items.item(wanted, last_resort=True)
                return other or self.hinted.order.victim(wanted)
        return None if key is None else (self._objects[key >> BLOCK_BITS], key & _BLOCK)

    def _next(
        self, evictable: Callable[[int], bool], wanted: Wanted | None
    ) -> int | ItemPages | None:
        while True:
            key = self._stale(evictable)
            if key is not None:
                return key
            crowded = self._small_pages * PAGE_BYTES > SMALL_SHARE * self.capacity
            found = None if crowded else self._of_data_sets(evictable, wanted)
            if found is None:
                found = self._s3.victim(evictable)
            if found is None and crowded:
                found = self._of_data_sets(evictable, wanted)
            if found is None or isinstance(found, ItemPages):
                return found
            if self._taken(found) or self._outgrown(found, crowded):
                continue
            small = self.mark(found) & QUEUE in (SMALL, MAIN)
            if small or crowded or not self._skipped(found):
                return found

    def _of_data_sets(
        self, evictable: Callable[[int], bool], wanted: Wanted | None
    ) -> int | ItemPages | None:
        """What was read once and may be a scan, then items, then the pinned set."""
        key = self._pinned.victim_of(PROBATION, evictable)
        if key is not None:
            return key
        item = self._items.item(wanted, last_resort=False) or self.hinted.order.consumed()
        return self._pinned.victim_of(PINNED, evictable) if item is None else item

    def _outgrown(self, key: int, crowded: bool) -> bool:
        """Whether the block of a small folder belongs to a data set from now on."""
        obj, mark = self._objects[key >> BLOCK_BITS], self.mark(key)
        if mark & QUEUE not in (SMALL, MAIN) or (obj.data_set.small and not crowded):
            return False
        if obj.data_set.small:
            self._grow(obj.data_set)
        self._s3.left(mark & QUEUE)
        self._pinned.consumed(key, 0)
        return True

    def _stale(self, evictable: Callable[[int], bool]) -> int | None:
        while True:
            for key in self._going:
                if self.mark(key) & QUEUE not in (0, HINTED) and evictable(key):
                    return key
            if not self._active:
                return None
            oldest = next(iter(self._active))
            turn = STALE_TURNS * max(self.capacity, self._active_total)
            if oldest.resident and self._clock - oldest.read_at <= turn:
                return None
            # Forgotten until it is read again; also what holds nothing, to see the next one.
            del self._active[oldest]
            if oldest.items is not None:
                oldest.items.dropped()
                self.by_blocks(oldest)
            self._active_total -= oldest.total
            oldest.again = 0
            self._again.discard(oldest)
            self._going = self._blocks_of(oldest, list(oldest.objects))

    def _skipped(self, key: int) -> bool:
        """Whether an object of the victim's data set is stale, whose blocks go instead."""
        found = self._objects[key >> BLOCK_BITS].data_set
        turn = STALE_TURNS * max(found.total, self.capacity)
        while True:
            oldest = self._objects[next(iter(found.objects))]
            if found.clock - oldest.read_at <= turn:
                return False
            oldest.read_at = found.clock  # looked at again after another turn
            found.objects.move_to_end(oldest.number)
            if oldest.resident:
                self._pinned.put_back(key, self.mark(key) & QUEUE)
                self._going = self._blocks_of(found, [oldest.number])
                return True

    def _blocks_of(self, found: DataSet, numbers: list[int]) -> Iterator[int]:
        """Blocks of these objects, as long as nobody reads their data set (or the object)."""
        for number in numbers:
            obj = self._objects.get(number)
            if obj is None:
                continue
            read_at = obj.read_at
            for block in obj.pages.blocks():
                if obj.read_at != read_at:
                    break
                yield (number << BLOCK_BITS) + block
