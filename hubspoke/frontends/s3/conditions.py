"""Preconditions and byte ranges of a request, as RFC 9110 sections 13 and 14 and S3 have them.

Pure functions over headers and an entry.
"""

import re
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime

from hubspoke.core.ids import ObjectEntry
from hubspoke.frontends.s3.errors import S3Error

CONDITIONS = frozenset(
    {b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range"}
)
_RANGE = re.compile(rb"bytes=(\d*)-(\d*)\Z", re.ASCII)
_ENTITY_TAGS = re.compile(r'\s*(?:W/)?(?:"([^"]*)"|([^",\s]+))\s*(?:,|\Z)')


def http_date(unix_ns: int) -> bytes:
    return formatdate(unix_ns // 1_000_000_000, usegmt=True).encode()


def _date(value: bytes | None) -> float | None:
    if value is None:
        return None
    try:
        return parsedate_to_datetime(value.decode("latin-1")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None  # RFC 9110: a recipient must ignore a date that does not parse


def _names_etag(header: bytes, etag: str) -> bool:
    """Does an If-Match or If-None-Match list hold `etag`, or "*"? Quotes are optional, as in S3."""
    text = header.decode("latin-1").strip()
    return text == "*" or any(
        (quoted or bare) == etag for quoted, bare in _ENTITY_TAGS.findall(text)
    )


def evaluate(headers: Mapping[bytes, bytes], entry: ObjectEntry, prefix: bytes = b"") -> int:
    """200 to go on, 304 for "not modified" (GET and HEAD), or S3Error PreconditionFailed.

    prefix: b"x-amz-copy-source-" for the conditions of a copy, where 304 is an error as well.
    """
    modified_s = entry.modified_ns // 1_000_000_000
    if_match = headers.get(prefix + b"if-match")
    if if_match is not None:
        if not _names_etag(if_match, entry.etag):
            raise _failed("If-Match")
    else:
        since = _date(headers.get(prefix + b"if-unmodified-since"))
        if since is not None and modified_s > since:
            raise _failed("If-Unmodified-Since")
    if_none_match = headers.get(prefix + b"if-none-match")
    if if_none_match is not None:
        unchanged = _names_etag(if_none_match, entry.etag)
    else:
        since = _date(headers.get(prefix + b"if-modified-since"))
        unchanged = since is not None and modified_s <= since
    if not unchanged:
        return 200
    if prefix:
        raise _failed("If-None-Match" if if_none_match is not None else "If-Modified-Since")
    return 304


def range_applies(if_range: bytes, entry: ObjectEntry) -> bool:
    """False when If-Range names another version: then the whole object is sent."""
    value = if_range.decode("latin-1").strip()
    if value.startswith('"') or "," not in value:
        return value.strip('"') == entry.etag
    date = _date(if_range)
    return date is not None and date == entry.modified_ns // 1_000_000_000


def parse_range(header: bytes, size: int) -> tuple[int, int] | None:
    """(offset, length) within an object of `size` bytes; None if the header is to be ignored.

    Ignored, as RFC 9110 14.2 asks and S3 does: other units, malformed or reversed ranges, several
    ranges. Raises S3Error InvalidRange if no byte of the object lies in the range.
    """
    match = _RANGE.match(header)
    if match is None or (not match[1] and not match[2]):
        return None
    if not match[1]:
        length = min(_int(match[2]), size)
        if length == 0:
            raise unsatisfiable(header, size)
        return size - length, length
    first = _int(match[1])
    last = _int(match[2]) if match[2] else max(first, size - 1)
    if last < first:
        return None
    if first >= size:
        raise unsatisfiable(header, size)
    return first, min(last, size - 1) - first + 1


def _int(digits: bytes) -> int:
    """The number, cut to 20 digits: beyond any size, and int() refuses 4,301 of them."""
    return int(digits.lstrip(b"0")[:20] or b"0")


def unsatisfiable(header: bytes, size: int) -> S3Error:
    return S3Error(
        "InvalidRange",
        "The requested range is not satisfiable",
        extra={"RangeRequested": header.decode("latin-1"), "ActualObjectSize": str(size)},
        headers=[(b"content-range", b"bytes */%d" % size)],
    )


def _failed(condition: str) -> S3Error:
    return S3Error(
        "PreconditionFailed",
        "At least one of the preconditions you specified did not hold",
        extra={"Condition": condition},
    )
