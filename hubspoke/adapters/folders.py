"""State and cache folders: who holds one, and how much of its disk a cache may use.

A folder is held by an flock on `lock`, which the kernel gives back when the process ends in any
way; the file's text is only there to name the holder. A lock file is never removed: two
processes could then hold two files of one name.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hubspoke.adapters.folder_layout import OWN_FOLDER
from hubspoke.core.ids import BLOCK_BYTES
from hubspoke.errors import ConfigError, FolderInUse

log = logging.getLogger(__name__)

FREE_SHARE = 0.8  # of the free space, without --cache-size (INTERFACE)
# A file system that is filled to the last block is slow, and the index needs room as well.
DISK_SHARE = 0.95


class FolderLock:
    """Holds one folder for this process until `release`, or until the process ends."""

    def __init__(self, folder: Path, flag: str) -> None:
        """Create the folder if it is missing and lock it.

        Raises ConfigError that names `flag` when it cannot be written, FolderInUse with the
        process id of the holder.
        """
        path = folder / "lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise ConfigError(
                f"{flag}: {str(folder)!r}: {e.strerror}; expected a folder that can be written"
            ) from e
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            who = _holder(self._fd)
            os.close(self._fd)
            raise FolderInUse(f"{flag}: {str(folder)!r}: in use by {who}") from e
        with suppress(OSError):  # a full disk: the lock holds, and only the name is missing
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have the folder."""
        os.close(self._fd)


def holder(folder: Path) -> str | None:
    """Who holds the folder now, None if nobody does or it cannot be told.

    Asks by a shared lock for a moment; a process that starts in that moment is refused.
    """
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    return f"process {text}" if text.isdigit() else "another process"


class FolderLocks:
    """The folders that this process holds, each once (state and first cache may be one)."""

    def __init__(self) -> None:
        self._held: dict[str, FolderLock] = {}

    def take(self, folder: Path, flag: str) -> None:
        """Hold the folder, if it is not held yet. As FolderLock."""
        real = os.path.realpath(folder)
        if real not in self._held:
            self._held[real] = FolderLock(folder, flag)

    def release(self) -> None:
        """Let others have them all."""
        while self._held:
            self._held.popitem()[1].release()


# What a wrong path or wrong permissions give. Everything else is a disk's own trouble.
_MISTAKES = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}


def refuse_mistakes(errors: Sequence[Exception], folders: int) -> None:
    """Raises the first error if none of so many cache folders can be used and no disk is to
    blame. Else the spoke starts: with the others, or past a cache that may come back."""
    if len(errors) < folders:
        return
    for e in errors:
        cause = e if isinstance(e, OSError) else e.__cause__
        if isinstance(cause, OSError) and cause.errno not in _MISTAKES:
            return
    raise errors[0]


def notice_other_hub(store: Path) -> None:
    """Warn when another hub on this host serves the folder: each would take the other's changes
    for changes behind its back. An flock on the folder itself leaves nothing in it; the
    descriptor stays open, and the lock held, until the process ends."""
    try:
        descriptor = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # the store says so itself
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.warning(
            "another hub serves this store too: what is written through it is seen late here, and "
            "spokes of both may disagree; use one hub store=%s", store,
        )  # fmt: skip
    except OSError as e:
        log.info("cannot tell whether another hub serves the store error=%s", e)


def outside(folder: Path, store: Path, flag: str) -> None:
    """Raises ConfigError when the folder lies in a store: its files would become objects."""
    inner, outer = os.path.realpath(folder), os.path.realpath(store)
    if os.path.commonpath([inner, outer]) == outer:
        raise ConfigError(
            f"{flag}: {str(folder)!r}: lies in the store {outer}, so that its files would be "
            "objects; expected a folder outside of the store"
        )


def outside_of_any_store(folder: Path, flag: str) -> None:
    """The same where the store is not known: one that was written to has a folder of its own."""
    for parent in [Path(os.path.realpath(folder)), *Path(os.path.realpath(folder)).parents]:
        try:
            if (parent / os.fsdecode(OWN_FOLDER)).is_dir():
                outside(folder, parent, flag)
        except OSError as e:
            raise ConfigError(
                f"{flag}: {str(folder)!r}: {e.strerror}; expected a folder that can be read"
            ) from e


def hold_cache(folder: Path, locks: FolderLocks) -> None:
    """Make a cache folder this process' own. Raises ConfigError, FolderInUse."""
    outside_of_any_store(folder, "--cache")
    locks.take(folder, "--cache")


def hold_caches(folders: Sequence[Path], locks: FolderLocks) -> None:
    """All of them, as far as they can be had; the others are tried again when the cache is
    opened. Raises FolderInUse, and ConfigError as `refuse_mistakes`; then none is held."""
    failed: list[Exception] = []
    try:
        for folder in folders:
            try:
                hold_cache(folder, locks)
            except FolderInUse:
                raise
            except ConfigError as e:
                failed.append(e)
        refuse_mistakes(failed, len(folders))
    except BaseException:
        locks.release()
        raise


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a cache in some folders can have: free now, and already used by it."""

    free: int
    used: int


def room(folders: Iterable[Path]) -> Room:
    """Free space of the disks under `folders`, each disk counted once; none of a folder that
    cannot be looked at."""
    free = used = 0
    devices: set[int] = set()
    for folder in folders:
        try:
            device, disk, has = os.stat(folder).st_dev, os.statvfs(folder), _used(folder / "data")
        except OSError as e:
            log.debug("no room counted folder=%s error=%s", folder, e)
            continue
        if device not in devices:
            devices.add(device)
            free += disk.f_bavail * disk.f_frsize
        used += has
    return Room(free, used)


def _used(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    except FileNotFoundError:
        return 0


def capacity(wanted: int | None, there: Room) -> int:
    """Bytes for the cache: as wanted, but at most what the disks hold; 80 % of the free space
    without a wish. What the cache has from an earlier start counts as free, or it would shrink
    with every restart."""
    total = there.free + there.used
    if wanted is None:
        chosen = int(total * FREE_SHARE)
        log.info("cache size chosen bytes=%d free_bytes=%d", chosen, total)
        return chosen
    most = int(total * DISK_SHARE)
    if wanted > most:
        log.warning("--cache-size clamped to the disk wanted_bytes=%d bytes=%d", wanted, most)
        return most
    return wanted


def cache_size(wanted: int | None, folders: Sequence[Path]) -> int:
    """`capacity` of a cache in these folders; of none, the smallest one."""
    return max(capacity(wanted, room(folders)), BLOCK_BYTES)
