"""Facts about a folder on a drive: what its file system does, tried on a small file without a
name, so that nothing is left behind even by a kill."""

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hubspoke.adapters import disk_stats, inotify
from hubspoke.adapters.folders import holder, outside_of_any_store
from hubspoke.adapters.holes import punch
from hubspoke.doctor.judge.cache import FolderFacts, Holes, Speed
from hubspoke.errors import ConfigError

PIECE = 1 << 20
SPEED_BYTES_MAX = 64 << 20
SPEED_S = 0.5  # for each of writing and reading
_HOLE_PIECE = 64 << 10  # larger than a block of any file system that we know


def folder(path: Path, flag: str, *, measure: bool) -> FolderFacts:
    """The folder, or the nearest one above it that exists. measure: its speed too.

    May block as long as the file system does."""
    base = path
    while not base.exists() and base != base.parent:
        base = base.parent
    try:
        outside_of_any_store(path, flag)
        kind, name = inotify.file_system(os.fsencode(base))
        disk = os.statvfs(base)
        fd = _nameless(base, 0)
    except ConfigError as e:
        return FolderFacts(str(path), error=str(e))
    except OSError as e:
        return FolderFacts(str(path), error=f"{e.strerror}; expected a folder that can be written")
    try:
        holes = _holes(fd)
    finally:
        os.close(fd)
    speed, speed_error = _speed(base) if measure else (None, "not asked for")
    drive = disk_stats.device_of(base)
    return FolderFacts(
        str(path),
        file_system=name,
        kind=kind,
        device=drive or str(os.stat(base).st_dev),
        free=disk.f_bavail * disk.f_frsize,
        files_free=disk.f_favail if disk.f_files else None,  # btrfs counts none
        holder=holder(path),
        holes=holes,
        speed=speed,
        speed_error=speed_error,
    )


def _nameless(base: Path, flags: int) -> int:
    """A new file without a name. Raises OSError."""
    fd, name = tempfile.mkstemp(prefix=".hubspoke-doctor-", dir=base)
    try:
        return os.open(name, os.O_RDWR | os.O_CLOEXEC | flags) if flags else os.dup(fd)
    finally:
        os.close(fd)
        os.unlink(name)


def _holes(fd: int) -> Holes:
    """Write pieces 0 and 2, look for the gap; fill it, punch it, look again."""
    piece = b"\x5a" * _HOLE_PIECE
    try:
        os.pwrite(fd, piece, 0)
        os.pwrite(fd, piece, 2 * _HOLE_PIECE)
        os.fsync(fd)
        seen = os.lseek(fd, 0, os.SEEK_HOLE) == _HOLE_PIECE
        os.pwrite(fd, piece, _HOLE_PIECE)
        os.fsync(fd)
        full = os.fstat(fd).st_blocks
        punch(fd, _HOLE_PIECE, _HOLE_PIECE)
        os.fsync(fd)
        zeros = os.pread(fd, _HOLE_PIECE, _HOLE_PIECE) == bytes(_HOLE_PIECE)
        given_back = os.fstat(fd).st_blocks < full
        seen = seen and os.lseek(fd, 0, os.SEEK_HOLE) == _HOLE_PIECE
        return Holes(seen=seen, punched=zeros and given_back)
    except OSError as e:
        return Holes(seen=False, punched=False, error=str(e.strerror or e))


def _speed(base: Path) -> tuple[Speed | None, str | None]:
    """Direct I/O, so that the page cache is not what is measured."""
    try:
        fd = _nameless(base, os.O_DIRECT)
    except OSError as e:
        return None, f"direct I/O: {e.strerror}"
    try:
        with mmap.mmap(-1, PIECE) as buffer:  # aligned, as direct I/O wants it
            buffer.write(os.urandom(PIECE))
            written, write_s = _paced(lambda at: os.pwrite(fd, buffer, at), SPEED_BYTES_MAX)
            started = time.monotonic()
            os.fsync(fd)
            write_s += time.monotonic() - started
            read, read_s = _paced(lambda at: os.preadv(fd, [buffer], at), written)
        return Speed(written / write_s, read / read_s, written + read), None
    except OSError as e:
        return None, f"direct I/O: {e.strerror}"
    finally:
        os.close(fd)


def _paced(move: Callable[[int], int], most: int) -> tuple[int, float]:
    """Bytes and seconds: until `most`, or the time is up."""
    done, started = 0, time.monotonic()
    while True:
        done += move(done)
        spent = time.monotonic() - started
        if done >= most or spent > SPEED_S:
            return done, max(spent, 1e-9)
