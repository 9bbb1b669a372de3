"""Requests about objects and multipart uploads of a bucket, in its own keys.

What S3Store is made of: each method is one operation of the S3 API (or the pages of one), its
answer in our terms and its errors as our errors. No prefix, no names, no policy.
"""

import asyncio
import base64
import hashlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import IO, cast
from urllib.parse import quote, unquote_plus
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

from hubspoke.adapters.s3_client import Answer, Body, S3Client
from hubspoke.core.ids import ObjectEntry, Version
from hubspoke.errors import (
    HubSpokeError,
    InvalidKey,
    InvalidPart,
    InvalidRequest,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    StoreUnavailable,
    VersionChanged,
)
from hubspoke.ports import UploadedPart

KEPT = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
)
META = "x-amz-meta-"
_MEMORY_BYTES = 16 << 20  # a part larger than this waits on the disk while it is received

_ERRORS: dict[str, type[HubSpokeError]] = {
    "EntityTooSmall": InvalidRequest,
    "InvalidArgument": InvalidRequest,
    "InvalidPart": InvalidPart,
    "InvalidPartOrder": InvalidPart,
    "InvalidRequest": InvalidRequest,
    "KeyTooLongError": InvalidKey,
    "NoSuchBucket": NoSuchBucket,
    "NoSuchKey": NoSuchKey,
    "NoSuchUpload": NoSuchUpload,
    "PreconditionFailed": VersionChanged,
}


def version_of(size: int, etag: str) -> Version:
    return Version(f"{size:x}.{etag}")


def size_and_etag(version: Version) -> tuple[int, str]:
    size, _, etag = version.partition(".")
    return int(size, 16), etag


def error_of(answer: Answer, what: str) -> HubSpokeError:
    """An answer that was not hoped for, as an error."""
    detail = f"{what}: the object store answers {answer.status} {answer.code} {answer.message}"
    return _ERRORS.get(answer.code, StoreUnavailable)(detail.rstrip())


def _document(answer: Answer, root: str, what: str) -> Element:
    """The answer's document, or the error it is (S3 sends errors with 200 as well)."""
    if answer.status != 200 or answer.code:
        raise error_of(answer, what)
    document = answer.xml()
    if document.tag != root:
        raise StoreUnavailable(f"{what}: <{root}> expected, <{document.tag}> found")
    return document


def _etag(element: Element) -> str:
    return (element.findtext("ETag") or "").strip('"')


def _iso_ns(text: str | None) -> int:
    if not text:
        return 0
    return int(datetime.fromisoformat(text).timestamp() * 1000) * 1_000_000


async def body_of(data: bytes, *, secure: bool) -> Body:
    """Bytes to send, hashed off the loop. secure: over TLS, where SHA-256 is not needed."""

    def hashed() -> Body:
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        return Body(data, len(data), "" if secure else hashlib.sha256(data).hexdigest(), md5)

    return await asyncio.to_thread(hashed)


