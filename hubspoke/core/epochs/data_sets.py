"""Reads as items: which item of which folder each access was.

A folder's first reads say what its items are (`kinds`), then its listing is read a slice for
each call; the reads until then wait. From then on every batch of accesses becomes one array of
item numbers for each folder. What another generator understands (a dense or strided stream
of records) has no items.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.items import Folder, ListedItems
from hubspoke.core.epochs.kinds import AGREE, KIND_READS, kind_of, to_the_end
from hubspoke.core.epochs.records import Records
from hubspoke.core.generators.candidates import Listing
from hubspoke.core.streams import Access

FOLDERS_MAX = 64
WAITING_MAX = 65_536  # reads until the listing is known; more are forgotten
TRIES_MAX = 16
AGAIN_READS = 4_096  # after so many it is tried again: a job may follow a copy
# A slice of the listing (0.7 ms) for so much time, not more than a few at once: of a million files
# one for each call took two minutes.
SLICE_S, SLICES_MAX = 0.008, 4
JUDGED = 64  # reads of the records' length that show whether they lie where they were believed


@dataclass(slots=True, eq=False)
class ReadFolder:
    """What is known of one folder so far. items: None until its kind is."""

    folder: Folder
    items: ListedItems | None = None
    waiting: list[Access] = field(default_factory=list)
    grown_at: float = 0.0  # when the listing was read last; 0: never
    tries: int = 0
    passed: int = 0  # reads since the last try
    judged: int = 0  # of the records' length
    astray: int = 0  # of those, where no record is


class ItemReads(NamedTuple):
    """Reads of items of one folder, in order; of an object in pieces, that of its head."""

    folder: ReadFolder
    items: npt.NDArray[np.int32]
    accesses: list[Access]  # one for each item


class DataSets:
    """The folders that are read now."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._folders: OrderedDict[Folder, ReadFolder] = OrderedDict()

    def __contains__(self, folder: Folder) -> bool:
        """Whether the folder is read by items."""
        known = self._folders.get(folder)
        return known is not None and known.items is not None

    def observe(self, accesses: Iterable[Access]) -> list[ItemReads]:
        """Take accesses in, in order of time; returns what items they read."""
        fresh: dict[Folder, list[Access]] = {}
        last, of_last = None, list[Access]()
        for a in accesses:
            if a.obj.data_set is not last:
                last = a.obj.data_set
                of_last = fresh.setdefault(last.folder, [])
            of_last.append(a)
        found = []
        for folder, reads in fresh.items():
            known = self._folders.get(folder)
            if known is None:
                known = self._folders[folder] = ReadFolder(folder)
            self._folders.move_to_end(folder)
            taken = self._take(known, reads)
            if taken is not None:
                found.append(taken)
        while len(self._folders) > FOLDERS_MAX:
            self._folders.popitem(last=False)
        return found

    def _take(self, known: ReadFolder, reads: list[Access]) -> ItemReads | None:
        items = known.items
        if items is not None and items.complete:
            found = _item_reads(known, items, reads)
            if known.judged >= JUDGED:
                if known.astray > (1 - AGREE) * known.judged:  # of a finer step, as far as is known
                    known.items, known.tries = None, known.tries + 1
                known.judged = known.astray = 0
            return found
        if items is None and known.tries >= TRIES_MAX:
            known.passed += len(reads)
            if known.passed < AGAIN_READS:
                return None
            known.tries = known.passed = 0
        known.waiting += reads[: WAITING_MAX - len(known.waiting)]
        if items is None:
            if len(known.waiting) < KIND_READS:
                return None
            kind = kind_of(known.waiting)
            if kind is False:
                known.tries += 1
                known.waiting = []
                return None
            record = kind if isinstance(kind, Records) else None
            items = known.items = ListedItems(known.folder, self._listing, record=record)
            items.whole = record is not None or to_the_end(known.waiting)
        now, before = reads[-1].at, known.grown_at or reads[-1].at
        items.grow(min(max(int((now - before) / SLICE_S), 1), SLICES_MAX))
        known.grown_at = now
        if not items.complete:
            return None
        reads, known.waiting = known.waiting, []
        return _item_reads(known, items, reads)

    def relearn(self, folder: Folder) -> None:
        """It is read at random now, and was read otherwise: what it has as items, if not records,
        was decided by reads that are over."""
        known = self._folders.get(folder)
        if known is not None and (known.items is None or known.items.record is None):
            del self._folders[folder]

    def forget(self, folder: Folder) -> None:
        """It is learned anew."""
        self._folders.pop(folder, None)

    def understood(self, folder: Folder) -> None:
        """Another generator follows a dense or strided stream there: what looked like records
        are steps of it. Whole objects are read densely, too."""
        known = self._folders.get(folder)
        if known is not None and known.items is not None and known.items.record is not None:
            known.items, known.waiting, known.tries = None, [], TRIES_MAX


def _item_reads(known: ReadFolder, items: ListedItems, reads: list[Access]) -> ItemReads:
    if items.record is None:
        # An object may be read in pieces, by whoever; it is counted when its head is read.
        reads = [a for a in reads if a.offset == 0]
    numbers = items.numbers(
        [a.obj.name.key for a in reads], [a.offset for a in reads], [a.length for a in reads]
    )
    record = items.record
    if record is not None:
        known.judged += len(reads)
    if len(numbers) and numbers.min() < 0:
        each = numbers.tolist()
        if record is not None:
            others = [a for a, n in zip(reads, each, strict=True) if n < 0]
            astray = sum(a.length == record.length for a in others)
            known.judged -= len(others) - astray
            known.astray += astray
        reads = [a for a, n in zip(reads, each, strict=True) if n >= 0]
        numbers = numbers[numbers >= 0]
    return ItemReads(known, numbers, reads)
