"""What stat shows: fuse_attr of files and folders, and the inode numbers."""

import stat
from dataclasses import dataclass

import xxhash

from hubspoke.core.ids import ObjectEntry
from hubspoke.frontends.fuse.protocol import ATTR, ROOT_ID

NS = 1_000_000_000
# What a buffered reader takes at a time (Python's does): as ext4 says. More would make a random
# read of 4 KiB one of so much.
BLOCK_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Ownership:
    """Of all that is shown. umask: bits of mode that nobody has; nobody may write anyway."""

    uid: int
    gid: int
    umask: int = 0o022


def inode(bucket: str, key: str) -> int:
    """The inode number of a name, the same for all its versions, at every start and every spoke.
    Two names may share one by accident, once in 2^31 names or so."""
    if not bucket and not key:
        return ROOT_ID
    digest: int = xxhash.xxh3_64_intdigest(f"{bucket}\0{key}".encode())
    return digest >> 1 | 2


class Attributes:
    """Packs them for one mount."""

    def __init__(self, ownership: Ownership) -> None:
        self._uid, self._gid = ownership.uid, ownership.gid
        self._file_mode = stat.S_IFREG | 0o444 & ~ownership.umask
        self._folder_mode = stat.S_IFDIR | 0o555 & ~ownership.umask
        self._absent = bytes(ATTR.size)

    def file(self, number: int, entry: ObjectEntry) -> bytes:
        """number: the inode's."""
        return self._packed(number, entry.size, entry.modified_ns, self._file_mode)

    def folder(self, number: int) -> bytes:
        """Of no time: nothing tells when a folder came to be."""
        return self._packed(number, 0, 0, self._folder_mode)

    def own_file(self, number: int) -> bytes:
        """Made when it is opened, so of no size and time now."""
        return self._packed(number, 0, 0, self._file_mode)

    @property
    def absent(self) -> bytes:
        """Of a name that is not there."""
        return self._absent

    def _packed(self, number: int, size: int, modified_ns: int, mode: int) -> bytes:
        s, ns = divmod(max(modified_ns, 0), NS)
        # One link, also of folders: tools take two for "no folder in it".
        return ATTR.pack(
            number, size, -(-size // 512), s, s, s, ns, ns, ns, mode, 1, self._uid, self._gid,
            0, BLOCK_SIZE, 0,
        )  # fmt: skip
