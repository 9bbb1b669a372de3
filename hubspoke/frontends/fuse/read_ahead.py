"""How far the kernel reads ahead in each open file, by how files of its folder were read.

    OPEN  -> the mount's read-ahead is set to what suits the folder; the kernel copies it into the
             open file when the answer is there, for as long as that is open
    READs -> counted by folder: behind one another, around a fault of a mapping, or neither

Where faults of mappings bring what nobody asked for, it is cut; files that are read on get longer
requests than the rest, since each costs the daemon the same. What decides is counted under
whatever read-ahead a file has, so a folder that is read in another way later gets another one with
the next files that are opened.
"""

import logging
import os
from collections import OrderedDict
from pathlib import Path

from hubspoke.frontends.fuse.folder_reads import FolderReads, Level
from hubspoke.frontends.fuse.nodes import Node
from hubspoke.frontends.fuse.tuning import FuseTuning

log = logging.getLogger(__name__)

FOLDERS_MAX = 1_024


class ReadAhead:
    """Of one mount; touched only on the loop."""

    def __init__(self, tuning: FuseTuning) -> None:
        self.sizes = (tuning.read_ahead, tuning.read_ahead_cut, tuning.read_ahead_wide)
        self._folders: OrderedDict[str, FolderReads] = OrderedDict()
        self._setting = -1  # descriptor; -1: this user may not, and it stays as it is
        self._set = Level.USUAL

    def begin(self, path: Path) -> None:
        """path: the mount's setting in /sys."""
        try:
            self._setting = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as e:
            log.info("read-ahead not set error=%s", e.strerror)
            return
        self._write(Level.USUAL)

    def close(self) -> None:
        """The mount is gone."""
        if self._setting >= 0:
            os.close(self._setting)
            self._setting = -1

    def opened(self, node: Node) -> Level:
        """A handle of the node is about to be answered."""
        if self._setting < 0 or node.resolved is None or node.resolved.entry.size <= self.sizes[0]:
            return Level.USUAL
        if node.reads is None:
            node.reads = self._of(f"{node.bucket}/{node.key.rpartition('/')[0]}")
        level = node.reads.opens()
        if level is not self._set:
            self._write(level)
        return self._set

    def read(self, node: Node, level: int, offset: int, size: int) -> None:
        """A READ by a handle of that level."""
        if node.reads is not None:
            node.reads.read(node.id, offset, size, self.sizes[level])

    def _of(self, folder: str) -> FolderReads:
        reads = self._folders.pop(folder, None) or FolderReads(folder)
        self._folders[folder] = reads
        if len(self._folders) > FOLDERS_MAX:
            self._folders.popitem(last=False)
        return reads

    def _write(self, level: Level) -> None:
        try:
            os.pwrite(self._setting, b"%d\n" % (self.sizes[level] >> 10), 0)
            self._set = level
        except OSError as e:
            log.info("read-ahead not set error=%s", e.strerror)
            self.close()
