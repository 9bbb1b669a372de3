"""S3-FIFO, for small things that are read again: metadata, footers, small hot files.

Assumes that most of what is read once is never read again. New blocks pass through a small queue
(a tenth); those read again on the way move to the main one, the others leave a ghost, and who
comes back while its ghost is remembered goes to the main queue at once. The main queue gives
blocks that were read again another turn. It has no answer to cyclic scans: data sets are not
given to it (see `pinned_set`).

Source: Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction",
SOSP 2023, algorithm 1. Own: what counts as a read is one of pages that were read before, because
a block is first read in many small steps.
"""

from collections import OrderedDict
from collections.abc import Callable

from hubspoke.core.eviction.policy import MAIN, ONE_READ, QUEUE, READS, SMALL, KeyQueue, Marks

SMALL_SHARE = 0.1  # of the blocks, the paper's choice
GHOSTS_MIN, GHOSTS_MAX = 64, 65_536  # the paper: as many as the main queue has


class S3Fifo:
    """See `policy.Policy`."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._small, self._main = KeyQueue(), KeyQueue()
        self._live = {SMALL: 0, MAIN: 0}
        self._ghosts: OrderedDict[int, None] = OrderedDict()  # of a dict the oldest is far to seek

    def admitted(self, key: int, mark: int) -> None:
        if mark & QUEUE in (SMALL, MAIN):
            return
        self._put(key, MAIN if key in self._ghosts else SMALL)
        self._ghosts.pop(key, None)

    def _put(self, key: int, queue: int) -> None:
        keys = self._small if queue == SMALL else self._main
        keys.push(key)
        self._live[queue] += 1
        self._marks.set_mark(key, queue)
        keys.tidy(self._live[queue], lambda k: self._marks.mark(k) & QUEUE == queue)

    def consumed(self, key: int, mark: int) -> None:
        """Reading a small thing to its end says nothing about its next use."""

    def touched(self, key: int, mark: int) -> None:
        if mark & READS != READS:
            self._marks.set_mark(key, mark + ONE_READ)

    def left(self, queue: int) -> None:
        """A block of the queue lost its mark."""
        self._live[queue] -= 1

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        live = self._live
        # What cannot go is put back as young, so no entry is looked at more often than it has
        # turns to lose: three reads, one change of queue.
        for _ in range(5 * (len(self._small) + len(self._main))):
            small = live[SMALL] > SMALL_SHARE * (live[SMALL] + live[MAIN])
            queue = SMALL if small or not len(self._main) else MAIN
            keys = self._small if queue == SMALL else self._main
            if not len(keys):
                queue, keys = MAIN, self._main
            if not len(keys):
                return None
            key = keys.pop()
            mark = self._marks.mark(key)
            if mark & QUEUE != queue:
                continue
            reads = mark & READS
            if queue == SMALL and reads > ONE_READ:
                self.left(SMALL)
                self._put(key, MAIN)
            elif queue == MAIN and reads:
                keys.push(key)
                self._marks.set_mark(key, mark - ONE_READ)
            elif not evictable(key):
                keys.push(key)
            else:
                if queue == SMALL:
                    self._remember(key)
                return key
        return None

    def _remember(self, key: int) -> None:
        self._ghosts[key] = None
        most = min(max(self._live[MAIN], GHOSTS_MIN), GHOSTS_MAX)
        while len(self._ghosts) > most:
            self._ghosts.popitem(last=False)
