"""The eviction port: what a policy is told of blocks, and what it is asked.

A block is one int, its key. All a policy knows of a block is one byte, its mark, kept beside the
block's pages: which of the policy's queues it is in, and how often it was read again. Queues hold
keys, 8 bytes each, and are never searched: an entry counts only while the mark says that the
block is in that queue, what is out of date is skipped when it comes up.
"""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hubspoke.core.cached_object import CachedObject

BLOCK_BITS = 32  # key: object number, block index

# Queues of all policies, so that a mark says whose block it is. 0: of none, nothing is resident.
SMALL, MAIN, WAITING, PROBATION, PINNED, HELD, BY_ITEM = range(1, 8)
HINTED = 32
QUEUE, READS = 39, 24  # bits of a mark
ONE_READ = 8


class Read(Protocol):
    """What is looked at of an access."""

    @property
    def obj(self) -> "CachedObject": ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


class Marks(Protocol):
    def mark(self, key: int) -> int: ...
    def set_mark(self, key: int, mark: int) -> None: ...


class Policy(Protocol):
    """An order of eviction over resident blocks. Each call is O(1) on average."""

    def admitted(self, key: int, mark: int) -> None:
        """The block has pages that are to be read; mark: the one it has."""
        ...

    def consumed(self, key: int, mark: int) -> None:
        """All that is resident of the block was read."""
        ...

    def touched(self, key: int, mark: int) -> None:
        """Pages that had been read before were read again."""
        ...

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """The block to drop next; its mark is cleared by the caller. None if none may go."""
        ...


class KeyQueue:
    """First in, first out, 8 bytes a key."""

    __slots__ = ("_head", "_keys")

    def __init__(self) -> None:
        self._keys = array("Q")
        self._head = 0

    def __len__(self) -> int:
        return len(self._keys) - self._head

    def push(self, key: int) -> None:
        self._keys.append(key)

    def pop(self) -> int:
        """The oldest; the queue is not empty."""
        key = self._keys[self._head]
        self._head += 1
        if self._head > 1_024 and self._head * 2 > len(self._keys):
            del self._keys[: self._head]
            self._head = 0
        return key

    def tidy(self, live: int, current: Callable[[int], bool]) -> None:
        """Forget entries that are out of date or doubled once they outnumber the live ones."""
        if len(self) <= 2 * live + 1_024:
            return
        kept = dict.fromkeys(key for key in self._keys[self._head :] if current(key))
        self._keys, self._head = array("Q", kept), 0
