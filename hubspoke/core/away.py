"""Objects whose folder is lost for now: they take no room of the others, and nobody evicts them."""

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import PAGE_BYTES


class Away:
    """Which they are, and their bytes; nothing in a cache whose folders are well."""

    __slots__ = ("_numbers", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._numbers: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, obj: CachedObject) -> None:
        if obj.number not in self._numbers:
            self._numbers.add(obj.number)
            self.bytes += obj.resident * PAGE_BYTES

    def remove(self, obj: CachedObject) -> None:
        if obj.number in self._numbers:
            self._numbers.remove(obj.number)
            self.bytes -= obj.resident * PAGE_BYTES

    def account(self, obj: CachedObject, pages: int) -> None:
        """The object has so many pages more than before."""
        if obj.number in self._numbers:
            self.bytes += pages * PAGE_BYTES
