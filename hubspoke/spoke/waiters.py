"""Readers that wait for pages, each on a future of its own.

A reader that is cancelled takes only its own future with it. Nothing waits without a deadline.
Frames that are not in the cache files (no room, a sick disk, a write that takes long) are handed
to the readers that need them from memory, and are held nowhere else.

Readers are found by the blocks they wait in: of a thousand that wait for one object each frame
concerns a few, and to look at all of them with each took most of a cold `cat_ranges`.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from hubspoke.core.eviction.policy import BLOCK_BITS
from hubspoke.core.ids import ObjectName, page_span
from hubspoke.core.page_codes import PAGES_PER_BLOCK
from hubspoke.errors import DeadlineExceeded, HubSpokeError

_NOT_HELD = re.compile(b"\x00+")


class Need:
    """Pages [first, last) that one reader waits for, and what it was handed of them.

    avoid: the disk is not to be waited for, whatever the cache says. number: the object's.
    charged: bytes of the memory budget this reader has taken for it. trouble: of a reader that does
    not wait yet, told that its pages will not come, or are to be looked for again. came: when
    the last of them did.
    """

    hurried = True  # a reader: not for what may take its time

    __slots__ = (
        "_have", "avoid", "came", "charged", "first", "future", "held", "last", "number", "trouble",
    )  # fmt: skip

    def __init__(self, number: int, first: int, last: int) -> None:
        self.number = number
        self.first = first
        self.last = last
        self.avoid = False
        self.charged = 0
        # Frames with their offsets; not by offset, for two may begin at one and differ in length.
        self.held: list[tuple[int, bytes]] = []
        self.future: asyncio.Future[None] | None = None
        self.trouble: Callable[[HubSpokeError | None], None] | None = None
        self.came: float | None = None
        self._have: bytearray | None = None

    def overlaps(self, first: int, last: int) -> bool:
        return self.first < last and first < self.last

    def hold(self, offset: int, data: bytes) -> None:
        """Keep a frame that overlaps."""
        if self._have is None:
            self._have = bytearray(self.last - self.first)
        first, last = page_span(offset, len(data))
        a, b = max(first, self.first) - self.first, min(last, self.last) - self.first
        self._have[a:b] = b"\x01" * (b - a)
        self.held.append((offset, data))

    def fail(self, error: HubSpokeError | None) -> None:
        """Its pages will not come; None: they are to be looked for again."""
        if self.future is None:
            if self.trouble is not None:
                self.trouble(error)
        elif not self.future.done():
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)

    def lacking(self) -> list[tuple[int, int]]:
        """Page runs that are not held."""
        if self._have is None:
            return [(self.first, self.last)]
        at = self.first
        return [(at + m.start(), at + m.end()) for m in _NOT_HELD.finditer(self._have)]

    def satisfied(self, readable: Callable[[int, int], bool]) -> bool:
        """Whether all pages are held or may be read from the cache."""
        lacking = self.lacking()
        return not lacking or (not self.avoid and all(readable(a, b) for a, b in lacking))

    def fill(self, buffer: bytearray, offset: int) -> None:
        """Copy what is held into `buffer`, which begins at byte `offset` of the object."""
        end = offset + len(buffer)
        for at, data in self.held:
            a, b = max(at, offset), min(at + len(data), end)
            if a < b:
                buffer[a - offset : b - offset] = memoryview(data)[a - at : b - at]

    def whole(self, offset: int, length: int) -> bytes | None:
        """The bytes if one frame has them all."""
        for at, data in self.held:
            if at <= offset and offset + length <= at + len(data):
                # A copy of its own type: frames come as buffers of any kind.
                return bytes(memoryview(data)[offset - at : offset - at + length])
        return None


class Waiters:
    """By object number and block; names that wait for a change are kept apart."""

    def __init__(self) -> None:
        self._pages: dict[int, list[Need]] = {}  # by object and block, some in several
        self._names: dict[ObjectName, list[asyncio.Future[None]]] = {}

    def add(self, need: Need) -> None:
        """Register before the pages are asked for, so that no arrival is missed."""
        for block in _blocks(need.number, need.first, need.last):
            self._pages.setdefault(block, []).append(need)

    def remove(self, need: Need) -> None:
        """The reader has what it needs, or is gone."""
        for block in _blocks(need.number, need.first, need.last):
            needs = self._pages[block]
            needs.remove(need)
            if not needs:
                del self._pages[block]

    def _near(self, number: int, first: int, last: int) -> Iterable[Need]:
        """Who may wait for any of the pages, and others of the same blocks; some twice where the
        pages lie in several blocks."""
        blocks = _blocks(number, first, last)
        if len(blocks) == 1:
            return self._pages.get(blocks[0], ())
        return chain.from_iterable(self._pages.get(block, ()) for block in blocks)

    async def wait(self, need: Need, timeout_s: float, name: ObjectName) -> None:
        """Until something it needs has come; raises what failed it, or DeadlineExceeded."""
        loop = asyncio.get_running_loop()
        need.future = loop.create_future()
        # Not asyncio.timeout, which costs three times as much, with each read.
        timer = loop.call_later(timeout_s, _expire, need, timeout_s, name)
        try:
            await need.future
        finally:
            timer.cancel()
            need.future = None

    def wake(
        self,
        number: int,
        spans: Iterable[tuple[int, int]],
        readable: Callable[[int, int], bool],
        now: float,
    ) -> None:
        """Pages [first, last) of the object have arrived."""
        for first, last in spans:
            for need in self._near(number, first, last):
                if need.first >= last or first >= need.last:
                    continue
                future = need.future
                if future is None:
                    need.came = now
                elif not future.done() and need.satisfied(readable):
                    future.set_result(None)

    def look_again(self, number: int, first: int, last: int) -> None:
        """Pages that were local are lost: who counted on them has to ask for them."""
        self._fail(number, first, last, None)

    def _fail(self, number: int, first: int, last: int, error: HubSpokeError | None) -> None:
        for need in self._near(number, first, last):
            if need.overlaps(first, last):
                need.fail(error)

    def wanted(self, number: int, first: int, last: int) -> bool:
        """Whether a reader wants the pages from memory although they are about to be stored."""
        near = self._near(number, first, last)
        return any(n.avoid and n.overlaps(first, last) for n in near)

    def hurried(self, number: int, first: int, last: int) -> bool:
        """Whether a reader waits for any of the pages."""
        near = self._near(number, first, last)
        return any(n.hurried and n.overlaps(first, last) for n in near)

    def needed(self, number: int, first: int, last: int) -> bool:
        """Whether anybody waits for any of the pages, or for others beside them."""
        return any(n.overlaps(first, last) for n in self._near(number, first, last))

    def hand(self, number: int, offset: int, data: bytes) -> None:
        """Give a frame, of one block, to all who need pages of it; `wake` tells them."""
        first, last = page_span(offset, len(data))
        for need in self._near(number, first, last):
            if need.overlaps(first, last):
                need.hold(offset, data)

    def fail(self, number: int, first: int, last: int, error: HubSpokeError) -> None:
        """Pages [first, last) will not come."""
        self._fail(number, first, last, error)

    def fail_all(self, error: HubSpokeError) -> None:
        for needs in self._pages.values():
            for need in needs:
                need.fail(error)

    async def next_change(self, name: ObjectName, timeout_s: float) -> None:
        """Until the replica applies a change of the name, or the time is up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._names.setdefault(name, []).append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return
        finally:
            futures = self._names.get(name, [])
            if future in futures:
                futures.remove(future)
            if not futures:
                self._names.pop(name, None)

    def name_changed(self, name: ObjectName) -> None:
        for future in self._names.get(name, ()):
            if not future.done():
                future.set_result(None)


def _expire(need: Need, timeout_s: float, name: ObjectName) -> None:
    if need.future is not None and not need.future.done():
        what = f"{name}: pages {need.first}..{need.last} not there after {timeout_s:.1f} s"
        need.future.set_exception(DeadlineExceeded(what))


def _blocks(number: int, first: int, last: int) -> Sequence[int]:
    """Keys of the blocks that the pages [first, last) of an object lie in."""
    base = number << BLOCK_BITS
    return range(base + first // PAGES_PER_BLOCK, base + (last - 1) // PAGES_PER_BLOCK + 1)
