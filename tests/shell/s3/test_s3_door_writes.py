"""The S3 door takes objects as S3 does, and nothing that is not whole."""

import base64
import hashlib
import io
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from awscrt import checksums as crt  # type: ignore[import-untyped]  # ships no types
from botocore.exceptions import ClientError

from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectName
from hubspoke.errors import HubSpokeError, StoreUnavailable
from hubspoke.frontends.s3 import S3DoorTuning
from tests.shell.s3.conftest import BUCKET, WAIT_S, Door, running_door
from tests.store_service import StoreService

DATA = os.urandom(100_000)
ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")


def checksum(algorithm: str, data: bytes) -> str:
    digests: dict[str, Callable[[], bytes]] = {
        "crc32": lambda: zlib.crc32(data).to_bytes(4, "big"),
        "crc32c": lambda: crt.crc32c(data).to_bytes(4, "big"),
        "crc64nvme": lambda: crt.crc64nvme(data).to_bytes(8, "big"),
        "sha1": lambda: hashlib.sha1(data).digest(),
        "sha256": lambda: hashlib.sha256(data).digest(),
    }
    return base64.b64encode(digests[algorithm]()).decode()


def body_of(door: Door, key: str = "k") -> bytes:
    body: bytes = door.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return body


def exists(door: Door, key: str = "k") -> bool:
    return ObjectName(BUCKET, key) in door.service.entries


def test_plain_put(door: Door) -> None:
    answer = door.request(f"PUT /data/k\nContent-Length: {len(DATA)}", DATA)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["etag"] == f'"{hashlib.md5(DATA).hexdigest()}"'
    assert body_of(door) == DATA


def test_headers_and_metadata_are_kept(door: Door) -> None:
    given = {
        "ContentType": "application/x-tar",
        "CacheControl": "max-age=5",
        "ContentDisposition": "attachment",
        "ContentLanguage": "de",
        "ContentEncoding": "gzip",
        "Metadata": {"a": "1", "b-c": "x y"},
    }
    door.client.put_object(Bucket=BUCKET, Key="k", Body=DATA, **given)
    found = door.client.head_object(Bucket=BUCKET, Key="k")
    assert {name: found[name] for name in given} == given


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seekable", [True, False])
def test_boto3_checksums_are_verified_and_kept(door: Door, algorithm: str, seekable: bool) -> None:
    body: Any = DATA if seekable else io.BytesIO(DATA)
    answer = door.client.put_object(Bucket=BUCKET, Key="k", Body=body, ChecksumAlgorithm=algorithm)
    assert answer[f"Checksum{algorithm}"] == checksum(algorithm.lower(), DATA)
    found = door.client.get_object(Bucket=BUCKET, Key="k", ChecksumMode="ENABLED")
    assert found[f"Checksum{algorithm}"] == checksum(algorithm.lower(), DATA)
    assert found["Body"].read() == DATA, "botocore compares it with the checksum"


@pytest.mark.parametrize("algorithm", [a.lower() for a in ALGORITHMS])
def test_wrong_checksum_header_is_refused(door: Door, algorithm: str) -> None:
    head = f"PUT /data/k\nContent-Length: {len(DATA)}\nx-amz-checksum-{algorithm}: "
    answer = door.request(head + checksum(algorithm, DATA + b"x"), DATA)
    assert (answer.status, answer.code) == (400, "BadDigest")
    answer = door.request(head + "!!!", DATA)
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert not exists(door)
    assert door.request(head + checksum(algorithm, DATA), DATA).status == 200


def test_wrong_md5_and_sha256_are_refused(door: Door) -> None:
    size = f"Content-Length: {len(DATA)}"
    good_md5 = base64.b64encode(hashlib.md5(DATA).digest()).decode()
    bad_md5 = base64.b64encode(hashlib.md5(b"").digest()).decode()
    expected = {
        f"Content-MD5: {bad_md5}": (400, "BadDigest"),
        "Content-MD5: short": (400, "InvalidDigest"),
        f"x-amz-content-sha256: {hashlib.sha256(b'').hexdigest()}": (
            400,
            "XAmzContentSHA256Mismatch",
        ),
        "x-amz-content-sha256: nonsense": (400, "InvalidArgument"),
    }
    for header, (status, code) in expected.items():
        answer = door.request(f"PUT /data/k\n{size}\n{header}", DATA)
        assert (answer.status, answer.code) == (status, code), header
    assert not exists(door)
    for header in (
        f"Content-MD5: {good_md5}",
        f"x-amz-content-sha256: {hashlib.sha256(DATA).hexdigest()}",
        "x-amz-content-sha256: UNSIGNED-PAYLOAD",
    ):
        assert door.request(f"PUT /data/k\n{size}\n{header}", DATA).status == 200, header


