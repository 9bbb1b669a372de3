"""The S3 door as one raw ASGI application: routes requests, sends answers, maps errors.

It must never end a body cleanly that is not whole: once headers are sent, an error breaks the
connection, so that the client sees a short body and not other bytes. A ranged GET takes a short
way past the routing, because a spoke answers thousands of them a second.
"""

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping

from hubspoke.core.ids import ObjectName
from hubspoke.errors import HubSpokeError, NoSuchBucket, NoSuchKey
from hubspoke.frontends.asgi import ASGIApp, Receive, Scope, Send
from hubspoke.frontends.data_protocol import EXTENSION
from hubspoke.frontends.direct_answers import DirectAnswer
from hubspoke.frontends.s3.body import drain
from hubspoke.frontends.s3.direct import NOT_DIRECT, DirectReads, spans_copied
from hubspoke.frontends.s3.errors import S3Error, as_s3_error, error_document, not_implemented
from hubspoke.frontends.s3.listing import Listings
from hubspoke.frontends.s3.multipart import Multiparts
from hubspoke.frontends.s3.objects import ObjectReads
from hubspoke.frontends.s3.operations import WRITES, operation
from hubspoke.frontends.s3.request import (
    Request,
    client_of,
    host_bucket,
    merge_headers,
    parse_query,
    split_path,
)
from hubspoke.frontends.s3.response import HeaderList, Pieces, Response, close, staleness
from hubspoke.frontends.s3.slow import SlowAnswers
from hubspoke.frontends.s3.tuning import S3DoorTuning
from hubspoke.frontends.s3.writes import Writes
from hubspoke.ports import DirectReader, FileSpan, Reader, Writer

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

_NO_QUERY: dict[str, str] = {}
_PLAIN_QUERIES = frozenset({b"", b"x-id=GetObject"})  # newer SDKs name the operation
_REMEMBERED_MAX = 4096  # paths and hosts
_ONCE = frozenset({b"host", b"range", b"x-amz-checksum-mode"})
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9/._~!$&'()*+,;=:@%-]+").fullmatch


class ReadAborted(HubSpokeError):
    """A body broke off after its headers were sent; raised so that the server cuts the line."""


