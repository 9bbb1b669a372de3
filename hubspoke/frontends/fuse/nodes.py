"""What the kernel's node ids mean: a table that decides who is who, and forgets on request.

    root (1) -> bucket, folder: named by bucket and prefix
             -> file: named by bucket, key, version, and whether it was complete
             -> the mount's own folder and files

A file's node is one version, for good: its size and bytes never change, what the kernel keeps of
it never has to be thrown away, and an open handle cannot come to other bytes. A new version, and
where it matters the completion of a file, is another node under the same name and with the same
inode number; the kernel is told to ask for the name again.

Never: reuse an id while the mount lives, or let a handle hold what the id does not say: whoever
takes the mount over after a crash has only the journal.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from hubspoke.core.ids import ObjectEntry, ObjectName, Version
from hubspoke.frontends.fuse.folder_reads import FolderReads
from hubspoke.frontends.fuse.protocol import ROOT_ID
from hubspoke.ports import Resolved

DOUBTFUL_MAX = 4_096
OWN_FOLDER = ".hubspoke"  # at the root; no bucket may be called so


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """All that an id means. version: None for what is no file; bucket "": the root and what is
    the mount's own (key: its name there)."""

    id: int
    bucket: str
    key: str
    version: str | None = None
    size: int = 0
    etag: str = ""
    modified_ns: int = 0
    complete: bool = False


class NodeJournal(Protocol):
    """Where the table is kept beyond the process, in the order of what happened."""

    def added(self, record: NodeRecord) -> None: ...
    def forgotten(self, node_id: int) -> None: ...


class Node:
    """One id. key of a folder: "" or ends in "/". opened: how often, since this process began.
    reads: how files of its folder are read, once it was opened.
    cached, passed: handles that are open, by who serves them; backing: the kernel's name of the
    file behind those that are passed through, 0 for none."""

    __slots__ = (
        "backing", "bucket", "cached", "complete", "id", "key", "lookups", "opened", "passed",
        "reads", "resolved",
    )  # fmt: skip

    def __init__(
        self, node_id: int, bucket: str, key: str, resolved: Resolved | None, complete: bool
    ) -> None:
        self.id = node_id
        self.bucket = bucket
        self.key = key
        self.resolved = resolved
        self.complete = complete
        self.lookups = 0
        self.opened = 0
        self.cached = 0
        self.passed = 0
        self.backing = 0
        self.reads: FolderReads | None = None

    @property
    def is_own(self) -> bool:
        """The mount's own folder, or a file in it."""
        return not self.bucket and self.id != ROOT_ID

    @property
    def is_folder(self) -> bool:
        return self.resolved is None and (not self.is_own or self.key == OWN_FOLDER)

    @property
    def path(self) -> str:
        """For messages."""
        if self.is_own:
            return self.key if self.key == OWN_FOLDER else f"{OWN_FOLDER}/{self.key}"
        return f"{self.bucket}/{self.key}" if self.bucket else "/"

    def record(self) -> NodeRecord:
        if self.resolved is None:
            return NodeRecord(self.id, self.bucket, self.key)
        e = self.resolved.entry
        return NodeRecord(
            self.id, self.bucket, self.key, e.version, e.size, e.etag, e.modified_ns, self.complete
        )


# (bucket, key) of a folder; with version and completeness of a file.
_Key = tuple[str, str] | tuple[str, str, str, bool]


class NodeTable:
    """Ids by what they mean, and back; counts the kernel's references as its protocol wants."""

    def __init__(self, journal: NodeJournal | None = None) -> None:
        self._journal = journal
        self._next = ROOT_ID + 1
        root = Node(ROOT_ID, "", "", None, False)
        self._nodes: dict[int, Node] = {ROOT_ID: root}
        self._ids: dict[_Key, int] = {("", ""): ROOT_ID}
        # Of a process before this one: the kernel has an unknown number of references more. Those
        # that seem to be forgotten stay, the last DOUBTFUL_MAX that nothing was asked of since.
        self._restored: set[int] = set()
        self._doubtful: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node_id: int) -> Node | None:
        """Of what the kernel asks about."""
        if self._doubtful:
            self._doubtful.pop(node_id, None)
        return self._nodes.get(node_id)

    def folder(self, bucket: str, prefix: str) -> Node:
        """The node of a folder, made if new."""
        node_id = self._ids.get((bucket, prefix))
        return self._nodes[node_id] if node_id else self._add((bucket, prefix), None, False)

    def own(self, name: str) -> Node:
        """The node of the mount's own folder, or of a file in it."""
        return self.folder("", name)

    def file(self, name: ObjectName, entry: ObjectEntry, *, complete: bool) -> Node:
        """The node of one version of an object, made if new."""
        key = (name.bucket, name.key, entry.version, complete)
        node_id = self._ids.get(key)
        if node_id:
            return self._nodes[node_id]
        return self._add(key, Resolved(name, entry), complete)

    def known_folder(self, bucket: str, prefix: str) -> int | None:
        """The id of a folder that the kernel may know."""
        return self._ids.get((bucket, prefix))

    def forget(self, node_id: int, lookups: int) -> Node | None:
        """The kernel gives references back. Returns a node that is gone with that."""
        node = self._nodes.get(node_id)
        if node is None or node_id == ROOT_ID:
            return None
        node.lookups = max(node.lookups - lookups, 0)
        if node.lookups > 0:
            return None
        if node_id in self._restored:
            self._doubtful.pop(node_id, None)
            self._doubtful[node_id] = None
            if len(self._doubtful) <= DOUBTFUL_MAX:
                return None
            node = self._nodes[self._doubtful.popitem(last=False)[0]]
            if node.lookups > 0:  # found by its name since
                return None
            self._restored.discard(node.id)
        del self._nodes[node.id]
        self._ids.pop(_key(node), None)
        if self._journal is not None:
            self._journal.forgotten(node.id)
        return node

    def restore(self, records: Iterable[NodeRecord], highest: int) -> None:
        """Take over what a process that is gone had told the kernel, before anything is asked.
        highest: of all ids that were ever added, forgotten ones too.

        How many references the kernel has of these is not known. It gives back single ones, of an
        answer that it did not use, while a handle is open, so no `forget` says that none is left.
        """
        self._next = max(self._next, highest + 1)
        for record in records:
            resolved = None
            if record.version is not None:
                entry = ObjectEntry(
                    Version(record.version), record.size, record.etag, record.modified_ns
                )
                resolved = Resolved(ObjectName(record.bucket, record.key), entry)
            node = Node(record.id, record.bucket, record.key, resolved, record.complete)
            self._nodes[node.id] = node
            self._ids[_key(node)] = node.id
            self._restored.add(node.id)

    def _add(self, key: _Key, resolved: Resolved | None, complete: bool) -> Node:
        node = Node(self._next, key[0], key[1], resolved, complete)
        self._next += 1
        self._nodes[node.id] = node
        self._ids[key] = node.id
        if self._journal is not None:
            self._journal.added(node.record())
        return node


def _key(node: Node) -> _Key:
    if node.resolved is None:
        return node.bucket, node.key
    return node.bucket, node.key, node.resolved.entry.version, node.complete
