"""Linux inotify and statfs: the system calls that Python does not have.

Blocking; used by one thread (folder_watch.py says why no library is). A name is bytes as the
kernel has them.
"""

import ctypes
import errno
import os
import struct
import sys
from functools import cache
from typing import NamedTuple

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
UNMOUNT, OVERFLOW, IGNORED, ISDIR = 0x2000, 0x4000, 0x8000, 0x40000000
ONLYDIR, DONT_FOLLOW, EXCL_UNLINK = 0x01000000, 0x02000000, 0x04000000

_HEAD = struct.Struct("=iIII")  # watch, mask, cookie, length of the name with its NULs
_READ_BYTES = 1 << 16
_STATFS_BYTES = 256  # more than any struct statfs

# What a local disk has here, by the magic numbers of statfs(2). Every change of a file passes
# through this kernel, so it tells them all; of any other file system that is not certain.
LOCAL = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlayfs",
    0x3153464A: "jfs",
    0x3434: "nilfs2",
    0x4D44: "vfat",
    0x2011BAB0: "exfat",
    0x7366746E: "ntfs3",
}
_NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x65735546: "FUSE",
    0x01021997: "9p",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x5346414F: "AFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
}


class Event(NamedTuple):
    watch: int
    mask: int
    name: bytes  # in the watched folder; empty for the folder itself


def local_fault(path: bytes) -> str | None:
    """Why a change of a file at `path` may not be told by this kernel, or None. Raises OSError."""
    kind = _magic(path)
    if kind in LOCAL:
        return None
    name = _NETWORK.get(kind, "of a kind not known to tell them")
    return f"file system {name} (0x{kind:x}): changes made elsewhere are not told"


def file_system(path: bytes) -> tuple[str, str]:
    """(kind, name) of the file system at `path`: local, memory, overlay, network or unknown, and
    such as "ext4". Raises OSError."""
    magic = _magic(path)
    name = LOCAL.get(magic)
    if name is None:
        network = _NETWORK.get(magic)
        return ("unknown", f"file system 0x{magic:x}") if network is None else ("network", network)
    kinds = {"tmpfs": "memory", "ramfs": "memory", "overlayfs": "overlay"}
    return kinds.get(name, "local"), name


def _magic(path: bytes) -> int:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc().statfs(path, buffer) != 0:
        raise _error()
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFFFFFF


class Inotify:
    """One queue of the kernel. Raises OSError, also where there is no inotify."""

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError(errno.ENOSYS, "no inotify on this system")
        self.fd = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _error()

    def add(self, path: bytes, mask: int) -> int:
        """Watch a folder; the same number again for one that is watched already."""
        watch = int(_libc().inotify_add_watch(self.fd, path, ctypes.c_uint32(mask)))
        if watch < 0:
            raise _error()
        return watch

    def remove(self, watch: int) -> None:
        """One that the kernel has removed already is no error."""
        _libc().inotify_rm_watch(self.fd, watch)

    def read(self) -> list[Event]:
        """What has come; empty when nothing has."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return []
        events, at = [], 0
        while at < len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            events.append(Event(watch, mask, data[at : at + length].rstrip(b"\0")))
            at += length
        return events

    def close(self) -> None:
        os.close(self.fd)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
