"""LOOKUP, GETATTR, listings and extended attributes: everything about names.

What the kernel keeps of a name it keeps for less than the lease lasts, and gives back before a
revocation is acknowledged (`call_back`). What it keeps of a node, it keeps for good: a node is
one version.
"""

import errno
import itertools
import secrets
from collections.abc import Callable

from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.core.names import segment_fault
from hubspoke.frontends.fuse import protocol
from hubspoke.frontends.fuse.answers import Answers
from hubspoke.frontends.fuse.attributes import Attributes, inode
from hubspoke.frontends.fuse.directories import Place, Shown, entries_after, key_before
from hubspoke.frontends.fuse.errors import Refused
from hubspoke.frontends.fuse.nodes import OWN_FOLDER, Node, NodeTable
from hubspoke.frontends.fuse.own_files import OwnFiles
from hubspoke.frontends.fuse.reader import MountReader
from hubspoke.frontends.fuse.tuning import FuseTuning
from hubspoke.ports import Clock, Resolved
from hubspoke.spoke.tree import Looked, Tree

_FOLDER, _FILE = 4, 8  # DT_DIR, DT_REG
_FIRST = 2  # offset of the first entry behind "." and ".."
FOR_EVER_S = 86_400.0
# An entry of a listing takes about so many bytes of the answer, with and without attributes.
_PLUS_BYTES, _PLAIN_BYTES = 180, 48
_USER = "user."
XATTR = f"{_USER}hubspoke."


