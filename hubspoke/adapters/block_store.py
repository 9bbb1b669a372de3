"""Bytes of cached objects on local disks: one sparse file per object version.

It knows nothing of what is worth keeping; it writes frames, reads ranges, punches holes, and
remembers in each folder's index which frames are there. Reads of ranges that were never written
would give zeros: the core's page book is what keeps a reader from asking for them.
"""

import contextlib
import ctypes
import errno
import os
import threading
from pathlib import Path

from hubspoke.adapters import cache_index
from hubspoke.adapters.open_files import OpenFiles
from hubspoke.core.ids import ObjectName, Version
from hubspoke.errors import ConfigError, FormatError
from hubspoke.ports import FileSpan, IndexedObject

SAMPLE_BYTES = 256 << 10  # the kernel reads and drops a file's pages in runs of about this
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class CacheFolder:
    """One folder on one drive. Methods may block; they may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written_bytes = 0
        self._data = root / "data"
        self._index_path = str(root / "index")
        self._files = OpenFiles(self._data)
        self._lock = threading.Lock()  # guards written_bytes and the index descriptor
        self._index_fd = -1

    def load(self) -> dict[int, IndexedObject]:
        """Open the folder; what is found is what was there before, unverified.

        Raises ConfigError if the folder cannot be used.
        """
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            objects = self._load_index()
            self._index_fd = os.open(self._index_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as e:
            raise ConfigError(
                f"--cache {self.root}: {e.strerror}; a writable folder on a local disk is needed"
            ) from e
        keep = {str(n) for n in objects}
        for name in os.listdir(self._data):
            if name not in keep:
                os.unlink(self._data / name)  # data without an index entry says nothing
        return objects

    def _load_index(self) -> dict[int, IndexedObject]:
        try:
            with open(self._index_path, "rb") as f:
                data = f.read()
        except FileNotFoundError:
            data = b""
        objects: dict[int, IndexedObject] = {}
        try:
            if data:
                objects, _ = cache_index.parse(data)
        except FormatError:
            # An unknown cache is set aside and rebuilt: it holds nothing that is lost with it.
            os.replace(self._index_path, self._index_path + ".unknown")
        present = {n: o for n, o in objects.items() if (self._data / str(n)).exists()}
        cache_index.write_whole(self._index_path, present.values())
        return present

    def create(self, number: int, name: ObjectName, version: Version, size: int) -> None:
        """An empty sparse file for a new object version. Raises OSError."""
        fd = self._files.acquire(number, create=True)
        try:
            os.ftruncate(fd, size)
        finally:
            self._files.release(number)
        self._append(cache_index.object_record(number, name, version, size))

    def write(self, number: int, offset: int, data: bytes, digest: int) -> None:
        """One frame that has passed its xxh3-64 `digest`. Raises OSError."""
        fd = self._files.acquire(number)
        try:
            view, at = memoryview(data), offset
            while view:
                n = os.pwrite(fd, view, at)
                view, at = view[n:], at + n
        finally:
            self._files.release(number)
        self._append(cache_index.frame_record(number, offset, len(data), digest))
        with self._lock:
            self.written_bytes += len(data)

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Raises OSError; a short file is EIO, not fewer bytes."""
        fd = self._files.acquire(number)
        try:
            data = os.pread(fd, length, offset)
            while len(data) < length:
                more = os.pread(fd, length - len(data), offset + len(data))
                if not more:
                    raise OSError(errno.EIO, f"cache file {number} ends at {offset + len(data)}")
                data += more
        finally:
            self._files.release(number)
        return data

    def read_now(self, number: int, offset: int, length: int) -> bytes | None:
        """The bytes if the page cache has all of them; None if a disk would be waited for."""
        buffer = bytearray(length)
        fd = self._files.acquire_now(number)
        if fd is None:
            return None
        try:
            n = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError:  # EAGAIN: not in memory; EOPNOTSUPP: the file system cannot tell
            return None
        finally:
            self._files.release(number)
        return bytes(buffer) if n == length else None

    def lend_now(self, number: int, offset: int, length: int) -> FileSpan | None:
        """A span if the page cache has it, as far as samples tell: a disk read of a page or two
        inside sendfile is no harm, of megabytes would stop the loop."""
        fd = self._files.acquire_now(number)
        if fd is None:
            return None
        byte = bytearray(1)
        try:
            for at in (*range(offset, offset + length, SAMPLE_BYTES), offset + length - 1):
                if os.preadv(fd, [byte], at, os.RWF_NOWAIT) != 1:
                    raise OSError(errno.EIO, f"cache file {number} ends before {at}")
        except OSError:
            self._files.release(number)
            return None
        return FileSpan(fd, offset, length, lambda: self._files.release(number))

    def punch(self, number: int, offset: int, length: int) -> None:
        """Free whole blocks; the record goes first so that a crash between leaves only a miss."""
        self._append(cache_index.punch_record(number, offset, length))
        fd = self._files.acquire(number)
        try:
            if _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
                e = ctypes.get_errno()
                raise OSError(e, os.strerror(e))
        finally:
            self._files.release(number)

    def drop(self, number: int) -> None:
        """Remove an object; its number is never used again."""
        self._append(cache_index.drop_record(number))
        self._files.forget(number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._data / str(number))

    def _append(self, record: bytes) -> None:
        # One call per record, not a buffer: 3 us, and a crash loses nothing that was delivered.
        with self._lock:
            if self._index_fd >= 0:
                os.write(self._index_fd, record)

    def close(self) -> None:
        self._files.close()
        with self._lock:
            if self._index_fd >= 0:
                os.close(self._index_fd)
                self._index_fd = -1


class FileBlockStore:
    """ports.BlockStore over one folder per drive; losing one loses only its objects."""

    def __init__(self, roots: list[Path]) -> None:
        assert roots
        self._folders = [CacheFolder(r) for r in roots]
        self._home: dict[int, CacheFolder] = {}

    def load(self) -> list[IndexedObject]:
        """Open all folders. An object number found twice keeps the first: numbers are given by
        one spoke, so a second one is a folder of another spoke's; its entry is dropped."""
        found: list[IndexedObject] = []
        for folder in self._folders:
            for number, o in folder.load().items():
                if number in self._home:
                    folder.drop(number)
                    continue
                self._home[number] = folder
                found.append(o)
        return found

    def create(self, number: int, name: ObjectName, version: Version, size: int) -> None:
        folder = self._folders[number % len(self._folders)]
        folder.create(number, name, version, size)
        self._home[number] = folder

    def write(self, number: int, offset: int, data: bytes, digest: int) -> None:
        self._home[number].write(number, offset, data, digest)

    def read(self, number: int, offset: int, length: int) -> bytes:
        return self._home[number].read(number, offset, length)

    def read_now(self, number: int, offset: int, length: int) -> bytes | None:
        return self._home[number].read_now(number, offset, length)

    def lend_now(self, number: int, offset: int, length: int) -> FileSpan | None:
        return self._home[number].lend_now(number, offset, length)

    def punch(self, number: int, offset: int, length: int) -> None:
        self._home[number].punch(number, offset, length)

    def drop(self, number: int) -> None:
        self._home.pop(number).drop(number)

    @property
    def written_bytes(self) -> int:
        return sum(f.written_bytes for f in self._folders)

    def close(self) -> None:
        for folder in self._folders:
            folder.close()
