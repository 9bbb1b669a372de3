"""Walking the folder store: every object, in batches, and what is left out and why.

Blocking; runs in the store's threads. It follows no link to a folder (loops, and the same object
twice) and changes nothing.
"""

import os
import stat
import time
from collections.abc import Iterator
from functools import partial

from hubspoke.adapters.folder_layout import OWN_FOLDER, FolderLayout, is_file
from hubspoke.adapters.folder_reads import file_entry, has_marker, marker_entry, settled
from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.core.names import Skipped, bucket_fault, key_fault
from hubspoke.core.noticed import Part
from hubspoke.errors import InvalidKey, NoSuchBucket, StoreUnavailable

Batch = list[tuple[ObjectName, ObjectEntry]]

_BATCH = 1000
_EXAMPLES_MAX = 20
_FRESH_NS = 20_000_000  # as folder_reads: versions of this age wait for the clock's tick


def _skip(skipped: Skipped, reason: str, path: bytes) -> None:
    shown = os.fsdecode(path).encode(errors="backslashreplace").decode()
    skipped.add(reason, shown, _EXAMPLES_MAX)


def bucket_names(layout: FolderLayout, skipped: Skipped | None = None) -> list[str]:
    """Buckets in name order; what lies beside them goes to `skipped`. Raises StoreUnavailable."""
    if layout.bucket is not None:
        return [layout.bucket]
    names = []
    try:
        with os.scandir(layout.root) as entries:
            for entry in entries:
                if entry.name == OWN_FOLDER:
                    continue
                name = entry.name.decode("ascii", "replace")
                reason = None
                if not entry.is_dir(follow_symlinks=False):
                    reason = "beside the buckets: not a folder"
                elif bucket_fault(name):
                    reason = "beside the buckets: not a legal bucket name"
                if reason is None:
                    names.append(name)
                elif skipped is not None:
                    _skip(skipped, reason, entry.path)
    except OSError as e:
        raise StoreUnavailable(f"the store folder cannot be listed: {e}") from e
    return sorted(names)


def walk(layout: FolderLayout, skipped: Skipped, part: Part | None = None) -> Iterator[Batch]:
    """All objects, or those of a part, in batches of about 1,000, in no order. Raises
    StoreUnavailable."""
    if part is not None:
        yield from _walk_part(layout, part, skipped)
        return
    for bucket in bucket_names(layout, skipped):
        everything = Part(bucket, "", deep=True)
        yield from _walk_folder(layout, layout.bucket_path(bucket), everything, skipped)


def _walk_part(layout: FolderLayout, part: Part, skipped: Skipped) -> Iterator[Batch]:
    """A folder that is not there, or whose path leads elsewhere, has no objects."""
    try:
        # The path of a marker is its folder's.
        name = ObjectName(part.bucket, part.prefix)
        path = layout.path(name) if part.prefix else layout.bucket_path(part.bucket)
        if os.path.realpath(path) != path or os.path.islink(path):
            return
        st = os.stat(path)
    except (OSError, InvalidKey, NoSuchBucket):
        return
    if part.prefix and stat.S_ISDIR(st.st_mode) and has_marker(path):
        yield [(name, marker_entry(st))]
    yield from _walk_folder(layout, path, part, skipped)


def _walk_folder(
    layout: FolderLayout, base: bytes, part: Part, skipped: Skipped
) -> Iterator[Batch]:
    bucket = part.bucket
    batch: Batch = []
    fresh: list[tuple[ObjectName, bytes]] = []
    folders = [(base, part.prefix)]
    while folders:
        folder, prefix = folders.pop()
        for entry in _entries(folder, skipped):
            if prefix == "" and layout.bucket is not None and entry.name == OWN_FOLDER:
                continue
            try:
                key = prefix + entry.name.decode()
            except UnicodeDecodeError:
                _skip(skipped, "not UTF-8", entry.path)
                continue
            if key_fault(key):
                _skip(skipped, "longer than a key may be", entry.path)
                continue
            if entry.is_dir(follow_symlinks=False):
                if not part.deep:
                    continue
                folders.append((entry.path, key + "/"))
                if has_marker(entry.path):
                    marker = marker_entry(entry.stat(follow_symlinks=False))
                    batch.append((ObjectName(bucket, key + "/"), marker))
                continue
            _add_file(layout, entry, ObjectName(bucket, key), batch, fresh, skipped)
            if len(batch) + len(fresh) >= _BATCH:
                yield batch + _settle(fresh)
                batch, fresh = [], []
    if batch or fresh:
        yield batch + _settle(fresh)


def _entries(folder: bytes, skipped: Skipped) -> "Iterator[os.DirEntry[bytes]]":
    """A folder that is gone is empty, one that is closed to this user is left out (lost+found);
    one that fails would look like deletions and ends the walk."""
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:
        _skip(skipped, "a folder that may not be read", folder)
    except OSError as e:
        raise StoreUnavailable(f"{os.fsdecode(folder)}: cannot be listed: {e.strerror}") from e


def _add_file(
    layout: FolderLayout,
    entry: "os.DirEntry[bytes]",
    name: ObjectName,
    batch: Batch,
    fresh: list[tuple[ObjectName, bytes]],
    skipped: Skipped,
) -> None:
    if entry.is_symlink() and not layout.holds(os.path.realpath(entry.path)):
        _skip(skipped, "a link out of the folder", entry.path)
        return
    try:
        st = entry.stat()
    except OSError:
        if entry.is_symlink():
            _skip(skipped, "a link to nothing", entry.path)
        return  # gone since the folder was listed
    if not is_file(st):
        _skip(skipped, "a link to a folder" if entry.is_symlink() else "not a file", entry.path)
    elif 0 <= time.time_ns() - max(st.st_ctime_ns, st.st_mtime_ns) < _FRESH_NS:
        fresh.append((name, entry.path))
    else:
        batch.append((name, file_entry(st)))


def _settle(fresh: list[tuple[ObjectName, bytes]]) -> Batch:
    batch: Batch = []
    for name, path in fresh:
        try:
            st = settled(partial(os.stat, path))
        except OSError:
            continue
        if is_file(st):
            batch.append((name, file_entry(st)))
    return batch
