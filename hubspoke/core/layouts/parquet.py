"""Parquet: the footer names every column chunk (parquet.thrift: FileMetaData).

    "PAR1" | column chunks ... | FileMetaData, Thrift compact | 4 B its length | "PAR1"

Only the fields that say where a chunk lies are kept; everything else is stepped over. A library's
reader would build an object for each of 25,600 chunks with its statistics, and would be one more
dependency of the spoke, fed with bytes of anybody's files.
"""

from collections.abc import Generator
from dataclasses import dataclass, field

from hubspoke.core.layouts.layout import (
    PARTS_MAX,
    Layout,
    NoLayout,
    Parsing,
    Places,
    Span,
    layout_of,
    row,
)

MAGIC = b"PAR1"
TAIL_BYTES = 8
DEPTH_MAX = 12  # of structures in one another; FileMetaData has 6
CHUNKS_A_STEP = 32

# Types of Thrift's compact protocol.
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)


def footer(tail: bytes, size: int) -> Span:
    """Where the footer is, by the file's last 8 bytes. Raises NoLayout."""
    if len(tail) != TAIL_BYTES or tail[4:] != MAGIC:
        raise NoLayout("no PAR1 at the end")
    length = int.from_bytes(tail[:4], "little")
    if not 0 < length <= size - TAIL_BYTES - len(MAGIC):
        raise NoLayout("the footer is longer than the file")
    return Span(size - TAIL_BYTES - length, length)


