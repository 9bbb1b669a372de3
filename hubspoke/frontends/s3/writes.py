"""The door's changes to objects and buckets: put, copy, delete.

Each answers when the writer says that the change is durable. What a header asks for and this
door does not do is refused by name; nothing is silently left out but access control lists and
storage classes, which have no meaning here.
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from urllib.parse import unquote_to_bytes

from hubspoke.core.ids import ObjectName
from hubspoke.core.names import bucket_fault, key_fault
from hubspoke.errors import FormatError, HubSpokeError
from hubspoke.frontends.s3.body import payload, whole
from hubspoke.frontends.s3.checksums import HEADER as CHECKSUM
from hubspoke.frontends.s3.conditions import evaluate
from hubspoke.frontends.s3.errors import S3Error, as_s3_error, not_implemented
from hubspoke.frontends.s3.objects import check_version_id, object_checksum_headers
from hubspoke.frontends.s3.request import Request, check_key
from hubspoke.frontends.s3.response import Response, xml_response
from hubspoke.frontends.s3.slow import SlowAnswers
from hubspoke.frontends.s3.tuning import S3DoorTuning
from hubspoke.frontends.s3.xml import Node, element, parse, timestamp
from hubspoke.ports import Reader, Resolved, Writer

_KEPT = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
)
_META = "x-amz-meta-"
_META_BYTES_MAX = 2048
_DELETES_MAX = 1000
_REFUSED = (
    "x-amz-bypass-governance-retention",
    "x-amz-mfa",
    "x-amz-object-lock-",
    "x-amz-server-side-encryption",
    "x-amz-tagging",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
)
_HARMLESS = ("x-amz-tagging-directive",)


def stored_headers(request: Request) -> dict[str, str]:
    """What is kept with the object from a request's headers. Raises S3Error."""
    kept: dict[str, str] = {}
    meta_bytes = 0
    for raw_name, raw_value in request.headers.items():
        name = raw_name.decode("latin-1")
        value = raw_value.decode("latin-1").strip()
        if name.startswith(_META):
            meta_bytes += len(name) - len(_META) + len(value)
            kept[name] = value
        elif name in _KEPT and value:
            kept[name] = value
    if meta_bytes > _META_BYTES_MAX:
        raise S3Error(
            "MetadataTooLarge",
            "Your metadata headers exceed the maximum allowed metadata size",
            extra={"Size": str(meta_bytes), "MaxSizeAllowed": str(_META_BYTES_MAX)},
        )
    if "content-encoding" in kept:
        codings = [c.strip() for c in kept["content-encoding"].split(",")]
        coding = ",".join(c for c in codings if c.lower() != "aws-chunked")
        if coding:
            kept["content-encoding"] = coding
        else:
            del kept["content-encoding"]
    return kept


def refuse_unsupported(request: Request, *conditions: str) -> None:
    """501 for headers that ask for what is not done, and for `conditions` not supported here."""
    for raw in request.headers:
        name = raw.decode("latin-1")
        if name in conditions or (name.startswith(_REFUSED) and name not in _HARMLESS):
            raise not_implemented(request.operation, f"the header {name}")


def copy_source(request: Request) -> ObjectName:
    """The object that x-amz-copy-source names. Raises S3Error."""
    value = request.headers[b"x-amz-copy-source"].strip()
    path, _, query = value.partition(b"?")
    if query:
        check_version_id({"versionId": query.decode("latin-1").removeprefix("versionId=")})
    try:
        bucket, _, key = unquote_to_bytes(path).decode().removeprefix("/").partition("/")
    except UnicodeDecodeError as e:
        raise S3Error("InvalidURI", "The copy source is not valid UTF-8") from e
    if bucket_fault(bucket) or key_fault(key):
        raise S3Error("InvalidArgument", "x-amz-copy-source must be BUCKET/KEY, URL-encoded")
    return ObjectName(bucket, key)


async def resolve_copy_source(request: Request, reader: Reader) -> Resolved:
    """The source as it is now, with the x-amz-copy-source-if-* conditions holding."""
    resolved = await reader.resolve(copy_source(request))
    evaluate(request.headers, resolved.entry, b"x-amz-copy-source-")
    return resolved


