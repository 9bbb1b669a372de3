"""Which block goes when room is needed.

Consumed first: a block whose last page was read cannot be used again before the next epoch, so
it goes before a block that is still to be read; among the consumed the *latest* goes first. For
a cyclic scan larger than the cache that keeps a stable part of the data set, where an LRU would
keep nothing (WORKLOADS, "what is optimal"). Unconsumed blocks go oldest first.

Source: own; for one read of each item per epoch a pinned set attains the optimum (WORKLOADS).
"""

from collections.abc import Callable

BlockKey = tuple[int, int]  # object number, block index


class ConsumedFirst:
    """Order of eviction over resident blocks; residency itself is the cache's business."""

    def __init__(self) -> None:
        # Dicts keep insertion order: _waiting is oldest first, _consumed is in order of reading.
        self._waiting: dict[BlockKey, None] = {}
        self._consumed: dict[BlockKey, None] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._consumed)

    def admitted(self, key: BlockKey) -> None:
        """The block got pages (again): it is to be read."""
        self._consumed.pop(key, None)
        self._waiting.setdefault(key, None)

    def consumed(self, key: BlockKey) -> None:
        """The block was read to its end."""
        if key in self._waiting:
            del self._waiting[key]
            self._consumed[key] = None

    def removed(self, key: BlockKey) -> None:
        self._waiting.pop(key, None)
        self._consumed.pop(key, None)

    def victim(
        self, evictable: Callable[[BlockKey], bool], *, consumed_only: bool = False
    ) -> BlockKey | None:
        """The block to drop next among those that are `evictable`; None if there is none.

        consumed_only: spare what is still to be read. Skips what is pinned or in flight:
        O(skipped), and those are bounded by the readers and the flights under way.
        """
        for key in reversed(self._consumed):
            if evictable(key):
                return key
        if consumed_only:
            return None
        for key in self._waiting:
            if evictable(key):
                return key
        return None
