"""A block store in dicts, and one that fails on demand: for tests behind the port."""

import errno
from collections.abc import Callable

from hubspoke.core.frames import Frames, StoredFrame
from hubspoke.core.ids import ObjectName, Version, page_span
from hubspoke.ports import BlockStore, FileSpan, IndexedObject


class MemoryBlockStore:
    """ports.BlockStore; what was written survives `close` and is found by the next `load`."""

    def __init__(self) -> None:
        self._objects: dict[int, IndexedObject] = {}
        self._frames: dict[int, list[StoredFrame]] = {}
        self._data: dict[int, bytearray] = {}
        self._written = 0

    def load(self) -> list[IndexedObject]:
        for number, o in self._objects.items():
            o.frames = Frames.of(o.size, self._frames[number])
        return list(self._objects.values())

    def create(self, number: int, name: ObjectName, version: Version, size: int) -> None:
        self._objects[number] = IndexedObject(number, name, version, size, Frames(size))
        self._frames[number] = []
        self._data[number] = bytearray(size)

    def write(self, number: int, offset: int, data: bytes, digest: int) -> None:
        self._data[number][offset : offset + len(data)] = data
        self._frames[number].append(StoredFrame(offset, len(data), digest))
        self._written += len(data)

    def read(self, number: int, offset: int, length: int) -> bytes:
        data = self._data[number]
        if offset + length > len(data):
            raise OSError(errno.EIO, f"cache file {number} ends at {len(data)}")
        return bytes(data[offset : offset + length])

    def read_now(self, number: int, offset: int, length: int) -> bytes | None:
        return self.read(number, offset, length)

    def copy_now(self, number: int, offset: int, buffer: memoryview) -> bool:
        buffer[:] = self.read(number, offset, len(buffer))
        return True

    def lend_now(self, number: int, offset: int, length: int) -> FileSpan | None:
        return None

    def lend_file(self, number: int, length: int, *, now: bool) -> FileSpan | None:
        return None

    def punch(self, number: int, offset: int, length: int) -> None:
        end = offset + length
        self._data[number][offset:end] = bytes(min(end, len(self._data[number])) - offset)
        frames = self._frames[number]
        self._frames[number] = [
            f for f in frames if f.offset >= end or f.offset + f.length <= offset
        ]

    def drop(self, number: int) -> None:
        del self._objects[number], self._data[number], self._frames[number]

    def compact(self) -> None:
        """There is no index."""

    def stored(self, place: int, limit: int) -> tuple[list[tuple[int, int, int, int]], int]:
        found = []
        for number in sorted(self._frames):
            for f in self._frames[number]:
                first, last = page_span(f.offset, f.length)
                found.append((number, first, last - first, f.digest))
        end = place + limit
        return found[place:end], end if end < len(found) else 0

    def read_through(self, number: int, offset: int, length: int) -> bytes:
        return self.read(number, offset, length)

    def allocated(self, known: dict[int, int]) -> list[tuple[int, int, int]]:
        return []  # no disk has anything

    def room(self) -> int | None:
        return None

    @property
    def written_bytes(self) -> int:
        return self._written

    def close(self) -> None:
        """Nothing is open."""


class FaultyBlockStore:
    """Any block store, with errors where `fails` says so.

    fails: called with the method's name before each read, write and punch; an errno makes that
    call raise OSError, None lets it through.
    """

    def __init__(self, inner: BlockStore, fails: Callable[[str], int | None]) -> None:
        self._inner = inner
        self._fails = fails

    def _maybe(self, method: str, number: int) -> None:
        e = self._fails(method)
        if e is not None:
            raise OSError(e, f"injected into {method} of cache file {number}")

    def load(self) -> list[IndexedObject]:
        return self._inner.load()

    def create(self, number: int, name: ObjectName, version: Version, size: int) -> None:
        self._inner.create(number, name, version, size)

    def write(self, number: int, offset: int, data: bytes, digest: int) -> None:
        self._maybe("write", number)
        self._inner.write(number, offset, data, digest)

    def read(self, number: int, offset: int, length: int) -> bytes:
        self._maybe("read", number)
        return self._inner.read(number, offset, length)

    def read_now(self, number: int, offset: int, length: int) -> bytes | None:
        return None if self._fails("read_now") else self._inner.read_now(number, offset, length)

    def copy_now(self, number: int, offset: int, buffer: memoryview) -> bool:
        return not self._fails("copy_now") and self._inner.copy_now(number, offset, buffer)

    def lend_now(self, number: int, offset: int, length: int) -> FileSpan | None:
        return None if self._fails("lend_now") else self._inner.lend_now(number, offset, length)

    def lend_file(self, number: int, length: int, *, now: bool) -> FileSpan | None:
        if now:
            fails = self._fails("lend_file_now")
            return None if fails else self._inner.lend_file(number, length, now=True)
        self._maybe("lend_file", number)
        return self._inner.lend_file(number, length, now=False)

    def punch(self, number: int, offset: int, length: int) -> None:
        self._maybe("punch", number)
        self._inner.punch(number, offset, length)

    def drop(self, number: int) -> None:
        self._inner.drop(number)

    def compact(self) -> None:
        self._inner.compact()

    def stored(self, place: int, limit: int) -> tuple[list[tuple[int, int, int, int]], int]:
        return self._inner.stored(place, limit)

    def read_through(self, number: int, offset: int, length: int) -> bytes:
        self._maybe("read", number)
        return self._inner.read_through(number, offset, length)

    def allocated(self, known: dict[int, int]) -> list[tuple[int, int, int]]:
        return self._inner.allocated(known)

    def room(self) -> int | None:
        return self._inner.room()

    @property
    def written_bytes(self) -> int:
        return self._inner.written_bytes

    def close(self) -> None:
        self._inner.close()
