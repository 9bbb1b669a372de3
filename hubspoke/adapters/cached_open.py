"""Opens a file if that needs no disk: its whole path and its inode are in the kernel's memory.

Never: wait for a disk. Where the kernel cannot promise that (before Linux 5.12, or a system call
filter), nothing is opened.
"""

import ctypes
import errno
import os

_OPENAT2 = 437  # on every architecture but Alpha
_AT_FDCWD = -100
_RESOLVE_CACHED = 0x20
# Later calls would be told the same.
_NEVER = (errno.ENOSYS, errno.EINVAL, errno.EPERM)


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_HOW = _OpenHow(os.O_RDWR | os.O_CLOEXEC, 0, _RESOLVE_CACHED)
_SIZE = ctypes.c_size_t(ctypes.sizeof(_HOW))
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_able = [True]


def open_cached(path: str) -> int | None:
    """A descriptor for reading and writing; None if a disk might be waited for, or there is no
    such file, or none that may be opened."""
    if not _able[0]:
        return None
    opened = int(
        _syscall(
            ctypes.c_long(_OPENAT2), ctypes.c_long(_AT_FDCWD), os.fsencode(path),
            ctypes.byref(_HOW), _SIZE,
        )
    )  # fmt: skip
    if opened >= 0:
        return opened
    if ctypes.get_errno() in _NEVER:
        _able[0] = False
    return None
