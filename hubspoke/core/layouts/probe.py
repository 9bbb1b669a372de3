"""Which format a file is of, by bytes of its head or tail, and what to look at next.

    bytes of the head --> tar | safetensors: where its header is --> layout
    bytes of the tail --> parquet: where its footer is | zip: where its directory is --> layout

Names do not count: a suffix is a habit, and magic numbers cost nothing more.
"""

from collections.abc import Generator
from dataclasses import dataclass

from hubspoke.core.layouts import numbers, parquet, safetensors, tar, zip
from hubspoke.core.layouts.layout import INDEX_BYTES_MAX, Layout, NoLayout, Span
from hubspoke.core.layouts.numbers import Numbers

HEAD_BYTES = tar.HEAD_BYTES
TAIL_BYTES = zip.TAIL_BYTES


@dataclass(frozen=True, slots=True)
class Look:
    """Bytes wanted of an object, `size` bytes long. format: None as long as that is not known."""

    size: int
    span: Span
    format: str | None = None

    @classmethod
    def head(cls, size: int) -> "Look":
        return cls(size, Span(0, min(size, HEAD_BYTES)))

    @classmethod
    def tail(cls, size: int) -> "Look":
        length = min(size, TAIL_BYTES)
        return cls(size, Span(size - length, length))

    def then(self, span: Span, format: str) -> "Look":
        return Look(self.size, span, format)


Seen = Layout | Look | Numbers


def read(look: Look, data: bytes) -> Generator[None, None, Seen]:
    """What these bytes say. Raises NoLayout."""
    if len(data) != look.span.length:
        raise NoLayout("some of it is missing")
    if look.format is None:
        yield
        return _recognise(look, data)
    if look.format == numbers.IDX:
        return (yield from numbers.parse_idx(data))
    if look.format == numbers.NPY:
        return (yield from numbers.parse_npy(data))
    parser = {"parquet": parquet.parse, "zip": zip.parse, "safetensors": safetensors.parse}
    return (yield from parser[look.format](data, look.size, look.span))


def _recognise(look: Look, data: bytes) -> Seen:
    if look.span.offset + look.span.length == look.size:
        if data[-4:] == parquet.MAGIC:
            return _next(look, parquet.footer(data[-parquet.TAIL_BYTES :], look.size), "parquet")
        if data[-zip.END.size :][:4] == b"PK\5\6":
            return _next(look, zip.directory(data, look.size), "zip")
    if look.span.offset == 0:
        if data[257:262] == b"ustar":
            return tar.recognise(data)
        return _next(look, safetensors.header(data, look.size), "safetensors")
    raise NoLayout("of no format that is known")


def _next(look: Look, span: Span, format: str) -> Look:
    if span.length > INDEX_BYTES_MAX:
        raise NoLayout("its index is too long")
    return look.then(span, format)
