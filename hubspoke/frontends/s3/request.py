"""A request of the S3 door: which bucket and key it means, its query and headers.

Keys are exact bytes: the raw path is percent-decoded once and never normalised, so `a//b`,
`a/../b`, `/lead` and `dir/` are themselves. What is not UTF-8 is refused, because a listing
could not show it.

Path style: /BUCKET/KEY. Virtual-host style: Host is BUCKET.DOMAIN for one of the door's domains
(only `localhost` unless told otherwise), and the whole path is the key. A host that is an IP
address or any other name means path style, so a spoke may be reached by any DNS name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

from hubspoke.core.ids import KEY_BYTES_MAX, ObjectName
from hubspoke.core.names import bucket_fault, key_fault
from hubspoke.frontends.asgi import Receive, Scope
from hubspoke.frontends.s3.errors import S3Error

_QUERY_FIELDS_MAX = 100


@dataclass(slots=True)
class Request:
    """headers: by lower-case name; repeated ones are joined with a comma. client: "host:port"."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    client: str
    path: bytes
    receive: Receive
    operation: str = ""
    body_read: bool = False  # the payload was taken to its end

    @property
    def name(self) -> ObjectName:
        return ObjectName(self.bucket, self.key)

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1").strip()

    @property
    def content_length(self) -> int | None:
        value = self.headers.get(b"content-length")
        return int(value) if value is not None and value.isdigit() else None


def host_bucket(host: bytes, domains: tuple[str, ...]) -> str:
    """Bucket named by a Host header, or "" for path style."""
    name = host.decode("latin-1").lower()
    if name.startswith("["):
        return ""
    name = name.partition(":")[0]
    for domain in domains:
        bucket = name.removesuffix("." + domain)
        if bucket != name and bucket_fault(bucket) is None:
            return bucket
    return ""


def split_path(raw: bytes, bucket: str) -> tuple[str, str]:
    """(bucket, key) of a raw, still encoded path. bucket: "" in path style.

    Raises S3Error InvalidURI, InvalidBucketName or KeyTooLongError.
    """
    try:
        path = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as e:
        raise S3Error("InvalidURI", "The key is not valid UTF-8") from e
    key = path[1:]
    if not bucket:
        bucket, _, key = key.partition("/")
        if not bucket and not key:
            return "", ""
        if fault := bucket_fault(bucket):
            raise S3Error(
                "InvalidBucketName",
                f"The specified bucket is not valid: {fault}",
                extra={"BucketName": bucket},
            )
    if key:
        check_key(key)
    return bucket, key


def check_key(key: str) -> None:
    """Raises S3Error KeyTooLongError or InvalidURI for a key that S3 does not allow."""
    fault = key_fault(key)
    if fault is None:
        return
    size = len(key.encode(errors="surrogatepass"))
    if size > KEY_BYTES_MAX:
        raise S3Error(
            "KeyTooLongError",
            "Your key is too long",
            extra={"Size": str(size), "MaxSizeAllowed": str(KEY_BYTES_MAX)},
        )
    raise S3Error("InvalidURI", f"The key cannot be used: {fault}")


def parse_query(query: bytes) -> dict[str, str]:
    """Fields of the query string; the first of a repeated one counts. Raises S3Error."""
    fields: dict[str, str] = {}
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_QUERY_FIELDS_MAX,
        )
    except ValueError as e:
        raise S3Error("InvalidURI", f"The query string cannot be read: {e}") from e
    for name, value in pairs:
        fields.setdefault(name, value)
    return fields


def merge_headers(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    merged: dict[bytes, bytes] = {}
    for name, value in pairs:
        merged[name] = merged[name] + b"," + value if name in merged else value
    return merged


def client_of(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
