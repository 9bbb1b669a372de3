"""Holes of sparse files: made, and found."""

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def punch(fd: int, offset: int, length: int) -> None:
    """Give whole file system blocks of the range back; they read as zeros. Raises OSError."""
    if _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def data_runs(path: Path) -> Iterator[tuple[int, int]]:
    """(offset, length) of what is no hole."""
    fd, at = os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0
    try:
        while True:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as e:
                if e.errno != errno.ENXIO:
                    raise
                return
            at = os.lseek(fd, start, os.SEEK_HOLE)
            yield start, at - start
    finally:
        os.close(fd)
