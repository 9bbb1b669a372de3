"""The aws-chunked encoding: payload in chunks with optional signatures, and trailers.

    SIZE[;chunk-signature=...] CRLF PAYLOAD CRLF ... 0[;...] CRLF [name:value CRLF ...] CRLF

Bytes in, payload out; no I/O. Signatures are not checked: the door has no credentials to check
them with, and the payload's integrity is what checksums and trailers are for.
Source: AWS, "Signature Calculations for the Authorization Header: Transferring Payload in
Multiple Chunks" (Signature Version 4), and the same with trailing headers.
"""

import re
from collections.abc import Callable

from hubspoke.frontends.s3.errors import S3Error

_LINE_BYTES_MAX = 4096
_TRAILERS_BYTES_MAX = 16384
_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;.*)?\Z", re.DOTALL)


class AwsChunkedDecoder:
    """Feed it the body as it comes, then call `finish`.

    Both raise S3Error IncompleteBody, MalformedTrailerError or InvalidRequest, after which the
    decoder must not be used again. A state is the method that decodes the next element: it
    returns False if the buffer does not hold a whole one.
    """

    def __init__(self) -> None:
        self.trailers: dict[str, str] = {}
        self._buffer = bytearray()
        self._state: Callable[[list[bytes]], bool] = self._size
        self._left = 0  # payload bytes still missing from the current chunk
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Payload decoded from `data`, in order."""
        if len(data) < self._left and not self._buffer:
            self._left -= len(data)  # the common case: the middle of a large chunk
            return [data]
        self._buffer += data
        payload: list[bytes] = []
        while self._state(payload):
            pass
        return payload

    def finish(self) -> None:
        """The body has ended: raises if the encoding has not. A missing last line end is let go."""
        if self._state == self._end or (self._state == self._trailer and not self._buffer):
            return
        raise S3Error(
            "IncompleteBody", "The request body ended inside the aws-chunked encoding", close=True
        )

    def _size(self, payload: list[bytes]) -> bool:
        line = self._line(_LINE_BYTES_MAX)
        if line is None:
            return False
        match = _SIZE.match(line)
        if match is None:
            raise S3Error(
                "InvalidRequest", "An aws-chunked chunk begins without its size", close=True
            )
        self._left = int(match[1], 16)
        self._state = self._data if self._left else self._trailer
        return True

    def _data(self, payload: list[bytes]) -> bool:
        if not self._buffer:
            return False
        piece = bytes(self._buffer[: self._left])
        del self._buffer[: self._left]
        payload.append(piece)
        self._left -= len(piece)
        if self._left == 0:
            self._state = self._data_end
        return True

    def _data_end(self, payload: list[bytes]) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise S3Error(
                "InvalidRequest", "An aws-chunked chunk is longer than it says", close=True
            )
        del self._buffer[:2]
        self._state = self._size
        return True

    def _trailer(self, payload: list[bytes]) -> bool:
        line = self._line(_TRAILERS_BYTES_MAX)
        if line is None:
            return False
        if not line.strip():
            self._state = self._end
            return True
        self._trailer_bytes += len(line)
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or self._trailer_bytes > _TRAILERS_BYTES_MAX:
            raise S3Error(
                "MalformedTrailerError", "The trailing headers cannot be read", close=True
            )
        self.trailers[name.strip().lower()] = value.strip()
        return True

    def _end(self, payload: list[bytes]) -> bool:
        if self._buffer:
            raise S3Error(
                "InvalidRequest", "Bytes follow the end of the aws-chunked body", close=True
            )
        return False

    def _line(self, limit: int) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if max(end, len(self._buffer) if end < 0 else 0) > limit:
            raise S3Error("InvalidRequest", "An aws-chunked line is too long", close=True)
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line
