"""Writing to the folder store: staged files, their completion by rename, and removal.

Blocking; runs in the store's threads. Bytes get their name by one rename, after they are on the
disk. Nothing is written through a symbolic link or under another name than the one asked for.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass

from hubspoke.adapters.folder_layout import FolderLayout, is_marker
from hubspoke.adapters.folder_reads import MARKER_ATTRIBUTE, has_marker
from hubspoke.core.ids import ObjectName
from hubspoke.errors import InvalidKey, NoSuchBucket, NoSuchUpload

_ATTEMPTS = 10  # a folder emptied by a delete may vanish between mkdir and rename
_MEANWHILE = frozenset(
    {errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY}  # names came or went
)


@dataclass(frozen=True, slots=True)
class Token:
    """What a staged file is known by after a restart. A rename keeps inode, size and mtime.

    file: name in the staging folder. upload_id: multipart upload to drop on completion, or "".
    """

    file: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    upload_id: str

    def dump(self) -> str:
        fields = (self.file, self.device, self.inode, self.size, self.mtime_ns, self.upload_id)
        return json.dumps(fields)

    @classmethod
    def load(cls, token: str) -> "Token":
        return cls(*json.loads(token))

    def is_of(self, st: os.stat_result) -> bool:
        return (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns) == (
            self.device,
            self.inode,
            self.size,
            self.mtime_ns,
        )


class StagingFile:
    """A file being written beside its name, hashed on the way. Must be closed once opened."""

    def __init__(self, folder: bytes) -> None:
        self.file = f"tmp-{secrets.token_hex(16)}"
        self.path = os.path.join(folder, self.file.encode())
        self._fd = -1
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size = 0

    def open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o666)

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    def write(self, data: bytes) -> None:
        self._md5.update(data)
        self.size += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def append_file(self, path: bytes) -> None:
        """Add another file's bytes without hashing them; shared blocks where the disk can."""
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while copied := _copy_some(source, self._fd):
                self.size += copied
        finally:
            os.close(source)

    def finish(self, upload_id: str = "") -> Token:
        """Make it durable. The folder's entry needs no fsync: until the rename nobody was told."""
        os.fsync(self._fd)
        st = os.fstat(self._fd)
        return Token(self.file, st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, upload_id)

    def close(self, *, keep: bool) -> None:
        """Close it, and remove it if it is not to be kept. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if not keep:
                with suppress(OSError):
                    os.unlink(self.path)


def _copy_some(source: int, target: int) -> int:
    try:
        return os.copy_file_range(source, target, 1 << 30)
    except OSError:  # not between or not on these file systems
        data = os.read(source, 1 << 20)
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        return len(data)


def sync_folder(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_place(layout: FolderLayout, name: ObjectName) -> bytes:
    """Path for a new object, if the folder can hold it now. Raises InvalidKey, NoSuchBucket."""
    path = layout.path(name)
    base = layout.bucket_path(name.bucket)
    if layout.bucket is None and _kind(base) != stat.S_IFDIR:
        raise NoSuchBucket(f"bucket {name.bucket}: no such bucket")
    folder = path
    while (folder := os.path.dirname(folder)) != base:
        kind = _kind(folder)
        if kind == stat.S_IFLNK:
            raise InvalidKey(f"{name!s:.300}: its path passes through a symbolic link")
        if kind not in (0, stat.S_IFDIR):
            raise InvalidKey(
                f"{name!s:.300}: a part of its path is an object itself, and a folder store cannot "
                "hold both"
            )
    kind = _kind(path)
    if is_marker(name.key) and kind not in (0, stat.S_IFDIR):
        raise InvalidKey(f"{name!s:.300}: an object has this name without the '/' at its end")
    if not is_marker(name.key) and kind == stat.S_IFDIR and not _is_hollow(path):
        raise InvalidKey(
            f"{name!s:.300}: other objects lie below this name, and a folder store cannot hold both"
        )
    return path


def _kind(path: bytes) -> int:
    """What is at a path, as stat's S_IF constant; 0 for nothing. One look: folders come and go."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _is_hollow(path: bytes) -> bool:
    """A folder, or tree of folders, that no object stands for."""
    return not any(files or has_marker(folder) for folder, _, files in os.walk(path))


