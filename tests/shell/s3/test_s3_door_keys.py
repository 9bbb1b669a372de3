"""A key is exact bytes at the S3 door: each one S3 allows comes back as it went in."""

import unicodedata
from typing import Any
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError

from tests.shell.s3.conftest import BUCKET, Door

CHARACTERS = [chr(i) for i in range(1, 0x80)] + list(
    "ÿ߿ࠀ\ufffd\ufffe\uffff\U00010000\U0010ffff€日😀"
)
HOSTILE = [
    "/lead",
    "//",
    "a//b",
    "a/",
    "a",
    "a/../b",
    "../../etc/passwd",
    ".",
    "./a",
    "a/.",
    "A",
    "%2F",
    "%",
    "a%20b",
    "a+b",
    "a b",
    "a?b=c&d",
    "a#b",
    " lead and trail ",
    "a;b",
    "é",
    unicodedata.normalize("NFD", "é"),
    "x" * 1024,
    "é" * 512,
    "_hubspoke/v1/feed",
    "a\r\nb",
    "a\\b",
    "%00",
]


def listed_keys(client: Any) -> set[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return {c["Key"] for page in pages for c in page.get("Contents", [])}


@pytest.mark.parametrize("virtual_host", [False, True])
def test_every_allowed_character_comes_back(door: Door, virtual_host: bool) -> None:
    host = "data.localhost" if virtual_host else "127.0.0.1"
    base = "" if virtual_host else "/data"
    keys = [f"a{c}b" for c in CHARACTERS] + [c for c in CHARACTERS if c != "/"]
    with door.raw(b"") as connection:
        for key in keys:
            path = f"{base}/{quote(key, safe='')}"
            body = key.encode()
            head = f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.send(head.encode() + body)
            assert connection.answer().status == 200, repr(key)
        for key in keys:
            path = f"{base}/{quote(key, safe='')}"
            connection.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert connection.answer().body == key.encode(), repr(key)
    assert {name.key for name in door.service.entries} == set(keys)
    assert listed_keys(door.client) == set(keys), "encoding-type=url, which boto3 asks for"


def test_hostile_keys_stay_themselves(door: Door) -> None:
    for key in HOSTILE:
        door.client.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    for key in HOSTILE:
        body = door.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        assert body == key.encode(), repr(key)
        assert door.client.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == len(body)
    assert listed_keys(door.client) == set(HOSTILE)
    objects = [{"Key": key} for key in HOSTILE]
    answer = door.client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
    assert "Errors" not in answer
    assert door.service.entries == {}


def test_raw_paths_are_not_normalised(door: Door) -> None:
    for path, key in {
        "/data/a/../b": "a/../b",
        "/data//a": "/a",
        "/data/a//": "a//",
        "/data/%61": "a",
        "/data/a+b": "a+b",
        "/data/a%2fb": "a/b",
        "/data/%252e": "%2e",
    }.items():
        answer = door.request(f"PUT {path}\nContent-Length: 0")
        assert answer.status == 200
        assert key in {name.key for name in door.service.entries}, path
        assert door.request(f"GET {path}").status == 200


def test_keys_that_s3_does_not_allow_are_refused(door: Door) -> None:
    expected = {
        "/data/%ff": "InvalidURI",
        "/data/%c3%28": "InvalidURI",
        "/data/%ed%a0%80": "InvalidURI",
        "/data/%00": "InvalidURI",
        "/data/a%00b": "InvalidURI",
        "/data/" + "x" * 1025: "KeyTooLongError",
        "/data/" + "%C3%A9" * 513: "KeyTooLongError",
        "/%ff/x": "InvalidURI",
        "/data?prefix=%ff": "InvalidURI",
    }
    for path, code in expected.items():
        answer = door.request(f"GET {path}")
        assert (answer.status, answer.code) == (400, code), path
    assert door.request("PUT /data/%ff\nContent-Length: 0").status == 400
    with pytest.raises(ClientError, match="400"):
        door.client.head_object(Bucket=BUCKET, Key="x" * 1025)


def test_bytes_that_are_no_uri_are_refused(door: Door) -> None:
    for target in (b"/data/\xff", b"/data/a b c", b"/data/\x01"):
        with door.raw(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
            assert connection.answer().status == 400, target


def test_listing_without_url_encoding_keeps_every_character(door: Door) -> None:
    """What XML 1.0 cannot hold is a numeric reference, as S3 sends it."""
    for key in ("a&b<c>", 'q"', "cr\r", "lf\n", "tab\t", "bell\x07", "\ufffe"):
        door.client.put_object(Bucket=BUCKET, Key=key, Body=b"")
    document = door.request("GET /data?list-type=2").body.decode()
    for written in ("a&amp;b&lt;c&gt;", "q&quot;", "cr&#xD;", "lf\n", "tab\t", "bell&#x7;"):
        assert f"<Key>{written}</Key>" in document
    assert "<Key>&#xFFFE;</Key>" in document
