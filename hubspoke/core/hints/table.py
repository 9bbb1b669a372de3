"""The items of a plan: ranges of objects, by number.

A plan may name millions of reads, so its order is numbers. Posted items are kept by name (about
300 bytes each); those of a sampler are places in a sorted listing (40 bytes a name, none a record).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.ids import ObjectName

PART_BYTES = 64 << 10  # of an object with several items, by which they are found
LONG_PARTS = 1_024  # an item of more of them is looked at for every byte of its object
# Measured on CPython 3.11: a name's tuple and key, its entry in the dict, the item's numbers.
ITEM_BYTES = 300
LISTED_BYTES = 24  # of an item, for its numbers


class Table(Protocol):
    """Items by number."""

    @property
    def count(self) -> int: ...
    def touching(self, name: ObjectName, start: int, end: int) -> Sequence[int]:
        """Items that have bytes in [start, end) of the object."""
        ...

    def range(self, item: int) -> tuple[ObjectName, int, int]:
        """Object, offset and length."""
        ...

    def free(self, item: int) -> None:
        """The item is in no plan any more."""
        ...

    @property
    def bytes(self) -> int:
        """Of memory, about."""
        ...


class _Ranges:
    """Items of one object that has several: by the parts that they touch."""

    __slots__ = ("by_part", "exact", "long")

    def __init__(self) -> None:
        self.by_part: dict[int, list[int]] = {}
        self.exact: dict[tuple[int, int], int] = {}
        self.long: list[int] = []

    def places(self, offset: int, length: int) -> Iterable[list[int]]:
        first, last = offset // PART_BYTES, (offset + length - 1) // PART_BYTES
        if last - first >= LONG_PARTS:
            return (self.long,)
        return [self.by_part.setdefault(part, []) for part in range(first, last + 1)]


class NamedTable:
    """`Table` of posted items."""

    def __init__(self) -> None:
        self._names: list[ObjectName | None] = []
        self._offsets: list[int] = []
        self._lengths: list[int] = []
        self._of: dict[ObjectName, int | _Ranges] = {}
        self._free: list[int] = []
        self._key_bytes = 0

    @property
    def count(self) -> int:
        return len(self._names)

    @property
    def bytes(self) -> int:
        return (len(self._names) - len(self._free)) * ITEM_BYTES + self._key_bytes

    def intern(self, name: ObjectName, offset: int, length: int) -> int:
        """The number of an item, a new one if it is not known."""
        known = self._of.get(name)
        if known is None:
            item = self._of[name] = self._new(name, offset, length)
            return item
        if isinstance(known, int):
            if (self._offsets[known], self._lengths[known]) == (offset, length):
                return known
            ranges = self._of[name] = _Ranges()
            self._add(ranges, known, self._offsets[known], self._lengths[known])
            known = ranges
        found = known.exact.get((offset, length))
        if found is None:
            found = self._new(name, offset, length)
            self._add(known, found, offset, length)
        return found

    def _add(self, ranges: _Ranges, item: int, offset: int, length: int) -> None:
        ranges.exact[offset, length] = item
        for place in ranges.places(offset, length):
            place.append(item)

    def _new(self, name: ObjectName, offset: int, length: int) -> int:
        self._key_bytes += len(name.key)
        if self._free:
            item = self._free.pop()
            self._names[item] = name
            self._offsets[item], self._lengths[item] = offset, length
            return item
        self._names.append(name)
        self._offsets.append(offset)
        self._lengths.append(length)
        return len(self._names) - 1

    def touching(self, name: ObjectName, start: int, end: int) -> Sequence[int]:
        """See `Table`."""
        known = self._of.get(name)
        if known is None:
            return ()
        if isinstance(known, int):
            return (known,) if self._touches(known, start, end) else ()
        found = dict.fromkeys(known.long)
        for part in range(start // PART_BYTES, (end - 1) // PART_BYTES + 1):
            found |= dict.fromkeys(known.by_part.get(part, ()))
        return [item for item in found if self._touches(item, start, end)]

    def _touches(self, item: int, start: int, end: int) -> bool:
        offset = self._offsets[item]
        return offset < end and start < offset + self._lengths[item]

    def range(self, item: int) -> tuple[ObjectName, int, int]:
        """See `Table`."""
        name = self._names[item]
        assert name is not None, item
        return name, self._offsets[item], self._lengths[item]

    def free(self, item: int) -> None:
        """See `Table`."""
        name, offset, length = self.range(item)
        known = self._of[name]
        if isinstance(known, int):
            del self._of[name]
        else:
            del known.exact[offset, length]
            for place in known.places(offset, length):
                place.remove(item)
            if not known.exact:
                del self._of[name]
        self._names[item] = None
        self._free.append(item)
        self._key_bytes -= len(name.key)


class ListedTable:
    """`Table` of the objects below a prefix, or of their records, in the order of names."""

    def __init__(self, items: ListedItems) -> None:
        """items: complete."""
        assert items.complete
        self._items = items

    @property
    def count(self) -> int:
        return self._items.count

    @property
    def bytes(self) -> int:
        return self._items.count * LISTED_BYTES + self._items.memory_bytes

    def touching(self, name: ObjectName, start: int, end: int) -> Sequence[int]:
        """See `Table`."""
        if name.bucket != self._items.folder[0]:
            return ()
        return self._items.touching(name.key, start, end)

    def range(self, item: int) -> tuple[ObjectName, int, int]:
        """See `Table`."""
        number, offset, length = self._items.range(item)
        return self._items.object_name(number), offset, length

    def free(self, item: int) -> None:
        """The listing stays as it is until the plan goes."""