def _remove_hollow(path: bytes) -> None:
    """Raises OSError if an object has appeared in it meanwhile."""
    for folder, _, _ in os.walk(path, topdown=False):
        os.rmdir(folder)


def rename_in(layout: FolderLayout, name: ObjectName, staged: bytes) -> bytes:
    """Give a staged file its name, durably; returns the path.

    Raises InvalidKey, NoSuchBucket, FileNotFoundError if the staged file is gone, or OSError.
    """
    for attempt in range(_ATTEMPTS):
        path = check_place(layout, name)
        folder = os.path.dirname(path)
        try:
            made = _make_folders(layout.bucket_path(name.bucket), folder)
            if _kind(path) == stat.S_IFDIR:
                _remove_hollow(path)  # check_place would have refused another
            os.rename(staged, path)
        except OSError as e:
            if e.errno not in _MEANWHILE or attempt == _ATTEMPTS - 1 or not os.path.lexists(staged):
                raise
            continue
        for changed in {folder, *made}:
            sync_folder(changed)
        return path
    raise AssertionError("the last attempt returns or raises")


def _make_folders(base: bytes, folder: bytes) -> list[bytes]:
    """Make `folder` below `base`; returns the folders that got a new entry."""
    missing = []
    while folder != base and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
    return [os.path.dirname(path) for path in missing]


def make_marker(layout: FolderLayout, name: ObjectName) -> bytes:
    """Make the folder of a directory marker, durably. Raises InvalidKey, NoSuchBucket, OSError."""
    path = check_place(layout, name)
    made = _make_folders(layout.bucket_path(name.bucket), path)
    try:
        os.setxattr(path, MARKER_ATTRIBUTE, b"1")
    except OSError as e:
        raise InvalidKey(
            f"{name!s:.300}: this file system cannot mark a folder as an object (no extended "
            f"attributes: {e.strerror})"
        ) from e
    for changed in {path, *made}:
        sync_folder(changed)
    return path


def remove(layout: FolderLayout, name: ObjectName) -> None:
    """Delete an object, durably, and the folders that are empty without it. Idempotent."""
    base = layout.bucket_path(name.bucket)
    if not os.path.isdir(base):
        raise NoSuchBucket(f"bucket {name.bucket}: no such bucket")
    try:
        path = layout.path(name)
    except InvalidKey:
        return  # it never was here
    folder = os.path.dirname(path)
    if os.path.realpath(folder) != folder:
        return  # reached only through a link: another object's file
    try:
        if is_marker(name.key):
            os.removexattr(path, MARKER_ATTRIBUTE)
            sync_folder(path)
            folder = path
        else:
            os.unlink(path)
            sync_folder(folder)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError:
        if is_marker(name.key) and not has_marker(path):
            return
        raise
    _prune(base, folder)


def _prune(base: bytes, folder: bytes) -> None:
    while folder != base and not has_marker(folder):
        try:
            os.rmdir(folder)
        except OSError:
            return  # not empty, or already gone
        folder = os.path.dirname(folder)


def remove_bucket(path: bytes) -> bool:
    """Remove a bucket whose folders hold no file. False if an object is in it."""
    if not _is_hollow(path):
        return False
    try:
        _remove_hollow(path)
    except OSError:
        return False
    sync_folder(os.path.dirname(path))
    return True


def sweep(layout: FolderLayout, keep: set[str]) -> int:
    """Remove staged files whose tokens are not in `keep`, parts cut short, and uploads whose
    making or removal was cut short; returns how many."""
    kept = {Token.load(token).file.encode() for token in keep}
    removed = 0
    for folder in [layout.staging, *_upload_folders(layout)]:
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in list(entries):
                if entry.name.startswith(b"tmp-") and entry.name not in kept:
                    os.unlink(entry.path)
                    removed += 1
    for folder in _upload_folders(layout):
        if not os.path.exists(os.path.join(folder, b"info")):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _upload_folders(layout: FolderLayout) -> list[bytes]:
    with suppress(FileNotFoundError), os.scandir(layout.uploads) as entries:
        return [entry.path for entry in entries if entry.is_dir()]
    return []


def drop_upload(layout: FolderLayout, upload_id: str) -> None:
    path = os.path.join(layout.uploads, upload_id.encode())
    if not os.path.isdir(path):
        raise NoSuchUpload(f"no multipart upload {upload_id:.100}")
    shutil.rmtree(path, ignore_errors=True)
