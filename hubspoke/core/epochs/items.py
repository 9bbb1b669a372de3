"""The items of a folder, numbered in listing order: whole objects, or records evenly apart.

A shuffled job draws numbers, so orders are kept and computed as numbers; only what is fetched
becomes a name again. A million names are one string of bytes with offsets and their hashes in
order: 40 B a name, where a dict of names takes 200. The listing is read a slice at a time, since
a prediction must not take longer than the reads between two of them.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.numbering import Names
from hubspoke.core.epochs.records import Records, suffix_of
from hubspoke.core.generators.candidates import Listing
from hubspoke.core.ids import ObjectEntry, ObjectName

Folder = tuple[str, str]  # bucket, key up to the last slash

SLICE_NAMES = 256
SHARDS_MAX = 16_384  # whose sizes are told who searches for orders
FEW_OBJECTS = 4_096
_KEY_ERRORS = "surrogatepass"  # names are exact bytes, whatever they are


def folder_of(name: ObjectName) -> Folder:
    return name.bucket, name.key[: name.key.rfind("/") + 1]


class Items(Protocol):
    """Items of one folder, in listing order."""

    @property
    def count(self) -> int:
        """How many there are, as far as the listing is known."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the whole listing is known; before that no read belongs to an item."""
        ...

    def number(self, name: ObjectName, offset: int, length: int) -> int | None:
        """The item a read belongs to; None: to none."""
        ...

    def place(self, item: int) -> tuple[ObjectName, ObjectEntry, int, int] | None:
        """Object, entry, offset and length of an item; None if its object is gone."""
        ...


