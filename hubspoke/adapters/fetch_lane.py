"""One connection that fetches: requests one behind the other, frames as they come.

A lean HTTP/1.1 client for one kind of answer: 200, chunked or with a length, full of frames. A
general client moves every byte three times on its way (read, chunk parser, stream buffer) and
cannot send a request before the one before it has ended; here the kernel writes whatever is there
into one large buffer, large payloads are slices of it, and requests are pipelined, so that a lane
carries bytes all the time (bench/cold.py).

    get_buffer: what is free of the buffer, or a new one that begins with the unfinished payload
    buffer_updated: head -> (chunk size -> chunk data)* -> trailer, frames cut out of chunk data

It must never give a frame to another request than its own: answers come in the order of the
requests, and any doubt ends the connection and every request on it.
"""

import asyncio
import re
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from hubspoke import wire
from hubspoke.errors import (
    DeadlineExceeded,
    FormatError,
    HubBusy,
    HubSpokeError,
    HubUnavailable,
)

SMALL_BYTES: Final = 64 << 10  # read at once when no large payload is awaited
# And when one is: four of the hub's frames with their heads.
LARGE_BYTES: Final = (1 << 20) + (1 << 10)
# Read behind a payload for which the next would leave no room: a head, which is moved, and not
# the first half of what it announces.
HEAD_ROOM_BYTES: Final = 64
READ_BYTES_MIN: Final = 32 << 10  # less room than this is not read into
# Smaller payloads are copied: a slice keeps all of its buffer.
SLICE_BYTES_MIN: Final = 64 << 10
PENDING_BYTES_MAX: Final = 4 << 20  # taken from the socket and not yet from us: then it waits
HEAD_BYTES_MAX: Final = 16 << 10
LINE_BYTES: Final = 512  # looked through for its end: behind it are megabytes that have none
ERROR_BYTES_MAX: Final = 500
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)


class Answer:
    """The frames of one request, in order; an error after them is raised when they are taken."""

    def __init__(self, ranges: int) -> None:
        self.frames: list[wire.Frame] = []
        self.bytes = 0
        self.left = ranges  # that have not ended
        self.ended = False
        self.error: HubSpokeError | None = None
        self.waiter: asyncio.Future[None] | None = None

    def add(self, frame: wire.Frame) -> None:
        if frame[0].kind != wire.FRAME_DATA:
            self.left -= 1
        self.frames.append(frame)
        self.bytes += len(frame[1])
        self.wake()

    def end(self, error: HubSpokeError | None) -> None:
        if not self.ended:
            self.ended, self.error = True, error
            self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def _room(n: int) -> memoryview:
    """Memory for a payload, as it is: a bytearray is cleared first, which cost 70 ms a GiB."""
    return np.empty(n, np.uint8).data


