"""Which bucket names and keys are legal, and which keys are paths.

Decides by the text alone. It never changes a name: a name is exact bytes or it is refused. A
legal key that is no path is listed and read over S3, and cannot be shown on a mount.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hubspoke.core.ids import KEY_BYTES_MAX

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z", re.ASCII)
SEGMENT_BYTES_MAX = 255  # NAME_MAX of Linux file systems
_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}\Z", re.ASCII)


def bucket_fault(name: str) -> str | None:
    """Why `name` is no legal S3 bucket name, or None if it is one.

    Source: Amazon S3 user guide, "General purpose bucket naming rules" (reserved affixes are not
    refused: they mean nothing outside AWS).
    """
    if not 3 <= len(name) <= 63:
        return f"it has {len(name)} characters, 3 to 63 are allowed"
    if not _BUCKET.match(name):
        return (
            "only lower-case letters, digits, '.' and '-' are allowed, with a letter or digit "
            "at both ends"
        )
    if ".." in name:
        return "it has two adjacent dots"
    if _IPV4.match(name):
        return "it looks like an IP address"
    return None


def key_fault(key: str) -> str | None:
    """Why `key` is no legal object key, or None if it is one."""
    if not key:
        return "it is empty"
    if "\0" in key:
        return "it contains a NUL byte"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if size > KEY_BYTES_MAX:
        return f"it has {size} bytes, at most {KEY_BYTES_MAX} are allowed"
    return None


def segment_fault(segment: str) -> str | None:
    """Why a part of a key between slashes cannot be a file's or folder's name, or None."""
    if not segment:
        return "an empty path segment ('/' at the start, or '//')"
    if segment in (".", ".."):
        return f"a path segment is {segment!r}"
    if len(segment.encode()) > SEGMENT_BYTES_MAX:
        return f"a path segment has more than {SEGMENT_BYTES_MAX} bytes"
    return None


def path_fault(key: str) -> str | None:
    """Why `key` cannot be a path under exactly its name, or None if it can.

    A "/" at the end is allowed: a directory marker's path is its directory's.
    """
    if fault := key_fault(key):
        return fault
    return next(filter(None, map(segment_fault, key.removesuffix("/").split("/"))), None)


def hidden_beginning(key: str) -> str:
    """The shortest beginning of a key that is no path that no path has, with the slash behind it:
    all keys with it are hidden. The key itself if only its end is at fault."""
    at = 0
    while (cut := key.find("/", at)) >= 0:
        if segment_fault(key[at:cut]):
            return key[: cut + 1]
        at = cut + 1
    return key


def mount_fault(key: str, size: int) -> str | None:
    """Why an object of `size` bytes cannot be shown on a mount, judged alone, or None.

    An object beside a folder of its name is not told by this: see `hidden_on_mount`.
    """
    if fault := path_fault(key):
        return fault
    if key.endswith("/") and size > 0:
        return "it ends in '/', as a directory does, and is not empty"
    return None


def hidden_on_mount(objects: Iterable[tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """(key, why) of each object that a mount cannot show; the order is not that of the keys.

    objects: (key, size in bytes) of one bucket, by key in ascending order.
    An object `a` beside one or more `a/...` is hidden by the folder `a`: of the two names the
    folder's leads to more objects. Keys that are no paths make no folders.
    Memory: one entry for each key that is the beginning of the present one.
    """
    beginnings: list[str] = []  # each the beginning of the next; not yet known to be hidden
    for key, size in objects:
        if fault := mount_fault(key, size):
            yield key, fault
            continue
        # Between "a" and "a/b" come only keys that begin with "a", as "a!" and "a-b" do.
        while beginnings and not key.startswith(beginnings[-1]):
            beginnings.pop()
        while beginnings and key.startswith(beginnings[-1] + "/"):
            yield beginnings.pop(), "a folder has its name"
        if not key.endswith("/"):
            beginnings.append(key)


@dataclass(slots=True)
class Skipped:
    """Names a scan of a store left out: count and first examples (display form) by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str, examples_max: int) -> None:
        """Count one, and keep it as an example if there are fewer than `examples_max`."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < examples_max:
            examples.append(name)