def aws_chunked(data: bytes, *, signed: bool, trailer: str = "", step: int = 30_000) -> bytes:
    signature = ";chunk-signature=" + "0" * 64 if signed else ""
    out = b""
    for i in range(0, len(data), step):
        piece = data[i : i + step]
        out += f"{len(piece):x}{signature}\r\n".encode() + piece + b"\r\n"
    out += f"0{signature}\r\n".encode()
    if trailer:
        out += trailer.encode() + b"\r\n"
        if signed:
            out += b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n"
    return out + b"\r\n"


def put_chunked(
    door: Door, body: bytes, kind: str, *headers: str, decoded: int | None = len(DATA)
) -> tuple[int, str]:
    lines = [
        "PUT /data/k",
        f"Content-Length: {len(body)}",
        "Content-Encoding: aws-chunked",
        f"x-amz-content-sha256: {kind}",
        *headers,
    ]
    if decoded is not None:
        lines.append(f"x-amz-decoded-content-length: {decoded}")
    answer = door.request("\n".join(lines), body)
    return answer.status, answer.code


SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = SIGNED + "-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


@pytest.mark.parametrize("step", [1, 7000, 1 << 20])
def test_aws_chunked_signed(door: Door, step: int) -> None:
    data = DATA[: 50 if step == 1 else None]
    body = aws_chunked(data, signed=True, step=step)
    assert put_chunked(door, body, SIGNED, decoded=len(data)) == (200, "")
    assert body_of(door) == data
    headers = door.service.entries[ObjectName(BUCKET, "k")].headers
    assert "content-encoding" not in headers


@pytest.mark.parametrize("algorithm", [a.lower() for a in ALGORITHMS])
@pytest.mark.parametrize("signed", [True, False])
def test_aws_chunked_trailer(door: Door, algorithm: str, signed: bool) -> None:
    kind = SIGNED_TRAILER if signed else UNSIGNED_TRAILER
    name = f"x-amz-checksum-{algorithm}"
    announced = f"x-amz-trailer: {name}"
    wrong = aws_chunked(DATA, signed=signed, trailer=f"{name}:{checksum(algorithm, b'x')}")
    assert put_chunked(door, wrong, kind, announced) == (400, "BadDigest")
    missing = aws_chunked(DATA, signed=signed)
    assert put_chunked(door, missing, kind, announced) == (400, "MalformedTrailerError")
    assert not exists(door)
    right = aws_chunked(DATA, signed=signed, trailer=f"{name}:{checksum(algorithm, DATA)}")
    assert put_chunked(door, right, kind, announced) == (200, "")
    assert body_of(door) == DATA


def test_aws_chunked_that_is_broken(door: Door) -> None:
    good = aws_chunked(DATA, signed=True)
    broken = {
        "cut short": (good[:-100], "IncompleteBody"),
        "cut inside a chunk": (good[:50_000], "IncompleteBody"),
        "no size": (b"xyz\r\n" + good, "InvalidRequest"),
        "negative size": (b"-5\r\n" + good, "InvalidRequest"),
        "prefixed size": (b"0x5\r\nhello\r\n0\r\n\r\n", "InvalidRequest"),
        "chunk longer than its size": (b"5\r\nhello world\r\n0\r\n\r\n", "InvalidRequest"),
        "line without end": (b"5;" + b"a" * 10_000, "InvalidRequest"),
        "bytes after the end": (good + b"more", "InvalidRequest"),
        "trailer without a colon": (
            aws_chunked(DATA, signed=True, trailer="nonsense"),
            "MalformedTrailerError",
        ),
    }
    for what, (body, code) in broken.items():
        assert put_chunked(door, body, SIGNED, decoded=None) == (400, code), what
    assert put_chunked(door, good, SIGNED, decoded=len(DATA) - 1) == (400, "IncompleteBody")
    assert put_chunked(door, good, SIGNED, decoded=len(DATA) + 1) == (400, "IncompleteBody")
    assert not exists(door)
    assert put_chunked(door, good, SIGNED, decoded=None) == (200, "")