class S3App:
    """ASGI 3 application. writer None: a spoke, where every write is 501.

    inner: other applications by path prefix (the hub-spoke protocol shares the port). direct: the
    reader again, if it can answer hits without waiting (`answer_now`).
    """

    def __init__(
        self,
        reader: Reader,
        writer: Writer | None,
        *,
        inner: Mapping[str, ASGIApp] | None = None,
        direct: DirectReader | None = None,
        tuning: S3DoorTuning | None = None,
    ) -> None:
        self._tuning = tuning or S3DoorTuning()
        self._inner = [(prefix.encode(), app) for prefix, app in (inner or {}).items()]
        self._inner_prefixes = tuple(prefix for prefix, _ in self._inner)
        self._reader = reader
        self._objects = ObjectReads(reader)
        self._direct = DirectReads(direct, self._request_id) if direct is not None else None
        self._handlers = self._routes(reader, writer)
        self._names: dict[tuple[bytes | None, bytes], ObjectName] = {}
        self._id_head = secrets.token_hex(4).upper().encode()
        self._ids = itertools.count(1)

    def _routes(self, reader: Reader, writer: Writer | None) -> dict[str, Handler]:
        listings = Listings(reader)
        routes: dict[str, Handler] = {
            "ListBuckets": listings.list_buckets,
            "HeadBucket": listings.head_bucket,
            "GetBucketLocation": listings.bucket_location,
            "ListObjects": listings.list_v1,
            "ListObjectsV2": listings.list_v2,
            "GetObject": self._get_object,
            "HeadObject": self._head_object,
        }
        if writer is None:
            return routes
        slow = SlowAnswers(self._tuning.keepalive_s)
        writes = Writes(reader, writer, slow, self._tuning)
        uploads = Multiparts(reader, writer, listings, slow, self._tuning)
        return routes | {
            "CreateBucket": writes.create_bucket,
            "DeleteBucket": writes.delete_bucket,
            "PutObject": writes.put_object,
            "CopyObject": writes.copy_object,
            "DeleteObject": writes.delete_object,
            "DeleteObjects": writes.delete_objects,
            "CreateMultipartUpload": uploads.create,
            "UploadPart": uploads.upload_part,
            "UploadPartCopy": uploads.upload_part_copy,
            "CompleteMultipartUpload": uploads.complete,
            "AbortMultipartUpload": uploads.abort,
            "ListParts": uploads.list_parts,
            "ListMultipartUploads": uploads.list_uploads,
        }

    def answer_now(
        self, method: bytes, url: bytes, headers: HeaderList, client: str
    ) -> DirectAnswer | None:
        """A range whose bytes are at hand, or a HEAD; see data_protocol.AnswerNow."""
        if self._direct is None:
            return None
        host = header_range = mode = None
        for name, value in headers:
            if name == b"host" and host is None:
                host = value
            elif name == b"range" and header_range is None:
                header_range = value
            elif name == b"x-amz-checksum-mode" and mode is None:
                mode = value
            elif name in _ONCE or name in NOT_DIRECT:
                return None
        if (method == b"HEAD") is not (header_range is None):
            return None
        object_name = self._named_now(host, url.removesuffix(b"?x-id=GetObject"))
        if object_name is None:
            return None
        if header_range is not None:
            return self._direct.get(object_name, header_range, client)
        checksums = mode is not None and mode.upper() == b"ENABLED"
        return self._direct.head(object_name, checksums=checksums)

    def _named_now(self, host: bytes | None, raw: bytes) -> ObjectName | None:
        """The object of a path, unless the path is one to look at more closely."""
        name = self._names.get((host, raw))
        if name is None and _PLAIN_PATH(raw):
            try:
                name = ObjectName(*split_path(raw, host_bucket(host or b"", self._tuning.domains)))
            except S3Error:
                return None
        return name if name is not None and name.key else None

    def _request_id(self) -> bytes:
        return b"%s%08X" % (self._id_head, next(self._ids))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _lifespan(scope, receive, send)
            return
        raw: bytes = scope["raw_path"]
        if self._inner_prefixes and raw.startswith(self._inner_prefixes):
            await next(app for prefix, app in self._inner if raw.startswith(prefix))(
                scope, receive, send
            )
            return
        request_id = self._request_id()
        request: Request | None = None
        name: ObjectName | None = None
        try:
            if scope["method"] == "GET" and scope["query_string"] in _PLAIN_QUERIES:
                headers: dict[bytes, bytes] = dict(scope["headers"])
                name = self._names.get((headers.get(b"host"), raw))
            if name is not None:
                response = await self._objects.get(name, headers, _NO_QUERY, client_of(scope))
            else:
                request = self._request(scope, receive)
                response = await self._handle(request)
        except HubSpokeError as e:
            error = as_s3_error(e)
            if isinstance(e, NoSuchKey | NoSuchBucket):
                error.headers += staleness(self._reader.staleness_s())
            response = await self._refusal(error, scope, request, request_id)
        except Exception:
            log.exception("method=%s path=%r failed", scope["method"], raw)
            error = S3Error("InternalError", "We encountered an internal error", close=True)
            response = await self._refusal(error, scope, request, request_id)
        response.headers.append((b"x-amz-request-id", request_id))
        spans = EXTENSION in scope.get("extensions", ())
        await self._send(response, receive, send if spans else spans_copied(send))

    def _request(self, scope: Scope, receive: Receive) -> Request:
        """Raises S3Error if the request names nothing S3 could have."""
        raw: bytes = scope["raw_path"]
        headers = merge_headers(scope["headers"])
        host = headers.get(b"host")
        bucket, key = split_path(raw, host_bucket(host or b"", self._tuning.domains))
        if key:
            if len(self._names) >= _REMEMBERED_MAX:
                del self._names[next(iter(self._names))]
            self._names[host, raw] = ObjectName(bucket, key)
        return Request(
            method=scope["method"],
            bucket=bucket,
            key=key,
            query=parse_query(scope["query_string"]),
            headers=headers,
            client=client_of(scope),
            path=raw,
            receive=receive,
        )

    async def _handle(self, request: Request) -> Response:
        name = request.operation = operation(
            request.method, request.bucket, request.key, request.query, request.headers
        )
        handler = self._handlers.get(name)
        if handler is None:
            raise not_implemented(name, "this spoke is read-only" if name in WRITES else "")
        return await handler(request)

    async def _get_object(self, request: Request) -> Response:
        return await self._objects.get(request.name, request.headers, request.query, request.client)

    async def _head_object(self, request: Request) -> Response:
        return await self._objects.head(request.name, request.headers, request.query)

    async def _refusal(
        self, error: S3Error, scope: Scope, request: Request | None, request_id: bytes
    ) -> Response:
        """The error as a response. The rest of the body is taken, or the connection closed."""
        headers = [(b"content-type", b"application/xml"), *error.headers]
        whole = request is not None and not error.close and await drain(request, self._tuning)
        if not whole and scope["method"] not in ("GET", "HEAD"):
            headers.append((b"connection", b"close"))
        if scope["method"] == "HEAD":
            return Response(error.status, headers)
        body = error_document(error, scope["path"], request_id.decode())
        return Response(error.status, headers, body)

    async def _send(self, response: Response, receive: Receive, send: Send) -> None:
        headers, body = response.headers, response.body
        if isinstance(body, bytes):
            if response.length is None and response.status not in (204, 304):
                headers.append((b"content-length", b"%d" % len(body)))
            await send(
                {"type": "http.response.start", "status": response.status, "headers": headers}
            )
            await send({"type": "http.response.body", "body": body})
            return
        if isinstance(body, FileSpan):
            try:
                start = {"type": "http.response.start", "status": response.status}
                await send({**start, "headers": headers})
                await send({"type": EXTENSION, "file": body})
                await send({"type": "http.response.body", "body": b""})
            finally:
                body.release()
            return
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await self._stream(body, response.length, receive, send)

    async def _stream(self, body: Pieces, length: int | None, receive: Receive, send: Send) -> None:
        """Send a body as it comes; give it up as soon as the client is gone."""
        pump = asyncio.create_task(self._pump(body, length, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not pump.done():
                pump.cancel()
            await asyncio.wait({pump, gone})
            await close(body)
        if not pump.cancelled():
            pump.result()

    async def _pump(self, body: Pieces, length: int | None, send: Send) -> None:
        sent = 0
        async for data in body:
            if isinstance(data, FileSpan):
                sent += data.length
                try:
                    await send({"type": EXTENSION, "file": data})
                finally:
                    data.release()
                continue
            sent += len(data)
            if length is not None and sent > length:
                raise ReadAborted(f"the reader gave more than the {length} bytes asked for")
            async with asyncio.timeout(self._tuning.send_stall_s):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        if length is not None and sent != length:
            raise ReadAborted(f"the reader gave {sent} of {length} bytes")
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    """Start and stop have nothing to do here; other protocols are not spoken."""
    if scope["type"] != "lifespan":
        raise ValueError(f"ASGI scope type {scope['type']} is not supported")
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
