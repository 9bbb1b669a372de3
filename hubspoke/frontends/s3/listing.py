"""ListBuckets, HeadBucket, GetBucketLocation, ListObjects (V1) and ListObjectsV2.

Keys come from the reader in the order of their UTF-8 bytes. With a delimiter, a whole group of
keys below a common prefix is jumped over as soon as a page ends inside it, so that listing a
"folder" costs one page per subfolder however large the subfolders are.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from hubspoke.core.ids import KEY_BYTES_MAX
from hubspoke.errors import NoSuchBucket
from hubspoke.frontends.s3.errors import S3Error
from hubspoke.frontends.s3.request import Request
from hubspoke.frontends.s3.response import Response, staleness, xml_response
from hubspoke.frontends.s3.xml import element, escape, timestamp
from hubspoke.ports import NamespaceRecord, Reader

_KEYS_MAX = 1000
# When a bucket was made is not known; `aws s3 ls` needs a date.
_BUCKET_DATE = "1970-01-01T00:00:00.000Z"
_REGION = b"us-east-1"


@dataclass(slots=True)
class _Page:
    records: list[NamespaceRecord] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    truncated: bool = False
    last: str = ""  # the last key or common prefix of the page
    last_is_prefix: bool = False
    staleness_s: float | None = None  # of its oldest part; None: all of it is current

    def __len__(self) -> int:
        return len(self.records) + len(self.prefixes)


def group_end(prefix: str) -> str:
    """The greatest string a legal key beginning with `prefix` can be, in UTF-8 order."""
    left = KEY_BYTES_MAX - len(prefix.encode())
    tail = ("", "\x7f", "\u07ff", "\uffff")[left % 4] if left > 0 else ""
    return prefix + "\U0010ffff" * (left // 4) + tail


async def collect(
    reader: Reader, bucket: str, *, prefix: str, delimiter: str, after: str, keys_max: int
) -> _Page:
    """At most `keys_max` keys and common prefixes behind `after`."""
    page = _Page()
    if keys_max == 0:
        return page
    limit = min(keys_max + 1, _KEYS_MAX)
    group = ""  # common prefix that the walk is in
    while True:
        records = await reader.list_page(bucket, prefix=prefix, after=after, limit=limit)
        if (age := reader.staleness_s()) is not None:
            page.staleness_s = max(age, page.staleness_s or 0.0)
        if not records:
            return page
        skipped = 0
        for record in records:
            key = record.name.key
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
                page.records.append(record)
                page.last, page.last_is_prefix = key, False
        after = group_end(group) if group else records[-1].name.key
        # Small pages while groups are large: what lies inside a group is read for nothing.
        limit = max(limit // 4, 16) if skipped > limit // 2 else min(limit * 2, _KEYS_MAX)


class Listings:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def list_buckets(self, request: Request) -> Response:
        names = await self._reader.buckets()
        age = staleness(self._reader.staleness_s())
        buckets = "".join(
            f"<Bucket><Name>{escape(name)}</Name><CreationDate>{_BUCKET_DATE}</CreationDate></Bucket>"
            for name in sorted(names)
        )
        owner = "<Owner><ID>hubspoke</ID><DisplayName>hubspoke</DisplayName></Owner>"
        return xml_response("ListAllMyBucketsResult", f"{owner}<Buckets>{buckets}</Buckets>", age)

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
        parts = [
            element("Name", request.bucket),
            element("Prefix", name(prefix)),
            element("Delimiter", name(delimiter)) if delimiter else "",
            element("MaxKeys", keys_max),
            element("EncodingType", "url") if name is _quoted else "",
            element("KeyCount", len(page)),
            element("IsTruncated", str(page.truncated).lower()),
            element("ContinuationToken", token) if token is not None else "",
            element("NextContinuationToken", _token(page)) if page.truncated else "",
            element("StartAfter", name(query["start-after"])) if "start-after" in query else "",
            *_entries(page, name),
        ]
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
            element("Prefix", name(prefix)),
            element("Marker", name(marker)),
            element("Delimiter", name(delimiter)) if delimiter else "",
            element("MaxKeys", keys_max),
            element("EncodingType", "url") if name is _quoted else "",
            element("IsTruncated", str(page.truncated).lower()),
            element("NextMarker", name(page.last)) if page.truncated else "",
            *_entries(page, name),
        ]
        return xml_response("ListBucketResult", "".join(parts), staleness(page.staleness_s))

    async def check_bucket(self, bucket: str) -> None:
        if bucket not in await self._reader.buckets():
            raise NoSuchBucket(f"The specified bucket does not exist: {bucket}")


def count_of(query: Mapping[str, str], field: str, most: int) -> int:
    """A number of results asked for, at most `most`. Raises S3Error InvalidArgument."""
    value = query.get(field)
    if not value:
        return most
    if not value.isascii() or not value.isdigit() or len(value) > 10:
        raise S3Error(
            "InvalidArgument",
            f"Provided {field} not an integer or within integer range",
            extra={"ArgumentName": field, "ArgumentValue": value[:100]},
        )
    return min(int(value), most)


def _quoted(text: str) -> str:
    return quote(text, safe="/")


def _plain(text: str) -> str:
    return text


def _encoding(query: Mapping[str, str]) -> Callable[[str], str]:
    """How names are written in the answer."""
    match query.get("encoding-type"):
        case None:
            return _plain
        case "url":
            return _quoted
        case other:
            raise S3Error(
                "InvalidArgument",
                "Invalid Encoding Method specified in Request",
                extra={"ArgumentName": "encoding-type", "ArgumentValue": other[:100]},
            )


def _entries(page: _Page, name: Callable[[str], str]) -> list[str]:
    parts = []
    for record in page.records:
        entry = record.entry
        parts.append(
            f"<Contents><Key>{escape(name(record.name.key))}</Key>"
            f"<LastModified>{timestamp(entry.modified_ns)}</LastModified>"
            f"<ETag>&quot;{escape(entry.etag)}&quot;</ETag><Size>{entry.size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    for prefix in page.prefixes:
        parts.append(f"<CommonPrefixes><Prefix>{escape(name(prefix))}</Prefix></CommonPrefixes>")
    return parts


def _token(page: _Page) -> str:
    """Where the next page begins, opaque to clients: kind and name of the last item."""
    kind = "p" if page.last_is_prefix else "k"
    return base64.urlsafe_b64encode((kind + page.last).encode()).decode()


def _after(token: str) -> str:
    try:
        text = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        text = ""
    if text[:1] == "p":
        return group_end(text[1:])
    if text[:1] == "k":
        return text[1:]
    raise S3Error(
        "InvalidArgument",
        "The continuation token provided is incorrect",
        extra={"ArgumentName": "continuation-token"},
    )
