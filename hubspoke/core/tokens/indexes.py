"""Index files of token files, as far as they were read through the spoke or lie beside them.

    data/corpus.bin, data/corpus.idx                            documents
    .../HASH-GPTDataset-train-{document,sample,shuffle}_index.npy   one order of samples

What such a file says is known when all of it is in the cache, and kept while there is room.
"""

from collections import OrderedDict
from typing import NamedTuple

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.generators.candidates import Candidate, Listing
from hubspoke.core.ids import ObjectName, Version
from hubspoke.core.layouts.book import Book
from hubspoke.core.layouts.layout import Span
from hubspoke.core.layouts.numbers import BYTES_MAX, IDX, NPY, Numbers
from hubspoke.core.layouts.probe import Look, Seen
from hubspoke.core.orders.megatron import Index
from hubspoke.core.tokens.samples import Samples

DOCUMENT, SAMPLE, SHUFFLE = "document_index.npy", "sample_index.npy", "shuffle_index.npy"
NPYS = (DOCUMENT, SAMPLE, SHUFFLE)
SUFFIXES = (".idx", *NPYS)
KEPT_BYTES_MAX = 256 << 20
OPENED_MAX = 64
ORDERS_MAX = 8  # tried on one file


class _Kept(NamedTuple):
    version: Version
    numbers: Numbers
    bytes: int


class Indexes:
    """`changes` grows whenever more is known."""

    def __init__(self, cache: Cache, listing: Listing) -> None:
        self.book = Book(cache, self._seen)
        self.changes = 0
        self._cache = cache
        self._listing = listing
        self._kept: OrderedDict[ObjectName, _Kept] = OrderedDict()
        self._bytes = 0
        self._opened: OrderedDict[ObjectName, Version] = OrderedDict()
        self._wanted: list[Candidate] = []

    def read(self, obj: CachedObject) -> None:
        """A reader reads the start of an object whose name ends like an index."""
        if self._opened.get(obj.name) == obj.version or obj.size > BYTES_MAX:
            return
        self._open(obj.name, obj.version)
        self.book.want(obj, _look(obj.name, obj.size))

    def _open(self, name: ObjectName, version: Version) -> None:
        self._opened[name] = version
        while len(self._opened) > OPENED_MAX:
            self._opened.popitem(last=False)

    def fetch(self, of: CachedObject) -> None:
        """A .bin object is read here and there: have its index, and the orders that were opened,
        brought as a whole."""
        idx = _idx_of(of.name)
        if idx is not None and idx not in self._opened:
            before = ObjectName(idx.bucket, idx.key[:-1])
            for name, entry in self._listing.following(before, 4):
                if name == idx and entry.size <= BYTES_MAX:
                    self._open(idx, entry.version)
                    self.book.expect(idx, entry.version, _look(idx, entry.size))
                    self._wanted.append(Candidate("layout", 0, idx, entry, 0, entry.size, 0.0, 1))
        for name in self._opened:
            obj = self._cache.current(name)
            if obj is not None and name not in self._kept and obj.resident < len(obj.pages):
                self._wanted.append(Candidate("layout", 0, name, None, 0, obj.size, 0.0, 1))

    def take(self) -> list[Candidate]:
        """What is to be brought."""
        found, self._wanted = self._wanted, []
        return found

    def _seen(self, obj: CachedObject, seen: Seen | None) -> None:
        if not isinstance(seen, Numbers):
            return
        self._drop(obj.name)
        self._kept[obj.name] = _Kept(obj.version, seen, obj.size)
        self._bytes += obj.size
        while self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        self.changes += 1

    def _drop(self, name: ObjectName) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._bytes -= kept.bytes

    # -- what is known --------------------------------------------------------------------------

    def _numbers(self, name: ObjectName) -> Numbers | None:
        """As long as the object is what it was."""
        kept, obj = self._kept.get(name), self._cache.current(name)
        if kept is None or (obj is not None and obj.version != kept.version):
            return None
        return kept.numbers

    def documents(self, of: CachedObject) -> Index | None:
        """Of a .bin object."""
        idx = _idx_of(of.name)
        found = None if idx is None else self._numbers(idx)
        return None if found is None else found.documents

    def orders(self, of: CachedObject) -> list[tuple[str, Samples]]:
        """Orders of samples that may be of this .bin object, by the name of their files, the one
        seen last first."""
        index = self.documents(of)
        found: list[tuple[str, Samples]] = []
        if index is None:
            return found
        for name in reversed(self._kept):
            if not name.key.endswith(DOCUMENT) or len(found) == ORDERS_MAX:
                continue
            stem = name.key.removesuffix(DOCUMENT)
            each = [self._numbers(ObjectName(name.bucket, stem + suffix)) for suffix in NPYS]
            arrays = [n.array for n in each if n is not None and n.array is not None]
            if len(arrays) == len(NPYS):
                samples = Samples(index, *arrays)
                if samples.valid(of.size):
                    found.append((stem[stem.rfind("/") + 1 :].rstrip("-"), samples))
        return found


def _idx_of(name: ObjectName) -> ObjectName | None:
    stem = name.key.removesuffix(".bin")
    return None if stem == name.key else ObjectName(name.bucket, stem + ".idx")


def _look(name: ObjectName, size: int) -> Look:
    return Look(size, Span(0, size), IDX if name.key.endswith(".idx") else NPY)
