"""What the S3 store adds to the contract: a server that fails, refuses, or renames keys."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.adapters.s3_client import S3ClientTuning
from hubspoke.adapters.s3_store import S3Store
from hubspoke.core.ids import ObjectName, Version
from hubspoke.errors import ConfigError, InvalidKey, StoreUnavailable, VersionChanged
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning
from tests.hub_bench import until

BUCKET = "data"

pytestmark = pytest.mark.usefixtures("aws_credentials")


def name(key: str) -> ObjectName:
    return ObjectName(BUCKET, key)


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def put(store: S3Store, key: str, data: bytes) -> Version:
    return (await store.complete(await store.stage(name(key), {}, chunks(data)))).version


@asynccontextmanager
async def opened(url: str, prefix: str) -> AsyncIterator[S3Store]:
    store = S3Store(BUCKET, prefix, endpoint_url=url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_prefix_is_the_border_of_the_store(s3_bucket: str) -> None:
    async with opened(s3_bucket, "border/a") as inner, opened(s3_bucket, "border") as outer:
        version = await put(inner, "x", b"inner")
        await put(outer, "ab", b"outer")
        assert [n.key async for batch in inner.scan() for n, _ in batch] == ["x"]
        assert {n.key async for batch in outer.scan() for n, _ in batch} == {"a/x", "ab"}
        assert await outer.read(name("a/x"), version, 0, 5) == b"inner"


async def test_a_hub_finds_what_others_changed_in_the_bucket_at_the_interval(
    s3_bucket: str,
) -> None:
    async with opened(s3_bucket, "behind") as other:
        version = await put(other, "a", b"one")
        store = S3Store(BUCKET, "behind", endpoint_url=s3_bucket)
        hub = HubService(
            store,
            MemoryNamespace(keep_log=True),
            BootClock(),
            HubTuning(stranger_term_s=0.0, rescan_s=0.2),
        )
        await hub.start()
        await until(lambda: hub.facts().watch.mode == "rescan", "rescan")

        def found(key: str) -> Version | None:
            entry = hub.known(name(key))
            return entry.version if entry is not None else None

        assert found("a") == version
        version = await put(other, "a", b"two")
        await until(lambda: found("a") == version, "an overwrite of the same size")
        before = hub.facts().sequence
        version = await put(other, "new", b"x")
        await until(lambda: found("new") == version, "a new object")
        await other.delete(name("a"))
        await until(lambda: found("a") is None, "a deletion")
        rescans = hub.facts().watch.rescans
        await until(lambda: hub.facts().watch.rescans > rescans + 1, "two more comparisons")
        watch = hub.facts().watch
        assert hub.facts().sequence == before + 2, "one entry for each change"
        assert watch.list_requests >= watch.rescans + 1, "and the first index"
        await hub.close()


async def test_key_the_server_would_rename_is_refused_and_the_other_object_stays(
    s3_bucket: str,
) -> None:
    """SeaweedFS keeps a//b as a/b; should it ever stop that, the keys are simply kept."""
    async with opened(s3_bucket, "renamed") as store:
        await put(store, "a/b", b"mine")
        for key in ("a//b", "a\\b", "/a/b", "a/./b", "a/../a/b"):
            try:
                await put(store, key, b"theirs")
            except InvalidKey as e:
                assert "does not keep keys" in str(e)
                with pytest.raises(InvalidKey):
                    await store.create_multipart(name(key), {})
                await store.delete(name(key))
            else:
                assert key in [n.key async for batch in store.scan() for n, _ in batch]
        head = await store.head(name("a/b"))
        assert head is not None
        assert await store.read(name("a/b"), head.version, 0, 4) == b"mine"
        assert not [n.key async for batch in store.scan() for n, _ in batch if "probe" in n.key], (
            "probes are removed"
        )


async def test_large_part_waits_on_the_disk(s3_bucket: str) -> None:
    data = os.urandom(1 << 20)
    async with opened(s3_bucket, "large") as store:
        upload_id = await store.create_multipart(name("big"), {})
        part = await store.put_part(name("big"), upload_id, 1, chunks(*[data] * 20))
        assert part.etag == hashlib.md5(data * 20).hexdigest()
        staged = await store.stage_multipart(name("big"), upload_id, [(1, part.etag)])
        entry = await store.complete(staged)
        assert await store.read(name("big"), entry.version, 19 << 20, 1 << 20) == data


async def test_object_of_many_parts(s3_bucket: str) -> None:
    data = os.urandom(1 << 20)
    async with opened(s3_bucket, "parts") as store:
        staged = await store.stage(name("big"), {}, chunks(*[data] * 17))
        assert staged.etag.endswith("-3")
        entry = await store.complete(staged)
        assert (entry.size, entry.etag) == (17 << 20, staged.etag)
        assert await store.read(name("big"), entry.version, 8 << 20, 1 << 20) == data


