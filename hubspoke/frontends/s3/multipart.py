"""Multipart uploads: create, upload and copy parts, complete, abort, list.

A part is known by its number and ETag. The checksums of parts are verified as they arrive; the
list in CompleteMultipartUpload repeats them, and only its numbers and ETags are compared.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from itertools import pairwise

from hubspoke.errors import FormatError
from hubspoke.frontends.s3.body import payload, whole
from hubspoke.frontends.s3.conditions import parse_range
from hubspoke.frontends.s3.errors import S3Error
from hubspoke.frontends.s3.listing import Listings, count_of
from hubspoke.frontends.s3.objects import checksum_headers
from hubspoke.frontends.s3.request import Request
from hubspoke.frontends.s3.response import HeaderList, Response, buffers, xml_response
from hubspoke.frontends.s3.slow import SlowAnswers
from hubspoke.frontends.s3.tuning import S3DoorTuning
from hubspoke.frontends.s3.writes import refuse_unsupported, resolve_copy_source, stored_headers
from hubspoke.frontends.s3.xml import element, parse, timestamp
from hubspoke.ports import MultipartUpload, Reader, Resolved, Writer

_PARTS_MAX = 10_000
_LIST_MAX = 1000
_COPY_BYTES = 8 << 20  # read at a time while a part is copied


class Multiparts:
    """The operations of multipart uploads."""

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        listings: Listings,
        slow: SlowAnswers,
        tuning: S3DoorTuning,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._listings = listings
        self._slow = slow
        self._tuning = tuning

    async def create(self, request: Request) -> Response:
        refuse_unsupported(request)
        upload_id = await self._writer.create_multipart(request.name, stored_headers(request))
        echoed: HeaderList = [
            (name, request.headers[name])
            for name in (b"x-amz-checksum-algorithm", b"x-amz-checksum-type")
            if name in request.headers
        ]
        inner = _named(request) + element("UploadId", upload_id)
        return xml_response("InitiateMultipartUploadResult", inner, echoed)

    async def upload_part(self, request: Request) -> Response:
        refuse_unsupported(request)
        number, upload_id = _part_of(request)
        checksum: dict[str, str] = {}
        async with aclosing(payload(request, self._tuning, checksum)) as chunks:
            part = await self._writer.put_part(request.name, upload_id, number, chunks)
        etag = (b"etag", f'"{part.etag}"'.encode("latin-1"))
        return Response(200, [etag, *checksum_headers(checksum)])

    async def upload_part_copy(self, request: Request) -> Response:
        refuse_unsupported(request)
        number, upload_id = _part_of(request)
        source = await resolve_copy_source(request, self._reader)
        offset, length = 0, source.entry.size
        asked = request.headers.get(b"x-amz-copy-source-range")
        if asked is not None:
            span = parse_range(asked, source.entry.size)
            if span is None or not asked.endswith(b"-%d" % (span[0] + span[1] - 1)):
                raise S3Error(
                    "InvalidArgument", "x-amz-copy-source-range must be bytes=FIRST-LAST, inside"
                )
            offset, length = span
        work = partial(self._copy_part, request, upload_id, number, source, offset, length)
        return await self._slow.answer(work, f"/{request.name}")

    async def _copy_part(
        self,
        request: Request,
        upload_id: str,
        number: int,
        source: Resolved,
        offset: int,
        length: int,
    ) -> Response:
        chunks = self._source_bytes(source, offset, length, request.client)
        part = await self._writer.put_part(request.name, upload_id, number, chunks)
        inner = element("LastModified", timestamp(part.modified_ns))
        return xml_response("CopyPartResult", inner + element("ETag", f'"{part.etag}"'))

    async def _source_bytes(
        self, source: Resolved, offset: int, length: int, client: str
    ) -> AsyncIterator[bytes]:
        end = offset + length
        while offset < end:
            result = await self._reader.read(source, offset, min(_COPY_BYTES, end - offset), client)
            offset += result.length
            async for data in buffers(result.body):
                yield data

    async def complete(self, request: Request) -> Response:
        refuse_unsupported(request, "if-match", "if-none-match")
        parts = _parts_listed(await whole(request, self._tuning))
        upload_id = _upload_id(request)
        work = partial(self._complete, request, upload_id, parts)
        same = (request.name, upload_id, tuple(parts))
        return await self._slow.answer(work, f"/{request.name}", same=same)

    async def _complete(
        self, request: Request, upload_id: str, parts: list[tuple[int, str]]
    ) -> Response:
        entry = await self._writer.complete_multipart(request.name, upload_id, parts)
        inner = (
            element("Location", f"/{request.name}")
            + _named(request)
            + element("ETag", f'"{entry.etag}"')
        )
        return xml_response("CompleteMultipartUploadResult", inner)

    async def abort(self, request: Request) -> Response:
        await self._writer.abort_multipart(request.name, _upload_id(request))
        return Response(204)

    async def list_parts(self, request: Request) -> Response:
        upload_id = _upload_id(request)
        marker = count_of(request.query, "part-number-marker", _PARTS_MAX)
        if not request.query.get("part-number-marker"):
            marker = 0
        limit = count_of(request.query, "max-parts", _LIST_MAX)
        found = await self._writer.list_parts(request.name, upload_id)
        parts = sorted((p for p in found if p.number > marker), key=lambda p: p.number)
        shown = parts[:limit]
        inner = [
            _named(request),
            element("UploadId", upload_id),
            element("PartNumberMarker", marker),
            element("NextPartNumberMarker", shown[-1].number if shown else marker),
            element("MaxParts", limit),
            element("IsTruncated", str(len(parts) > len(shown)).lower()),
            element("StorageClass", "STANDARD"),
        ]
        for part in shown:
            etag = f'"{part.etag}"'
            inner.append(
                f"<Part>{element('PartNumber', part.number)}"
                f"{element('LastModified', timestamp(part.modified_ns))}"
                f"{element('ETag', etag)}{element('Size', part.size)}</Part>"
            )
        return xml_response("ListPartsResult", "".join(inner))

    async def list_uploads(self, request: Request) -> Response:
        query = request.query
        if query.get("delimiter"):
            raise S3Error("NotImplemented", "ListMultipartUploads with a delimiter")
        prefix = query.get("prefix", "")
        after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        limit = count_of(query, "max-uploads", _LIST_MAX)
        await self._listings.check_bucket(request.bucket)
        found = await self._writer.list_multiparts(request.bucket)
        uploads = sorted(
            (u for u in found if u.name.key.startswith(prefix) and _is_behind(u, *after)),
            key=lambda u: (u.name.key, u.upload_id),
        )
        shown = uploads[:limit]
        last = shown[-1] if shown else None
        inner = [
            element("Bucket", request.bucket),
            element("KeyMarker", after[0]),
            element("UploadIdMarker", after[1]),
            element("NextKeyMarker", last.name.key) if last else "",
            element("NextUploadIdMarker", last.upload_id) if last else "",
            element("Prefix", prefix),
            element("MaxUploads", limit),
            element("IsTruncated", str(len(uploads) > len(shown)).lower()),
        ]
        for upload in shown:
            inner.append(
                f"<Upload>{element('Key', upload.name.key)}{element('UploadId', upload.upload_id)}"
                f"{element('StorageClass', 'STANDARD')}"
                f"{element('Initiated', timestamp(upload.initiated_ns))}</Upload>"
            )
        return xml_response("ListMultipartUploadsResult", "".join(inner))


def _is_behind(upload: MultipartUpload, key_marker: str, id_marker: str) -> bool:
    """Without an upload id the key marker excludes all uploads of that key."""
    if upload.name.key != key_marker:
        return upload.name.key > key_marker
    return bool(id_marker) and upload.upload_id > id_marker


def _named(request: Request) -> str:
    return element("Bucket", request.bucket) + element("Key", request.key)


def _upload_id(request: Request) -> str:
    upload_id = request.query.get("uploadId", "")
    if not upload_id:
        raise S3Error("InvalidArgument", "This operation needs an uploadId")
    return upload_id


def _part_of(request: Request) -> tuple[int, str]:
    value = request.query.get("partNumber", "")
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0
    if not 1 <= number <= _PARTS_MAX:
        raise S3Error(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {_PARTS_MAX}, inclusive",
            extra={"ArgumentName": "partNumber", "ArgumentValue": value[:100]},
        )
    return number, _upload_id(request)


def _parts_listed(body: bytes) -> list[tuple[int, str]]:
    """(number, ETag) of a CompleteMultipartUpload document, in ascending order."""
    parts: list[tuple[int, str]] = []
    try:
        for node in parse(body, "CompleteMultipartUpload").children("Part"):
            number = (node.text("PartNumber") or "").strip()
            etag = (node.text("ETag") or "").strip().strip('"')
            if not number.isascii() or not number.isdigit() or len(number) > 5 or not etag:
                raise FormatError("<Part> without a <PartNumber> and an <ETag>")
            parts.append((int(number), etag))
    except FormatError as e:
        raise S3Error("MalformedXML", f"The XML you provided was not well-formed: {e}") from e
    if not 1 <= len(parts) <= _PARTS_MAX:
        raise S3Error("MalformedXML", f"1 to {_PARTS_MAX} parts, {len(parts)} found")
    if any(a >= b for (a, _), (b, _) in pairwise(parts)):
        raise S3Error("InvalidPartOrder", "The list of parts was not in ascending order")
    return parts