def test_body_without_a_length_is_411(door: Door) -> None:
    assert door.request("PUT /data/k").code == "MissingContentLength"
    chunked = b"5\r\nhello\r\n0\r\n\r\n"
    assert door.request("PUT /data/k\nTransfer-Encoding: chunked", chunked).status == 200
    assert body_of(door) == b"hello"


def test_body_that_stalls_is_408_and_closed(service: StoreService) -> None:
    with running_door(service, tuning=S3DoorTuning(body_stall_s=0.2)) as door:
        request = b"PUT /data/k HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
        with door.raw(request) as connection:
            answer = connection.answer()
            assert (answer.status, answer.code) == (408, "RequestTimeout")
            assert connection.is_closed()
        assert not exists(door)


def test_slow_body_is_taken(service: StoreService) -> None:
    with running_door(service, tuning=S3DoorTuning(body_stall_s=2)) as door:
        with door.raw(b"PUT /data/k HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n") as c:
            for _ in range(20):
                time.sleep(0.01)  # byte by byte: that is what is tested
                c.send(b"x")
            assert c.answer().status == 200
        assert body_of(door) == b"x" * 20


def test_client_that_leaves_inside_its_body_changes_nothing(door: Door) -> None:
    ended = threading.Event()
    stage = door.service.store.stage

    async def watched(*arguments: Any) -> Any:
        try:
            return await stage(*arguments)
        finally:
            ended.set()

    door.service.store.stage = watched  # type: ignore[method-assign,assignment]
    with door.raw(b"PUT /data/k HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"):
        pass
    assert ended.wait(WAIT_S)
    assert not exists(door)


def test_refused_body_keeps_or_closes_the_connection_in_step(door: Door) -> None:
    """The next request on the line is never mistaken for the refused body."""
    get = b"GET /data HTTP/1.1\r\nHost: x\r\n\r\n"
    small = b"PUT /none/k HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    with door.raw(small + bytes(1000) + get) as connection:
        assert connection.answer().code == "NoSuchBucket"
        assert connection.answer().status == 200
    acl = b"PUT /data/k?acl HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
    with door.raw(acl + b"Expect: 100-continue\r\n\r\n") as connection:
        answer = connection.answer()
        assert answer.code == "NotImplemented"
        assert answer.headers["connection"] == "close"
        assert connection.is_closed()


def test_conditional_puts(door: Door) -> None:
    put = door.client.put_object
    etag = put(Bucket=BUCKET, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError, match="PreconditionFailed"):
        put(Bucket=BUCKET, Key="k", Body=b"2", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        put(Bucket=BUCKET, Key="k", Body=b"2", IfMatch='"other"')
    assert body_of(door) == b"1"
    put(Bucket=BUCKET, Key="k", Body=b"3", IfMatch=etag)
    assert body_of(door) == b"3"


def test_headers_that_ask_for_more_are_refused_by_name(door: Door) -> None:
    for header in (
        "x-amz-server-side-encryption: AES256",
        "x-amz-tagging: a=b",
        "x-amz-object-lock-mode: GOVERNANCE",
        'If-None-Match: "abc"',
    ):
        answer = door.request(f"PUT /data/k\nContent-Length: 1\n{header}", b"x")
        assert (answer.status, answer.code) == (501, "NotImplemented")
    answer = door.request('DELETE /data/k\nIf-Match: "x"')
    assert (answer.status, answer.code) == (501, "NotImplemented")
    big = f"x-amz-meta-a: {'x' * 2100}"
    assert door.request(f"PUT /data/k\nContent-Length: 1\n{big}", b"x").code == "MetadataTooLarge"


def test_delete_one_and_many(door: Door) -> None:
    for key in ("a", "b", "c&<d>"):
        door.client.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    door.client.delete_object(Bucket=BUCKET, Key="a")
    door.client.delete_object(Bucket=BUCKET, Key="a")
    objects = [{"Key": "b"}, {"Key": "c&<d>"}, {"Key": "never"}]
    answer = door.client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
    assert {d["Key"] for d in answer["Deleted"]} == {"b", "c&<d>", "never"}
    assert door.service.entries == {}
    quiet = door.client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects, "Quiet": True})
    assert "Deleted" not in quiet