class _Compact:
    """Reads values of Thrift's compact protocol one after the other."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        data, at = self.data, self.at
        byte = data[at]
        at += 1
        if byte < 0x80:
            self.at = at
            return byte
        value, shift = byte & 0x7F, 7
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return value
            shift += 7
            if shift > 63:
                raise NoLayout("a number is too long")

    def integer(self) -> int:
        n = self.varint()
        return (n >> 1) ^ -(n & 1)

    def binary(self) -> bytes:
        n = self.varint()
        found = self.data[self.at : self.at + n]
        if len(found) != n:
            raise IndexError
        self.at += n
        return found

    def field(self, before: int) -> tuple[int, int]:
        """(id, type) of the next field; type STOP at the end of the structure."""
        head = self.data[self.at]
        self.at += 1
        if head == STOP:
            return 0, STOP
        delta = head >> 4
        return (before + delta if delta else self.integer()), head & 15

    def items(self) -> tuple[int, int]:
        """(count, type) of a list; each of its items takes at least a byte."""
        head = self.data[self.at]
        self.at += 1
        n = head >> 4
        if n == 15:
            n = self.varint()
        if n > len(self.data) - self.at:
            raise NoLayout("a list is longer than the footer")
        return n, head & 15

    def skip(self, kind: int, depth: int = 0, *, item: bool = False) -> None:
        """Step over a value. item: of a list, where a boolean takes a byte."""
        if I16 <= kind <= I64:
            self.varint()
        elif kind == BINARY:
            n = self.varint()
            self.at += n
            if self.at > len(self.data):
                raise IndexError
        elif kind in (TRUE, FALSE):
            self.at += item
        elif kind == BYTE:
            self.at += 1
        elif kind == DOUBLE:
            self.at += 8
        elif depth >= DEPTH_MAX:
            raise NoLayout("structures too deep in one another")
        elif kind == STRUCT:
            self._skip_structure(depth)
        elif kind in (LIST, SET):
            n, kind = self.items()
            for _ in range(n):
                self.skip(kind, depth + 1, item=True)
        elif kind == MAP:
            self._skip_map(depth)
        else:
            raise NoLayout("a type that is none")

    def _skip_structure(self, depth: int) -> None:
        """Most of a footer is stepped over here, so what most of it is, is not asked one by one."""
        data = self.data
        while True:
            head = data[self.at]
            self.at += 1
            if head == STOP:
                return
            if not head >> 4:
                self.integer()
            kind = head & 15
            if I16 <= kind <= I64:
                at = self.at
                while data[at] >= 0x80:
                    at += 1
                self.at = at + 1
            elif kind > FALSE:
                self.skip(kind, depth + 1)

    def _skip_map(self, depth: int) -> None:
        n = self.varint()
        if not n:
            return
        kinds = self.data[self.at]
        self.at += 1
        if n > len(self.data) - self.at:
            raise NoLayout("a map is longer than the footer")
        for _ in range(n):
            self.skip(kinds >> 4, depth + 1, item=True)
            self.skip(kinds & 15, depth + 1, item=True)


@dataclass(slots=True)
class _Found:
    names: list[str] = field(default_factory=list)
    offsets: list[Places] = field(default_factory=list)
    lengths: list[Places] = field(default_factory=list)


def parse(data: bytes, size: int, index: Span) -> Parsing:
    """The layout by the footer `data`, which lies at `index`. Raises NoLayout."""
    try:
        layout = yield from _parse(data, size, index)
    except IndexError as e:
        raise NoLayout("the footer ends too early") from e
    return layout


def _parse(data: bytes, size: int, index: Span) -> Generator[None, None, Layout]:
    reader, found, id_ = _Compact(data), _Found(), 0
    while True:
        id_, kind = reader.field(id_)
        if kind == STOP:
            break
        if id_ == 4 and kind == LIST:  # row_groups
            n, kind = reader.items()
            for _ in range(n):
                if kind != STRUCT:
                    raise NoLayout("a row group that is no structure")
                yield from _row_group(reader, found)
        else:
            reader.skip(kind)
            yield
    return layout_of("parquet", size, found.names, found.offsets, found.lengths, index)


def _row_group(reader: _Compact, found: _Found) -> Generator[None, None, None]:
    first, id_ = not found.offsets, 0
    offsets: list[int] = []
    lengths: list[int] = []
    while True:
        id_, kind = reader.field(id_)
        if kind == STOP:
            break
        if id_ != 1 or kind != LIST:
            reader.skip(kind)
            continue
        n, kind = reader.items()  # columns
        if kind != STRUCT or n * (1 + len(found.offsets)) > PARTS_MAX:
            raise NoLayout("too many column chunks")
        for i in range(n):
            if i % CHUNKS_A_STEP == 0:
                yield
            offset, length, path = _chunk(reader, named=first)
            offsets.append(offset)
            lengths.append(length)
            if first:
                found.names.append(path)
    found.offsets.append(row(offsets))
    found.lengths.append(row(lengths))


def _chunk(reader: _Compact, *, named: bool) -> tuple[int, int, str]:
    """Where a column chunk is, and its column's path if that is wanted."""
    place, id_ = (-1, -1, ""), 0
    while True:
        id_, kind = reader.field(id_)
        if kind == STOP:
            return place
        if id_ == 1 and kind == BINARY:
            raise NoLayout("a column chunk is in another file")
        if id_ == 3 and kind == STRUCT:
            place = _metadata(reader, named=named)
        else:
            reader.skip(kind)


def _metadata(reader: _Compact, *, named: bool) -> tuple[int, int, str]:
    data_page = dictionary_page = length = -1
    path, id_ = "", 0
    while True:
        id_, kind = reader.field(id_)
        if kind == STOP:
            break
        if id_ == 7 and kind == I64:
            length = reader.integer()
        elif id_ == 9 and kind == I64:
            data_page = reader.integer()
        elif id_ == 11 and kind == I64:
            dictionary_page = reader.integer()
        elif id_ == 3 and kind == LIST and named:
            n, kind = reader.items()
            if kind != BINARY:
                raise NoLayout("a path that is no text")
            path = ".".join(reader.binary().decode("utf-8", "replace") for _ in range(n))
        else:
            reader.skip(kind)
    # As readers do: a dictionary page lies before the data pages if there is one.
    start = dictionary_page if 0 < dictionary_page < data_page else data_page
    return start, length, path
