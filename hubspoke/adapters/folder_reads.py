"""Reading files of the folder store: exactly the version asked for, or an error.

Blocking; runs in the store's threads. Nothing here ever reads through a name that leads out of
the root, or that is another name's file by a change of case.

What makes a read right: one descriptor is asked with fstat before and after its pread, and both
answers must be the version. The version contains the change time, which also moves when the
file loses its name (unlink, replace, rename), so a kept descriptor needs no look at its path.
Two holes remain, and both belong to changes behind the hub's back: a writer through a shared
mapping moves the times only when the kernel next sees the page, and renaming a parent folder
moves nothing (the bytes are still those of the version).
"""

import errno
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from hubspoke.adapters.etag import EMPTY_MD5, version_etag
from hubspoke.adapters.folder_layout import (
    FolderLayout,
    file_version,
    is_file,
    is_marker,
    marker_version,
)
from hubspoke.core.ids import ObjectEntry, ObjectName, Version
from hubspoke.errors import (
    InvalidKey,
    NoSuchBucket,
    NoSuchKey,
    StoreUnavailable,
    VersionChanged,
)

MARKER_ATTRIBUTE = "user.hubspoke.marker"
# File times before Linux 6.13 move by the timer tick, at most 10 ms (HZ 100): two writes of one
# tick look alike. A version is given out only when its tick is over.
_TICK_NS = 20_000_000
_SETTLE_NS = 1_000_000_000
_DATE_NS_MAX = 2**63 - 1
_IDLE_S = 60.0  # an open descriptor keeps a deleted file's space


class OpenFile:
    """A descriptor that is closed when the last thread that reads from it lets it go."""

    __slots__ = ("fd", "used_s")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.used_s = time.monotonic()

    def __del__(self) -> None:
        os.close(self.fd)


class OpenFiles:
    """The descriptors used last, by name; safe for threads. A small read of a file that is read
    often costs no open."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._files: OrderedDict[ObjectName, OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: ObjectName) -> OpenFile | None:
        with self._lock:
            file = self._files.get(name)
            if file is not None:
                self._files.move_to_end(name)
                file.used_s = time.monotonic()
            return file

    def put(self, name: ObjectName, file: OpenFile) -> None:
        let_go = []  # closed outside of the lock
        with self._lock:
            let_go.append(self._files.pop(name, None))
            self._files[name] = file
            oldest = next(iter(self._files))
            while len(self._files) > self._capacity or (
                self._files[oldest].used_s < file.used_s - _IDLE_S
            ):
                let_go.append(self._files.pop(oldest))
                oldest = next(iter(self._files))

    def drop(self, name: ObjectName) -> None:
        with self._lock:
            file = self._files.pop(name, None)
        del file

    def clear(self) -> None:
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
        del files


def open_file(layout: FolderLayout, name: ObjectName) -> OpenFile:
    """Open the regular file of exactly that name. Raises NoSuchKey or StoreUnavailable.

    A symbolic link counts as the file it leads to, if that lies inside the root; folders are
    never followed through a link.
    """
    try:
        path = layout.path(name)
        # Without O_NONBLOCK the open of a named pipe would wait for its writer.
        file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except (FileNotFoundError, NotADirectoryError, InvalidKey) as e:
        raise NoSuchKey(f"{name!s:.300}: no such object") from e
    except OSError as e:
        if e.errno == errno.ELOOP or _is_no_file(path):
            raise NoSuchKey(f"{name!s:.300}: no such object") from e
        raise StoreUnavailable(f"{name!s:.300}: cannot be opened: {e.strerror}") from e
    if is_marker(name.key) or not is_file(os.fstat(file.fd)):
        raise NoSuchKey(f"{name!s:.300}: no such object")
    real = os.readlink(b"/proc/self/fd/%d" % file.fd)
    if real != path and not _is_followed_link(layout, path, real):
        raise NoSuchKey(f"{name!s:.300}: no such object (its path leads elsewhere)")
    return file


def _is_no_file(path: bytes) -> bool:
    """Whether another thing has the name, such as a socket, which cannot be opened at all."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode))


