"""ListBuckets, HeadBucket, GetBucketLocation, ListObjects (V1) and ListObjectsV2.

Keys come from the reader in the order of their UTF-8 bytes. With a delimiter, a whole group of
keys below a common prefix is jumped over as soon as a slice ends inside it, so that listing a
"folder" costs one slice per subfolder however large the subfolders are. A page is collected and
written in slices, between which other requests have their turn.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

from hubspoke.core.namespace import Listed, group_end
from hubspoke.errors import NoSuchBucket
from hubspoke.frontends.s3.errors import S3Error
from hubspoke.frontends.s3.request import Request
from hubspoke.frontends.s3.response import Response, staleness, xml_response
from hubspoke.frontends.s3.xml import PLAIN, URL, Written, element
from hubspoke.frontends.s3.xml import timestamp as written_time
from hubspoke.ports import Reader

_KEYS_MAX = 1000
_COUNT_MAX = 2**31 - 1
_BUCKETS_MAX = 10_000
# 0.5 ms of the loop: a read that comes meanwhile waits no longer (bench/namespace_processes.py).
SLICE = 250
# When a bucket was made is not known; `aws s3 ls` needs a date.
_BUCKET_DATE = "1970-01-01T00:00:00.000Z"
_REGION = b"us-east-1"
_OWNER = "<Owner><ID>hubspoke</ID><DisplayName>hubspoke</DisplayName></Owner>"


@dataclass(slots=True)
class _Page:
    objects: list[Listed] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    truncated: bool = False
    last: str = ""  # the last key or common prefix of the page
    last_is_prefix: bool = False
    staleness_s: float | None = None  # of its oldest part; None: all of it is current

    def __len__(self) -> int:
        return len(self.objects) + len(self.prefixes)


async def collect(
    reader: Reader, bucket: str, *, prefix: str, delimiter: str, after: str, keys_max: int
) -> _Page:
    """At most `keys_max` keys and common prefixes behind `after`."""
    page = _Page()
    limit = min(keys_max + 1, SLICE)
    group = ""  # common prefix that the walk is in
    while keys_max:
        found = await reader.list_page(bucket, prefix=prefix, after=after, limit=limit)
        if (age := reader.staleness_s()) is not None:
            page.staleness_s = max(age, page.staleness_s or 0.0)
        skipped = 0
        for listed in found:
            key = listed[0]
            if group and key.startswith(group):
                skipped += 1
                continue
            if len(page) == keys_max:
                page.truncated = True
                return page
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                group = key[: cut + len(delimiter)]
                page.prefixes.append(group)
                page.last, page.last_is_prefix = group, True
            else:
                group = ""
                page.objects.append(listed)
                page.last, page.last_is_prefix = key, False
        if len(found) < limit:
            return page
        after = group_end(group) if group else found[-1][0]
        # Small slices while groups are large: what lies inside a group is read for nothing.
        limit = max(limit // 4, 16) if skipped > limit // 2 else min(limit * 2, SLICE)
        await asyncio.sleep(0)
    return page


class Listings:
    """The operations on buckets that only read."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def list_buckets(self, request: Request) -> Response:
        query = request.query
        prefix, token = query.get("prefix", ""), query.get("continuation-token")
        most = count_of(query, "max-buckets", _BUCKETS_MAX)
        if most == 0:
            raise _bad("max-buckets", "0", f"max-buckets must be between 1 and {_BUCKETS_MAX}")
        after = "" if token is None else _after(token)
        names = await self._reader.buckets()
        age = staleness(self._reader.staleness_s())
        found = [n for n in sorted(names) if n.startswith(prefix) and n > after]
        buckets = "".join(
            f"<Bucket>{element('Name', name)}<CreationDate>{_BUCKET_DATE}</CreationDate></Bucket>"
            for name in found[:most]
        )
        more = _token(found[most - 1], is_prefix=False) if len(found) > most else ""
        parts = [
            f"{_OWNER}<Buckets>{buckets}</Buckets>",
            element("ContinuationToken", more) if more else "",
            element("Prefix", prefix) if "prefix" in query else "",
        ]
        return xml_response("ListAllMyBucketsResult", "".join(parts), age)

    async def head_bucket(self, request: Request) -> Response:
        await self.check_bucket(request.bucket)
        age = staleness(self._reader.staleness_s())
        return Response(200, [(b"x-amz-bucket-region", _REGION), *age])

    async def bucket_location(self, request: Request) -> Response:
        await self.check_bucket(request.bucket)
        age = staleness(self._reader.staleness_s())
        return xml_response("LocationConstraint", "", age)  # empty means us-east-1

    async def list_v2(self, request: Request) -> Response:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys_max = count_of(query, "max-keys", _KEYS_MAX)
        token = query.get("continuation-token")
        after = _after(token) if token is not None else query.get("start-after", "")
        name = _encoding(query)
        await self.check_bucket(request.bucket)
        page = await collect(
            self._reader,
            request.bucket,
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            keys_max=keys_max,
        )
        last = _token(page.last, is_prefix=page.last_is_prefix)
        owner = _OWNER if query.get("fetch-owner", "").lower() == "true" else ""
        parts = [
            element("Name", request.bucket),
            f"<Prefix>{name.one(prefix)}</Prefix>",
            f"<Delimiter>{name.one(delimiter)}</Delimiter>" if delimiter else "",
            element("MaxKeys", keys_max),
            element("EncodingType", "url") if name is URL else "",
            element("KeyCount", len(page)),
            element("IsTruncated", str(page.truncated).lower()),
            element("ContinuationToken", token) if token is not None else "",
            element("NextContinuationToken", last) if page.truncated else "",
        ]
        if "start-after" in query:
            parts.append(f"<StartAfter>{name.one(query['start-after'])}</StartAfter>")
        parts += await _entries(page, name, owner)
        return xml_response("ListBucketResult", "".join(parts), staleness(page.staleness_s))

    async def list_v1(self, request: Request) -> Response:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys_max = count_of(query, "max-keys", _KEYS_MAX)
        marker = query.get("marker", "")
        name = _encoding(query)
        await self.check_bucket(request.bucket)
        # A marker that is a common prefix was the end of a page: go on behind its group.
        is_group = (
            bool(delimiter)
            and marker.startswith(prefix)
            and marker.find(delimiter, len(prefix)) == len(marker) - len(delimiter) >= len(prefix)
        )
        page = await collect(
            self._reader,
            request.bucket,
            prefix=prefix,
            delimiter=delimiter,
            after=group_end(marker) if is_group else marker,
            keys_max=keys_max,
        )
        parts = [
            element("Name", request.bucket),
            f"<Prefix>{name.one(prefix)}</Prefix>",
            f"<Marker>{name.one(marker)}</Marker>",
            f"<Delimiter>{name.one(delimiter)}</Delimiter>" if delimiter else "",
            element("MaxKeys", keys_max),
            element("EncodingType", "url") if name is URL else "",
            element("IsTruncated", str(page.truncated).lower()),
            f"<NextMarker>{name.one(page.last)}</NextMarker>" if page.truncated else "",
        ]
        parts += await _entries(page, name, _OWNER)
        return xml_response("ListBucketResult", "".join(parts), staleness(page.staleness_s))

    async def check_bucket(self, bucket: str) -> None:
        if bucket not in await self._reader.buckets():
            raise NoSuchBucket(f"The specified bucket does not exist: {bucket}")


