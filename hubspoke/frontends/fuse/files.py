"""OPEN, READ and RELEASE: bytes of one version, from the node alone.

READ -> page cache has it -> one copy into a buffer, one into the kernel, no task
     -> disk, or hub      -> a task; only the missing range is waited for
"""

import errno
import mmap
import os
from collections.abc import AsyncIterator

from hubspoke.errors import NoSuchKey, VersionChanged
from hubspoke.frontends.fuse import protocol
from hubspoke.frontends.fuse.answers import Answers
from hubspoke.frontends.fuse.backings import Backings
from hubspoke.frontends.fuse.errors import Refused
from hubspoke.frontends.fuse.folder_reads import Level
from hubspoke.frontends.fuse.nodes import Node, NodeTable
from hubspoke.frontends.fuse.own_files import OwnFiles
from hubspoke.frontends.fuse.read_ahead import ReadAhead
from hubspoke.frontends.fuse.reader import MountReader
from hubspoke.ports import FileSpan
from hubspoke.report.facts import KernelCounters

CLIENTS_MAX = 4_096
# A handle tells how it is served, and RELEASE brings it back.
CACHED, PASSED = 0, 1  # and twice the read-ahead's level
_OPENED = [
    protocol.OPEN_OUT.pack(CACHED + 2 * level, protocol.Open.KEEP_CACHE, 0) for level in Level
]


