"""What a cache folder is made of, and how to see whether its drive works."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hubspoke.ports import BlockStore

PROBE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Drive:
    """A block store for one folder. root: where it lies, None in memory. probe: writes and reads
    something small there, raises OSError. claim: makes the folder this process' own before it is
    opened, raises ConfigError; may be called again."""

    store: BlockStore
    root: Path | None = None
    probe: Callable[[], None] | None = None
    claim: Callable[[], None] = lambda: None


def probe_folder(root: Path) -> None:
    """Write, flush and read back a small file. Raises OSError."""
    path, data = root / "probe", os.urandom(PROBE_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        n = os.pwrite(fd, data, 0)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if n < len(data) or os.pread(fd, len(data), 0) != data:
            raise OSError(f"{path}: what was written is not what is read")
    finally:
        os.close(fd)
    os.unlink(path)