class ListedItems:
    """`Items`, from a `Listing`. record: where records lie; None: items are whole objects."""

    def __init__(self, folder: Folder, listing: Listing, *, record: Records | None) -> None:
        assert record is None or 0 < record.length <= record.step, record
        self.folder = folder
        self.record = record
        self.complete = False
        self.shards: tuple[int, ...] = ()  # records of each object, if there are not too many
        self.numbering: npt.NDArray[np.int32] | None = None  # of a loader, if it is no listing
        self.whole = True  # an item that is begun is read to its end
        self._listing = listing
        self._keys = bytearray()  # behind the folder's part, one after the other
        self._ends: list[int] = []
        self._lengths: list[int] = []
        self._counts: list[int] = []  # of records
        self._hashes: list[int] = []
        self._names = Names()
        self._last = ObjectName(*folder)
        # Once complete: where each key ends, object sizes, the first item of each object.
        self._end = self._size = self._first = np.zeros(0, np.int64)
        self._hash = np.zeros(0, np.int64)  # in order, with
        self._object = np.zeros(0, np.int32)  # the object of each
        self._bytes = 0  # of all items
        self._few: dict[str, tuple[int, int]] = {}  # looked up last: first item (-1: none) and size

    def grow(self, slices: int = 1) -> None:
        """Read the next slices of the listing."""
        for _ in range(slices):
            if self.complete:
                return
            self._grow()

    def _grow(self) -> None:
        found = self._listing.following(self._last, SLICE_NAMES)
        cut = len(self.folder[1])
        keys = [name.key for name, _ in found]
        names = [key[cut:] for key in keys]
        if self.record is None:
            self._names.take(names)
        parts: Sequence[str | bytes] = names
        if not "".join(names).isascii():  # or each is as long as its bytes
            parts = [name.encode(errors=_KEY_ERRORS) for name in names]
        ends = accumulate(map(len, parts), initial=len(self._keys))
        next(ends)
        self._ends += ends
        self._keys += "".join(names).encode(errors=_KEY_ERRORS)
        self._lengths += [entry.size for _, entry in found]
        if self.record is not None:
            self._counts += [_records(self.record, name.key, entry.size) for name, entry in found]
        self._hashes += map(hash, keys)
        if found:
            self._last = found[-1][0]
        else:
            self._finish()

    def _finish(self) -> None:
        self.complete = True
        self._end = np.array(self._ends, np.int64)
        self._size = np.array(self._lengths, np.int64)
        hashes = np.array(self._hashes, np.int64)
        self._object = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hash = hashes[self._object]
        self._ends, self._lengths, self._hashes = [], [], []
        if self.record is None:
            each = np.ones(len(self._size), np.int64)
            self.numbering, self._names = self._names.numbering(), Names()
        else:
            each, self._counts = np.array(self._counts, np.int64), []
            shards = each[each > 0]
            self.shards = tuple(shards.tolist()) if len(shards) <= SHARDS_MAX else ()
        self._first = np.concatenate((np.zeros(1, np.int64), np.cumsum(each)))
        self._bytes = int(self._size.sum())
        if self.record is not None:
            self._bytes = self.record.length * self.count
            self._bytes += int((self._last_lengths() - self.record.length)[each > 0].sum())

    @property
    def objects(self) -> int:
        return len(self._size)

    @property
    def count(self) -> int:
        return int(self._first[-1]) if self.complete else 0

    def number(self, name: ObjectName, offset: int, length: int) -> int | None:
        """See `Items`. Of an object any read belongs to it; a record is read whole."""
        if not self.complete or folder_of(name) != self.folder:
            return None
        item = self._number(name.key, offset, length)
        return None if item < 0 else item

    def _listed(self, key: str) -> int | None:
        """Place of an object in the listing; None: it has none."""
        wanted = hash(key)
        at = int(self._hash.searchsorted(wanted))
        if at >= len(self._hash) or self._hash[at] != wanted:
            return None
        return int(self._object[at])

    def numbers(
        self, keys: Sequence[str], offsets: Sequence[int], lengths: Sequence[int]
    ) -> npt.NDArray[np.int32]:
        """`number` of many reads of objects of this folder; -1 where there is none. Two names of
        one hash (64 bits) would be taken for each other, which costs a wrong prefetch."""
        if self.objects <= FEW_OBJECTS:
            return np.array(self._numbers_of_few(keys, offsets, lengths), np.int32)
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        at = np.minimum(np.searchsorted(self._hash, hashes), len(self._hash) - 1)
        known = self._hash[at] == hashes
        found = self._object[at]
        items = self._first[found]
        if self.record is not None:
            r, offset = self.record, np.array(offsets, np.int64)
            whole = np.minimum(r.length, self._size[found] - offset)
            item, rest = np.divmod(offset - r.first, r.step)
            known &= (rest == 0) & (item >= 0) & (np.array(lengths, np.int64) == whole)
            items = items + item
            known &= items < self._first[found + 1]  # or the object has no records
        return np.where(known, items, -1).astype(np.int32)

    def _number(self, key: str, offset: int, length: int) -> int:
        """`numbers` of one read."""
        return self._numbers_of_few((key,), (offset,), (length,))[0]

    def _numbers_of_few(
        self, keys: Sequence[str], offsets: Sequence[int], lengths: Sequence[int]
    ) -> list[int]:
        """Files that are read again and again, as packed ones are, are looked up once: a dozen
        arrays for some reads cost four times as much."""
        few, record, numbers = self._few, self.record, list[int]()
        for key, offset, length in zip(keys, offsets, lengths, strict=True):
            first, size = few.get(key) or self._look_up(key)
            if first >= 0 and record is not None:
                begin, step, most, _ = record
                item, rest = divmod(offset - begin, step)
                none = rest or item < 0 or length != min(most, size - offset)
                first = -1 if none else first + item
            numbers.append(first)
        return numbers

    def _look_up(self, key: str) -> tuple[int, int]:
        """First item of an object (-1: none) and its size, which are kept."""
        number = self._listed(key)
        first, size = -1, 0
        if number is not None:
            first, size = int(self._first[number]), int(self._size[number])
            if first == self._first[number + 1]:
                first = -1
        if len(self._few) >= FEW_OBJECTS:
            self._few.clear()
        self._few[key] = first, size
        return first, size

    @property
    def listed(self) -> int:
        """Objects so far."""
        return len(self._size) if self.complete else len(self._ends)

    def touching(self, key: str, start: int, end: int) -> range:
        """Items that have bytes in [start, end) of the object; none if it is not listed."""
        number = self._listed(key)
        if number is None:
            return range(0)
        first, last = self.of_object(number)
        if self.record is None:
            return range(first, last if start < self._size[number] else first)
        r = self.record
        begin = max(first, first + (start - r.first - r.length) // r.step + 1)
        return range(begin, min(last, first - ((r.first - end) // r.step)))

    @property
    def memory_bytes(self) -> int:
        """Of names and numbers."""
        return len(self._keys) + 36 * len(self._size)

    def object_name(self, number: int) -> ObjectName:
        """Name of an object of the folder by its place in the listing."""
        begin = int(self._end[number - 1]) if number else 0
        key = self._keys[begin : int(self._end[number])].decode(errors=_KEY_ERRORS)
        return ObjectName(self.folder[0], self.folder[1] + key)

    def of_object(self, number: int) -> tuple[int, int]:
        """Items [first, last) of an object by its place in the listing."""
        return int(self._first[number]), int(self._first[number + 1])

    def range(self, item: int) -> tuple[int, int, int]:
        """Object (its place in the listing), offset and length of an item."""
        if self.record is None:
            return item, 0, int(self._size[item])
        found = int(np.searchsorted(self._first, item, "right")) - 1
        offset = self.record.first + (item - int(self._first[found])) * self.record.step
        return found, offset, min(self.record.length, int(self._size[found]) - offset)

    def lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of each item."""
        if self.record is None:
            return self._size
        found = np.full(self.count, self.record.length, np.int64)
        each, end = np.diff(self._first), self._first[1:]
        found[end[each > 0] - 1] = self._last_lengths()[each > 0]
        return found

    def _last_lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of the last record of each object that has any."""
        assert self.record is not None
        offset = self.record.first + (np.diff(self._first) - 1) * self.record.step
        return np.asarray(np.minimum(self.record.length, self._size - offset))

    def ranges(self, items: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
        """`range` of many."""
        if self.record is None:
            return zip(items.tolist(), [0] * len(items), self._size[items].tolist(), strict=True)
        found = np.searchsorted(self._first, items, "right") - 1
        offset = self.record.first + (items - self._first[found]) * self.record.step
        length = np.minimum(self.record.length, self._size[found] - offset)
        return zip(found.tolist(), offset.tolist(), length.tolist(), strict=True)

    def entry(self, number: int) -> ObjectEntry | None:
        """What the namespace has of an object now; None if it is gone."""
        before = self.object_name(number - 1) if number else ObjectName(*self.folder)
        found = self._listing.following(before, 1)
        return found[0][1] if found and found[0][0] == self.object_name(number) else None

    def place(self, item: int) -> tuple[ObjectName, ObjectEntry, int, int] | None:
        """See `Items`."""
        number, offset, length = self.range(item)
        entry = self.entry(number)
        return None if entry is None else (self.object_name(number), entry, offset, length)

    @property
    def bytes_mean(self) -> float:
        return self._bytes / max(1, self.count)


def _records(record: Records, key: str, size: int) -> int:
    """Of an object; other files beside the data have none."""
    of = record.suffixes
    return record.count(size) if of is None or suffix_of(key) in of else 0
