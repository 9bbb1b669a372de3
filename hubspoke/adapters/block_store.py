"""Bytes of cached objects on local disks: one sparse file per object version.

It knows nothing of what is worth keeping; it writes frames, reads ranges, punches holes, and
remembers in each folder's index which frames are there. Reads of ranges that were never written
would give zeros: the core's page book is what keeps a reader from asking for them.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from hubspoke.adapters import cache_index
from hubspoke.adapters.holes import data_runs, punch
from hubspoke.adapters.open_files import OpenFiles
from hubspoke.core.ids import PAGE_BYTES, ObjectName, Version, page_span
from hubspoke.errors import ConfigError, FormatError
from hubspoke.ports import FileSpan, IndexedObject

# An index is written anew when it has more than twice the slots it needs, and as many again as
# are written in a minute of fast filling: rarely enough to cost nothing, and never above 60 MB
# more than it needs.
SLOTS_SPARE = 1 << 18
# A file system that is filled to the last block is slow and fails others: this much stays free,
# or this share of small ones.
FREE_BYTES, FREE_SHARE = 1 << 30, 0.05
SAMPLE_BYTES = 256 << 10  # the kernel reads and drops a file's pages in runs of about this


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
        self._slots = self._needed = 0  # in the index, and how many of them say something
        # For tests that end the process in between steps: called with the name of each.
        self.at: Callable[[str], None] = lambda point: None

    def load(self) -> dict[int, IndexedObject]:
        """Open the folder; what is found is what was there before, unverified. Raises ConfigError
        if the folder cannot be used."""
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            objects = self._load_index()
            keep = {str(n) for n in objects}
            for name in os.listdir(self._data):
                if name not in keep:
                    os.unlink(self._data / name)  # data without an index entry says nothing
            self._index_fd = os.open(self._index_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as e:
            raise ConfigError(
                f"--cache {self.root}: {e.strerror}; a writable folder on a local disk is needed"
            ) from e
        return objects

    def _load_index(self) -> dict[int, IndexedObject]:
        try:
            with open(self._index_path, "rb") as f:
                data = f.read()
        except FileNotFoundError:
            data = b""
        objects: dict[int, IndexedObject] = {}
        short = False
        try:
            if data:
                parsed = cache_index.parse(data)
                objects = parsed.objects
                # A torn tail would shift the slots that follow it.
                torn = len(data) != (parsed.slots + 1) * cache_index.SLOT_BYTES
                short = not torn and parsed.sound == parsed.slots
                self._slots, self._needed = parsed.slots, parsed.needed
        except FormatError:
            # An unknown cache is set aside and rebuilt: it holds nothing that is lost with it.
            os.replace(self._index_path, self._index_path + ".unknown")
        files = set(os.listdir(self._data))
        present = {n: o for n, o in objects.items() if str(n) in files}
        if not short or len(present) < len(objects) or self._grown:
            self._rewrite(list(present.values()))
        return present

    def _rewrite(self, objects: list[IndexedObject]) -> None:
        data = cache_index.whole(objects)
        self._slots = self._needed = len(data) // cache_index.SLOT_BYTES - 1
        cache_index.write_whole(self._index_path, data)

    @property
    def _grown(self) -> bool:
        return self._slots > 2 * self._needed + SLOTS_SPARE

    def compact(self) -> None:
        """Write the index anew from what it says itself, while others append to it."""
        with self._lock:
            if not self._grown or self._index_fd < 0:
                return
            length = (self._slots + 1) * cache_index.SLOT_BYTES
        with open(self._index_path, "rb") as f:
            data = f.read(length)
        objects = list(cache_index.parse(data).objects.values())
        data = cache_index.whole(objects)
        needed = len(data) // cache_index.SLOT_BYTES - 1
        self.at("compact:parsed")
        with self._lock:
            if self._index_fd < 0:
                return
            with open(self._index_path, "rb") as f:
                f.seek(length)
                tail = f.read()
            cache_index.write_whole(self._index_path, data + tail)
            self.at("compact:written")
            os.close(self._index_fd)
            self._index_fd = os.open(self._index_path, os.O_WRONLY | os.O_APPEND)
            self._needed = needed
            self._slots = needed + len(tail) // cache_index.SLOT_BYTES

    def stored(self, place: int, limit: int) -> tuple[list[tuple[int, int, int, int]], int]:
        """See ports.BlockStore; a place is a slot's number. After a compaction the walk goes on
        at another frame: what it skips comes up in the next one."""
        with open(self._index_path, "rb") as f:
            f.seek((place + 1) * cache_index.SLOT_BYTES)
            data = f.read(limit * cache_index.SLOT_BYTES)
        n = len(data) // cache_index.SLOT_BYTES
        return list(cache_index.frames_in(data)), place + n if n == limit else 0

    def create(self, number: int, name: ObjectName, version: Version, size: int) -> None:
        """An empty sparse file for a new object version. Raises OSError."""
        fd = self._files.acquire(number, create=True)
        try:
            os.ftruncate(fd, size)
        finally:
            self._files.release(number)
        self.at("create:file")
        self._append(cache_index.object_record(number, name, version, size))
        self.at("create:done")

    def write(self, number: int, offset: int, data: bytes, digest: int) -> None:
        """One frame that has passed its xxh3-64 `digest`. Raises OSError."""
        fd = self._files.acquire(number)
        try:
            view, at = memoryview(data), offset
            self.at("write:start")
            while view:
                n = os.pwrite(fd, view, at)
                view, at = view[n:], at + n
            self.at("write:data")
            self._append(cache_index.frame_record(number, offset, len(data), digest))
        except OSError:
            # In no index, so in no book: what is there already goes again, if the disk lets it.
            first, last = page_span(offset, len(data))
            with contextlib.suppress(OSError):
                punch(fd, first * PAGE_BYTES, (last - first) * PAGE_BYTES)
            raise
        finally:
            self._files.release(number)
        self.at("write:done")
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

    def read_through(self, number: int, offset: int, length: int) -> bytes:
        """`read` that leaves the page cache as it was: what was not there goes again."""
        fd = self._files.acquire(number)
        try:
            there = os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except OSError:
            there = False
        try:
            data = self.read(number, offset, length)
            if not there:
                os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
        finally:
            self._files.release(number)
        self.at("scrub:read")
        return data

    def allocated(self, known: dict[int, int]) -> list[tuple[int, int, int]]:
        """See ports.BlockStore. Descriptors of its own: files that are read stay open."""
        found: list[tuple[int, int, int]] = []
        for number, bytes_ in known.items():
            try:
                if os.stat(self._data / str(number)).st_blocks * 512 > bytes_:
                    runs = data_runs(self._data / str(number))
                    found += [(number, offset, length) for offset, length in runs]
            except FileNotFoundError:
                continue
        return found

    def room(self) -> int | None:
        """Free space of the disk above the floor, in bytes; negative below it."""
        try:
            disk = os.statvfs(self._data)
        except OSError:
            return None
        floor = min(int(disk.f_blocks * disk.f_frsize * FREE_SHARE), FREE_BYTES)
        return disk.f_bavail * disk.f_frsize - floor

    def read_now(self, number: int, offset: int, length: int) -> bytes | None:
        """The bytes if the page cache has all of them; None if a disk would be waited for."""
        buffer = bytearray(length)
        return bytes(buffer) if self.copy_now(number, offset, memoryview(buffer)) else None

    def copy_now(self, number: int, offset: int, buffer: memoryview) -> bool:
        """`read_now` into a buffer of that length."""
        fd = self._files.acquire_now(number)
        if fd is None:
            return False
        try:
            return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
        except OSError:  # EAGAIN: not in memory; EOPNOTSUPP: the file system cannot tell
            return False
        finally:
            self._files.release(number)

    def lend_now(self, number: int, offset: int, length: int) -> FileSpan | None:
        """A span if the page cache has it, as far as samples tell: a disk read of a page or two
        while it is sent is no harm, of megabytes would stop the loop."""
        fd, byte = self._files.acquire_now(number), bytearray(1)
        if fd is None:
            return None
        try:
            for at in (*range(offset, offset + length, SAMPLE_BYTES), offset + length - 1):
                if os.preadv(fd, [byte], at, os.RWF_NOWAIT) != 1:
                    raise OSError(errno.EIO, f"cache file {number} ends before {at}")
        except OSError:
            self._files.release(number)
            return None
        return FileSpan(fd, offset, length, lambda: self._files.release(number))

    def lend_file(self, number: int, length: int, *, now: bool) -> FileSpan | None:
        """See ports.BlockStore."""
        fd = self._files.acquire_now(number) if now else self._files.acquire(number)
        if fd is None:
            return None
        return FileSpan(fd, 0, length, lambda: self._files.release(number))

    def punch(self, number: int, offset: int, length: int) -> None:
        """Free whole blocks; the record goes first so that a crash between leaves only a miss."""
        self.at("punch:start")
        self._append(cache_index.punch_record(number, offset, length))
        self.at("punch:record")
        fd = self._files.acquire(number)
        try:
            punch(fd, offset, length)
        finally:
            self._files.release(number)
        self.at("punch:done")

    def drop(self, number: int) -> None:
        """Remove an object; its number is never used again."""
        self._append(cache_index.drop_record(number))
        self.at("drop:record")
        self._files.forget(number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._data / str(number))
        self.at("drop:done")

    def _append(self, record: bytes) -> None:
        # One call per record, not a buffer: 3 us, and a crash loses nothing that was delivered.
        with self._lock:
            if self._index_fd >= 0:
                n = os.write(self._index_fd, record)
                self._slots += n // cache_index.SLOT_BYTES
                if n < len(record):
                    self._mend(n)

    def _mend(self, n: int) -> None:
        """A write that a full disk cut short would shift all slots that follow it."""
        os.ftruncate(self._index_fd, (self._slots + 1) * cache_index.SLOT_BYTES)
        raise OSError(errno.ENOSPC, f"{self._index_path}: {n} bytes written")

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

    def copy_now(self, number: int, offset: int, buffer: memoryview) -> bool:
        return self._home[number].copy_now(number, offset, buffer)

    def lend_now(self, number: int, offset: int, length: int) -> FileSpan | None:
        return self._home[number].lend_now(number, offset, length)

    def lend_file(self, number: int, length: int, *, now: bool) -> FileSpan | None:
        return self._home[number].lend_file(number, length, now=now)

    def punch(self, number: int, offset: int, length: int) -> None:
        self._home[number].punch(number, offset, length)

    def drop(self, number: int) -> None:
        self._home.pop(number).drop(number)

    def compact(self) -> None:
        for folder in self._folders:
            folder.compact()

    def stored(self, place: int, limit: int) -> tuple[list[tuple[int, int, int, int]], int]:
        """The folders in turn: a place is a folder's place times their number, plus the folder."""
        count = len(self._folders)
        at, which = divmod(place, count)
        found, following = self._folders[which].stored(at, limit)
        if following:
            return found, following * count + which
        return found, which + 1 if which + 1 < count else 0

    def read_through(self, number: int, offset: int, length: int) -> bytes:
        return self._home[number].read_through(number, offset, length)

    def allocated(self, known: dict[int, int]) -> list[tuple[int, int, int]]:
        homes: dict[CacheFolder, dict[int, int]] = {}
        for number, bytes_ in known.items():
            if number in self._home:
                homes.setdefault(self._home[number], {})[number] = bytes_
        return [run for folder, part in homes.items() for run in folder.allocated(part)]

    def room(self) -> int | None:
        """Objects are spread over the folders, so the fullest disk says what all can take."""
        rooms = [f.room() for f in self._folders]
        known = [r for r in rooms if r is not None]
        return min(known) * len(known) if known else None

    @property
    def written_bytes(self) -> int:
        return sum(f.written_bytes for f in self._folders)

    def close(self) -> None:
        for folder in self._folders:
            folder.close()
