"""Files that the kernel reads by itself: FOPEN_PASSTHROUGH.

    OPEN of a whole version -> its cache file is pinned and named to the kernel -> no READ comes
    RELEASE of the last handle (a mapping keeps it) -> the name ends, the file may be dropped

The kernel lets no inode have passthrough and cached handles at once: OPEN would fail with EIO. So
a node that has handles of one kind open gets no other; a version that is whole has a node of its
own, which begins without any.

Never: name a file with a hole or an unchecked frame, or let one be dropped while it is named.
"""

import errno
import fcntl
import logging
from collections.abc import Callable

from hubspoke.frontends.fuse import protocol
from hubspoke.frontends.fuse.journal import MemoryJournal
from hubspoke.frontends.fuse.nodes import Node, NodeTable
from hubspoke.ports import Resolved
from hubspoke.report.facts import KernelCounters
from hubspoke.spoke.whole import WholeFile, WholeFiles

log = logging.getLogger(__name__)

# Not allowed (CAP_SYS_ADMIN), not known, or the cache's file system is itself stacked on another.
_NEVER = frozenset({errno.EPERM, errno.ENOTTY, errno.EOPNOTSUPP, errno.ELOOP, errno.EINVAL})


class Backings:
    """Of one mount. able: as long as the kernel takes them."""

    def __init__(
        self,
        descriptor: int,
        files: WholeFiles,
        counters: KernelCounters,
        journal: MemoryJournal | None = None,
    ) -> None:
        """descriptor: of /dev/fuse."""
        self._journal = journal
        self.able = False
        self._descriptor = descriptor
        self._files = files
        self._counters = counters
        self._lent: dict[int, Callable[[], None]] = {}  # by backing id: how it is given back

    def whole(self, resolved: Resolved) -> bool:
        """Whether a node of this version may be one of a whole file."""
        return self.able and self._files.whole(resolved)

    def wanted(self, node: Node) -> bool:
        """Whether its next handle may be passed through."""
        return self.able and node.complete and not node.cached

    def open_now(self, node: Node) -> bool:
        """Name the node's file to the kernel, unless that is done; False: not without waiting,
        or not at all."""
        if node.backing:
            return True
        assert node.resolved is not None
        lent = self._files.lend_now(node.resolved)
        return lent is not None and self._named(node, lent)

    async def open(self, node: Node) -> bool:
        """The same, waiting for the disk."""
        assert node.resolved is not None
        lent = await self._files.lend(node.resolved)
        if lent is None:
            return bool(node.backing)
        if node.backing or node.cached:  # another open was faster
            lent.give_back()
            return bool(node.backing)
        return self._named(node, lent)

    def _named(self, node: Node, lent: WholeFile) -> bool:
        argument = bytearray(protocol.BACKING_MAP.pack(lent.span.descriptor, 0, 0))
        try:
            node.backing = fcntl.ioctl(self._descriptor, protocol.BACKING_OPEN, argument)
        except OSError as e:
            lent.give_back()
            if e.errno in _NEVER and self.able:
                self.able = False
                log.info("no passthrough, reads go through the spoke: %s", e)
            return False
        lent.span.release()  # the kernel has its own
        self._lent[node.backing] = lent.give_back
        return True

    def take_over(self, nodes: NodeTable) -> None:
        """What the process before this one had named to the kernel is named still: pin it, before
        anything may be dropped. Other handles of whole files may be open, too, and are not known:
        their nodes get no passed one beside them."""
        if self._journal is None:
            return
        for record in self._journal.records():
            node = nodes.get(record.id)
            if node is None or node.resolved is None or not node.complete:
                continue
            backing, handles = self._journal.backed.get(record.id, (0, 0))
            if not handles:
                node.cached = 1
                continue
            node.backing, node.passed = backing, handles
            self._lent[backing] = self._files.lent_before(node.resolved) or (lambda: None)

    def opened(self, node: Node, client: str) -> None:
        """One more handle is passed through."""
        assert node.resolved is not None
        node.passed += 1
        self._note(node)
        self._counters.passthrough_opens += 1
        self._counters.passthrough_bytes_opened += node.resolved.entry.size
        self._files.opened(node.resolved, client)

    def released(self, node: Node) -> None:
        """One handle fewer."""
        node.passed -= 1
        self._note(node)
        self.idle(node)

    def _note(self, node: Node) -> None:
        if self._journal is not None:
            self._journal.passed(node.id, node.backing, node.passed)

    def idle(self, node: Node) -> None:
        """Nothing is opened by it after all, or no longer."""
        if node.passed or not node.backing:
            return
        backing, node.backing = node.backing, 0
        try:
            fcntl.ioctl(self._descriptor, protocol.BACKING_CLOSE, protocol.BACKING_ID.pack(backing))
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENODEV, errno.EBADF):
                raise
        self._lent.pop(backing)()

    def close(self) -> None:
        """The mount is gone, and with it every name."""
        self.able = False
        lent, self._lent = self._lent, {}
        for give_back in lent.values():
            give_back()
