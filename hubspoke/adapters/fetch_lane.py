"""One connection that fetches: requests one behind the other, frames as they come.

A lean HTTP/1.1 client for one kind of answer: 200, chunked or with a length, full of frames. A
general client moves every byte three times on its way (read, chunk parser, stream buffer) and
cannot send a request before the one before it has ended; here the kernel writes whatever is there
into one large buffer, large payloads are slices of it, and requests are pipelined, so that a lane
carries bytes all the time (bench/cold.py).

    get_buffer: what is free of the buffer, or a new one that begins with the unfinished payload
    buffer_updated: to the parser (fetch_answers), which cuts frames out of it

It must never give a frame to another request than its own: answers come in the order of the
requests, and any doubt ends the connection and every request on it.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from hubspoke import wire
from hubspoke.adapters.fetch_answers import SLICE_BYTES_MIN, Answer, Parser, room_for
from hubspoke.errors import DeadlineExceeded, HubSpokeError, HubUnavailable

SMALL_BYTES: Final = 64 << 10  # read at once when no large payload is awaited
# And when one is: four of the hub's frames with their heads.
LARGE_BYTES: Final = (1 << 20) + (1 << 10)
# Read behind a payload for which the next would leave no room: a head, which is moved, and not
# the first half of what it announces.
HEAD_ROOM_BYTES: Final = 64
READ_BYTES_MIN: Final = 32 << 10  # less room than this is not read into
PENDING_BYTES_MAX: Final = 4 << 20  # taken from the socket and not yet from us: then it waits


class LaneProtocol(asyncio.BufferedProtocol):
    """The connection of a lane; made anew when it is lost."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = 0  # grows with every read
        self._answers: deque[Answer] = deque()  # not answered yet
        self._taken_from: deque[Answer] = deque()  # with frames that nobody took yet
        self._parser = Parser(self._answers)
        self._buffer = room_for(SMALL_BYTES)
        self._at = self._end = 0  # of the buffer: what is there and not taken
        self._lent = False  # frames that are slices of it have been given out
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by what they do, not by class.
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, _: int) -> memoryview:
        """As asyncio's."""
        lacks = self._parser.lacks
        missing = max(lacks - (self._end - self._at), READ_BYTES_MIN)
        if len(self._buffer) - self._end < missing:
            large = lacks > SLICE_BYTES_MIN or self._lent
            self._renew(LARGE_BYTES if large else SMALL_BYTES)
        payload_end = self._at + lacks
        if lacks and payload_end + lacks > len(self._buffer):
            return self._buffer[self._end : payload_end + HEAD_ROOM_BYTES]
        return self._buffer[self._end :]

    def _renew(self, size: int) -> None:
        """A buffer that begins with what was not taken yet."""
        left = self._buffer[self._at : self._end]
        room = self._buffer if not self._lent and size == len(self._buffer) else room_for(size)
        room[: len(left)] = left
        self._buffer, self._at, self._end, self._lent = room, 0, len(left), False

    def buffer_updated(self, n: int) -> None:
        """As asyncio's."""
        self.received += n
        self._end += n
        if self._end - self._at < self._parser.lacks:
            return  # in slow start a payload comes in twenty pieces
        try:
            self._at += self._parser.feed(self._buffer[self._at : self._end])
        except HubSpokeError as e:
            self.fail(e)
            return
        self._lent |= self._parser.sliced
        if self._at == self._end and not self._lent:
            self._at = self._end = 0
        elif self._at == self._end and not self._answers:
            # Idle: whoever has the slices keeps them, this connection nothing large.
            self._renew(SMALL_BYTES)
        self._pace()

    def eof_received(self) -> bool:
        """As asyncio's: the connection is closed."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio's."""
        if self.transport is not None:
            self.transport = None
            self.fail(HubUnavailable(f"the hub closed the connection: {exc or 'end of file'}"))

    def ask(self, request: bytes, answer: Answer) -> None:
        """Send a request behind those that are under way."""
        assert self.transport is not None
        self._answers.append(answer)
        self._taken_from.append(answer)
        self.transport.write(request)

    def done(self, answer: Answer) -> None:
        """Nobody takes from it any more; if it has not ended, neither can the ones behind it."""
        if answer in self._taken_from:
            self._taken_from.remove(answer)
        if not answer.ended:
            self.fail(HubUnavailable("a request before it on the connection was given up"))
        self._pace()

    def taken(self) -> None:
        """Frames were taken: go on reading."""
        self._pace()

    @property
    def paused(self) -> bool:
        """Whether it is us who let the hub wait."""
        return self._paused

    def _pace(self) -> None:
        pending = sum(answer.bytes for answer in self._taken_from) > PENDING_BYTES_MAX
        if pending != self._paused and self.transport is not None:
            self._paused = pending
            self.transport.pause_reading() if pending else self.transport.resume_reading()

    def fail(self, error: HubSpokeError) -> None:
        """End the connection and every request on it."""
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()
        while self._answers:
            self._answers.popleft().end(error)


async def take(protocol: LaneProtocol, answer: Answer, stall_s: float) -> Sequence[wire.Frame]:
    """The frames that have come since the last call, at least one; none when the answer has ended.

    Raises its error, and DeadlineExceeded when the connection brought no byte for `stall_s`.
    """
    loop = asyncio.get_running_loop()
    while not answer.frames:
        if answer.ended:
            if answer.error is not None:
                raise answer.error
            return ()
        before = protocol.received
        answer.waiter = loop.create_future()
        timer = loop.call_later(stall_s, answer.wake)
        try:
            await answer.waiter
        finally:
            timer.cancel()
            answer.waiter = None
        silent = protocol.received == before and not protocol.paused
        if silent and not answer.frames and not answer.ended:
            raise DeadlineExceeded(f"no byte for {stall_s:g} s")
    frames, answer.frames = answer.frames, []
    answer.bytes = 0
    protocol.taken()
    return frames