class _Parser:
    """Bytes of a connection -> frames of the answers in turn. Raises FormatError,
    HubUnavailable (an answer that is not 200)."""

    def __init__(self, answers: deque[Answer]) -> None:
        self._answers = answers
        self._head = bytearray()  # of an answer, a chunk line or a trailer, while it is cut
        self._state = self._in_head
        self._status = b""
        self._chunked = False
        self._body_left = 0  # of the chunk, or of a body with a length
        self._frame_head = bytearray()
        self._frame: wire.FrameHeader | None = None
        # Of a payload that is cut into several chunks, and how much of it is there.
        self._payload: memoryview | None = None
        self._filled = 0
        self._told = bytearray()  # the text of an answer that is not 200
        self.lacks = 0  # of `feed`: it goes on when so many bytes are there
        self.sliced = False  # of `feed`: a payload is a slice of what it was given

    def feed(self, data: memoryview) -> int:
        """Returns how much of it was taken; the rest has to be given again, with more behind."""
        at, end = 0, len(data)
        self.lacks, self.sliced = 0, False
        while at < end:
            used = self._state(data[at:])
            if not used:
                break
            at += used
        return at

    def _line(self, data: memoryview, end: bytes, limit: int) -> tuple[bytes | None, int]:
        """What is cut off up to `end`, once it is there, and the bytes used of `data`."""
        before = len(self._head)
        piece = data[: min(limit - before + 1, LINE_BYTES)]
        self._head += piece
        at = self._head.find(end, max(0, before - len(end)))
        if at < 0:
            if len(self._head) > limit:
                raise FormatError(f"no end after {limit} bytes of {bytes(self._head[:40])!r}")
            return None, len(piece)
        cut, self._head = bytes(self._head[: at + len(end)]), bytearray()
        return cut, at + len(end) - before

    def _in_head(self, data: memoryview) -> int:
        head, used = self._line(data, b"\r\n\r\n", HEAD_BYTES_MAX)
        if head is None:
            return used
        if not self._answers or not head.startswith(b"HTTP/1.1 "):
            raise FormatError(f"an answer that nobody asked for: {head[:40]!r}")
        self._status, self._told = head[9:12], bytearray()
        head = head[:-2]
        self._chunked = _CHUNKED.search(head) is not None
        if self._chunked:
            self._state = self._in_chunk_line
            return used
        length = _LENGTH.search(head)
        if length is None:
            raise FormatError(f"an answer without an end: {head[:40]!r}")
        self._body_left = int(length[1])
        self._state = self._in_body
        self._body_done()
        return used

    def _in_chunk_line(self, data: memoryview) -> int:
        line, used = self._line(data, b"\r\n", 64)
        if line is None:
            return used
        try:
            self._body_left = int(line, 16)
        except ValueError as e:
            raise FormatError(f"chunk of {line!r} bytes") from e
        self._state = self._in_body if self._body_left else self._in_trailer
        return used

    def _in_chunk_end(self, data: memoryview) -> int:
        line, used = self._line(data, b"\r\n", 2)
        if line is not None:
            self._state = self._in_chunk_line
        return used

    def _in_trailer(self, data: memoryview) -> int:
        line, used = self._line(data, b"\r\n", 64)
        if line is not None:
            self._answered()
        return used

    def _in_body(self, data: memoryview) -> int:
        n = min(len(data), self._body_left)
        if self._status == b"200":
            n = self._in_frames(data[:n] if n < len(data) else data)
        elif len(self._told) < ERROR_BYTES_MAX:
            self._told += data[:n]
        self._body_left -= n
        self._body_done()
        return n

    def _body_done(self) -> None:
        if self._body_left:
            return
        if self._chunked:
            self._state = self._in_chunk_end
        else:
            self._answered()

    def _in_frames(self, data: memoryview) -> int:
        """Returns how much of a chunk's data was taken."""
        at, end = 0, len(data)
        while at < end:
            if (whole := self._whole_frames(data, at)) > at:
                at = whole
            elif self._frame is None:
                at += self._in_frame_head(data[at:], self._body_left - at)
            else:
                used = self._in_payload(data[at:])
                at += used
                if not used:
                    break
        return at

    def _whole_frames(self, data: memoryview, at: int) -> int:
        """Small frames that are there as a whole, in one go; returns where the next begins."""
        answer, size, last = self._answers[0], wire.FRAME_HEADER.size, len(data)
        begins = self._frame is None and not self._frame_head
        while begins and answer.left and at + size <= last:
            frame = wire.unpack_frame(data, at)
            end = at + size + frame.payload_bytes
            if frame.payload_bytes >= SLICE_BYTES_MIN or end > last:
                break
            answer.add((frame, bytes(data[at + size : end])))
            at = end
        return at

    def _in_payload(self, data: memoryview) -> int:
        assert self._frame is not None
        if self._payload is not None:
            n = min(len(data), len(self._payload) - self._filled)
            self._payload[self._filled : self._filled + n] = data[:n]
            self._filled += n
            if self._filled == len(self._payload):
                self._frame_done(self._payload)
            return n
        n = self._frame.payload_bytes
        if len(data) < n:
            self.lacks = n
            return 0
        payload = data[:n]
        if n < SLICE_BYTES_MIN:
            self._frame_done(bytes(payload))
        else:
            # Nobody writes to it any more; bytes of its own would be one more copy.
            self.sliced = True
            self._frame_done(payload)
        return n

    def _in_frame_head(self, data: memoryview, chunk_left: int) -> int:
        if not self._answers[0].left:
            raise FormatError("bytes after the last range of a fetch")
        n = wire.FRAME_HEADER.size - len(self._frame_head)
        if len(data) < n:
            self._frame_head += data
            return len(data)
        head = bytes(self._frame_head) + data[:n]
        self._frame_head.clear()
        frame = self._frame = wire.unpack_frame(head)
        self._payload, self._filled = None, 0
        if not frame.payload_bytes:
            self._frame_done(b"")
        elif frame.payload_bytes > chunk_left - n:
            self._payload = _room(frame.payload_bytes)
        return n

    def _frame_done(self, payload: bytes | memoryview) -> None:
        frame, self._frame, self._payload = self._frame, None, None
        assert frame is not None
        if frame.kind != wire.FRAME_DATA:
            payload = bytes(payload)
        self._answers[0].add((frame, cast(bytes, payload)))

    def _answered(self) -> None:
        answer = self._answers[0]
        unfinished = answer.left or self._frame is not None or self._frame_head
        if self._status == b"200" and unfinished:
            raise FormatError(f"the answer ends with {answer.left} ranges open")
        self._answers.popleft()
        self._state = self._in_head
        if self._status != b"200":
            told = self._told[:ERROR_BYTES_MAX].decode("utf-8", "replace")
            kind = HubBusy if self._status == b"503" else HubUnavailable
            answer.end(kind(f"status {self._status.decode('latin-1')}: {told}"))
        else:
            answer.end(None)


class LaneProtocol(asyncio.BufferedProtocol):
    """The connection of a lane; made anew when it is lost."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = 0  # grows with every read
        self._answers: deque[Answer] = deque()  # not answered yet
        self._taken_from: deque[Answer] = deque()  # with frames that nobody took yet
        self._parser = _Parser(self._answers)
        self._buffer = _room(SMALL_BYTES)
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
        room = self._buffer if not self._lent and size == len(self._buffer) else _room(size)
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