class Names:
    """The handlers of paths and folders."""

    def __init__(
        self,
        answers: Answers,
        nodes: NodeTable,
        tree: Tree,
        reader: MountReader,
        own: OwnFiles,
        attributes: Attributes,
        clock: Clock,
        tuning: FuseTuning,
        whole: Callable[[Resolved], bool],
    ) -> None:
        """whole: whether a version's node is that of a whole file."""
        self._whole = whole
        self._answers = answers
        self._nodes = nodes
        self._tree = tree
        self._reader = reader
        self._own = own
        self._attributes = attributes
        self._clock = clock
        self._tuning = tuning
        self._places: dict[int, Place] = {}
        # Not those of a process that is gone, which the kernel may still have.
        self._handles = itertools.count(secrets.randbits(62))

    # -- looking up ---------------------------------------------------------------------------

    def lookup(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        """A name in a folder."""
        parent = self._nodes.get(node_id)
        if parent is None:
            return self._answers.refuse(unique, errno.ESTALE)
        raw = bytes(body[:-1])
        try:
            name = raw.decode()
        except UnicodeDecodeError:  # no key is like that
            return self._answers.refuse(unique, errno.ENOENT)
        if len(raw) > protocol.NAME_MAX:
            return self._answers.refuse(unique, errno.ENAMETOOLONG)
        if parent.is_own or (parent.id == protocol.ROOT_ID and name == OWN_FOLDER):
            return self._lookup_own(unique, parent, name)
        target = _child(parent, name)
        looked = self._tree.look_now(target)
        if looked is None:
            return self._answers.later(unique, self._lookup_later(unique, target))
        self._found(unique, target, looked)

    async def _lookup_later(self, unique: int, target: ObjectName) -> None:
        self._found(unique, target, await self._tree.look(target))

    def _found(self, unique: int, name: ObjectName, looked: Looked) -> None:
        kept = self._kept_s(looked.kept_until)
        if not looked.folder and looked.entry is None:
            if not kept:
                return self._answers.refuse(unique, errno.ENOENT)
            self._answers.now(unique, protocol.entry(0, self._attributes.absent, kept, 0.0))
            return
        entry = None if looked.folder else looked.entry
        node = self._node(name, entry)
        self._told(node, self._answers.now(unique, self._entry(node, kept)))

    def _lookup_own(self, unique: int, parent: Node, name: str) -> None:
        known = name in self._own if parent.is_own else True
        if not known:
            return self._answers.refuse(unique, errno.ENOENT)
        node = self._nodes.own(name)
        self._told(node, self._answers.now(unique, self._entry(node, FOR_EVER_S)))

    def _node(self, name: ObjectName, entry: ObjectEntry | None) -> Node:
        """entry None: a folder."""
        if entry is not None:
            return self._nodes.file(name, entry, complete=self._whole(Resolved(name, entry)))
        return self._nodes.folder(name.bucket, name.key + "/" if name.key else "")

    def _told(self, node: Node, taken: bool) -> None:
        """The kernel has one more reference, if it took the answer."""
        node.lookups += 1
        if not taken:
            self._nodes.forget(node.id, 1)

    def _kept_s(self, until: float) -> float:
        """For how long the kernel may keep a name."""
        left = until - self._clock.now() - self._tuning.late_s
        return max(0.0, min(self._tuning.kept_s, left))

    def _entry(self, node: Node, kept_s: float) -> bytes:
        return protocol.entry(node.id, self._attributes_of(node), kept_s, FOR_EVER_S)

    def _attributes_of(self, node: Node) -> bytes:
        if node.resolved is not None:
            return self._attributes.file(inode(node.bucket, node.key), node.resolved.entry)
        number = inode(node.bucket, node.key.removesuffix("/"))
        if node.is_folder:
            return self._attributes.folder(number)
        return self._attributes.own_file(number)

    def getattr(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        """By the node alone."""
        node = self._nodes.get(node_id)
        if node is None:
            return self._answers.refuse(unique, errno.ESTALE)
        self._answers.now(unique, protocol.attributes_out(self._attributes_of(node), FOR_EVER_S))

    # -- calling back -------------------------------------------------------------------------

    def to_forget(self, name: ObjectName) -> list[tuple[int, bytes]]:
        """(folder's node, entry) of all that the kernel may keep and that a change of the name
        makes untrue: itself, and folders that come or go with it."""
        bucket, key = name
        if not key:
            return [(protocol.ROOT_ID, bucket.encode())]
        found: list[tuple[int, bytes]] = []
        prefix = ""
        parts = key.split("/")
        for i, part in enumerate(parts):
            folder = self._nodes.known_folder(bucket, prefix)
            if folder is None:  # so nothing below it is known either
                break
            below = f"{prefix}{part}/"
            alone = i == len(parts) - 1 or self._tree.paths_below(bucket, below, 2) < 2
            if alone and segment_fault(part) is None:
                found.append((folder, part.encode()))
            prefix = below
        return found

    # -- listing ------------------------------------------------------------------------------

    def opendir(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        """A handle only remembers a place: without it a listing is only slower."""
        handle = next(self._handles)
        self._places[handle] = Place()
        if not self._answers.now(unique, protocol.OPEN_OUT.pack(handle, 0, 0)):
            del self._places[handle]

    def releasedir(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        self._places.pop(protocol.RELEASE_IN.unpack_from(body)[0], None)
        self._answers.now(unique)

    def readdir(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        self._list(unique, node_id, body, plus=False)

    def readdirplus(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        self._list(unique, node_id, body, plus=True)

    def _list(self, unique: int, node_id: int, body: memoryview, *, plus: bool) -> None:
        node = self._nodes.get(node_id)
        if node is None:
            return self._answers.refuse(unique, errno.ESTALE)
        handle, offset, size = protocol.READ_IN.unpack_from(body)
        page = _Page(size, plus)
        self._answers.later(unique, self._list_later(unique, node, handle, offset, page))

    async def _list_later(
        self, unique: int, node: Node, handle: int, offset: int, page: "_Page"
    ) -> None:
        if not node.is_folder:
            raise Refused(errno.ENOTDIR, node.path)
        dots = ((b".", 1), (b"..", 2))
        for name, following in dots[offset:]:
            page.add(bytes(protocol.ENTRY_BYTES), inode(node.bucket, ""), following, name, _FOLDER)
        ordinal = max(offset - _FIRST, 0)
        if node.is_own:
            self._add_flat(page, ordinal, [(n, _FILE) for n in self._own.names()], "")
        elif node.id == protocol.ROOT_ID:
            self._add_flat(page, ordinal, [(b, _FOLDER) for b in await self._tree.buckets()], None)
        else:
            place = self._places.get(handle) or Place()
            await self._add_entries(page, node, place, ordinal)
        if not self._answers.now(unique, page.data):
            for told in page.told:
                self._nodes.forget(told.id, 1)

    def _add_flat(
        self, page: "_Page", ordinal: int, names: list[tuple[str, int]], bucket: str | None
    ) -> None:
        """A short list; attributes are asked for when they are wanted."""
        for i, (name, kind) in enumerate(names[ordinal:], ordinal):
            number = inode(name, "") if bucket is None else inode(bucket, name)
            following = _FIRST + i + 1
            if not page.add(bytes(protocol.ENTRY_BYTES), number, following, name.encode(), kind):
                return

    async def _add_entries(self, page: "_Page", node: Node, place: Place, ordinal: int) -> None:
        if not ordinal:
            place.rewind()
        after = await key_before(self._tree, node.bucket, node.key, place, ordinal)
        wanted = page.room // (_PLUS_BYTES if page.plus else _PLAIN_BYTES)
        found = await entries_after(self._tree, node.bucket, node.key, after, wanted)
        kept = self._kept_s(found.kept_until)
        taken: list[Shown] = []
        for i, shown in enumerate(found.entries, ordinal):
            name = ObjectName(node.bucket, node.key + shown.name)
            kind = _FOLDER if shown.entry is None else _FILE
            child = self._node(name, shown.entry) if page.plus else None
            head = bytes(protocol.ENTRY_BYTES) if child is None else self._entry(child, kept)
            raw = shown.name.encode()
            if not page.add(head, inode(*name), _FIRST + i + 1, raw, kind):
                if child is not None and not child.lookups:
                    self._nodes.forget(child.id, 0)
                break
            if child is not None:
                child.lookups += 1
                page.told.append(child)
            taken.append(shown)
        place.read(ordinal, after, taken)

    # -- extended attributes ------------------------------------------------------------------

    def getxattr(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        node = self._nodes.get(node_id)
        name = bytes(body[protocol.GETXATTR_IN.size :]).rstrip(b"\0").decode(errors="replace")
        if not name.startswith(_USER):
            # Labels and access lists. "Not there" would have `ls -l` ask twice for every file;
            # after "not supported" it asks for no other file of the mount.
            return self._answers.refuse(unique, errno.EOPNOTSUPP)
        value = self._xattrs(node).get(name)
        if value is None:
            return self._answers.refuse(unique, errno.ENODATA)
        self._sized(unique, body, value.encode())

    def listxattr(self, unique: int, node_id: int, body: memoryview, pid: int) -> None:
        names = self._xattrs(self._nodes.get(node_id))
        self._sized(unique, body, b"".join(n.encode() + b"\0" for n in names))

    def _sized(self, unique: int, body: memoryview, value: bytes) -> None:
        room, _ = protocol.GETXATTR_IN.unpack_from(body)
        if not room:
            self._answers.now(unique, protocol.GETXATTR_OUT.pack(len(value), 0))
        elif len(value) > room:
            self._answers.refuse(unique, errno.ERANGE)
        else:
            self._answers.now(unique, value)

    def _xattrs(self, node: Node | None) -> dict[str, str]:
        if node is None or node.resolved is None:
            return {}
        entry = node.resolved.entry
        cached = self._reader.cached_bytes(node.resolved)
        state = "complete" if cached >= entry.size else "partial" if cached else "absent"
        values = {"version": entry.version, "state": state, "etag": entry.etag}
        return {XATTR + key: value for key, value in values.items()}


class _Page:
    """The answer to one READDIR or READDIRPLUS as it grows. told: nodes the kernel hears of."""

    def __init__(self, size: int, plus: bool) -> None:
        self.plus = plus
        self.data = bytearray()
        self.told: list[Node] = []
        self._size = size

    @property
    def room(self) -> int:
        return self._size - len(self.data)

    def add(self, head: bytes, number: int, following: int, name: bytes, kind: int) -> bool:
        """False: it does not fit. head: fuse_entry_out, left out of a plain listing."""
        entry = protocol.dirent(number, following, name, kind)
        if self.plus:
            entry = head + entry
        if len(entry) > self.room:
            return False
        self.data += entry
        return True


def _child(parent: Node, name: str) -> ObjectName:
    if parent.id == protocol.ROOT_ID:
        return ObjectName(name, "")
    return ObjectName(parent.bucket, parent.key + name)
