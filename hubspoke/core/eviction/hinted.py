"""Blocks that posted plans name (`core.hints`): what is to be read exactly then.

A block in which some of a plan's items are still to be read is in no queue of the other policies
(`HINTED`): it stays as long as anything goes that is less sure. Then what the plans read last of
all goes first. What a plan has read goes to the other policies; where its neighbours in the block
are still to be read, its pages are the first to go.
"""

from collections.abc import Callable
from typing import Protocol

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.eviction.by_item import ItemPages, Wanted
from hubspoke.core.eviction.policy import BLOCK_BITS, HINTED, QUEUE, Policy
from hubspoke.core.page_codes import IS_TO_COME, PAGES_PER_BLOCK


class HintOrder(Protocol):
    """What the plans say, as the cache asks for it."""

    def holds(self, obj: CachedObject, block: int) -> bool:
        """Whether anything in the block is to be read."""
        ...

    def consumed(self) -> ItemPages | None:
        """Pages that a plan has read, in a block that it holds."""
        ...

    def victim(self, wanted: Wanted | None) -> ItemPages | None:
        """What is read last of all; None if that is sooner than what needs the room."""
        ...


class NoHints:
    """`HintOrder` while nobody has posted a plan."""

    def holds(self, obj: CachedObject, block: int) -> bool:
        return False

    def consumed(self) -> ItemPages | None:
        return None

    def victim(self, wanted: Wanted | None) -> ItemPages | None:
        return None


class HintedBlocks:
    """See `policy.Policy`. order: set by whoever holds the plans."""

    def __init__(
        self,
        unqueued: Callable[[CachedObject, int], None],
        policy: Callable[[CachedObject, int], Policy],
    ) -> None:
        """unqueued: the resident block leaves the other policies. policy: for a mark."""
        self.order: HintOrder = NoHints()
        self._unqueued, self._policy = unqueued, policy

    def hold(self, obj: CachedObject, block: int) -> None:
        """Something in the block is to be read."""
        mark = obj.pages.mark(block)
        if mark and mark & QUEUE != HINTED:
            self._unqueued(obj, block)
            obj.pages.set_mark(block, HINTED)

    def release(self, obj: CachedObject, block: int, *, read: bool) -> bool:
        """Nothing in it is, unless a plan says so; returns whether other policies have it. read:
        else nobody will read what is there unread, and it is no surer than what was read."""
        if obj.pages.mark(block) & QUEUE != HINTED:
            return True
        if self.order.holds(obj, block):
            return False
        obj.pages.set_mark(block, 0)
        key, first = (obj.number << BLOCK_BITS) + block, block * PAGES_PER_BLOCK
        policy = self._policy(obj, 0)
        policy.admitted(key, 0)
        last = min(first + PAGES_PER_BLOCK, len(obj.pages))
        if not (read and obj.pages.any(first, last, IS_TO_COME)):
            policy.consumed(key, obj.pages.mark(block))
        return True

    def admitted(self, key: int, mark: int) -> None:
        """It is held already."""

    def consumed(self, key: int, mark: int) -> None:
        """The plans know better what was read."""

    def touched(self, key: int, mark: int) -> None:
        """As `consumed`."""

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """Never a block."""
        return None
