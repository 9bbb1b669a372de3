"""What a handler gives back: status, headers and a body, whole or streamed."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from hubspoke.frontends.s3.xml import document
from hubspoke.ports import FileSpan

HeaderList = list[tuple[bytes, bytes]]
Pieces = AsyncIterator[bytes | FileSpan]


@dataclass(slots=True)
class Response:
    """length: of a streamed body, None if it is not known before it ends."""

    status: int
    headers: HeaderList = field(default_factory=list)
    body: bytes | FileSpan | Pieces = b""
    length: int | None = None


def xml_response(root: str, inner: str, headers: HeaderList | None = None) -> Response:
    body = document(root, inner)
    return Response(200, [(b"content-type", b"application/xml"), *(headers or [])], body)


def staleness(seconds: float | None) -> HeaderList:
    """What an answer says that may be older than the hub; nothing if it is current (None)."""
    return [] if seconds is None else [(b"x-hubspoke-staleness", b"%.3f" % seconds)]


def copied(piece: bytes | FileSpan) -> bytes:
    """A piece as bytes; a span is released. Raises OSError."""
    if isinstance(piece, bytes):
        return piece
    try:
        data = os.pread(piece.descriptor, piece.length, piece.offset)
    finally:
        piece.release()
    if len(data) != piece.length:
        raise OSError(f"cache file ends {piece.length - len(data)} bytes early")
    return data


async def buffers(body: bytes | FileSpan | Pieces) -> AsyncIterator[bytes]:
    """A body as buffers in order, for those who need the bytes themselves."""
    if isinstance(body, bytes | FileSpan):
        yield copied(body)
        return
    try:
        async for piece in body:
            yield copied(piece)
    finally:
        await close(body)


async def close(body: Pieces) -> None:
    """Give up an iterator; plain iterators have nothing to close."""
    aclose = getattr(body, "aclose", None)
    if aclose is not None:
        await aclose()
