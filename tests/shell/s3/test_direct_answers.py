"""Direct answers: what leaves without a task is byte for byte what the application sends."""

import asyncio
import itertools

from hubspoke.core.ids import ObjectName
from tests.shell.s3.test_known_heads import LAST, Door, a_door, differing
from tests.shell.test_spoke_service import Hub, a_hub, a_spoke, chunks, get, until

BODY = bytes(range(256)) * 64
HEADERS = {
    "content-type": "text/x-odd; charset=\u00e9",
    "cache-control": "no-store",
    "x-amz-meta-who": "me",
    "x-amz-checksum-crc32": "AAAAAA==",
}
KEYS = ["plain", "a/b/c.bin", "a//b", "a/../b", "/lead", "dir/", "sp ace", "p%41", "\u00e9", "q?x",
        "h#x", "+", "~", "k" * 1_024]  # fmt: skip
PATHS = [
    "/data/plain", "/data/a/b/c.bin", "/data/a//b", "/data/a/../b", "/data//lead", "/data/dir/",
    "/data/sp%20ace", "/data/p%2541", "/data/%C3%A9", "/data/%c3%a9", "/data/q%3Fx", "/data/h%23x",
    "/data/+", "/data/%2B", "/data/~", "/data/%7E", "/data/empty", "/data/" + "k" * 1_024,
    "/data/" + "k" * 1_025, "/data/not", "/nobody/plain", "/data", "/data/", "/", "//",
    "/data%2Fplain", "/Data/plain", "/x/plain", "/data/plain?", "/data/plain?versionId=null",
    "/data/plain?versionId=1", "/data/plain?partNumber=1", "/data/plain?x-id=HeadObject",
    "/data/plain?x-id=GetObject", "/data/plain?acl", "/data/plain#x", "/data/q?x", "/data/h#x",
    "/data/%FF", "/data/%", "/data/%zz", "/data/pl%00ain", "/plain", "http://x/data/plain", "*",
]  # fmt: skip
MORE = [
    (), ("Range: bytes=1-2",), ("Range: bytes=0-",), ("x-amz-checksum-mode: ENABLED",),
    ("X-Amz-Checksum-Mode: enabled",), ("x-amz-checksum-mode: off",),
    ("x-amz-checksum-mode: ENABLED", "x-amz-checksum-mode: ENABLED"),
    ("x-amz-checksum-mode: ENABLED", "Range: bytes=0-9"), ("If-None-Match: *",),
    ("If-Match: \"no\"",), ("If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT",),
    ("Content-Length: 0",), ("Expect: 100-continue",), ("Connection: keep-alive",),
    ("Host: data.localhost",), ("User-Agent: a", "Authorization: AWS4-HMAC-SHA256 any"),
]  # fmt: skip


def asked(method: str, path: str, *more: str, version: str = "1.1", host: str = "x") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", f"Host: {host}", *more, "\r\n"]).encode()


def corpus() -> list[bytes]:
    """Single requests; each is sent twice, as the door remembers names."""
    heads = [asked("HEAD", path) for path in PATHS]
    heads += [asked("GET", path, "Range: bytes=3-70") for path in PATHS]
    for method, path in itertools.product(
        ("HEAD", "GET"), ("/data/plain", "/data/empty", "/data/not")
    ):
        heads += [asked(method, path, *more) for more in MORE]
    for host in ("data.localhost", "data.localhost:80", "localhost", "[::1]", "DATA.localhost", ""):
        heads += [
            asked("HEAD", path, host=host) for path in ("/plain", "/data/plain", "/a/b/c.bin", "/")
        ]
    heads += [asked("HEAD", "/data/plain", version="1.0"), asked("head", "/data/plain")]
    return heads


async def filled(hub: Hub) -> None:
    for key in KEYS:
        await hub.service.put(ObjectName("data", key), HEADERS, chunks(BODY))
    await hub.service.put(ObjectName("data", "empty"), {}, chunks(b""))


async def test_answers_are_those_of_the_application() -> None:
    async with a_hub() as (hub, _):
        await filled(hub)
        async with a_spoke(hub) as spoke:
            await until(lambda: len(spoke.namespace) == len(KEYS) + 1)
            for key in KEYS:
                await get(spoke, 0, len(BODY), ObjectName("data", key))
            async with a_door(spoke) as door, a_door(spoke, direct=False) as full:
                talks = [[request, request] for request in corpus()]
                assert await differing(door, full, talks) == []
                assert full.parsed == []
                # Plain ones really took the short way, on the first request and the second.
                assert door.parsed.count(b"HEAD /data/a//b") >= 2
                assert door.parsed.count(b"GET /data/a//b") == 1  # the other by its known head
                assert door.parsed.count(b"HEAD /data/%C3%A9") >= 2
                assert b"HEAD /data/not" not in door.parsed


async def test_a_head_has_no_body_and_the_connection_goes_on() -> None:
    async with a_hub() as (hub, _):
        await filled(hub)
        async with a_spoke(hub) as spoke, a_door(spoke) as door:
            got = await together(
                door, asked("HEAD", "/data/plain") * 3 + asked("HEAD", "/data/empty")
            )
            heads = got.split(b"\r\n\r\n")[:4]
            assert [h.startswith(b"HTTP/1.1 200 OK\r\n") for h in heads] == [True] * 4
            assert [h.count(b"content-length: %d" % len(BODY)) for h in heads] == [1, 1, 1, 0]
            assert b"content-length: 0" in heads[3]
            assert len(door.parsed) == 4


async def test_a_head_tells_the_version_of_now() -> None:
    async with a_hub() as (hub, _):
        await filled(hub)
        async with a_spoke(hub) as spoke, a_door(spoke) as door:
            request = asked("HEAD", "/data/plain")
            assert b"content-length: %d\r\n" % len(BODY) in await together(door, request)
            await hub.put(ObjectName("data", "plain"), b"shorter")
            assert b"content-length: 7\r\n" in await together(door, request)
            await hub.service.delete(ObjectName("data", "plain"))
            assert (await together(door, request)).startswith(b"HTTP/1.1 404 ")
            assert door.parsed == [b"HEAD /data/plain"] * 2


async def together(door: Door, data: bytes) -> bytes:
    """Everything that comes back for requests that are sent at once, the last one LAST."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(data + LAST)
    async with asyncio.timeout(20):
        got = await reader.read(-1)
    writer.close()
    return got
