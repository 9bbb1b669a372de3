"""GetObject and HeadObject: the read path of the door.

A ranged GET is the most frequent request of a spoke, so what does not change between two reads
of an object (its headers) is made once and kept for as long as the entry is the same.
"""

from collections.abc import Mapping

from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState
from hubspoke.errors import VersionChanged
from hubspoke.frontends.s3.checksums import HEADER as CHECKSUM
from hubspoke.frontends.s3.conditions import (
    CONDITIONS,
    evaluate,
    http_date,
    parse_range,
    range_applies,
    unsatisfiable,
)
from hubspoke.frontends.s3.errors import S3Error
from hubspoke.frontends.s3.response import HeaderList, Pieces, Response, close, staleness
from hubspoke.ports import FileSpan, Reader, Resolved

_KEPT_ENTRIES_MAX = 4096
_OVERRIDES = {
    "response-cache-control": b"cache-control",
    "response-content-disposition": b"content-disposition",
    "response-content-encoding": b"content-encoding",
    "response-content-language": b"content-language",
    "response-content-type": b"content-type",
    "response-expires": b"expires",
}
_CACHE_HEADERS = {state: (b"x-hubspoke-cache", state.value.encode()) for state in ReadState}
_STALE = (b"x-hubspoke-cache", b"stale")


def check_version_id(query: Mapping[str, str]) -> None:
    """Objects have one version, which S3 calls "null"; others do not exist."""
    version = query.get("versionId", "null")
    if version != "null":
        raise S3Error(
            "NoSuchVersion",
            "The specified version does not exist: versioning is not kept here",
            extra={"VersionId": version[:1024]},
        )


def entry_headers(entry: ObjectEntry) -> HeaderList:
    """Response headers that depend on the entry alone."""
    stored = {k: v for k, v in entry.headers.items() if not k.startswith(CHECKSUM)}
    stored.setdefault("content-type", "binary/octet-stream")
    return [
        (b"accept-ranges", b"bytes"),
        (b"etag", f'"{entry.etag}"'.encode("latin-1")),
        (b"last-modified", http_date(entry.modified_ns)),
        (b"x-hubspoke-version", entry.version.encode("latin-1")),
        *((k.encode("latin-1"), v.encode("latin-1")) for k, v in stored.items()),
    ]


def checksum_headers(headers: Mapping[str, str]) -> HeaderList:
    """The checksums among stored headers, as response headers."""
    return [(k.encode(), v.encode()) for k, v in headers.items() if k.startswith(CHECKSUM)]


def object_checksum_headers(headers: Mapping[str, str]) -> HeaderList:
    """The same for a whole object: they cover all of it, and not parts of it one by one."""
    found = checksum_headers(headers)
    return [*found, (b"x-amz-checksum-type", b"FULL_OBJECT")] if found else []