class S3Objects:
    def __init__(self, client: S3Client) -> None:
        self._client = client

    async def pages(self, prefix: str) -> AsyncIterator[list[tuple[str, ObjectEntry]]]:
        """Keys with `prefix`, page by page; entries without headers."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
        while True:
            answer = await self._client.request("GET", query=query)
            root = _document(answer, "ListBucketResult", f"list {prefix!r}")
            page = []
            for element in root.findall("Contents"):
                size, etag = int(element.findtext("Size") or 0), _etag(element)
                modified_ns = _iso_ns(element.findtext("LastModified"))
                entry = ObjectEntry(version_of(size, etag), size, etag, modified_ns)
                page.append((unquote_plus(element.findtext("Key") or ""), entry))
            yield page
            token = root.findtext("NextContinuationToken")
            if root.findtext("IsTruncated") != "true" or not token:
                return
            query["continuation-token"] = token

    async def head(self, key: str) -> ObjectEntry | None:
        answer = await self._client.request("HEAD", key)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise error_of(answer, f"HEAD {key:.300}")
        headers = answer.headers
        size, etag = int(headers.get("content-length", 0)), headers.get("etag", "").strip('"')
        modified = headers.get("last-modified")
        modified_ns = int(parsedate_to_datetime(modified).timestamp()) * 10**9 if modified else 0
        kept = {k: v for k, v in headers.items() if k in KEPT or k.startswith(META)}
        return ObjectEntry(version_of(size, etag), size, etag, modified_ns, kept)

    async def read(self, key: str, version: Version, offset: int, length: int) -> bytes:
        """length > 0. Raises VersionChanged, NoSuchKey."""
        size, etag = size_and_etag(version)
        headers = {"If-Match": f'"{etag}"', "Range": f"bytes={offset}-{offset + length - 1}"}
        answer = await self._client.request("GET", key, headers=headers)
        changed = f"{key:.300}: it is no longer version {version}"
        if answer.status in (412, 416):
            raise VersionChanged(changed)
        is_whole = answer.status == 200 and length == size
        if answer.status != 206 and not is_whole:
            raise error_of(answer, f"GET {key:.300}")
        if answer.headers.get("etag", "").strip('"') != etag:  # a server without If-Match
            raise VersionChanged(changed)
        if len(answer.data) != length:
            raise StoreUnavailable(f"{key:.300}: {len(answer.data)} of {length} bytes came")
        return answer.data

    async def put_empty(self, key: str, headers: Mapping[str, str]) -> None:
        answer = await self._client.request("PUT", key, headers=_sent(headers))
        if answer.status != 200:
            raise error_of(answer, f"PUT {key:.300}")

    async def delete(self, key: str) -> None:
        answer = await self._client.request("DELETE", key)
        if answer.status not in (200, 204, 404):
            raise error_of(answer, f"DELETE {key:.300}")

    async def create_upload(self, key: str, headers: Mapping[str, str]) -> str:
        query = {"uploads": ""}
        answer = await self._client.request("POST", key, query=query, headers=_sent(headers))
        root = _document(answer, "InitiateMultipartUploadResult", f"upload {key:.300}")
        return root.findtext("UploadId") or ""

    async def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        """The part's ETag."""
        body = await body_of(data, secure=self._client.is_secure)
        return await self._send_part(key, upload_id, number, body)

    async def upload_part_stream(
        self, key: str, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> tuple[str, int]:
        """ETag and size of a part of unknown length: S3 wants to know it first, so the part is
        received whole, in memory or on the disk, before it is sent."""
        md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
        secure = self._client.is_secure
        with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as spool:

            def add(data: bytes) -> None:
                md5.update(data)
                if not secure:
                    sha256.update(data)
                spool.write(data)

            async for chunk in chunks:
                await asyncio.to_thread(add, chunk)
                size += len(chunk)
            data: bytes | _Reopened
            if size <= _MEMORY_BYTES:
                spool.seek(0)
                data = spool.read()
            else:
                spool.flush()
                data = _Reopened(spool.fileno())
            encoded = base64.b64encode(md5.digest()).decode()
            body = Body(data, size, sha256.hexdigest(), encoded)
            return await self._send_part(key, upload_id, number, body), size

    async def _send_part(self, key: str, upload_id: str, number: int, body: Body) -> str:
        query = {"uploadId": upload_id, "partNumber": str(number)}
        answer = await self._client.request("PUT", key, query=query, body=body)
        if answer.status != 200:
            raise error_of(answer, f"part {number} of {key:.300}")
        return answer.headers.get("etag", "").strip('"')

    async def copy_part(
        self,
        source: str,
        version: Version,
        offset: int,
        length: int,
        *,
        key: str,
        upload_id: str,
        number: int,
    ) -> str:
        """The part's ETag. Raises VersionChanged, NoSuchKey (of the source)."""
        headers = {
            "x-amz-copy-source": f"{self._client.bucket}/{quote(source, safe='/~')}",
            "x-amz-copy-source-if-match": f'"{size_and_etag(version)[1]}"',
            "x-amz-copy-source-range": f"bytes={offset}-{offset + length - 1}",
        }
        query = {"uploadId": upload_id, "partNumber": str(number)}
        answer = await self._client.request("PUT", key, query=query, headers=headers)
        return _etag(_document(answer, "CopyPartResult", f"copy {source:.300}"))

    async def parts(self, key: str, upload_id: str) -> list[UploadedPart]:
        query = {"uploadId": upload_id}
        parts: list[UploadedPart] = []
        while True:
            answer = await self._client.request("GET", key, query=query)
            if answer.status == 400:  # a server that looks at the form of an id first
                raise NoSuchUpload(f"{key:.300}: no upload {upload_id:.100}: {answer.message}")
            root = _document(answer, "ListPartsResult", f"parts of {key:.300}")
            for element in root.findall("Part"):
                number = int(element.findtext("PartNumber") or 0)
                size = int(element.findtext("Size") or 0)
                modified_ns = _iso_ns(element.findtext("LastModified"))
                parts.append(UploadedPart(number, size, _etag(element), modified_ns))
            if root.findtext("IsTruncated") != "true":
                return parts
            query["part-number-marker"] = root.findtext("NextPartNumberMarker") or ""

    async def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """(key, upload id, when it was begun) of the uploads under way."""
        query = {"uploads": "", "encoding-type": "url", "prefix": prefix}
        uploads: list[tuple[str, str, int]] = []
        while True:
            answer = await self._client.request("GET", query=query)
            root = _document(answer, "ListMultipartUploadsResult", "list uploads")
            for element in root.findall("Upload"):
                key = unquote_plus(element.findtext("Key") or "")
                upload_id = element.findtext("UploadId") or ""
                uploads.append((key, upload_id, _iso_ns(element.findtext("Initiated"))))
            if root.findtext("IsTruncated") != "true":
                return uploads
            query["key-marker"] = unquote_plus(root.findtext("NextKeyMarker") or "")
            query["upload-id-marker"] = root.findtext("NextUploadIdMarker") or ""

    async def complete(self, key: str, upload_id: str, parts: Sequence[tuple[int, str]]) -> str:
        """The object's ETag. Raises NoSuchUpload, InvalidPart."""
        inner = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
            for number, etag in parts
        )
        document = f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>".encode()
        body = await body_of(document, secure=self._client.is_secure)
        query = {"uploadId": upload_id}
        answer = await self._client.request("POST", key, query=query, body=body)
        return _etag(_document(answer, "CompleteMultipartUploadResult", f"complete {key:.300}"))

    async def abort(self, key: str, upload_id: str) -> None:
        answer = await self._client.request("DELETE", key, query={"uploadId": upload_id})
        if answer.status not in (200, 204, 404):
            raise error_of(answer, f"abort the upload of {key:.300}")


class _Reopened:
    """Opens a nameless file from its start, once for each attempt to send it."""

    def __init__(self, descriptor: int) -> None:
        self._path = f"/proc/self/fd/{descriptor}"

    def __call__(self) -> IO[bytes]:
        return cast(IO[bytes], open(self._path, "rb"))


def _sent(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k in KEPT or k.startswith(META)}
