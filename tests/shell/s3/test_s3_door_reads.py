"""The S3 door answers GET, HEAD and lists as S3 does."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, IncompleteReadError

from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectName, ReadState
from hubspoke.errors import (
    DeadlineExceeded,
    HubSpokeError,
    HubUnavailable,
    Overloaded,
    StoreUnavailable,
    VersionChanged,
)
from hubspoke.frontends.s3 import S3DoorTuning
from hubspoke.ports import ReadResult, Resolved
from tests.shell.s3.conftest import BUCKET, WAIT_S, Door, RawAnswer, running_door
from tests.store_service import StoreService

DATA = bytes(range(256)) * 4


@pytest.fixture
def stored(door: Door) -> Door:
    door.client.put_object(Bucket=BUCKET, Key="k", Body=DATA, ContentType="text/x")
    return door


@pytest.fixture
def spoke(service: StoreService) -> Iterator[Door]:
    service.state = ReadState.HIT
    with running_door(service) as hub:
        hub.client.put_object(Bucket=BUCKET, Key="k", Body=DATA)
    with running_door(service, read_only=True) as door:
        yield door


def get(door: Door, *headers: str, path: str = "/data/k") -> RawAnswer:
    return door.request("\n".join([f"GET {path}", *headers]))


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=1000-", 1000, 1024),
        ("bytes=1000-5000", 1000, 1024),
        ("bytes=1023-1023", 1023, 1024),
        ("bytes=-1", 1023, 1024),
        ("bytes=-24", 1000, 1024),
        ("bytes=-5000", 0, 1024),
        ("bytes=5-99999999999999999999999999", 5, 1024),
    ],
)
def test_range_is_answered_with_206(stored: Door, header: str, start: int, stop: int) -> None:
    answer = get(stored, f"Range: {header}")
    assert answer.status == 206
    assert answer.body == DATA[start:stop]
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/1024"
    assert answer.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize(
    "header", ["bytes=1024-", "bytes=1024-2000", "bytes=-0", f"bytes={'9' * 5000}-"]
)
def test_range_outside_of_the_object_is_416(stored: Door, header: str) -> None:
    answer = get(stored, f"Range: {header}")
    assert (answer.status, answer.code) == (416, "InvalidRange")
    assert answer.headers["content-range"] == "bytes */1024"
    assert b"<ActualObjectSize>1024</ActualObjectSize>" in answer.body


@pytest.mark.parametrize(
    "header",
    ["bytes=20-10", "bytes=", "bytes=-", "bytes=a-b", "lines=1-2", "bytes=0-1,5-6", "bytes=1-2-3"],
)
def test_reversed_malformed_and_multiple_ranges_are_ignored(stored: Door, header: str) -> None:
    answer = get(stored, f"Range: {header}")
    assert (answer.status, answer.body) == (200, DATA)
    assert "content-range" not in answer.headers


def test_no_range_of_an_empty_object_can_be_satisfied(door: Door) -> None:
    door.client.put_object(Bucket=BUCKET, Key="k", Body=b"")
    assert get(door).status == 200
    assert get(door, "Range: bytes=0-").status == 416
    assert get(door, "Range: bytes=-1").status == 416


def test_headers_of_an_object(stored: Door) -> None:
    whole = get(stored)
    assert whole.headers["content-length"] == "1024"
    assert whole.headers["content-type"] == "text/x"
    assert whole.headers["etag"].startswith('"') and whole.headers["etag"].endswith('"')
    assert whole.headers["last-modified"].endswith("GMT")
    assert whole.headers["x-amz-request-id"]
    assert "x-hubspoke-cache" not in whole.headers, "a hub is no cache"
    with stored.raw(b"HEAD /data/k HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        head = connection.answer(head_request=True)
        connection.send(b"GET /data/k HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.answer().body == DATA, "a HEAD has no body"
    varying = ("date", "x-amz-request-id", "connection")
    assert {k: v for k, v in head.headers.items() if k not in varying} == {
        k: v for k, v in whole.headers.items() if k not in varying
    }


def test_preconditions(stored: Door) -> None:
    etag = get(stored).headers["etag"]
    modified = get(stored).headers["last-modified"]
    past, future = "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 2094 08:49:37 GMT"
    expected = {
        f"If-Match: {etag}": 200,
        f"If-Match: {etag[1:-1]}": 200,
        f'If-Match: "other", {etag}': 200,
        "If-Match: *": 200,
        'If-Match: "other"': 412,
        f"If-None-Match: {etag}": 304,
        "If-None-Match: *": 304,
        'If-None-Match: "other"': 200,
        f"If-Modified-Since: {past}": 200,
        f"If-Modified-Since: {modified}": 304,
        "If-Modified-Since: no date": 200,
        f"If-Unmodified-Since: {past}": 412,
        f"If-Unmodified-Since: {future}": 200,
        f"If-Match: {etag}\nIf-Unmodified-Since: {past}": 200,
        f'If-None-Match: "other"\nIf-Modified-Since: {future}': 200,
        f"If-Match: {etag}\nRange: bytes=0-9": 206,
        f"If-Range: {etag}\nRange: bytes=0-9": 206,
        'If-Range: "other"\nRange: bytes=0-9': 200,
        f"If-Range: {modified}\nRange: bytes=0-9": 206,
    }
    found = {headers: get(stored, headers).status for headers in expected}
    assert found == expected
    assert get(stored, 'If-Match: "other"').code == "PreconditionFailed"
    assert get(stored, f"If-None-Match: {etag}").headers["etag"] == etag


def test_response_headers_can_be_overridden(stored: Door) -> None:
    answer = get(
        stored, path="/data/k?response-content-type=a%2Fb&response-content-disposition=x%20y"
    )
    assert answer.headers["content-type"] == "a/b"
    assert answer.headers["content-disposition"] == "x y"
    hostile = get(stored, path="/data/k?response-content-type=a%0d%0aset-cookie:%20x")
    assert (hostile.status, hostile.code) == (400, "InvalidArgument")


def test_checksum_is_given_for_whole_objects_when_asked_for(stored: Door) -> None:
    mode = "x-amz-checksum-mode: ENABLED"
    assert "x-amz-checksum-crc32" in get(stored, mode).headers
    assert "x-amz-checksum-crc32" not in get(stored).headers
    assert "x-amz-checksum-crc32" not in get(stored, mode, "Range: bytes=0-9").headers


def test_other_versions_and_parts_do_not_exist(stored: Door) -> None:
    assert get(stored, path="/data/k?versionId=null").status == 200
    assert get(stored, path="/data/k?versionId=abc").code == "NoSuchVersion"
    assert get(stored, path="/data/k?partNumber=1").status == 206
    assert get(stored, path="/data/k?partNumber=2").status == 416


def test_unknown_bucket_and_key(stored: Door) -> None:
    missing = get(stored, path="/data/none")
    assert (missing.status, missing.code) == (404, "NoSuchKey")
    assert b"<Resource>/data/none</Resource>" in missing.body
    assert missing.headers["x-amz-request-id"].encode() in missing.body
    for path in ("/none/k", "/none", "/none?list-type=2", "/none?location"):
        answer = get(stored, path=path)
        assert (answer.status, answer.code) == (404, "NoSuchBucket"), path
    illegal = get(stored, path="/No_Bucket/k")
    assert (illegal.status, illegal.code) == (400, "InvalidBucketName")
    with stored.raw(b"HEAD /data/none HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        head = connection.answer(head_request=True)
        assert head.status == 404
        connection.send(b"HEAD /none HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.answer(head_request=True).status == 404
    assert stored.client.head_bucket(Bucket=BUCKET)["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_what_is_not_implemented_says_its_name(stored: Door) -> None:
    expected = {
        "GET /data/k?acl": "GetObjectAcl",
        "PUT /data?policy": "PutBucketPolicy",
        "GET /data?versioning": "GetBucketVersioning",
        "GET /data?versions": "ListObjectVersions",
        "DELETE /data/k?tagging": "DeleteObjectTagging",
        "POST /data/k?select&select-type=2": "SelectObjectContent",
        "POST /data/k?restore": "RestoreObject",
        "POST /data": "PostObject",
        "GET /data?publicAccessBlock": "GetPublicAccessBlock",
        "GET /data/k?attributes": "GetObjectAttributes",
    }
    for request, operation in expected.items():
        answer = stored.request(request + "\nContent-Length: 0")
        assert (answer.status, answer.code) == (501, "NotImplemented"), request
        assert f"{operation} is not implemented".encode() in answer.body, request
    assert stored.request("PATCH /data/k\nContent-Length: 0").code == "MethodNotAllowed"


def test_writes_at_a_spoke_are_refused_by_name(spoke: Door) -> None:
    expected = {
        "PUT /data/k": "PutObject",
        "PUT /data/k\nx-amz-copy-source: /data/k": "CopyObject",
        "DELETE /data/k": "DeleteObject",
        "POST /data?delete": "DeleteObjects",
        "POST /data/k?uploads": "CreateMultipartUpload",
        "PUT /data/k?partNumber=1&uploadId=x": "UploadPart",
        "POST /data/k?uploadId=x": "CompleteMultipartUpload",
        "PUT /new-bucket": "CreateBucket",
    }
    for request, operation in expected.items():
        answer = spoke.request(request + "\nContent-Length: 3", b"abc")
        assert (answer.status, answer.code) == (501, "NotImplemented"), request
        assert operation.encode() in answer.body
    with pytest.raises(ClientError, match="PutObject is not implemented here"):
        spoke.client.put_object(Bucket=BUCKET, Key="k", Body=bytes(8 << 20))


def test_spoke_says_what_a_read_was(spoke: Door, service: StoreService) -> None:
    entry = service.entries[ObjectName(BUCKET, "k")]
    for state in ReadState:
        service.state = state
        answer = get(spoke, "Range: bytes=0-9")
        assert answer.headers["x-hubspoke-cache"] == state.value
        assert answer.headers["x-hubspoke-version"] == entry.version
        assert "x-hubspoke-staleness" not in answer.headers
    service.age_s = 12.5
    stale = get(spoke, "Range: bytes=0-9")
    assert stale.headers["x-hubspoke-cache"] == "stale"
    assert float(stale.headers["x-hubspoke-staleness"]) == 12.5
    head = spoke.client.head_object(Bucket=BUCKET, Key="k")["ResponseMetadata"]["HTTPHeaders"]
    assert head["x-hubspoke-version"] == entry.version
    assert float(head["x-hubspoke-staleness"]) == 12.5


@pytest.mark.parametrize(
    "request_",
    [
        "GET /data?list-type=2",
        "GET /data?list-type=2&max-keys=1",
        "GET /data",
        "GET /",
        "HEAD /data",
        "GET /data?location",
        "GET /data/absent",
        "HEAD /data/absent",
        "GET /absent?list-type=2",
        "GET /data/k\nIf-None-Match: *",
    ],
)
def test_every_answer_from_names_says_how_old_it_may_be(
    spoke: Door, service: StoreService, request_: str
) -> None:
    current = spoke.request(request_)
    assert "x-hubspoke-staleness" not in current.headers
    service.age_s = 2.5
    stale = spoke.request(request_)
    assert stale.status == current.status
    assert stale.headers["x-hubspoke-staleness"] == "2.500"


def test_client_of_a_read_is_its_connection(stored: Door, service: StoreService) -> None:
    service.clients.clear()
    with stored.raw(b"GET /data/k HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        connection.answer()
        host, port = connection.socket.getsockname()
    assert service.clients == [f"{host}:{port}"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HubUnavailable, "SlowDown"),
        (Overloaded, "SlowDown"),
        (DeadlineExceeded, "SlowDown"),
        (StoreUnavailable, "ServiceUnavailable"),
        (VersionChanged, "SlowDown"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_operating_errors_are_503(
    stored: Door, error: type[HubSpokeError], code: str, streamed: bool
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        raise error("as the test wants it")
        yield b""

    async def read(resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        if streamed:
            return ReadResult(resolved, offset, length, broken())
        raise error("as the test wants it")

    stored.service.read = read  # type: ignore[method-assign]
    answer = get(stored)
    assert (answer.status, answer.code) == (503, code)


def test_changed_object_is_resolved_once_more(stored: Door, service: StoreService) -> None:
    entry = service.entries[ObjectName(BUCKET, "k")]
    stored.client.put_object(Bucket=BUCKET, Key="k", Body=b"new")
    current = service.resolve
    answers = [entry]

    async def resolve(name: ObjectName) -> Resolved:
        return Resolved(name, answers.pop()) if answers else await current(name)

    service.resolve = resolve  # type: ignore[method-assign]
    assert get(stored).body == b"new"
    assert not answers


def test_streamed_body_is_whole(service: StoreService) -> None:
    service.streamed = 100
    with running_door(service) as door:
        door.client.put_object(Bucket=BUCKET, Key="k", Body=DATA)
        assert door.client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == DATA
        with door.raw(b"GET /data/k HTTP/1.1\r\nHost: x\r\nRange: bytes=5-904\r\n\r\n") as c:
            assert c.answer().body == DATA[5:905]
            c.send(b"GET /data/k HTTP/1.1\r\nHost: x\r\n\r\n")
            assert c.answer().body == DATA


@pytest.mark.parametrize("short", [False, True])
def test_error_after_the_headers_breaks_the_body(
    stored: Door, short: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield DATA[:100]
        if not short:
            raise HubUnavailable("the line is cut")

    async def read(resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        return ReadResult(resolved, offset, length, pieces())

    stored.service.read = read  # type: ignore[method-assign]
    body = stored.client.get_object(Bucket=BUCKET, Key="k")["Body"]
    with pytest.raises((IncompleteReadError, Exception), match=r"IncompleteRead|924 more"):
        body.read()
    with stored.raw(b"GET /data/k HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        answer = connection.answer()
        assert answer.headers["content-length"] == "1024"
        assert answer.body == DATA[:100]
        assert connection.is_closed()


def test_reader_is_given_up_when_the_client_leaves(stored: Door) -> None:
    begun, closed = threading.Event(), threading.Event()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            yield DATA[:100]
            begun.set()
            await asyncio.sleep(WAIT_S)
        finally:
            closed.set()

    async def read(resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        return ReadResult(resolved, offset, length, pieces())

    stored.service.read = read  # type: ignore[method-assign]
    with stored.raw(b"GET /data/k HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        assert begun.wait(WAIT_S)
        assert not closed.is_set()
        connection.socket.recv(100)
    assert closed.wait(WAIT_S)


def test_client_that_takes_nothing_is_disconnected(service: StoreService) -> None:
    closed = threading.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            closed.set()

    async def read(resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        return ReadResult(resolved, offset, length, endless())

    with running_door(service, tuning=S3DoorTuning(send_stall_s=0.2)) as door:
        door.client.put_object(Bucket=BUCKET, Key="k", Body=DATA)
        entry = service.entries[ObjectName(BUCKET, "k")]
        huge = type(entry)(entry.version, 1 << 40, entry.etag, entry.modified_ns)
        service.entries[ObjectName(BUCKET, "k")] = huge
        service.read = read  # type: ignore[method-assign]
        with door.raw(b"GET /data/k HTTP/1.1\r\nHost: x\r\n\r\n"):
            assert closed.wait(WAIT_S)


def test_slow_reader_gets_every_byte(service: StoreService) -> None:
    service.streamed = 1 << 18
    data = bytes(range(256)) * (1 << 14)
    with running_door(service) as door:
        door.client.put_object(Bucket=BUCKET, Key="k", Body=data)
        with door.raw(b"GET /data/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as c:
            received = b""
            while piece := c.socket.recv(1 << 20):
                received += piece
                time.sleep(0.01)  # slower than the door sends: that is what is tested
    assert received.partition(b"\r\n\r\n")[2] == data


def test_pipelined_requests_are_answered_in_order(stored: Door) -> None:
    request = b"GET /data/k HTTP/1.1\r\nHost: x\r\nRange: bytes=%d-%d\r\n\r\n"
    with stored.raw(b"".join(request % (i, i + 9) for i in range(50))) as connection:
        for i in range(50):
            assert connection.answer().body == DATA[i : i + 10]


def test_virtual_host_names_the_bucket(stored: Door) -> None:
    def ask(path: str, host: str) -> RawAnswer:
        with stored.raw(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()) as connection:
            return connection.answer()

    assert ask("/k", "data.localhost").body == DATA
    assert ask("/k", f"data.localhost:{stored.port}").body == DATA
    assert ask("/data/k", "data.localhost").code == "NoSuchKey"
    for host in ("localhost", "127.0.0.1:8080", "[::1]:80", "data.example.com", "spoke"):
        assert ask("/data/k", host).body == DATA, host
    assert b"<Key>k</Key>" in ask("/?list-type=2", "data.localhost").body


def test_list_buckets_and_location(stored: Door) -> None:
    assert [b["Name"] for b in stored.client.list_buckets()["Buckets"]] == [BUCKET]
    assert stored.client.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] is None


def test_inner_applications_share_the_port(service: StoreService) -> None:
    from hubspoke.frontends.asgi import Receive, Scope, Send
    from hubspoke.frontends.s3 import S3App
    from tests.shell.s3.conftest import serving

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    app = S3App(service, None, inner={"/_hubspoke/v1/": inner})
    with serving(app, service) as door:
        assert door.request("GET /_hubspoke/v1/feed").status == 299
        assert door.request("GET /_hubspoke/v2").code == "InvalidBucketName"


def listed(client: Any, **arguments: Any) -> tuple[list[str], list[str]]:
    keys: list[str] = []
    prefixes: list[str] = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, **arguments):
        assert page["KeyCount"] == len(page.get("Contents", [])) + len(
            page.get("CommonPrefixes", [])
        )
        keys += [c["Key"] for c in page.get("Contents", [])]
        prefixes += [p["Prefix"] for p in page.get("CommonPrefixes", [])]
    return keys, prefixes


KEYS = ["a", "a/1", "a/2", "a/b/3", "a0", "b/", "b/1", "c", "d//e", "d//f", "é/1"]


@pytest.fixture
def many(door: Door) -> Door:
    for key in KEYS:
        door.client.put_object(Bucket=BUCKET, Key=key, Body=b"")
    return door


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_listing_pages(many: Door, page_size: int) -> None:
    def ls(**arguments: Any) -> tuple[list[str], list[str]]:
        return listed(many.client, PaginationConfig={"PageSize": page_size}, **arguments)

    assert ls() == (KEYS, [])
    assert ls(Delimiter="/") == (["a", "a0", "c"], ["a/", "b/", "d/", "é/"])
    assert ls(Delimiter="/", Prefix="a/") == (["a/1", "a/2"], ["a/b/"])
    assert ls(Delimiter="/", Prefix="a") == (["a", "a0"], ["a/"])
    assert ls(Delimiter="/", Prefix="b/") == (["b/", "b/1"], [])
    assert ls(Delimiter="//") == ([k for k in KEYS if "//" not in k], ["d//"])
    assert ls(Prefix="zzz") == ([], [])
    assert ls(StartAfter="a/2") == (KEYS[3:], [])
    assert ls(StartAfter="a/1", Delimiter="/") == (["a0", "c"], ["a/", "b/", "d/", "é/"])
    pages = many.client.get_paginator("list_objects").paginate(
        Bucket=BUCKET, Delimiter="/", PaginationConfig={"PageSize": page_size}
    )
    v1 = [
        item.get("Key") or item.get("Prefix")
        for page in pages
        for kind in ("Contents", "CommonPrefixes")
        for item in page.get(kind, [])
    ]
    assert sorted(v1) == ["a", "a/", "a0", "b/", "c", "d/", "é/"]


def test_listing_limits(many: Door) -> None:
    page = many.client.list_objects_v2(Bucket=BUCKET, MaxKeys=0)
    assert (page["KeyCount"], page["IsTruncated"]) == (0, False)
    page = many.client.list_objects_v2(Bucket=BUCKET, MaxKeys=len(KEYS))
    assert page["IsTruncated"] is False
    page = many.client.list_objects_v2(Bucket=BUCKET, MaxKeys=1, Prefix="a/b")
    assert [c["Key"] for c in page["Contents"]] == ["a/b/3"]
    for query in ("max-keys=-1", "max-keys=x", "continuation-token=%21", "encoding-type=x"):
        answer = many.request(f"GET /data?list-type=2&{query}")
        assert (answer.status, answer.code) == (400, "InvalidArgument"), query


async def test_large_groups_are_jumped_over(service: StoreService) -> None:
    from hubspoke.core.ids import ObjectEntry, Version
    from hubspoke.frontends.s3.listing import collect

    entry = ObjectEntry(Version("v"), 0, "e", 0)
    for group in ("g1", "g2", "g3"):
        for i in range(5000):
            service.entries[ObjectName(BUCKET, f"{group}/{i}")] = entry
    service.entries[ObjectName(BUCKET, "g2/" + "\U0010ffff" * 255)] = entry
    service.entries[ObjectName(BUCKET, "g2/" + "\U0010ffff" * 255 + "\x7f")] = entry
    read = 0
    list_page = service.list_page

    async def counted(bucket: str, *, prefix: str, after: str, limit: int) -> Any:
        nonlocal read
        records = await list_page(bucket, prefix=prefix, after=after, limit=limit)
        read += len(records)
        return records

    service.list_page = counted  # type: ignore[method-assign]
    page = await collect(service, BUCKET, prefix="", delimiter="/", after="", keys_max=1000)
    assert (page.prefixes, page.objects, page.truncated) == (["g1/", "g2/", "g3/"], [], False)
    assert read < 2000
    assert isinstance(service.store, MemoryObjectStore)