class ObjectReads:
    """GetObject and HeadObject of any reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._kept: dict[ObjectName, tuple[ObjectEntry, HeaderList]] = {}

    async def get(
        self,
        name: ObjectName,
        headers: Mapping[bytes, bytes],
        query: Mapping[str, str],
        client: str,
    ) -> Response:
        try:
            return await self._get(name, headers, query, client)
        except VersionChanged:
            # The object changed between the resolve and its first byte: once more, on the new one.
            return await self._get(name, headers, query, client)

    async def head(
        self, name: ObjectName, headers: Mapping[bytes, bytes], query: Mapping[str, str]
    ) -> Response:
        resolved = await self._reader.resolve(name)
        status, offset, length = _select(resolved.entry, headers, query)
        answer = self._headers(resolved, status, offset, length, headers, query)
        answer += staleness(resolved.staleness_s)
        return Response(status, answer, length=length)

    async def _get(
        self,
        name: ObjectName,
        headers: Mapping[bytes, bytes],
        query: Mapping[str, str],
        client: str,
    ) -> Response:
        resolved = await self._reader.resolve(name)
        status, offset, length = _select(resolved.entry, headers, query)
        if status == 304:
            answer = self._headers(resolved, status, 0, 0, headers, query)
            return Response(status, answer + staleness(resolved.staleness_s))
        result = await self._reader.read(resolved, offset, length, client)
        body = result.body
        if not isinstance(body, bytes | FileSpan):
            body = await _begun(body, result.length)
        answer = self._headers(result.resolved, status, offset, length, headers, query)
        if result.state is not None:
            if resolved.staleness_s is None:
                answer.append(_CACHE_HEADERS[result.state])
            else:
                answer += [_STALE, *staleness(resolved.staleness_s)]
        return Response(status, answer, body, length)

    def _headers(
        self,
        resolved: Resolved,
        status: int,
        offset: int,
        length: int,
        headers: Mapping[bytes, bytes],
        query: Mapping[str, str],
    ) -> HeaderList:
        entry = resolved.entry
        kept = self._kept.get(resolved.name)
        if kept is None or (kept[0] is not entry and kept[0] != entry):
            if len(self._kept) >= _KEPT_ENTRIES_MAX:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[resolved.name] = (entry, entry_headers(entry))
        answer = kept[1].copy()
        if status == 206:
            end = offset + length - 1
            answer.append((b"content-range", b"bytes %d-%d/%d" % (offset, end, entry.size)))
        elif headers.get(b"x-amz-checksum-mode", b"").upper() == b"ENABLED":
            answer += object_checksum_headers(entry.headers)
        if status != 304:
            answer.append((b"content-length", b"%d" % length))
        if query:
            answer = _overridden(answer, query)
        return answer


def _select(
    entry: ObjectEntry, headers: Mapping[bytes, bytes], query: Mapping[str, str]
) -> tuple[int, int, int]:
    """Status (200, 206, 304), offset and length of the answer. Raises S3Error."""
    header_range = headers.get(b"range")
    if not CONDITIONS.isdisjoint(headers):
        if evaluate(headers, entry) == 304:
            return 304, 0, 0
        if_range = headers.get(b"if-range")
        if if_range is not None and not range_applies(if_range, entry):
            header_range = None
    if query:
        check_version_id(query)
        if "partNumber" in query:
            return _select_part(entry, query["partNumber"])
    if header_range is not None:
        span = parse_range(header_range, entry.size)
        if span is not None:
            return 206, *span
    return 200, 0, entry.size


def _select_part(entry: ObjectEntry, number: str) -> tuple[int, int, int]:
    """The boundaries of parts are not kept: every object is its own first and only part."""
    if number != "1":
        raise S3Error(
            "InvalidPartNumber",
            "The requested partnumber is not satisfiable: parts are not kept after completion",
            headers=unsatisfiable(b"", entry.size).headers,
        )
    return (206 if entry.size else 200), 0, entry.size


async def _begun(body: Pieces, length: int) -> Pieces:
    """The body with its first buffer already waited for, so that an error that comes before any
    byte still becomes a status."""
    if length == 0:
        return body
    try:
        first = await anext(body)
    except BaseException:
        await close(body)
        raise
    return _Chained(first, body)


class _Chained:
    """`first`, then `rest`. Not a generator: one that was never started would not release a
    span when it is closed."""

    def __init__(self, first: bytes | FileSpan, rest: Pieces) -> None:
        self._first: bytes | FileSpan | None = first
        self._rest = rest

    def __aiter__(self) -> "_Chained":
        return self

    async def __anext__(self) -> bytes | FileSpan:
        first, self._first = self._first, None
        return await anext(self._rest) if first is None else first

    async def aclose(self) -> None:
        if isinstance(self._first, FileSpan):
            self._first.release()
        await close(self._rest)


def _overridden(answer: HeaderList, query: Mapping[str, str]) -> HeaderList:
    changed: dict[bytes, bytes] = {}
    for field, header in _OVERRIDES.items():
        value = query.get(field)
        if value is None:
            continue
        if not value.isprintable() or not value.isascii():
            raise S3Error("InvalidArgument", f"{field} is not a header value")
        changed[header] = value.encode()
    if not changed:
        return answer
    return [pair for pair in answer if pair[0] not in changed] + list(changed.items())
