"""Descriptors of cache files, kept open: least recently used closed first, one in use never.

The lock is never held across a call of the disk: a folder that hangs would otherwise stop the
loop, which asks here for files that are open already, or whose name and inode the kernel has in
memory. Other opening, and all closing, is for threads.
"""

import os
import resource
import threading
from collections import OrderedDict
from pathlib import Path

from hubspoke.adapters.cached_open import open_cached

# Of one folder; fewer where a process may have few.
OPEN_FILES_MAX = 4_096
SHARE = 8
# Closed at once when there are too many, so that the next ones can be opened without a thread.
CLOSED_AT_ONCE = 64


class OpenFiles:
    """The files of one folder, named by number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._files: OrderedDict[int, list[int]] = OrderedDict()  # number -> [descriptor, uses]
        self._stale: set[int] = set()  # dropped while in use
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY:
            allowed = OPEN_FILES_MAX * SHARE
        self._most = max(1, min(OPEN_FILES_MAX, allowed // SHARE))

    def acquire(self, number: int, *, create: bool = False) -> int:
        """A descriptor for the file, to be given back with `release`; may block. Raises OSError."""
        found = self._acquire_open(number)
        if found is not None:
            return found
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0)
        opened = os.open(self._folder / str(number), flags, 0o600)
        entry, idle = self._add(number, opened)
        with self._lock:
            idle += self._idle()
        for fd in idle:
            os.close(fd)
        return entry

    def _add(self, number: int, opened: int) -> tuple[int, list[int]]:
        """The descriptor to use, and the new one if another thread was faster, to be closed."""
        with self._lock:
            entry = self._files.setdefault(number, [opened, 0])
            entry[1] += 1
        return entry[0], [] if entry[0] == opened else [opened]

    def acquire_now(self, number: int) -> int | None:
        """The same, if the file is open already or can be opened from memory: waits for no disk.
        A file that was never created, or is removed, is none."""
        found = self._acquire_open(number)
        if found is not None or len(self._files) >= self._most:
            return found  # one more would have others closed
        opened = open_cached(f"{self._folder}/{number}")
        if opened is None:
            return None
        entry, more = self._add(number, opened)
        for fd in more:  # not the last one of its file, so no disk hears of it
            os.close(fd)
        return entry

    def _acquire_open(self, number: int) -> int | None:
        with self._lock:
            entry = self._files.get(number)
            if entry is None:
                return None
            self._files.move_to_end(number)
            entry[1] += 1
            return entry[0]

    def release(self, number: int) -> None:
        """Give a descriptor back; waits for no disk."""
        with self._lock:
            self._files[number][1] -= 1

    def _idle(self) -> list[int]:
        """Take out what is to be closed. Under the lock."""
        over = len(self._files) - self._most
        if over > 0:
            over += CLOSED_AT_ONCE
        numbers = [n for n in self._stale if self._files[n][1] == 0]
        if over > len(numbers):
            idle = (n for n, e in self._files.items() if e[1] == 0 and n not in self._stale)
            numbers += [n for n, _ in zip(idle, range(over - len(numbers)), strict=False)]
        self._stale.difference_update(numbers)
        return [self._files.pop(n)[0] for n in numbers]

    def forget(self, number: int) -> None:
        """The file is removed: close it, or as soon as nobody uses it any more; may block."""
        with self._lock:
            if number in self._files:
                self._stale.add(number)
            idle = self._idle()
        for fd in idle:
            os.close(fd)

    def close(self) -> None:
        """Close all; nobody uses one any more. May block."""
        with self._lock:
            files = [fd for fd, _ in self._files.values()]
            self._files.clear()
            self._stale.clear()
        for fd in files:
            os.close(fd)
