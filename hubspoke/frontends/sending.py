"""A span of a file on its way to a socket, while the client takes it.

It holds one descriptor and no memory; a client that takes nothing for SEND_STALL_S is given up.

Bytes are copied, through one buffer for all: what sendfile(2) has sent still is the page cache's
until the client has taken it, and where a page lies in a large folio (ext4 since Linux 6.16) a hole
that is punched there zeroes it in its place. Of records that were dropped as soon as they were
read, 25 and 36 of 825 that were compared had pages of zeros.
"""

import asyncio
import os
import socket
from collections.abc import Callable

from hubspoke.ports import FileSpan

SEND_STALL_S = 60.0  # a peer that takes no byte for this long is disconnected
# One turn of the loop sends at most this much to one client before others get theirs.
TURN_BYTES = 4 << 20
COPY_BYTES = 256 << 10

_buffer = memoryview(bytearray(COPY_BYTES))  # of the loop's thread, between a read and a send


class Sending:
    """One span; ends by itself, calls `done` with what went wrong or None."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        span: FileSpan,
        done: Callable[[OSError | None], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._span = span
        self._done = done
        self._at = span.offset
        self._left = span.length
        self._stalled: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if not self._push():
            self._watch()

    def _push(self) -> bool:
        """Send what fits; True when it has ended, well or not."""
        turn = TURN_BYTES
        try:
            while self._left and turn > 0:
                part = _buffer[: min(self._left, COPY_BYTES)]
                there = os.preadv(self._span.descriptor, [part], self._at)
                if there == 0:
                    raise OSError(f"cache file ends {self._left} bytes early")
                n = self._sock.send(part[:there])
                self._at += n
                self._left -= n
                turn -= n
        except BlockingIOError:
            return False
        except OSError as e:
            self._end(e)
            return True
        if self._left:
            return False
        self._end(None)
        return True

    def _watch(self) -> None:
        self._loop.add_writer(self._sock.fileno(), self._writable)
        self._stalled = self._loop.call_later(SEND_STALL_S, self._stall, self._left)

    def _writable(self) -> None:
        if self._push():
            return

    def _stall(self, left_before: int) -> None:
        if self._left == left_before:
            self._end(OSError(f"no byte taken for {SEND_STALL_S:g} s"))
        else:
            self._stalled = self._loop.call_later(SEND_STALL_S, self._stall, self._left)

    def cancel(self) -> None:
        """The connection is gone."""
        self._end(ConnectionResetError("connection lost"))

    def _end(self, error: OSError | None) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_writer(self._sock.fileno())
        done, self._done = self._done, lambda _: None
        self._span.release()
        done(error)
