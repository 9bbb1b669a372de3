"""The descriptor of /dev/fuse on the spoke's loop: requests in, answers out, notices beside.

    readable -> up to BATCH requests, each handed on at once -> the loop's others have their turn

Answers are written where they are made: the kernel takes one in a copy and never blocks on it.
Notices may block, on a folder's lock or a page under read, so threads write those; a notice that
hangs keeps its thread and, with all threads hung, the notices behind it, and nothing else.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Sequence

from hubspoke.adapters.disk_threads import DiskThreads
from hubspoke.frontends.fuse import protocol

log = logging.getLogger(__name__)

BATCH = 16  # requests at one wake-up: 0.5 ms of small answers
NOTICE_THREADS = 4
CLOSE_S = 1.0
_GONE = (errno.ENODEV, errno.ECONNABORTED, errno.EBADF)
# The kernel has given the request up, or knows nothing of what a notice is about.
_MOOT = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL)  # of a notice

Handle = Callable[[int, int, int, memoryview, int], None]  # op, unique, node, body, pid


class Channel:
    """One mounted connection. `start`, then answer; `gone` is set when it is unmounted."""

    def __init__(self, descriptor: int, handle: Handle) -> None:
        """handle: what takes requests. The descriptor becomes this object's own."""
        self.descriptor = descriptor
        self.gone = asyncio.Event()
        self._handle = handle
        self._buffer = bytearray(protocol.READ_BUFFER)
        self._view = memoryview(self._buffer)
        self._threads = DiskThreads("mount notices", NOTICE_THREADS)
        self._reading = False
        os.set_blocking(descriptor, False)

    def start(self) -> None:
        """Begin, or go on after `pause`."""
        if not self._reading and not self.gone.is_set():
            self._reading = True
            asyncio.get_running_loop().add_reader(self.descriptor, self._readable)

    def pause(self) -> None:
        """Take no requests for now; the kernel keeps them."""
        if self._reading:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self.descriptor)

    def _readable(self) -> None:
        unpack, head = protocol.IN_HEADER.unpack_from, protocol.IN_HEADER.size
        for _ in range(BATCH):
            try:
                n = os.readv(self.descriptor, [self._buffer])
            except BlockingIOError:
                return
            except OSError as e:
                if e.errno in _GONE:
                    self.pause()
                    self.gone.set()
                    return
                if e.errno in (errno.EINTR, errno.ENOENT):  # given up while it was read
                    continue
                raise
            _, op, unique, node_id, _, _, pid, _, _ = unpack(self._buffer)
            self._handle(op, unique, node_id, self._view[head:n], pid)
            if not self._reading:
                return

    def answer(self, unique: int, payload: bytes | bytearray = b"") -> bool:
        """An answer that is no error. False: nobody waits for it any more."""
        return self._write([protocol.message(unique, payload)])

    def refuse(self, unique: int, number: int) -> None:
        """An answer that is an errno."""
        self._write([protocol.message(unique, error=number)])

    def answer_bytes(self, unique: int, data: bytes | bytearray | memoryview) -> None:
        """An answer of many bytes, not copied first."""
        length = protocol.OUT_HEADER.size + len(data)
        self._write([protocol.OUT_HEADER.pack(length, 0, unique), data])

    def _write(self, parts: Sequence[bytes | bytearray | memoryview]) -> bool:
        try:
            os.writev(self.descriptor, parts)
            return True
        except OSError as e:
            # Its asker was killed, or all is unmounted: nobody waits for the answer.
            if e.errno != errno.ENOENT and e.errno not in _GONE:
                raise
            return False

    def notify(self, notices: Sequence[bytes]) -> "asyncio.Future[None]":
        """Tell the kernel something that it did not ask for; done when it has acted on all of it,
        which may take as long as an answer that it waits for elsewhere."""
        return self._threads.submit(lambda: self._tell(notices))

    def _tell(self, notices: Sequence[bytes]) -> None:
        for notice in notices:
            try:
                os.write(self.descriptor, notice)
            except OSError as e:
                if e.errno not in _MOOT and e.errno not in _GONE:
                    raise

    async def close(self) -> None:
        """Give the descriptor up: with the last one the kernel fails what is still open."""
        self.pause()
        self.gone.set()
        if not await self._threads.close(CLOSE_S):
            log.warning("a notice to the kernel hangs; its thread is left behind")
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