def test_failures_of_single_deletes_are_listed(door: Door) -> None:
    door.client.put_object(Bucket=BUCKET, Key="a", Body=b"x")
    delete = door.service.delete

    async def failing(name: ObjectName) -> None:
        if name.key == "a":
            raise StoreUnavailable("the disk is on fire")
        await delete(name)

    door.service.delete = failing  # type: ignore[method-assign]
    answer = door.client.delete_objects(
        Bucket=BUCKET,
        Delete={"Objects": [{"Key": "a"}, {"Key": "b"}, {"Key": "c", "VersionId": "x"}]},
    )
    assert [d["Key"] for d in answer["Deleted"]] == ["b"]
    assert {e["Key"]: e["Code"] for e in answer["Errors"]} == {
        "a": "ServiceUnavailable",
        "c": "NoSuchVersion",
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete>",
        b"<Other/>",
        b"<Delete/>",
        b"<Delete><Object/></Delete>",
        b"\xff\xfe\x00",
        b'<!DOCTYPE x [<!ENTITY a "b">]><Delete><Object><Key>&a;</Key></Object></Delete>',
        b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>",
    ],
)
def test_malformed_documents_are_refused(door: Door, body: bytes) -> None:
    answer = door.request(f"POST /data?delete\nContent-Length: {len(body)}", body)
    assert (answer.status, answer.code) == (400, "MalformedXML")
    answer = door.request(f"POST /data/k?uploadId=x\nContent-Length: {len(body)}", body)
    assert (answer.status, answer.code) == (400, "MalformedXML")


def test_buckets_are_made_and_removed(door: Door) -> None:
    door.client.create_bucket(Bucket="new-bucket")
    door.client.put_object(Bucket="new-bucket", Key="k", Body=b"x")
    with pytest.raises(ClientError, match="BucketNotEmpty"):
        door.client.delete_bucket(Bucket="new-bucket")
    door.client.delete_object(Bucket="new-bucket", Key="k")
    door.client.delete_bucket(Bucket="new-bucket")
    assert [b["Name"] for b in door.client.list_buckets()["Buckets"]] == [BUCKET]
    assert door.request("PUT /Bad_Name\nContent-Length: 0").code == "InvalidBucketName"


