"""tar: a head of 512 bytes before every member, and no index. So only its kind is known: readers
of an archive take it from its start to its end."""

import numpy as np

from hubspoke.core.layouts.layout import Layout, NoLayout, Span

HEAD_BYTES = 512


def recognise(head: bytes) -> Layout:
    """A layout without parts. Raises NoLayout."""
    if len(head) < HEAD_BYTES or head[257:262] != b"ustar" or not _checksum_holds(head):
        raise NoLayout("no head of a tar member")
    nothing = np.zeros((0, 0), np.int64)
    return Layout("tar", (), nothing, nothing, Span(0, HEAD_BYTES))


def _checksum_holds(head: bytes) -> bool:
    """Of the first head: the sum of its bytes, the sum's own 8 taken for spaces."""
    digits = head[148:156].strip(b" \0")
    if not digits or not digits.isdigit() or digits.strip(b"01234567"):
        return False
    return int(digits, 8) == sum(head[:148]) + 8 * 32 + sum(head[156:HEAD_BYTES])