def _is_followed_link(layout: FolderLayout, path: bytes, real: bytes) -> bool:
    folder = os.path.dirname(path)
    try:
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False
    return is_link and os.path.realpath(folder) == folder and layout.holds(real)


def read_range(
    layout: FolderLayout,
    files: OpenFiles,
    name: ObjectName,
    version: Version,
    offset: int,
    length: int,
) -> bytes:
    """Exactly `length` bytes of exactly that version. Raises VersionChanged, NoSuchKey."""
    file = files.get(name)
    if file is None or file_version(os.fstat(file.fd)) != version:
        file = open_file(layout, name)
        found = file_version(os.fstat(file.fd))
        if found != version:
            files.drop(name)
            raise VersionChanged(f"{name}: version {version} asked, {found} found")
        files.put(name, file)
    try:
        data = os.pread(file.fd, length, offset)
        while len(data) < length:
            more = os.pread(file.fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        found = file_version(os.fstat(file.fd))
    except OSError as e:
        raise StoreUnavailable(f"{name}: cannot be read at {offset}+{length}: {e}") from e
    if found != version or len(data) != length:
        files.drop(name)
        raise VersionChanged(f"{name}: changed while {offset}+{length} was read")
    return data


def read_now(
    files: OpenFiles, name: ObjectName, version: Version, offset: int, length: int
) -> memoryview | None:
    """As `read_range`, of a file that was read before and is in the page cache; None otherwise."""
    file = files.get(name)
    if file is None:
        return None
    # As it is: a bytearray is cleared first.
    buffer = np.empty(length, np.uint8).data
    try:
        if file_version(os.fstat(file.fd)) != version:
            return None
        n = os.preadv(file.fd, [buffer], offset, os.RWF_NOWAIT)
        found = file_version(os.fstat(file.fd))
    except OSError:  # EAGAIN: not in memory; EOPNOTSUPP: the file system cannot tell
        return None
    return buffer if n == length and found == version else None


def head(layout: FolderLayout, name: ObjectName) -> ObjectEntry | None:
    """What is under a name now; waits until the version can be relied on."""
    if is_marker(name.key):
        return _head_marker(layout, name)
    try:
        file = open_file(layout, name)
    except (NoSuchKey, NoSuchBucket):
        return None
    return file_entry(settled(lambda: os.fstat(file.fd)))


def _head_marker(layout: FolderLayout, name: ObjectName) -> ObjectEntry | None:
    try:
        path = layout.path(name)
        is_real = os.path.realpath(path) == path
        if not is_real or not has_marker(path):
            return None
        return marker_entry(os.stat(path))
    except (OSError, InvalidKey, NoSuchBucket):
        return None


def has_marker(path: bytes) -> bool:
    """Was this folder made by a PUT of a directory marker?"""
    try:
        os.getxattr(path, MARKER_ATTRIBUTE)
    except OSError:
        return False
    return True


def settled(stat_again: Callable[[], os.stat_result]) -> os.stat_result:
    """A stat that no later change can leave as it is: its clock tick is over."""
    deadline = time.time_ns() + _SETTLE_NS
    while True:
        st = stat_again()
        now = time.time_ns()
        age = now - max(st.st_ctime_ns, st.st_mtime_ns)
        if not 0 <= age < _TICK_NS or now > deadline:
            return st
        time.sleep((_TICK_NS - age) / 1e9)


def file_entry(st: os.stat_result) -> ObjectEntry:
    version = file_version(st)
    return ObjectEntry(version, st.st_size, version_etag(version), _shown_ns(st.st_mtime_ns))


def marker_entry(st: os.stat_result) -> ObjectEntry:
    return ObjectEntry(marker_version(st), 0, EMPTY_MD5, _shown_ns(st.st_mtime_ns))


def _shown_ns(modified_ns: int) -> int:
    """A date that log and wire can hold (to the year 2262). A file may say any, and one that
    says the year 9999 would stop the log for all others; its version has what it says."""
    return max(-_DATE_NS_MAX, min(modified_ns, _DATE_NS_MAX))
