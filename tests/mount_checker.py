"""Reads files of a mount in every way at random, and compares each byte with a true copy.

    python -m tests.mount_checker MOUNTED TRUE SEED OPERATIONS

A process of its own: a page fault that nobody answers cannot be interrupted, only killed. Prints
one line for each operation that gave something else, and how many were done at the end.
"""

import contextlib
import mmap
import os
import random
import socket
import sys
from collections.abc import Callable
from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
SPAN_MAX = 3 * MIB
_DIRECT = 4096  # what O_DIRECT wants offsets, lengths and addresses to be multiples of


class Checked:
    """One file, open in all ways at once."""

    def __init__(self, mounted: Path, true: Path, rng: random.Random) -> None:
        self._path, self._rng = mounted, rng
        self._true = true.read_bytes()
        self._fd = os.open(mounted, os.O_RDONLY)
        self._map = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ) if self._true else None
        self._buffered = mounted.open("rb")

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        self._buffered.close()
        os.close(self._fd)

    def span(self) -> tuple[int, int]:
        """Offset and length: small, of pages, large; some begin or end beyond the file."""
        rng, size = self._rng, len(self._true)
        length = rng.choice([rng.randint(1, 300), 4096, 64 * KIB, rng.randint(1, SPAN_MAX)])
        offset = rng.randint(0, max(size + 5000, 1))
        if rng.random() < 0.3:
            offset -= offset % 4096
        return offset, length

    def check(self) -> str | None:
        """One operation; what it was, if it gave the wrong bytes."""
        ways: list[Callable[[int, int], bytes]] = [
            self.pread, self.preadv, self.seek_and_read, self.direct, self.sendfile, self.reopened,
            self.forgotten,
        ]  # fmt: skip
        if self._map is not None:
            ways += [self.mapped, self.mapped_page_by_page, self.advised]
        way = self._rng.choice(ways)
        offset, length = self.span()
        if way == self.direct:
            offset, length = offset - offset % _DIRECT, max(length - length % _DIRECT, _DIRECT)
        got, wanted = way(offset, length), self._true[offset : offset + length]
        if got == wanted:
            return None
        at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), None)
        return (
            f"{self._path} {way.__name__} {offset}+{length}: {len(got)} of {len(wanted)} bytes, "
            f"first difference at {at}"
        )

    def pread(self, offset: int, length: int) -> bytes:
        return _all(lambda at, n: os.pread(self._fd, n, at), offset, length)

    def preadv(self, offset: int, length: int) -> bytes:
        first = bytearray(length // 3)
        second = bytearray(length - len(first))
        n = os.preadv(self._fd, [first, second], offset)
        got = bytes(first + second)[:n]
        return got + self.pread(offset + n, length - n) if 0 < n < length else got

    def seek_and_read(self, offset: int, length: int) -> bytes:
        self._buffered.seek(offset)
        return self._buffered.read(length)

    def direct(self, offset: int, length: int) -> bytes:
        """A mount may refuse O_DIRECT at open, never give other bytes."""
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, length) as buffer:
                done = 0
                while done < length and (
                    n := os.preadv(fd, [memoryview(buffer)[done:]], offset + done)
                ):
                    done += n
                    if done % _DIRECT:
                        break  # the end of the file
                return buffer[:done]
        finally:
            os.close(fd)

    def sendfile(self, offset: int, length: int) -> bytes:
        """What a socket takes at once; the rest is not looked at."""
        end, length = offset + length, min(length, 64 * KIB)
        near, far = socket.socketpair()
        with near, far:
            far.setblocking(False)
            sent = os.sendfile(near.fileno(), self._fd, offset, length)
            got = b""
            with contextlib.suppress(BlockingIOError):
                while len(got) < sent and (more := far.recv(sent - len(got))):
                    got += more
        rest = self._true[offset + sent : end]
        return got + rest if sent else got

    def reopened(self, offset: int, length: int) -> bytes:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != len(self._true):
                return b"another size"
            return _all(lambda at, n: os.pread(fd, n, at), offset, length)
        finally:
            os.close(fd)

    def forgotten(self, offset: int, length: int) -> bytes:
        os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)
        return self.pread(offset, length)

    def mapped(self, offset: int, length: int) -> bytes:
        assert self._map is not None
        return self._map[offset : offset + length]

    def mapped_page_by_page(self, offset: int, length: int) -> bytes:
        """Backwards, so that no read-around has brought the next one."""
        assert self._map is not None
        end = min(offset + length, len(self._true))
        starts = range(offset - offset % mmap.PAGESIZE, end, mmap.PAGESIZE)
        pages = [self._map[max(s, offset) : min(s + mmap.PAGESIZE, end)] for s in reversed(starts)]
        return b"".join(reversed(pages))

    def advised(self, offset: int, length: int) -> bytes:
        assert self._map is not None
        self._map.madvise(
            self._rng.choice([mmap.MADV_DONTNEED, mmap.MADV_WILLNEED, mmap.MADV_RANDOM])
        )
        return self.mapped(offset, length)


def _all(read: Callable[[int, int], bytes], offset: int, length: int) -> bytes:
    got = b""
    while len(got) < length and (more := read(offset + len(got), length - len(got))):
        got += more
    return got


def main(mounted: str, true: str, seed: str, operations: str) -> int:
    rng = random.Random(int(seed))
    files = sorted(p.name for p in Path(true).iterdir())
    checked = {name: Checked(Path(mounted) / name, Path(true) / name, rng) for name in files}
    wrong = 0
    for _ in range(int(operations)):
        name = rng.choice(files)
        if rng.random() < 0.02:  # a new open, which may be of another kind than the last
            checked[name].close()
            checked[name] = Checked(Path(mounted) / name, Path(true) / name, rng)
        found = checked[name].check()
        if found is not None:
            wrong += 1
            print(found)
    print(f"{operations} operations, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
