"""Frames between the lanes that brought them and the disk that takes them, by object.

What comes while the disk's thread is busy goes to it together, from whichever lane: each turn of
the disk costs a task switch, a hop to its thread and back, and a look at who waits.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hubspoke import wire
from hubspoke.core.cache import CachedObject
from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import page_span
from hubspoke.errors import CorruptFrame, HubSpokeError

# Taken from the lanes and not settled: more waits in the lanes, whose windows hold the hub back.
INCOMING_BYTES_MAX = 32 << 20


class Running:
    """A request under way, and what of it is not settled yet."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch
        self.delivered = 0  # bytes
        self.error: HubSpokeError | None = None  # a frame was bad: the request is given up
        self._unsettled = 0  # frames and ends of ranges
        self._settled: asyncio.Future[None] | None = None

    def came(self) -> None:
        self._unsettled += 1

    def settle(self) -> None:
        """One of what came is settled."""
        self._unsettled -= 1
        if not self._unsettled and self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def settled(self) -> None:
        """Until all that came is settled, which takes as long as a disk is waited for. Raises
        its error."""
        if self._unsettled:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled
        if self.error is not None:
            raise self.error


@dataclass(slots=True, eq=False)
class Item:
    """A frame and the request it belongs to."""

    running: Running
    header: wire.FrameHeader
    data: bytes

    @property
    def frame(self) -> wire.Frame:
        return self.header, self.data

    @property
    def pages(self) -> tuple[int, int]:
        """[first, last) that it brings."""
        return page_span(self.header.offset, len(self.data))

    @property
    def stored(self) -> bool:
        """Whether it is for the cache."""
        return self.running.fetch.ranges[self.header.range_index].stored

    @property
    def awaited(self) -> bool:
        """Whether its range has not failed meanwhile."""
        return self.header.range_index in self.running.fetch.open_ranges


# The request, the range, and what ended it before its time.
End = tuple[Running, int, HubSpokeError | None]


def item(running: Running, frame: wire.Frame) -> tuple[CachedObject, Item]:
    """Whose a frame is. Raises CorruptFrame if it belongs to nothing that was asked for."""
    header, data = frame
    r = running.fetch.ranges[header.range_index]
    if header.offset < r.offset or header.offset + len(data) > r.offset + r.length:
        raise CorruptFrame(f"{r.obj.name}: frame at {header.offset} outside of its range")
    return r.obj, Item(running, header, data)


@dataclass(slots=True, eq=False)
class Incoming:
    """What has come of one object. The ends of ranges come after the items."""

    obj: CachedObject
    items: list[Item] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    bytes: int = 0

    def add(self, item: Item) -> None:
        self.items.append(item)
        self.bytes += len(item.data)
        item.running.came()

    def end(self, running: Running, index: int, error: HubSpokeError | None) -> None:
        self.ends.append((running, index, error))
        running.came()

    def take(self) -> tuple[list[Item], list[End]]:
        """All of it; the caller settles it."""
        items, ends = self.items, self.ends
        self.items, self.ends, self.bytes = [], [], 0
        return items, ends


class Room:
    """Bytes that were taken from the lanes; who brings more than fits waits."""

    def __init__(self) -> None:
        self._held = 0
        self._waiting: list[asyncio.Future[None]] = []

    def take(self, bytes_: int) -> None:
        self._held += bytes_

    def give(self, bytes_: int) -> None:
        self._held -= bytes_
        if self._held <= INCOMING_BYTES_MAX:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def wait(self) -> None:
        """Until there is room: what is held is settled in the time a disk is waited for."""
        while self._held > INCOMING_BYTES_MAX:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future


def spans(items: Sequence[Item]) -> Iterator[tuple[Fetch, int, int, int, int]]:
    """(request, range, offset, length, bytes on the wire) of frames that join together."""
    running: Running | None = None
    index, offset, end, encoded = -1, 0, 0, 0
    for i in sorted(items, key=lambda i: i.running.fetch.number):
        header = i.header
        if i.running is not running or header.range_index != index or header.offset != end:
            if running is not None:
                yield running.fetch, index, offset, end - offset, encoded
            running, index, offset, encoded = i.running, header.range_index, header.offset, 0
        end = header.offset + len(i.data)
        encoded += header.payload_bytes
    if running is not None:
        yield running.fetch, index, offset, end - offset, encoded
