"""How files of a folder are read, as far as the kernel's read-ahead goes.

A fault of a mapping at a random place brings all of a read-ahead around it (mm/filemap.c,
do_sync_mmap_readahead), for the first hundred faults of each open file, and programs that map a
file anew for each batch never come to the end of these: 64 pages over the WAN for one. Such a READ
is as long as the read-ahead, goes on from no other one and begins half of it before the page, so it
is seldom aligned to its own length, as reads that were asked for like that are.
"""

import logging
from collections import OrderedDict
from enum import IntEnum

from hubspoke.frontends.fuse import protocol

log = logging.getLogger(__name__)

ENDS_MAX = 64  # of the last READs of a folder: more readers at once than this look scattered
READS_MIN, READS_MAX = 8, 64  # to decide by; then what was counted is halved


class Level(IntEnum):
    """What a handle was opened with; travels in the handle."""

    USUAL = 0
    CUT = 1
    WIDE = 2


class FolderReads:
    """READs of the files of one folder."""

    __slots__ = ("_ends", "around", "level", "name", "on", "other")

    def __init__(self, name: str) -> None:
        self.name = name
        self.on = self.around = self.other = 0
        self.level = Level.USUAL
        self._ends: OrderedDict[tuple[int, int], None] = OrderedDict()

    def read(self, node_id: int, offset: int, size: int, read_ahead: int) -> None:
        """One READ of a file that was opened with this read-ahead."""
        ends = self._ends
        on = ends.pop((node_id, offset), self) is None
        ends[node_id, offset + size] = None
        if len(ends) > ENDS_MAX:
            ends.popitem(last=False)
        if size == protocol.PAGE or (on and size < read_ahead):
            return  # a fault behind the first hundred, or the next page of one: nothing is said
        cut = self.level is Level.CUT
        if on:
            self.on += 1
        elif size == read_ahead and (cut or offset % size):
            self.around += 1
        else:
            self.other += 1
        if self.on + self.around + self.other >= READS_MAX:
            self._decide()
            self.on, self.around, self.other = self.on // 2, self.around // 2, self.other // 2

    def opens(self) -> Level:
        """What the next file is to be opened with."""
        if self.on + self.around + self.other >= READS_MIN:
            self._decide()
        return self.level

    def _decide(self) -> None:
        all_ = self.on + self.around + self.other
        if (4 if self.level is Level.CUT else 2) * self.around > all_:
            level = Level.CUT
        elif 2 * self.on > all_:
            level = Level.WIDE
        else:
            level = Level.USUAL
        if level is not self.level:
            log.debug("read-ahead folder=%s level=%s", self.name, level.name.lower())
            self.level = level
