"""Which objects are lent as a whole, to somebody whose reads are not seen.

Decides that every byte is there and was checked, and that enough of the cache stays for others.
"""

from hubspoke.core.cache import Cache, CachedObject
from hubspoke.core.ids import PAGE_BYTES


class Lending:
    """Over one cache. bytes: of what is lent, each object once."""

    def __init__(self, cache: Cache) -> None:
        self.bytes = 0
        self._cache = cache

    def whole(self, obj: CachedObject) -> bool:
        """Whether every byte is on disk and was checked since the start. O(1)."""
        complete = obj.resident == len(obj.pages) and not obj.flying and not obj.unverified
        return complete and obj.size > 0 and obj.number not in self._cache.away

    def hold(self, obj: CachedObject) -> bool:
        """Pin all of it. False: it is not whole, or would leave less than half of the capacity
        to others."""
        if not self.whole(obj):
            return False
        pins = self._cache.pins
        if not pins.holds(obj):
            size = len(obj.pages) * PAGE_BYTES
            if self.bytes + size > self._cache.capacity // 2:
                return False
            self.bytes += size
        pins.hold(obj)
        return True

    def hold_again(self, obj: CachedObject) -> None:
        """What somebody has had since before the start, as the last process lent it: whatever the
        index says of it now, its file must stay as it is."""
        if not self._cache.pins.holds(obj):
            self.bytes += len(obj.pages) * PAGE_BYTES
        self._cache.pins.hold(obj)

    def let_go(self, obj: CachedObject) -> None:
        """The end of one `hold`; O(blocks) if it was the last. `reap` it afterwards."""
        if self._cache.pins.let_go(obj):
            self.bytes -= len(obj.pages) * PAGE_BYTES
            self._cache.freed(obj)
