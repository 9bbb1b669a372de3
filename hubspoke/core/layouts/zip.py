"""zip (npz, torch.save): the directory at the end names every member (PKWARE APPNOTE 4.3).

    local header, member | .. | directory | [zip64 end, 56 B | zip64 locator, 20 B] | end, 22 B

A member's part begins at its local header. Where the member ends is not in the directory (the
local header has extra fields of its own): it is taken to end where the next one begins, which is
what a reader of the whole file reads too.
"""

import struct
from collections.abc import Generator

from hubspoke.core.layouts.layout import PARTS_MAX, Layout, NoLayout, Span, layout_of, row

END = struct.Struct("<4s4H2LH")
END64_LOCATOR = struct.Struct("<4sLQL")
END64 = struct.Struct("<4sQ2H2L4Q")
ENTRY = struct.Struct("<4s6H3L5H2L")
TAIL_BYTES = END64.size + END64_LOCATOR.size + END.size  # without a comment
MEMBERS_A_STEP = 256


def directory(tail: bytes, size: int) -> Span:
    """Where the directory is, by the file's last bytes (TAIL_BYTES, or all of it). An archive
    with a comment is not recognised. Raises NoLayout."""
    if len(tail) < END.size or tail[-END.size :][:4] != b"PK\5\6":
        raise NoLayout("no end of a zip directory")
    fields = END.unpack(tail[-END.size :])
    length, offset, comment = fields[5:8]
    if comment:
        raise NoLayout("a comment that is not there")
    if offset == 0xFFFFFFFF or length == 0xFFFFFFFF or fields[4] == 0xFFFF:
        if len(tail) < TAIL_BYTES or tail[-TAIL_BYTES:][:4] != b"PK\6\6":
            raise NoLayout("no end of a zip64 directory")
        length, offset = END64.unpack(tail[-TAIL_BYTES:][: END64.size])[8:10]
    if not 0 < length <= size or offset + length > size:
        raise NoLayout("the directory is beyond the end")
    return Span(offset, length)


def parse(data: bytes, size: int, index: Span) -> Generator[None, None, Layout]:
    """The layout by the directory `data`. Raises NoLayout."""
    found: list[tuple[int, str]] = []
    at = 0
    while at < len(data):
        if len(found) % MEMBERS_A_STEP == 0:
            yield
        if len(data) - at < ENTRY.size or len(found) >= PARTS_MAX:
            raise NoLayout("the directory ends too early")
        fields = ENTRY.unpack_from(data, at)
        name_length, extra_length, comment_length = fields[10:13]
        if fields[0] != b"PK\1\2":
            raise NoLayout("an entry that is none")
        name = data[at + ENTRY.size : at + ENTRY.size + name_length]
        extra = data[at + ENTRY.size + name_length :][:extra_length]
        found.append((_place(fields[16], fields[8:10], extra), name.decode("utf-8", "replace")))
        at += ENTRY.size + name_length + extra_length + comment_length
    if at != len(data):
        raise NoLayout("the directory ends too early")
    found.sort()
    offsets = [offset for offset, _ in found]
    ends = [*offsets, index.offset][1:]
    lengths = [end - start for start, end in zip(offsets, ends, strict=True)]
    return layout_of(
        "zip", size, [name for _, name in found], [row(offsets)], [row(lengths)], index
    )


def _place(offset: int, sizes: tuple[int, ...], extra: bytes) -> int:
    """Of the local header. Where the 32 bits are full it is in the zip64 field, behind those of
    the two sizes that are full as well."""
    if offset != 0xFFFFFFFF:
        return offset
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            start = at + 4 + 8 * sum(n == 0xFFFFFFFF for n in sizes)
            if start + 8 > len(extra):
                break
            return int.from_bytes(extra[start : start + 8], "little")
        at += 4 + length
    raise NoLayout("a member is nowhere")