class Files:
    """The handlers of open files."""

    def __init__(
        self,
        answers: Answers,
        nodes: NodeTable,
        reader: MountReader,
        own: OwnFiles,
        counters: KernelCounters,
        backings: Backings,
        read_ahead: ReadAhead,
    ) -> None:
        self._read_ahead = read_ahead
        self._backings = backings
        self._counters = counters
        self._answers = answers
        self._nodes = nodes
        self._reader = reader
        self._own = own
        # At a page's start, where malloc puts nothing: copies out of the kernel to 16 bytes behind
        # it take twice as long on AMD's Zen 3 (rep movsb). Filled and answered without a wait.
        self._buffer = memoryview(mmap.mmap(-1, protocol.MAX_PAGES * protocol.PAGE))
        self._clients: dict[int, str] = {}

    def open(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        """The name must still have the node's version: ESTALE makes the kernel look it up anew,
        and whoever opened never notices."""
        node = self._nodes.get(node_id)
        if node is None:
            return self._answers.refuse(unique, errno.ESTALE)
        if protocol.OPEN_IN.unpack_from(body)[0] & os.O_ACCMODE != os.O_RDONLY:
            return self._answers.refuse(unique, errno.EROFS)
        if node.resolved is None:
            return self._answers.later(unique, self._open_own(unique, node))
        current = self._reader.resolve_now(node.resolved.name)
        if current is None:
            return self._answers.later(unique, self._open_later(unique, node, pid))
        self._opened(unique, node, current.entry.version, pid)

    async def _open_later(self, unique: int, node: Node, pid: int) -> None:
        assert node.resolved is not None
        try:
            current = await self._reader.resolve(node.resolved.name)
        except NoSuchKey as e:
            raise VersionChanged(str(e)) from e  # so that the name is looked up anew
        self._opened(unique, node, current.entry.version, pid)

    def _opened(self, unique: int, node: Node, version: str, pid: int) -> None:
        assert node.resolved is not None
        if node.resolved.entry.version != version:
            return self._answers.refuse(unique, errno.ESTALE)
        if not self._backings.wanted(node):
            return self._opened_cached(unique, node)
        if self._backings.open_now(node):
            return self._opened_passed(unique, node, pid)
        self._answers.later(unique, self._open_passed_later(unique, node, pid))

    def _opened_cached(self, unique: int, node: Node) -> None:
        if node.opened:
            self._counters.cached_opens += 1
        node.opened += 1
        if self._answers.now(unique, _OPENED[self._read_ahead.opened(node)]):
            node.cached += 1

    async def _open_passed_later(self, unique: int, node: Node, pid: int) -> None:
        if await self._backings.open(node):
            self._opened_passed(unique, node, pid)
        else:
            self._opened_cached(unique, node)

    def _opened_passed(self, unique: int, node: Node, pid: int) -> None:
        flags = protocol.Open.PASSTHROUGH
        if self._answers.now(unique, protocol.OPEN_OUT.pack(PASSED, flags, node.backing)):
            self._backings.opened(node, self._clients.get(pid) or self._client(pid))
        else:
            self._backings.idle(node)

    async def _open_own(self, unique: int, node: Node) -> None:
        if node.is_folder:
            raise Refused(errno.EISDIR, node.path)
        handle = await self._own.open(node.key)
        flags = protocol.Open.DIRECT_IO
        if not self._answers.now(unique, protocol.OPEN_OUT.pack(handle, flags, 0)):
            self._own.release(handle)

    def release(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        (handle,) = protocol.RELEASE_IN.unpack_from(body)
        node = self._nodes.get(node_id)
        if node is not None and node.is_own:
            self._own.release(handle)
        elif node is not None and handle == PASSED:
            self._backings.released(node)
        elif node is not None:
            node.cached = max(node.cached - 1, 0)  # of before this process began
        self._answers.now(unique)

    def read(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        """All of what was asked for, up to the end of the file."""
        handle, offset, size = protocol.READ_IN.unpack_from(body)
        node = self._nodes.get(node_id)
        if node is None:
            return self._answers.refuse(unique, errno.ESTALE)
        resolved = node.resolved
        if resolved is None:
            return self._answers.later(unique, self._read_own(unique, node, handle, offset, size))
        size = min(size, resolved.entry.size - offset)
        if size <= 0:
            self._answers.now(unique)
            return None
        self._read_ahead.read(node, handle >> 1, offset, size)
        client = self._clients.get(pid) or self._client(pid)
        buffer = self._buffer[:size]
        if len(buffer) == size and self._reader.copy_now(resolved, offset, buffer, client):
            self._answers.bytes(unique, buffer)
            return None
        self._answers.later(unique, self._read_later(unique, node, offset, size, client))

    def _client(self, pid: int) -> str:
        """Who reads, for the predictor: workers of a job are processes. A handle would say less,
        since loaders open a file for each item."""
        if len(self._clients) >= CLIENTS_MAX:
            self._clients.clear()
        client = self._clients[pid] = f"mount:{pid}"
        return client

    async def _read_later(
        self, unique: int, node: Node, offset: int, size: int, client: str
    ) -> None:
        resolved = node.resolved
        assert resolved is not None
        if not self._reader.serves(resolved):
            raise VersionChanged(f"{resolved.name} is no longer version {resolved.entry.version}")
        result = await self._reader.read(resolved, offset, size, client)
        body = result.body
        if isinstance(body, FileSpan):
            buffer = (
                self._buffer[:size] if size <= len(self._buffer) else memoryview(bytearray(size))
            )
            _copy(body, buffer)
            self._answers.bytes(unique, buffer)
        else:
            self._answers.bytes(unique, body if isinstance(body, bytes) else await _joined(body))

    async def _read_own(self, unique: int, node: Node, handle: int, offset: int, size: int) -> None:
        if node.is_folder:
            raise Refused(errno.EISDIR, node.path)
        self._answers.bytes(unique, await self._own.read(node.key, handle, offset, size))


async def _joined(pieces: AsyncIterator[bytes | FileSpan]) -> bytearray:
    whole = bytearray()
    async for piece in pieces:
        if isinstance(piece, FileSpan):
            copied = memoryview(bytearray(piece.length))
            _copy(piece, copied)
            whole += copied
        else:
            whole += piece
    return whole


def _copy(span: FileSpan, buffer: memoryview) -> None:
    """The page cache has it, or all but a page or two."""
    try:
        if os.preadv(span.descriptor, [buffer], span.offset) != span.length:
            raise Refused(errno.EIO, "a cache file is shorter than what it should hold")
    finally:
        span.release()
