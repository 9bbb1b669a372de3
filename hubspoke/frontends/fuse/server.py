"""Answers the kernel: what can be answered now at once, the rest in a task with a deadline.

    LOOKUP    a path's node; kept by the kernel for less than the lease lasts
    OPEN      refused with ESTALE if the name has another version by now: the kernel asks again
    READ      from the node alone: page cache at once; disk and hub in a task
    READDIR   a slice

Never: answer a READ with fewer bytes than asked for before the end of the file (the kernel would
fill up with zeros), answer from a replica that no lease covers as if it were current, or wait for
anything in the loop.
"""

import asyncio
import errno
import logging
from collections.abc import Callable

from hubspoke.core.ids import ObjectName
from hubspoke.frontends.fuse import protocol
from hubspoke.frontends.fuse.answers import Answers
from hubspoke.frontends.fuse.attributes import Attributes
from hubspoke.frontends.fuse.backings import Backings
from hubspoke.frontends.fuse.channel import Channel
from hubspoke.frontends.fuse.files import Files
from hubspoke.frontends.fuse.journal import MemoryJournal
from hubspoke.frontends.fuse.names import Names
from hubspoke.frontends.fuse.nodes import NodeTable
from hubspoke.frontends.fuse.own_files import OwnFiles
from hubspoke.frontends.fuse.protocol import Init, Op
from hubspoke.frontends.fuse.read_ahead import ReadAhead
from hubspoke.frontends.fuse.reader import MountReader
from hubspoke.frontends.fuse.tuning import FuseTuning
from hubspoke.ports import Clock
from hubspoke.report.facts import KernelCounters
from hubspoke.spoke.tree import Tree
from hubspoke.spoke.whole import WholeFiles

log = logging.getLogger(__name__)

Handler = Callable[[int, int, memoryview, int], None]  # unique, node, body, pid

# Answered with EROFS; the kernel, which mounts read-only, should not even ask.
_WRITES = (
    Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2,
    Op.LINK, Op.WRITE, Op.CREATE, Op.FALLOCATE, Op.SETXATTR, Op.REMOVEXATTR, Op.TMPFILE,
    Op.COPY_FILE_RANGE,
)  # fmt: skip


class FuseServer:
    """One mount. All state is touched only on the loop."""

    def __init__(
        self,
        descriptor: int,
        reader: MountReader,
        tree: Tree,
        own: OwnFiles,
        attributes: Attributes,
        clock: Clock,
        *,
        counters: KernelCounters,
        whole: WholeFiles,
        space: Callable[[], tuple[int, int]],
        journal: MemoryJournal | None = None,
        tuning: FuseTuning | None = None,
    ) -> None:
        """space: bytes that are shown as the file system's size, and as free."""
        self.ready = asyncio.Event()  # INIT is answered
        self.agreed: protocol.Agreed | None = None
        self._tuning = tuning or FuseTuning()
        self._journal = journal
        self.nodes = NodeTable(journal)
        self._tree = tree
        self._space = space
        self.channel = Channel(descriptor, self._dispatch)
        self._answers = Answers(self.channel, self._tuning)
        self.backings = Backings(descriptor, whole, counters, journal)
        self.read_ahead = ReadAhead(self._tuning)
        self._files = Files(
            self._answers, self.nodes, reader, own, counters, self.backings, self.read_ahead
        )
        self._names = Names(
            self._answers, self.nodes, tree, reader, own, attributes, clock, self._tuning,
            self.backings.whole,
        )  # fmt: skip
        self._handlers = self._table()

    def _table(self) -> dict[int, Handler]:
        files, names = self._files, self._names
        return {
            **dict.fromkeys(_WRITES, self._read_only),
            Op.LOOKUP: names.lookup,
            Op.FORGET: self._forget,
            Op.BATCH_FORGET: self._batch_forget,
            Op.GETATTR: names.getattr,
            Op.OPEN: files.open,
            Op.READ: files.read,
            Op.RELEASE: files.release,
            Op.OPENDIR: names.opendir,
            Op.READDIR: names.readdir,
            Op.READDIRPLUS: names.readdirplus,
            Op.RELEASEDIR: names.releasedir,
            Op.STATFS: self._statfs,
            Op.GETXATTR: names.getxattr,
            Op.LISTXATTR: names.listxattr,
            Op.INTERRUPT: self._interrupt,
            Op.INIT: self._init,
            Op.DESTROY: self._destroy,
        }

    def start(self) -> None:
        """Take requests."""
        self.channel.start()

    def take_over(self) -> None:
        """Go on where a process that is gone stopped: the kernel knows what the journal says. To
        be called when the cache's index is read and before anything of it may be dropped."""
        assert self._journal is not None
        self.nodes.restore(self._journal.records(), self._journal.highest)
        self.backings.take_over(self.nodes)
        self._agreed_on(self._journal.agreed)

    async def ask_again(self) -> None:
        """Let the kernel send once more what nobody answered."""
        await self.channel.notify([protocol.notice(protocol.Notice.RESEND, b"")])

    def _agreed_on(self, agreed: protocol.Agreed | None) -> None:
        self.agreed = agreed
        if agreed is not None:
            self.backings.able = bool(agreed.flags & Init.PASSTHROUGH)
            self.ready.set()

    async def close(self) -> None:
        """Answer what waits, give the connection up."""
        await self._answers.close()
        self.backings.close()
        self.read_ahead.close()
        await self.channel.close()

    def call_back(self, name: ObjectName) -> "asyncio.Future[None] | None":
        """The name is about to change: done when the kernel keeps nothing of it; None: it keeps
        nothing now."""
        if self.agreed is None or self.channel.gone.is_set():
            return None
        expire = bool(self.agreed.flags & Init.HAS_EXPIRE_ONLY)
        entries = self._names.to_forget(name)
        if not entries:
            return None
        return self.channel.notify(
            [protocol.forget_entry(parent, entry, expire=expire) for parent, entry in entries]
        )

    def _dispatch(self, op: int, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        handler = self._handlers.get(op)
        if handler is None:  # the kernel does without, and asks no more
            return self._answers.refuse(unique, errno.ENOSYS)
        try:
            handler(unique, node_id, body, pid)
        except Exception:
            log.exception("request failed op=%d", op)
            self._answers.refuse(unique, errno.EIO)

    def _init(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        tuning = self._tuning
        wishes = protocol.Wishes(tuning.read_ahead, tuning.in_flight, tuning.passthrough)
        try:
            reply, agreed = protocol.negotiate(body, wishes)
        except ValueError as e:
            log.error("cannot mount: %s", e)
            return self._answers.refuse(unique, errno.EPROTO)
        self._answers.now(unique, reply)
        if agreed is not None and self._journal is not None:
            self._journal.agree(agreed)
        self._agreed_on(agreed)

    def _destroy(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        self._answers.now(unique)

    def _read_only(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        self._answers.refuse(unique, errno.EROFS)

    def _interrupt(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        self._answers.give_up(protocol.INTERRUPT_IN.unpack_from(body)[0])

    def _forget(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        self.nodes.forget(node_id, protocol.FORGET_IN.unpack_from(body)[0])

    def _batch_forget(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        for node, lookups in protocol.forgotten(body):
            self.nodes.forget(node, lookups)

    def _statfs(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        size, free = (n // protocol.PAGE for n in self._space())
        self._answers.now(
            unique,
            protocol.STATFS_OUT.pack(
                size, free, free, len(self._tree), 0, protocol.PAGE, protocol.NAME_MAX,
                protocol.PAGE,
            ),
        )  # fmt: skip
