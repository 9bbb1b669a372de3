"""What a handler gives back: status, headers and a body, whole or streamed."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from hubspoke.frontends.s3.xml import document

HeaderList = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Response:
    """length: of a streamed body, None if it is not known before it ends."""

    status: int
    headers: HeaderList = field(default_factory=list)
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None


def xml_response(root: str, inner: str, headers: HeaderList | None = None) -> Response:
    body = document(root, inner)
    return Response(200, [(b"content-type", b"application/xml"), *(headers or [])], body)
