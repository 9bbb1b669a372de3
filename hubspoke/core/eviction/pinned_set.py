"""A pinned set, for data sets that are read once per epoch.

Assumes that what was read in this epoch is not read again before the next one, and that every
item has the same chance then. So any fixed set of blocks is as good as the best, and keeping it
fixed attains the bound hits <= capacity (WORKLOADS, the theorem); an LRU keeps nothing of a scan
larger than the cache.

The set is chosen at random: a block's rank is a hash of its key, and of the blocks that were read
the highest rank goes first, which keeps the lowest ranks in any order of reading. A set chosen by
age would be as good in hits, but the head of every epoch would be all hits and its tail all
misses: the WAN would need twice the rate that it needs when hits are spread evenly. Only the
first part of a large object has the lowest rank of all: whichever is opened first in an epoch,
its head is there (`generators.heads`).

    WAITING (to be read) -> PROBATION (read; the data set was never seen twice) -> PINNED
                                 HELD: was to go while a reader had it

Blocks of a data set on probation go before those of a proven one: a scan that is read once does
not displace what is read every epoch. What waits to be read goes last, oldest first.

Source: own; bottom-k sampling for the choice of the set.
"""

from array import array
from collections.abc import Callable

from hubspoke.core.eviction.policy import (
    BLOCK_BITS,
    HELD,
    PINNED,
    PROBATION,
    QUEUE,
    WAITING,
    KeyQueue,
    Marks,
)

RANKS = 256
HEAD_SHARE = 16  # a part of the blocks of a large object is its head
_BLOCK = (1 << BLOCK_BITS) - 1


def rank(key: int, blocks: int = 1) -> int:
    """Place in the order of going, 0..255, the same in every epoch and after a restart.

    blocks: of the object. Fibonacci hashing (Knuth, TAOCP 3, 6.4): neighbours get ranks far apart.
    """
    if (key & _BLOCK) < blocks // HEAD_SHARE:
        return 0
    return (key * 0x9E3779B97F4A7C15 >> 56) & (RANKS - 1)


class Ranked:
    """Keys by rank, the highest first and of one rank the youngest; 8 bytes a key."""

    __slots__ = ("_keys", "_live", "_rank", "_top")

    def __init__(self, rank: Callable[[int], int]) -> None:
        self._rank = rank
        self._keys = [array("Q") for _ in range(RANKS)]
        self._live = [0] * RANKS
        self._top = -1

    def push(self, key: int, current: Callable[[int], bool]) -> None:
        r = self._rank(key)
        keys = self._keys[r]
        keys.append(key)
        self._live[r] += 1
        self._top = max(self._top, r)
        if len(keys) > 2 * self._live[r] + 64:
            kept = dict.fromkeys(k for k in keys if current(k))
            self._keys[r] = array("Q", kept)
            self._live[r] = len(kept)

    def left(self, key: int) -> None:
        """The key is no longer here; its entry will be skipped."""
        r = self._rank(key)
        self._live[r] = max(0, self._live[r] - 1)

    def pop(self) -> int | None:
        """The next entry, in date or not."""
        while self._top >= 0:
            keys = self._keys[self._top]
            if keys:
                return keys.pop()
            self._top -= 1
        return None


class PinnedSet:
    """See `policy.Policy`."""

    def __init__(
        self, marks: Marks, proven: Callable[[int], bool], blocks: Callable[[int], int]
    ) -> None:
        """proven: whether the block's data set has been read more than once. blocks: how many its
        object has."""

        def placed(key: int) -> int:
            return rank(key, blocks(key))

        self._marks = marks
        self._proven = proven
        self._waiting = KeyQueue()
        self._waiting_live = 0
        self._ranked = {PROBATION: Ranked(placed), PINNED: Ranked(placed)}

    def admitted(self, key: int, mark: int) -> None:
        if mark & QUEUE == WAITING:
            return
        self.left(key, mark & QUEUE)
        self._marks.set_mark(key, WAITING)
        self._waiting.push(key)
        self._waiting_live += 1
        self._waiting.tidy(self._waiting_live, lambda k: self._marks.mark(k) & QUEUE == WAITING)

    def consumed(self, key: int, mark: int) -> None:
        if mark & QUEUE in (PROBATION, PINNED):
            return
        self.left(key, mark & QUEUE)
        self._rank(key, PINNED if self._proven(key) else PROBATION)

    def _rank(self, key: int, queue: int) -> None:
        self._marks.set_mark(key, queue)
        self._ranked[queue].push(key, lambda k: self._marks.mark(k) & QUEUE == queue)

    def touched(self, key: int, mark: int) -> None:
        """Read again: the data set counts it (`victims.DataSet`), the block stays where it is."""

    def left(self, key: int, queue: int) -> None:
        """The block lost its mark, or gets another."""
        if queue == WAITING:
            self._waiting_live -= 1
        elif queue in self._ranked:
            self._ranked[queue].left(key)

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """The next among those that were read."""
        key = self.victim_of(PROBATION, evictable)
        return self.victim_of(PINNED, evictable) if key is None else key

    def victim_of(self, queue: int, evictable: Callable[[int], bool]) -> int | None:
        """The next of one queue, PROBATION or PINNED."""
        ranked = self._ranked[queue]
        while (key := ranked.pop()) is not None:
            if self._marks.mark(key) & QUEUE != queue:
                continue
            if queue == PROBATION and self._proven(key):
                ranked.left(key)
                self._rank(key, PINNED)
            elif evictable(key):
                return key
            else:
                ranked.left(key)
                self._marks.set_mark(key, HELD)  # `consumed` when the reader is done
        return None

    def unread_victim(self, evictable: Callable[[int], bool]) -> int | None:
        """The oldest among those that wait to be read: the last resort."""
        for _ in range(len(self._waiting)):
            key = self._waiting.pop()
            if self._marks.mark(key) & QUEUE != WAITING:
                continue
            if evictable(key):
                return key
            self._waiting.push(key)
        return None

    def put_back(self, key: int, queue: int) -> None:
        """A victim that stays after all."""
        self._ranked[queue].left(key)
        self._rank(key, queue)