async def test_unusable_buckets_are_named(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = S3ClientTuning(attempts_max=2, backoff_s=0.01)
    expected = [
        (S3Store("missing-bucket", endpoint_url=s3_bucket), "no such bucket"),
        (S3Store(BUCKET, endpoint_url="http://127.0.0.1:1", tuning=tuning), "cannot be reached"),
        (S3Store(BUCKET, endpoint_url="ftp://x", tuning=tuning), "is expected"),
    ]
    for store, why in expected:
        with pytest.raises(ConfigError, match=why):
            await store.open()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ConfigError, match="refused with the credentials found"):
        await S3Store(BUCKET, endpoint_url=s3_bucket).open()


async def test_endpoint_comes_from_the_environment(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_bucket)
    store = S3Store(BUCKET)
    await store.open()
    await store.close()


Handler = Callable[[web.BaseRequest], web.Response]


@asynccontextmanager
async def scripted(*answers: Handler) -> AsyncIterator[tuple[str, list[web.BaseRequest]]]:
    """A server that answers requests for objects with each of `answers` once, the last for ever."""
    asked: list[web.BaseRequest] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response()
        asked.append(request)
        return answers[min(len(asked), len(answers)) - 1](request)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def slow_down(_: web.BaseRequest) -> web.Response:
    return web.Response(
        status=503, text="<Error><Code>SlowDown</Code><Message>too fast</Message></Error>"
    )


def cut(request: web.BaseRequest) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def part(_: web.BaseRequest) -> web.Response:
    return web.Response(status=206, body=b"bytes", headers={"ETag": '"abc"'})


QUICK = S3ClientTuning(backoff_s=0.001, attempts_max=4, retry_budget=5)
VERSION = Version("64.abc")


async def test_failures_that_pass_are_retried() -> None:
    async with scripted(slow_down, cut, part) as (url, asked):
        store = S3Store(BUCKET, endpoint_url=url, tuning=QUICK)
        await store.open()
        assert await store.read(name("k"), VERSION, 10, 5) == b"bytes"
        assert len(asked) == 3
        assert asked[0].headers["Range"] == "bytes=10-14"
        assert asked[0].headers["If-Match"] == '"abc"'
        await store.close()


async def test_retries_have_an_end_and_a_shared_budget() -> None:
    async with scripted(slow_down) as (url, asked):
        store = S3Store(BUCKET, endpoint_url=url, tuning=QUICK)
        await store.open()
        counts = []
        for _ in range(3):
            before = len(asked)
            with pytest.raises(StoreUnavailable, match="SlowDown too fast"):
                await store.read(name("k"), VERSION, 10, 5)
            counts.append(len(asked) - before)
        assert counts == [4, 3, 1], "the budget of 5 retries is spent"
        await store.close()


async def test_silent_server_is_given_up_at_the_deadline() -> None:
    silent = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "HEAD":
            await silent.wait()
        return web.Response()

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    store = S3Store(BUCKET, endpoint_url=url, tuning=S3ClientTuning(operation_s=0.2))
    await store.open()
    with pytest.raises(StoreUnavailable, match=r"not answered within 0\.2 s"):
        await store.read(name("k"), VERSION, 10, 5)
    silent.set()
    await store.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (web.Response(status=412), VersionChanged),
        (web.Response(status=416), VersionChanged),
        (web.Response(status=206, body=b"other", headers={"ETag": '"def"'}), VersionChanged),
        (web.Response(status=206, body=b"shor", headers={"ETag": '"abc"'}), StoreUnavailable),
        (web.Response(status=200, body=b"x" * 100, headers={"ETag": '"abc"'}), StoreUnavailable),
        (
            web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>"),
            StoreUnavailable,
        ),
    ],
)
async def test_answers_that_are_not_the_version_are_errors(
    answer: web.Response, error: type[Exception]
) -> None:
    async with scripted(lambda _: answer) as (url, _):
        store = S3Store(BUCKET, endpoint_url=url, tuning=QUICK)
        await store.open()
        with pytest.raises(error):
            await store.read(name("k"), VERSION, 10, 5)
        await store.close()


async def test_encoded_object_is_read_as_its_bytes() -> None:
    def gzipped(_: web.BaseRequest) -> web.Response:
        headers = {"ETag": '"abc"', "Content-Encoding": "gzip"}
        return web.Response(status=206, body=b"\x1f\x8b123", headers=headers)

    async with scripted(gzipped) as (url, _):
        store = S3Store(BUCKET, endpoint_url=url, tuning=QUICK)
        await store.open()
        assert await store.read(name("k"), VERSION, 0, 5) == b"\x1f\x8b123"
        await store.close()


@pytest.mark.parametrize("key", ["a//b", "a/../b", "/lead", "dir/", "a b+c%d", "é?&#;", "\x01"])
async def test_key_goes_out_as_its_bytes(key: str) -> None:
    """What a server without SeaweedFS's habits receives."""
    seen: list[bytes] = []

    def note(request: web.BaseRequest) -> web.Response:
        seen.append(request.raw_path.encode())
        return part(request)

    async with scripted(note) as (url, _):
        store = S3Store(BUCKET, endpoint_url=url, tuning=QUICK)
        await store.open()
        await store.read(name(key), VERSION, 10, 5)
        await store.close()
    expected = b"".join(
        bytes([b]) if (chr(b).isalnum() and b < 128) or b in b"/-._~" else b"%%%02X" % b
        for b in key.encode()
    )
    assert seen == [b"/data/" + expected]
