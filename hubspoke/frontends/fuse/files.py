"""OPEN, READ and RELEASE: bytes of one version, from the node alone.

READ -> page cache has it -> one copy into a buffer, one into the kernel, no task
     -> disk, or hub      -> a task; only the missing range is waited for
"""

import errno
import os

from hubspoke.errors import NoSuchKey, VersionChanged
from hubspoke.frontends.fuse import protocol
from hubspoke.frontends.fuse.answers import Answers
from hubspoke.frontends.fuse.errors import Refused
from hubspoke.frontends.fuse.nodes import Node, NodeTable
from hubspoke.frontends.fuse.own_files import OwnFiles
from hubspoke.frontends.fuse.reader import MountReader
from hubspoke.ports import FileSpan, ReadResult
from hubspoke.report.facts import KernelCounters

CLIENTS_MAX = 4_096
_OPENED = protocol.OPEN_OUT.pack(0, protocol.Open.KEEP_CACHE, 0)


class Files:
    """The handlers of open files."""

    def __init__(
        self,
        answers: Answers,
        nodes: NodeTable,
        reader: MountReader,
        own: OwnFiles,
        counters: KernelCounters,
    ) -> None:
        self._counters = counters
        self._answers = answers
        self._nodes = nodes
        self._reader = reader
        self._own = own
        self._buffer = memoryview(bytearray(protocol.MAX_PAGES * protocol.PAGE))
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
            return self._answers.later(unique, self._open_later(unique, node))
        self._opened(unique, node, current.entry.version)

    async def _open_later(self, unique: int, node: Node) -> None:
        assert node.resolved is not None
        try:
            current = await self._reader.resolve(node.resolved.name)
        except NoSuchKey as e:
            raise VersionChanged(str(e)) from e  # so that the name is looked up anew
        self._opened(unique, node, current.entry.version)

    def _opened(self, unique: int, node: Node, version: str) -> None:
        assert node.resolved is not None
        if node.resolved.entry.version != version:
            return self._answers.refuse(unique, errno.ESTALE)
        if node.opened:
            self._counters.cached_opens += 1
        node.opened += 1
        self._answers.now(unique, _OPENED)

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
        self._answers.bytes(unique, await _gathered(result))

    async def _read_own(self, unique: int, node: Node, handle: int, offset: int, size: int) -> None:
        if node.is_folder:
            raise Refused(errno.EISDIR, node.path)
        self._answers.bytes(unique, await self._own.read(node.key, handle, offset, size))


async def _gathered(result: ReadResult) -> bytes | bytearray:
    """The whole range as one buffer."""
    body = result.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, FileSpan):
        return _copied(body)
    whole = bytearray()
    async for piece in body:
        whole += _copied(piece) if isinstance(piece, FileSpan) else piece
    return whole


def _copied(span: FileSpan) -> bytearray:
    """The page cache has it, or all but a page or two."""
    buffer = bytearray(span.length)
    try:
        if os.preadv(span.descriptor, [buffer], span.offset) != span.length:
            raise Refused(errno.EIO, "a cache file is shorter than what it should hold")
    finally:
        span.release()
    return buffer
