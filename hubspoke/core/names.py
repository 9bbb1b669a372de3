"""Which bucket names and keys are legal, apart from what a store can hold.

Decides by the text alone. It never changes a name: a name is exact bytes or it is refused.
"""

import re
from dataclasses import dataclass, field

from hubspoke.core.ids import KEY_BYTES_MAX

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z", re.ASCII)
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


@dataclass(slots=True)
class Skipped:
    """Names a scan of a store left out: count and first examples (display form) by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
