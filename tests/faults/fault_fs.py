"""A file system with faults on command, for the folder under a real spoke's cache.

`python -m tests.faults.fault_fs SOURCE MOUNT CONTROL`: files lie in SOURCE and are seen at MOUNT.
CONTROL is a JSON file that says what goes wrong now; it is read again when it changes. Every call
reaches this process (direct I/O, no attribute cache), so what goes wrong is seen at once.

    {"eio": 0.1, "delay_s": 2.0, "refuse": "ENOSPC" | "EROFS", "torn": 0.1}

eio: share of all calls that fail with EIO. delay_s: before every call. refuse: errno of every
call that would need space or write. torn: share of writes of which only a part arrives; half of
those say so (a short write), half fail with EIO.
"""

import errno
import json
import os
import random
import sys
import threading
import time
from typing import Any

import mfusepy

STAT_FIELDS = ("mode", "nlink", "uid", "gid", "size", "blocks", "atime_ns", "mtime_ns", "ctime_ns")


class Faults:
    """What the control file says, and how often it struck."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._changed = 0
        self._lock = threading.Lock()
        self._rng = random.Random(0)
        self.now: dict[str, Any] = {}

    def __call__(self, *, changes: bool = False) -> None:
        """Before each call: wait or raise as told."""
        with self._lock:
            changed = os.stat(self._path).st_mtime_ns
            if changed != self._changed:
                with open(self._path) as f:
                    self.now = json.load(f)
                self._changed = changed
            fails = self._rng.uniform(0, 1) < self.now.get("eio", 0)
        time.sleep(self.now.get("delay_s", 0))
        if fails:
            raise OSError(errno.EIO, "injected")
        if changes and "refuse" in self.now:
            raise OSError(getattr(errno, self.now["refuse"]), "injected")

    def torn(self) -> bool | None:
        """None: the write is whole; True: it fails half done; False: it is short."""
        with self._lock:
            at = self._rng.uniform(0, 1)
        torn = self.now.get("torn", 0)
        return None if at >= torn else at < torn / 2


class FaultFs(mfusepy.Operations):  # type: ignore[misc]  # has no types
    """Hands every call to the source folder, unless told otherwise."""

    use_ns = True

    def __init__(self, source: str, faults: Faults) -> None:
        self._source = source
        self._faults = faults

    def _at(self, path: str) -> str:
        return self._source + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        self._faults()
        stat = os.lstat(self._at(path)) if fh is None else os.fstat(fh)
        return {f"st_{n}".removesuffix("_ns"): getattr(stat, f"st_{n}") for n in STAT_FIELDS}

    def readdir(self, path: str, fh: int) -> list[str]:
        self._faults()
        return [".", "..", *os.listdir(self._at(path))]

    def open(self, path: str, flags: int) -> int:
        self._faults(changes=bool(flags & os.O_TRUNC))
        return os.open(self._at(path), flags & ~os.O_APPEND)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._faults(changes=True)
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._faults()
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._faults(changes=True)
        torn = self._faults.torn()
        if torn is None or len(data) < 2:
            return os.pwrite(fh, data, offset)
        n = os.pwrite(fh, data[: len(data) // 2], offset)
        if torn:
            raise OSError(errno.EIO, "injected: half written")
        return n

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._faults(changes=True)
        os.truncate(self._at(path) if fh is None else fh, length)
        return 0

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        self._faults(changes=True)
        if not mode & 2:  # only holes are asked for here
            return -errno.EOPNOTSUPP
        os.pwrite(fh, bytes(size), offset)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._faults()
        return 0

    def flush(self, path: str, fh: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def unlink(self, path: str) -> int:
        self._faults(changes=True)
        os.unlink(self._at(path))
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._faults(changes=True)
        os.mkdir(self._at(path), mode)
        return 0

    def rename(self, old: str, new: str) -> int:
        self._faults(changes=True)
        os.rename(self._at(old), self._at(new))
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        stat = os.statvfs(self._source)
        return {
            name: getattr(stat, name)
            for name in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_namemax")
        }


def main(source: str, mount: str, control: str) -> None:
    """Serve until it is unmounted."""
    mfusepy.FUSE(
        FaultFs(source, Faults(control)),
        mount,
        foreground=True,
        direct_io=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
        max_idle_threads=64,
        fsname="faults",
    )


if __name__ == "__main__":
    main(*sys.argv[1:4])
