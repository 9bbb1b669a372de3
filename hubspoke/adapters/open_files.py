"""Descriptors of cache files, kept open: least recently used closed first, one in use never.

The lock is never held across a call of the disk: a folder that hangs would otherwise stop the
loop, which asks here for files that are open already. Opening and closing are for threads.
"""

import os
import threading
from collections import OrderedDict
from pathlib import Path

OPEN_FILES_MAX = 512


class OpenFiles:
    """The files of one folder, named by number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._files: OrderedDict[int, list[int]] = OrderedDict()  # number -> [descriptor, uses]
        self._stale: set[int] = set()  # dropped while in use

    def acquire(self, number: int, *, create: bool = False) -> int:
        """A descriptor for the file, to be given back with `release`; may block. Raises OSError."""
        found = self.acquire_now(number)
        if found is not None:
            return found
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0)
        opened = os.open(self._folder / str(number), flags, 0o600)
        with self._lock:
            entry = self._files.setdefault(number, [opened, 0])
            entry[1] += 1
            idle = [] if entry[0] == opened else [opened]  # another thread was faster
            idle += self._idle()
        for fd in idle:
            os.close(fd)
        return entry[0]

    def acquire_now(self, number: int) -> int | None:
        """The same, if the file is open already: waits for no disk."""
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
        over = len(self._files) - OPEN_FILES_MAX
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
