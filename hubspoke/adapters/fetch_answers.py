"""Answers of the hub to fetches: bytes of a connection in, frames of the answers in turn out.

    head -> (chunk size -> chunk data)* -> trailer, frames cut out of chunk data

It knows nothing of sockets and never copies a large payload that is there as a whole.
"""

import asyncio
import re
from collections import deque
from typing import Final, cast

import numpy as np

from hubspoke import wire
from hubspoke.errors import FormatError, HubBusy, HubSpokeError, HubUnavailable

# Smaller payloads are copied: a slice keeps all of its buffer.
SLICE_BYTES_MIN: Final = 64 << 10
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


def room_for(n: int) -> memoryview:
    """Memory for a payload, as it is: a bytearray is cleared first, which cost 70 ms a GiB."""
    return np.empty(n, np.uint8).data


class Parser:
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
            self._payload = room_for(frame.payload_bytes)
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