def _bad(field: str, value: str, message: str) -> S3Error:
    extra = {"ArgumentName": field, "ArgumentValue": value[:100]}
    return S3Error("InvalidArgument", message, extra=extra)


def count_of(query: Mapping[str, str], field: str, most: int) -> int:
    """A number of results asked for, at most `most`. Raises S3Error InvalidArgument."""
    value = query.get(field)
    if not value:
        return most
    digits = value.isascii() and value.isdigit() and len(value) <= 20
    if not digits or int(value) > _COUNT_MAX:
        raise _bad(field, value, f"{field} must be an integer between 0 and {_COUNT_MAX}")
    return min(int(value), most)


def _encoding(query: Mapping[str, str]) -> Written:
    """How names are written in the answer."""
    match query.get("encoding-type"):
        case None:
            return PLAIN
        case "url":
            return URL
        case other:
            raise _bad("encoding-type", other, "Invalid Encoding Method specified in Request")


async def _entries(page: _Page, name: Written, owner: str) -> list[str]:
    """The page's objects, a slice at a time, and common prefixes."""
    parts = []
    for at in range(0, len(page.objects), SLICE):
        objects = page.objects[at : at + SLICE]
        keys = name.many([key for key, _, _, _ in objects])
        etags = PLAIN.many([etag for _, _, etag, _ in objects])
        parts += [
            f"<Contents><Key>{key}</Key><LastModified>{written_time(modified_ns)}</LastModified>"
            f"<ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size>{owner}"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key, etag, (_, size, _, modified_ns) in zip(keys, etags, objects, strict=True)
        ]
        await asyncio.sleep(0)
    for prefix in name.many(page.prefixes):
        parts.append(f"<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>")
    return parts


def _token(last: str, *, is_prefix: bool) -> str:
    """Where the next page begins, opaque to clients: kind and name of the last item. It holds
    all there is to know, so it outlives restarts and is understood by every hub and spoke."""
    return base64.urlsafe_b64encode((("p" if is_prefix else "k") + last).encode()).decode()


def _after(token: str) -> str:
    try:
        text = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        text = ""
    if text[:1] == "p" and len(text) > 1:
        return group_end(text[1:])
    if text[:1] == "k" and len(text) > 1:
        return text[1:]
    raise _bad("continuation-token", token, "The continuation token provided is incorrect")
