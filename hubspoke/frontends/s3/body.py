"""A request's payload: taken from the connection, decoded, counted and verified as it streams.

Each wait for a byte has a deadline. What is handed on is only complete when the iterator ends
without an error: a mismatch raises instead, so that a store throws away what it has staged.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from hubspoke.frontends.s3.checksums import Expected
from hubspoke.frontends.s3.chunked import AwsChunkedDecoder
from hubspoke.frontends.s3.errors import S3Error
from hubspoke.frontends.s3.request import Request
from hubspoke.frontends.s3.tuning import S3DoorTuning


def is_aws_chunked(request: Request) -> bool:
    sha = request.header("x-amz-content-sha256") or ""
    encoding = request.header("content-encoding") or ""
    return sha.startswith("STREAMING-") or "aws-chunked" in encoding.lower().split(",")


async def received(request: Request, tuning: S3DoorTuning) -> AsyncIterator[bytes]:
    """The body as it comes. Raises S3Error RequestTimeout or IncompleteBody."""
    more = True
    while more:
        try:
            async with asyncio.timeout(tuning.body_stall_s):
                message = await request.receive()
        except TimeoutError:
            raise S3Error(
                "RequestTimeout",
                f"The request body brought nothing for {tuning.body_stall_s:g} seconds",
                close=True,
            ) from None
        if message["type"] == "http.disconnect":
            raise S3Error("IncompleteBody", "The connection ended inside the body", close=True)
        more = message.get("more_body", False)
        if data := message.get("body", b""):
            yield data
    request.body_read = True


async def _decoded(
    request: Request, tuning: S3DoorTuning, trailers: dict[str, str]
) -> AsyncIterator[bytes]:
    """The payload without its transfer coding; fills `trailers` at the end."""
    if not is_aws_chunked(request):
        async for data in received(request, tuning):
            yield data
        return
    decoder = AwsChunkedDecoder()
    async for data in received(request, tuning):
        for piece in decoder.feed(data):
            yield piece
    decoder.finish()
    trailers.update(decoder.trailers)


async def payload(
    request: Request, tuning: S3DoorTuning, kept: dict[str, str]
) -> AsyncGenerator[bytes, None]:
    """The verified payload in pieces of `chunk_bytes`, the last one shorter.

    kept: gets the verified checksum as a header to store, before the iterator ends.
    """
    expected = Expected(request.headers)
    declared = _declared_length(request)
    trailers: dict[str, str] = {}
    pieces: list[bytes] = []
    held = total = 0
    async for data in _decoded(request, tuning, trailers):
        pieces.append(data)
        held += len(data)
        total += len(data)
        if declared is not None and total > declared:
            raise _incomplete(declared, total)
        if held >= tuning.chunk_bytes:
            block = b"".join(pieces)
            await _hash(expected, block)
            yield block
            pieces, held = [], 0
    if declared is not None and total != declared:
        raise _incomplete(declared, total)
    block = b"".join(pieces)
    await _hash(expected, block)
    kept.update(expected.verify(trailers))
    if block:
        yield block


async def whole(request: Request, tuning: S3DoorTuning) -> bytes:
    """A small payload (an XML document), verified. Raises S3Error EntityTooLarge."""
    pieces: list[bytes] = []
    held = 0
    async for block in payload(request, tuning, {}):
        held += len(block)
        if held > tuning.xml_bytes_max:
            raise S3Error(
                "EntityTooLarge", f"The document is larger than {tuning.xml_bytes_max} bytes"
            )
        pieces.append(block)
    return b"".join(pieces)


async def drain(request: Request, tuning: S3DoorTuning) -> bool:
    """Take what is left of a refused body. False if it is too much, or waits to be asked for:
    then the connection must be closed."""
    if request.body_read or request.method in ("GET", "HEAD"):
        return True
    length = request.content_length
    if b"transfer-encoding" not in request.headers and not length:
        return True
    if b"expect" in request.headers or length is None or length > tuning.drain_bytes_max:
        return False
    try:
        async with asyncio.timeout(tuning.drain_s):
            async for _ in received(request, tuning):
                pass
    except (TimeoutError, S3Error):
        return False
    return True


async def _hash(expected: Expected, block: bytes) -> None:
    # Below 64 KiB the hop to a thread costs more than hashing here.
    if expected.slow and len(block) >= 65536:
        await asyncio.to_thread(expected.update, block)
    else:
        expected.update(block)


def _declared_length(request: Request) -> int | None:
    """Decoded bytes the client promised, None if it did not say (aws-chunked over HTTP chunks).

    Raises S3Error MissingContentLength when there is no way to tell where the body ends.
    """
    if is_aws_chunked(request):
        value = request.headers.get(b"x-amz-decoded-content-length")
        if value is None:
            return None
        if not value.isdigit() or len(value) > 15:
            raise S3Error("InvalidArgument", "x-amz-decoded-content-length is not a number")
        return int(value)
    if request.content_length is None and b"transfer-encoding" not in request.headers:
        raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header")
    return request.content_length


def _incomplete(declared: int, found: int) -> S3Error:
    return S3Error(
        "IncompleteBody",
        f"The request promised {declared} bytes and its body has {found}",
        close=True,
    )
