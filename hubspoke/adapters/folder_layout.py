"""Which path of a folder an object's name means, and which names cannot be one.

Pure rules over names, and the version of a file. A key is its path's bytes: nothing is folded,
normalised or cleaned, so a name that a path would change is refused instead.
"""

import os
import stat
from dataclasses import dataclass

from hubspoke.core import names
from hubspoke.core.ids import ObjectName, Version
from hubspoke.core.names import bucket_fault
from hubspoke.errors import InvalidKey, NoSuchBucket

# The store's own folder inside the root: the same file system, so that a rename completes a PUT.
# No bucket can have this name (it begins with a dot); as a key's first segment it is refused.
OWN_FOLDER = b".hubspoke"
_PATH_BYTES_MAX = 4095  # PATH_MAX less the final NUL


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """root: real path of the folder. bucket: None if every first-level folder is a bucket."""

    root: bytes
    bucket: str | None

    @property
    def staging(self) -> bytes:
        return os.path.join(self.root, OWN_FOLDER, b"staging")

    @property
    def uploads(self) -> bytes:
        return os.path.join(self.root, OWN_FOLDER, b"uploads")

    def bucket_path(self, bucket: str) -> bytes:
        """Raises NoSuchBucket for a name that cannot be a bucket here; looks at no file."""
        if self.bucket is not None:
            if bucket != self.bucket:
                raise NoSuchBucket(f"bucket {bucket}: this store is the one bucket {self.bucket}")
            return self.root
        if fault := bucket_fault(bucket):
            raise NoSuchBucket(f"bucket {bucket}: {fault}")
        return os.path.join(self.root, bucket.encode())

    def path(self, name: ObjectName) -> bytes:
        """Path of a name, without the "/" at a directory marker's end.

        Raises InvalidKey naming the reason, or NoSuchBucket.
        """
        base = self.bucket_path(name.bucket)
        if fault := path_fault(name.key, own_folder_reserved=self.bucket is not None):
            raise InvalidKey(f"{name!s:.200}: not a path in this folder store: {fault}")
        path = os.path.join(base, name.key.rstrip("/").encode())
        if len(path) > _PATH_BYTES_MAX:
            raise InvalidKey(
                f"{name!s:.200}: not a path in this folder store: {len(path)} bytes with the "
                f"folder, {_PATH_BYTES_MAX} at most"
            )
        return path

    def holds(self, real: bytes) -> bool:
        """Is a real path inside the root, and not in the store's own folder?"""
        own = os.path.join(self.root, OWN_FOLDER)
        return real.startswith(os.path.join(self.root, b"")) and not (
            real == own or real.startswith(own + b"/")
        )


def path_fault(key: str, *, own_folder_reserved: bool) -> str | None:
    """Why a key cannot be a path under exactly its name in a folder store, or None."""
    if fault := names.path_fault(key):
        return fault
    first = key.split("/", 1)[0]
    if own_folder_reserved and first.encode() == OWN_FOLDER:
        return f"{first!r} is this store's own folder"
    return None


def is_marker(key: str) -> bool:
    """A key that ends in "/" is a directory marker."""
    return key.endswith("/")


def file_version(st: os.stat_result) -> Version:
    """Identity of a file's content (DESIGN section 2): a change of it changes one of these.

    The change time is what catches a writer who sets the modification time back, and the loss
    of the file's name: unlinking, replacing or renaming a file changes its change time.
    """
    return Version(
        f"{st.st_dev:x}-{st.st_ino:x}-{st.st_size:x}-{st.st_mtime_ns:x}-{st.st_ctime_ns:x}"
    )


def marker_version(st: os.stat_result) -> Version:
    """A marker has no content: its directory's times change with its children and do not count."""
    return Version(f"{st.st_dev:x}-{st.st_ino:x}-marker")


def version_size(version: Version) -> int:
    """Size that a file version names; 0 for markers."""
    fields = version.split("-")
    return int(fields[2], 16) if len(fields) == 5 else 0


def is_file(st: os.stat_result) -> bool:
    return stat.S_ISREG(st.st_mode)
