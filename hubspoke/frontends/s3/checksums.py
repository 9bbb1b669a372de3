"""Checksums of S3 payloads: which are asked for, computing them, comparing them.

CRC-32 is zlib's; CRC-32C and CRC-64/NVME come from awscrt, which computes them with the CPU's
instructions (32 and 52 GB/s on the machine this was written on) and is kept by AWS itself.
"""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from awscrt import checksums as crt  # type: ignore[import-untyped]  # ships no types

from hubspoke.frontends.s3.errors import S3Error

HEADER = "x-amz-checksum-"
_STREAMING = "STREAMING-"
_UNSIGNED = "UNSIGNED-PAYLOAD"


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class _Crc:
    def __init__(self, function: Callable[[bytes, int], int], size: int) -> None:
        self._function = function
        self._size = size
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


ALGORITHMS: dict[str, Callable[[], _Digest]] = {
    "crc32": lambda: _Crc(zlib.crc32, 4),
    "crc32c": lambda: _Crc(crt.crc32c, 4),
    "crc64nvme": lambda: _Crc(crt.crc64nvme, 8),
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
}
_SLOW = frozenset({"md5", "sha1", "sha256", "content-sha256"})  # 0.8 to 2 GB/s: off the loop


class Expected:
    """What a payload must hash to, from a request's headers and later its trailers.

    Raises S3Error InvalidDigest or InvalidRequest for values that cannot be one.
    """

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self._digests: dict[str, _Digest] = {}
        self._values: dict[str, bytes] = {}
        self._trailing: list[str] = []
        if (value := headers.get(b"content-md5")) is not None:
            self._values["md5"] = _decode(value.decode("latin-1"), 16, "Content-MD5")
            self._digests["md5"] = hashlib.md5(usedforsecurity=False)
        for algorithm in ALGORITHMS:
            if (value := headers.get(f"{HEADER}{algorithm}".encode())) is not None:
                self._expect(algorithm, value.decode("latin-1"))
        for name in headers.get(b"x-amz-trailer", b"").decode("latin-1").lower().split(","):
            algorithm = name.strip().removeprefix(HEADER)
            if algorithm != name.strip() and algorithm in ALGORITHMS:
                self._trailing.append(algorithm)
                self._digests[algorithm] = ALGORITHMS[algorithm]()
        if len(self._digests.keys() & ALGORITHMS.keys()) > 1:
            raise S3Error("InvalidRequest", "Expecting a single x-amz-checksum- header")
        self._content_sha256(headers.get(b"x-amz-content-sha256", b"").decode("latin-1").strip())

    @property
    def slow(self) -> bool:
        """Should the hashing leave the event loop?"""
        return not _SLOW.isdisjoint(self._digests)

    def update(self, data: bytes) -> None:
        for digest in self._digests.values():
            digest.update(data)

    def verify(self, trailers: Mapping[str, str]) -> dict[str, str]:
        """Compare; returns the checksum to keep with the object, as a header. Raises S3Error."""
        for algorithm in self._trailing:
            trailer = trailers.get(HEADER + algorithm)
            if trailer is None:
                raise S3Error(
                    "MalformedTrailerError",
                    f"The request announced the trailer {HEADER}{algorithm} and did not send it",
                )
            size = len(self._digests[algorithm].digest())
            self._values[algorithm] = _decode(trailer, size, f"trailer {HEADER}{algorithm}")
        for algorithm, value in self._values.items():
            found = self._digests[algorithm].digest()
            if found != value:
                raise _mismatch(algorithm, value, found)
        return {
            HEADER + algorithm: base64.b64encode(value).decode()
            for algorithm, value in self._values.items()
            if algorithm in ALGORITHMS
        }

    def _expect(self, algorithm: str, value: str) -> None:
        digest = ALGORITHMS[algorithm]()
        self._values[algorithm] = _decode(value, len(digest.digest()), HEADER + algorithm)
        self._digests[algorithm] = digest

    def _content_sha256(self, value: str) -> None:
        if not value or value == _UNSIGNED or value.startswith(_STREAMING):
            return
        try:
            expected = bytes.fromhex(value) if len(value) == 64 else b""
        except ValueError:
            expected = b""
        if not expected:
            raise S3Error(
                "InvalidArgument",
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-... or a SHA-256 in hex",
                extra={"ArgumentName": "x-amz-content-sha256", "ArgumentValue": value[:100]},
            )
        self._values["content-sha256"] = expected
        self._digests["content-sha256"] = hashlib.sha256()


def _decode(value: str, size: int, what: str) -> bytes:
    try:
        data = base64.b64decode(value.strip(), validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != size:
        code = "InvalidDigest" if what == "Content-MD5" else "InvalidRequest"
        raise S3Error(code, f"Value for {what} is invalid")
    return data


def _mismatch(algorithm: str, expected: bytes, found: bytes) -> S3Error:
    if algorithm == "content-sha256":
        return S3Error(
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed",
            extra={
                "ClientComputedContentSHA256": expected.hex(),
                "S3ComputedContentSHA256": found.hex(),
            },
        )
    name = "Content-MD5" if algorithm == "md5" else algorithm.upper()
    return S3Error(
        "BadDigest",
        f"The {name} you specified did not match the calculated checksum",
        extra={
            "ExpectedDigest": base64.b64encode(expected).decode(),
            "CalculatedDigest": base64.b64encode(found).decode(),
        },
    )