class Writes:
    """The operations that change buckets and objects in one request."""

    def __init__(
        self, reader: Reader, writer: Writer, slow: SlowAnswers, tuning: S3DoorTuning
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._slow = slow
        self._tuning = tuning

    async def create_bucket(self, request: Request) -> Response:
        await self._writer.create_bucket(request.bucket)
        return Response(200, [(b"location", b"/" + request.bucket.encode())])

    async def delete_bucket(self, request: Request) -> Response:
        await self._writer.delete_bucket(request.bucket)
        return Response(204)

    async def put_object(self, request: Request) -> Response:
        refuse_unsupported(request)
        headers = stored_headers(request)
        if_match = request.header("if-match")
        if_none_match = request.header("if-none-match")
        if if_none_match not in (None, "*"):
            raise not_implemented(request.operation, "If-None-Match with anything but *")
        async with aclosing(payload(request, self._tuning, headers)) as chunks:
            entry = await self._writer.put(
                request.name,
                headers,
                chunks,
                if_match=if_match.strip('"') if if_match is not None else None,
                if_none_match=if_none_match is not None,
            )
        etag = (b"etag", f'"{entry.etag}"'.encode("latin-1"))
        return Response(200, [etag, *object_checksum_headers(headers)])

    async def copy_object(self, request: Request) -> Response:
        refuse_unsupported(request, "if-match", "if-none-match")
        directive = (request.header("x-amz-metadata-directive") or "COPY").upper()
        if directive not in ("COPY", "REPLACE"):
            raise S3Error("InvalidArgument", "Unknown metadata directive")
        source = await resolve_copy_source(request, self._reader)
        headers = dict(source.entry.headers)
        if directive == "REPLACE":
            checksums = {k: v for k, v in headers.items() if k.startswith(CHECKSUM)}
            headers = stored_headers(request) | checksums
        elif source.name == request.name:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself "
                "without changing the object's metadata",
            )
        work = partial(self._copy, source, request.name, headers)
        return await self._slow.answer(work, f"/{request.name}")

    async def _copy(self, source: Resolved, name: ObjectName, headers: dict[str, str]) -> Response:
        entry = await self._writer.copy(source, name, headers)
        inner = element("LastModified", timestamp(entry.modified_ns))
        return xml_response("CopyObjectResult", inner + element("ETag", f'"{entry.etag}"'))

    async def delete_object(self, request: Request) -> Response:
        refuse_unsupported(
            request, "if-match", "x-amz-if-match-last-modified-time", "x-amz-if-match-size"
        )
        check_version_id(request.query)
        await self._writer.delete(request.name)
        return Response(204)

    async def delete_objects(self, request: Request) -> Response:
        refuse_unsupported(request)
        try:
            document = parse(await whole(request, self._tuning), "Delete")
            objects = document.children("Object")
            quiet = (document.text("Quiet") or "").strip().lower() == "true"
            targets = [_delete_target(node) for node in objects]
        except FormatError as e:
            raise S3Error("MalformedXML", f"The XML you provided was not well-formed: {e}") from e
        if not 1 <= len(targets) <= _DELETES_MAX:
            raise S3Error("MalformedXML", f"1 to {_DELETES_MAX} objects, {len(targets)} found")
        turn = asyncio.Semaphore(self._tuning.deletes_in_flight_max)

        async def delete(key: str, version: str | None) -> str:
            try:
                check_key(key)
                check_version_id({} if version is None else {"versionId": version})
                async with turn:
                    await self._writer.delete(ObjectName(request.bucket, key))
            except HubSpokeError as e:
                return _delete_failed(key, as_s3_error(e))
            return "" if quiet else f"<Deleted>{element('Key', key)}</Deleted>"

        results = await asyncio.gather(*(delete(*target) for target in targets))
        return xml_response("DeleteResult", "".join(results))


def _delete_target(node: Node) -> tuple[str, str | None]:
    key = node.text("Key")
    if not key:
        raise FormatError("<Object> without <Key>")
    for condition in ("ETag", "LastModifiedTime", "Size"):
        if node.text(condition) is not None:
            raise not_implemented("DeleteObjects", f"the condition <{condition}>")
    return key, node.text("VersionId")


def _delete_failed(key: str, error: S3Error) -> str:
    fields: Mapping[str, str] = {"Key": key, "Code": error.code, "Message": error.message}
    return f"<Error>{''.join(element(k, v) for k, v in fields.items())}</Error>"