def test_copy(door: Door) -> None:
    door.client.put_object(Bucket=BUCKET, Key="a b+%", Body=DATA, Metadata={"x": "1"})
    source = {"Bucket": BUCKET, "Key": "a b+%"}
    copied = door.client.copy_object(Bucket=BUCKET, Key="c", CopySource=source)
    assert copied["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(DATA).hexdigest()}"'
    assert body_of(door, "c") == DATA
    assert door.client.head_object(Bucket=BUCKET, Key="c")["Metadata"] == {"x": "1"}
    door.client.copy_object(
        Bucket=BUCKET, Key="c", CopySource=source, MetadataDirective="REPLACE", Metadata={"y": "2"}
    )
    assert door.client.head_object(Bucket=BUCKET, Key="c")["Metadata"] == {"y": "2"}
    expected = {
        "x-amz-copy-source: /data/none": "NoSuchKey",
        "x-amz-copy-source: /none/k": "NoSuchBucket",
        "x-amz-copy-source: data": "InvalidArgument",
        'x-amz-copy-source: /data/c\nx-amz-copy-source-if-match: "x"': "PreconditionFailed",
        "x-amz-copy-source: /data/c\nx-amz-copy-source-if-none-match: *": "PreconditionFailed",
        "x-amz-copy-source: /data/c?versionId=x": "NoSuchVersion",
    }
    for headers, code in expected.items():
        assert door.request(f"PUT /data/d\nContent-Length: 0\n{headers}").code == code, headers
    itself = "PUT /data/c\nContent-Length: 0\nx-amz-copy-source: /data/c"
    assert door.request(itself).code == "InvalidRequest"
    assert door.request(itself + "\nx-amz-metadata-directive: REPLACE").status == 200


def test_upload_file_of_20_mib(door: Door) -> None:
    data = os.urandom(20 << 20)
    door.client.upload_fileobj(io.BytesIO(data), BUCKET, "big", ExtraArgs={"Metadata": {"x": "1"}})
    etag = door.client.head_object(Bucket=BUCKET, Key="big")["ETag"]
    assert etag.endswith('-3"')
    sink = io.BytesIO()
    door.client.download_fileobj(BUCKET, "big", sink)
    assert sink.getvalue() == data
    assert door.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads") is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_multipart_with_each_checksum(door: Door, algorithm: str) -> None:
    client = door.client
    upload_id = client.create_multipart_upload(Bucket=BUCKET, Key="k", ChecksumAlgorithm=algorithm)[
        "UploadId"
    ]
    asked = {"Bucket": BUCKET, "Key": "k", "UploadId": upload_id}
    pieces = [os.urandom(70_000), b"tail"]
    parts = []
    for number, piece in enumerate(pieces, 1):
        done = client.upload_part(
            **asked, PartNumber=number, Body=piece, ChecksumAlgorithm=algorithm
        )
        assert done[f"Checksum{algorithm}"] == checksum(algorithm.lower(), piece)
        parts.append(
            {
                "PartNumber": number,
                "ETag": done["ETag"],
                f"Checksum{algorithm}": done[f"Checksum{algorithm}"],
            }
        )
    listed = client.list_parts(**asked)
    assert [(p["PartNumber"], p["Size"]) for p in listed["Parts"]] == [(1, 70_000), (2, 4)]
    uploads = client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert [(u["Key"], u["UploadId"]) for u in uploads] == [("k", upload_id)]
    client.complete_multipart_upload(**asked, MultipartUpload={"Parts": parts})
    assert body_of(door) == b"".join(pieces)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        client.list_parts(**asked)


def test_multipart_errors(door: Door) -> None:
    client = door.client
    upload_id = client.create_multipart_upload(Bucket=BUCKET, Key="k")["UploadId"]
    asked = {"Bucket": BUCKET, "Key": "k", "UploadId": upload_id}
    etag = client.upload_part(**asked, PartNumber=1, Body=b"x")["ETag"]
    client.upload_part(**asked, PartNumber=2, Body=b"y")

    def complete(*parts: tuple[int, str]) -> None:
        listed = [{"PartNumber": number, "ETag": etag} for number, etag in parts]
        client.complete_multipart_upload(**asked, MultipartUpload={"Parts": listed})

    with pytest.raises(ClientError, match=r"InvalidPart\b"):
        complete((1, '"00000000000000000000000000000000"'))
    with pytest.raises(ClientError, match=r"InvalidPart\b"):
        complete((3, etag))
    with pytest.raises(ClientError, match="InvalidPartOrder"):
        complete((2, etag), (1, etag))
    for number in ("0", "10001", "x", ""):
        answer = door.request(
            f"PUT /data/k?partNumber={number}&uploadId={upload_id}\nContent-Length: 1", b"x"
        )
        assert answer.code == "InvalidArgument", number
    client.abort_multipart_upload(**asked)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        client.abort_multipart_upload(**asked)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        client.upload_part(**asked, PartNumber=1, Body=b"x")


@pytest.mark.parametrize("streamed", [0, 1000])
def test_parts_can_be_copied(service: StoreService, streamed: int) -> None:
    service.streamed = streamed
    with running_door(service) as door:
        client = door.client
        client.put_object(Bucket=BUCKET, Key="src", Body=DATA)
        upload_id = client.create_multipart_upload(Bucket=BUCKET, Key="k")["UploadId"]
        asked = {"Bucket": BUCKET, "Key": "k", "UploadId": upload_id}
        source = {"Bucket": BUCKET, "Key": "src"}
        parts = []
        for number, extra in enumerate([{"CopySourceRange": "bytes=10-5009"}, {}], 1):
            done = client.upload_part_copy(**asked, PartNumber=number, CopySource=source, **extra)
            parts.append({"PartNumber": number, "ETag": done["CopyPartResult"]["ETag"]})
        with pytest.raises(ClientError, match="InvalidArgument"):
            client.upload_part_copy(
                **asked, PartNumber=3, CopySource=source, CopySourceRange="bytes=10-100000"
            )
        client.complete_multipart_upload(**asked, MultipartUpload={"Parts": parts})
        assert body_of(door) == DATA[10:5010] + DATA


@pytest.fixture
def slow_door() -> Iterator[tuple[Door, list[HubSpokeError], threading.Event]]:
    """Completions wait for the event, then raise what the list holds."""
    import asyncio

    service = StoreService(MemoryObjectStore([BUCKET]))
    errors: list[HubSpokeError] = []
    go = threading.Event()
    complete = service.complete_multipart

    async def waiting(*arguments: Any) -> Any:
        await asyncio.to_thread(go.wait, WAIT_S)
        if errors:
            raise errors[0]
        return await complete(*arguments)

    service.complete_multipart = waiting  # type: ignore[method-assign,assignment]
    with running_door(service, tuning=S3DoorTuning(keepalive_s=0.05)) as door:
        yield door, errors, go


def started_upload(door: Door) -> tuple[str, bytes]:
    upload_id = door.client.create_multipart_upload(Bucket=BUCKET, Key="k")["UploadId"]
    etag = door.client.upload_part(
        Bucket=BUCKET, Key="k", UploadId=upload_id, PartNumber=1, Body=b"x"
    )["ETag"]
    part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    return upload_id, f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()


def test_long_completion_is_kept_alive(
    slow_door: tuple[Door, list[HubSpokeError], threading.Event],
) -> None:
    door, _, go = slow_door
    upload_id, body = started_upload(door)
    head = f"POST /data/k?uploadId={upload_id} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    with door.raw(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body) as connection:
        received = b""
        while b" \r\n" not in received:  # a chunk of white space
            received += connection.socket.recv(1000)
        assert b"200 OK" in received and b"</Complete" not in received
        go.set()
        while piece := connection.socket.recv(1000):
            received += piece
    assert b"<CompleteMultipartUploadResult" in received
    assert body_of(door) == b"x"


def test_repeated_completion_gets_the_same_answer(door: Door) -> None:
    """A client that lost the answer asks again, and S3 does not say that the upload is unknown."""
    upload_id, body = started_upload(door)
    request = f"POST /data/k?uploadId={upload_id}\nContent-Length: {len(body)}"
    first, second = door.request(request, body), door.request(request, body)
    assert (first.status, second.status) == (200, 200)
    assert first.body == second.body
    assert first.headers["x-amz-request-id"] != second.headers["x-amz-request-id"]
    wrong = body.replace(b"<PartNumber>1", b"<PartNumber>2")
    assert door.request(request, wrong).code == "NoSuchUpload"


def test_failed_completion_can_be_tried_again(
    slow_door: tuple[Door, list[HubSpokeError], threading.Event],
) -> None:
    door, errors, go = slow_door
    go.set()
    errors.append(StoreUnavailable("the disk is on fire"))
    upload_id, body = started_upload(door)
    request = f"POST /data/k?uploadId={upload_id}\nContent-Length: {len(body)}"
    assert door.request(request, body).status == 503
    errors.clear()
    assert door.request(request, body).status == 200
    assert body_of(door) == b"x"


def test_error_of_a_long_completion_reaches_the_client(
    slow_door: tuple[Door, list[HubSpokeError], threading.Event],
) -> None:
    door, errors, go = slow_door
    errors.append(StoreUnavailable("the disk is on fire"))
    upload_id, _ = started_upload(door)
    threading.Timer(0.3, go.set).start()
    client = door.client
    with pytest.raises(ClientError, match="on fire"):
        client.complete_multipart_upload(
            Bucket=BUCKET,
            Key="k",
            UploadId=upload_id,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": "x"}]},
        )
    assert not exists(door)


@pytest.mark.parametrize("when", ["when_supported", "when_required"])
def test_each_checksum_setting_of_boto3(door: Door, when: str) -> None:
    client = door.client_for(request_checksum_calculation=when, response_checksum_validation=when)
    client.put_object(Bucket=BUCKET, Key="k", Body=io.BytesIO(DATA))
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == DATA
