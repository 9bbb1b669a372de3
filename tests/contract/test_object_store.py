"""What every ObjectStore promises, run against each adapter."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from hubspoke.adapters.etag import multipart_etag
from hubspoke.core.ids import ObjectEntry, ObjectName, Version
from hubspoke.core.noticed import Part
from hubspoke.errors import (
    InvalidKey,
    InvalidPart,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    VersionChanged,
)
from hubspoke.ports import ObjectStore

BUCKET = "data"
PART = 5 << 20  # S3's least size of a part that is not the last


def name(key: str) -> ObjectName:
    return ObjectName(BUCKET, key)


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


async def put(store: ObjectStore, key: str, *pieces: bytes) -> ObjectEntry:
    return await store.complete(await store.stage(name(key), {}, chunks(*pieces)))


async def scanned(store: ObjectStore) -> dict[ObjectName, ObjectEntry]:
    return {n: entry async for batch in store.scan() for n, entry in batch}


async def test_put_object_is_read_listed_and_headed_exactly(object_store: ObjectStore) -> None:
    data = os.urandom(300_000)
    entry = await put(object_store, "a/b c+%d/ü.bin", data[:100], data[100:])
    assert entry.size == len(data)
    key = name("a/b c+%d/ü.bin")
    assert await object_store.read(key, entry.version, 0, len(data)) == data
    assert await object_store.read(key, entry.version, 4096, 8192) == data[4096 : 4096 + 8192]
    assert await object_store.read(key, entry.version, len(data) - 1, 1) == data[-1:]
    assert await object_store.read(key, entry.version, 0, 0) == b""
    head = await object_store.head(key)
    assert head is not None and (head.version, head.size) == (entry.version, len(data))
    listed = await scanned(object_store)
    assert listed[key].version == entry.version
    assert listed[key].size == len(data)


async def test_empty_object(object_store: ObjectStore) -> None:
    entry = await put(object_store, "empty")
    assert entry.size == 0
    head = await object_store.head(name("empty"))
    assert head is not None and head.version == entry.version


async def test_etag_is_of_the_bytes(object_store: ObjectStore) -> None:
    entry = await put(object_store, "x", b"hello ", b"world")
    md5 = hashlib.md5(b"hello world").hexdigest()
    assert entry.etag in (md5, multipart_etag([md5]))


async def test_headers_are_kept_even_those_that_come_with_the_last_chunk(
    object_store: ObjectStore,
) -> None:
    headers = {"content-type": "text/x", "x-amz-meta-a": "1"}

    async def late() -> AsyncIterator[bytes]:
        yield b"abc"
        headers["x-amz-checksum-crc32"] = "NSRBwg=="

    staged = await object_store.stage(name("h"), headers, late())
    entry = await object_store.complete(staged)
    assert entry.headers == {
        "content-type": "text/x",
        "x-amz-meta-a": "1",
        "x-amz-checksum-crc32": "NSRBwg==",
    }


async def test_staged_bytes_have_no_name_until_completed(object_store: ObjectStore) -> None:
    staged = await object_store.stage(name("later"), {}, chunks(b"abc"))
    assert staged.size == 3
    assert await object_store.head(name("later")) is None
    assert name("later") not in await scanned(object_store)
    await object_store.complete(staged)
    assert name("later") in await scanned(object_store)


async def test_complete_can_be_repeated(object_store: ObjectStore) -> None:
    staged = await object_store.stage(name("twice"), {}, chunks(b"abc"))
    first = await object_store.complete(staged)
    assert await object_store.complete(staged) == first


async def test_discarded_bytes_cannot_be_completed(object_store: ObjectStore) -> None:
    staged = await object_store.stage(name("gone"), {}, chunks(b"abc"))
    await object_store.discard(staged)
    await object_store.discard(staged)
    with pytest.raises(NoSuchUpload):
        await object_store.complete(staged)
    assert await object_store.head(name("gone")) is None


async def test_failing_body_leaves_nothing(object_store: ObjectStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise ValueError("the client went away")

    with pytest.raises(ValueError, match="went away"):
        await object_store.stage(name("broken"), {}, broken())
    assert await object_store.head(name("broken")) is None


async def test_cancelled_stage_leaves_nothing(object_store: ObjectStore) -> None:
    reached = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"some"
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(object_store.stage(name("cancelled"), {}, endless()))
    await asyncio.wait_for(reached.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await object_store.head(name("cancelled")) is None


async def test_overwritten_version_cannot_be_read(object_store: ObjectStore) -> None:
    old = await put(object_store, "o", b"a" * 100)
    assert await object_store.read(name("o"), old.version, 0, 100) == b"a" * 100
    new = await put(object_store, "o", b"b" * 100)
    assert new.version != old.version
    with pytest.raises(VersionChanged):
        await object_store.read(name("o"), old.version, 0, 100)
    assert await object_store.read(name("o"), new.version, 0, 100) == b"b" * 100


async def test_readers_during_overwrites_see_one_version_each(object_store: ObjectStore) -> None:
    current = await put(object_store, "o", b"0" * 50_000)
    versions: dict[Version, bytes] = {current.version: b"0"}

    async def reader() -> None:
        while not done.is_set():
            await asyncio.sleep(0)
            version = current.version
            try:
                data = await object_store.read(name("o"), version, 10_000, 30_000)
            except VersionChanged:
                continue
            assert data == versions[version] * 30_000

    done = asyncio.Event()
    readers = [asyncio.create_task(reader()) for _ in range(4)]
    for i in range(1, 10):
        entry = await put(object_store, "o", b"%d" % i * 50_000)
        versions[entry.version] = b"%d" % i
        current = entry
    done.set()
    await asyncio.wait_for(asyncio.gather(*readers), 30)


async def test_deleted_object_is_gone_and_delete_is_idempotent(object_store: ObjectStore) -> None:
    entry = await put(object_store, "d/e", b"abc")
    await object_store.delete(name("d/e"))
    await object_store.delete(name("d/e"))
    assert await object_store.head(name("d/e")) is None
    assert name("d/e") not in await scanned(object_store)
    with pytest.raises((NoSuchKey, VersionChanged)):
        await object_store.read(name("d/e"), entry.version, 0, 3)


async def test_copy_has_the_sources_bytes_and_its_own_headers(object_store: ObjectStore) -> None:
    data = os.urandom(100_000)
    source = await put(object_store, "from", data)
    staged = await object_store.stage_copy(
        name("from"), source.version, name("to"), {"content-type": "text/x"}
    )
    entry = await object_store.complete(staged)
    assert entry.headers == {"content-type": "text/x"}
    assert await object_store.read(name("to"), entry.version, 0, len(data)) == data


async def test_copy_of_a_former_version_is_refused(object_store: ObjectStore) -> None:
    source = await put(object_store, "from", b"a" * 10)
    await put(object_store, "from", b"b" * 10)
    with pytest.raises(VersionChanged):
        await object_store.stage_copy(name("from"), source.version, name("to"), {})


async def test_directory_marker_and_what_lies_below_it(object_store: ObjectStore) -> None:
    marker = await put(object_store, "dir/")
    assert marker.size == 0
    assert name("dir/") in await scanned(object_store)
    child = await put(object_store, "dir/file", b"abc")
    assert {name("dir/"), name("dir/file")} <= (await scanned(object_store)).keys()
    head = await object_store.head(name("dir/"))
    assert head is not None and head.version == marker.version, "children do not change it"
    await object_store.delete(name("dir/"))
    assert await object_store.head(name("dir/")) is None
    assert await object_store.read(name("dir/file"), child.version, 0, 3) == b"abc"


async def test_unknown_bucket_is_said(object_store: ObjectStore) -> None:
    with pytest.raises(NoSuchBucket):
        await object_store.stage(ObjectName("unknown-bucket", "k"), {}, chunks(b"x"))
    assert await object_store.head(ObjectName("unknown-bucket", "k")) is None
    assert BUCKET in await object_store.buckets()


async def test_key_of_more_than_1024_bytes_is_refused(object_store: ObjectStore) -> None:
    with pytest.raises(InvalidKey, match="1024"):
        await object_store.stage(name("ab/" * 341 + "cd"), {}, chunks(b"x"))


async def test_multipart_upload(object_store: ObjectStore) -> None:
    data = os.urandom(PART + 1000)
    key = name("multi")
    upload_id = await object_store.create_multipart(key, {"content-type": "text/x"})
    await object_store.put_part(key, upload_id, 2, chunks(b"to be replaced"))
    tail = await object_store.put_part(key, upload_id, 2, chunks(data[PART:]))
    first = await object_store.put_part(
        key, upload_id, 1, chunks(data[: 1 << 20], data[1 << 20 : PART])
    )
    listed = [(p.number, p.size, p.etag) for p in await object_store.list_parts(key, upload_id)]
    assert listed[0] == (1, PART, first.etag)
    assert (2, 1000, tail.etag) in listed[1:]
    assert {number for number, _, _ in listed} == {1, 2}
    assert first.etag == hashlib.md5(data[:PART]).hexdigest()
    assert upload_id in [u.upload_id for u in await object_store.list_multiparts(BUCKET)]
    assert await object_store.head(key) is None
    staged = await object_store.stage_multipart(key, upload_id, [(1, first.etag), (2, tail.etag)])
    assert await object_store.head(key) is None
    entry = await object_store.complete(staged)
    assert entry.size == len(data)
    assert entry.etag == multipart_etag([first.etag, tail.etag])
    assert entry.headers == {"content-type": "text/x"}
    assert await object_store.read(key, entry.version, 0, len(data)) == data
    assert await object_store.complete(staged) == entry
    with pytest.raises(NoSuchUpload):
        await object_store.list_parts(key, upload_id)


async def test_multipart_with_a_part_that_was_not_uploaded(object_store: ObjectStore) -> None:
    key = name("multi")
    upload_id = await object_store.create_multipart(key, {})
    part = await object_store.put_part(key, upload_id, 1, chunks(b"abc"))
    for parts in ([(2, part.etag)], [(1, "0" * 32)]):
        with pytest.raises(InvalidPart):
            await object_store.stage_multipart(key, upload_id, parts)
    await object_store.abort_multipart(key, upload_id)


async def test_aborted_upload_is_gone(object_store: ObjectStore) -> None:
    key = name("aborted")
    upload_id = await object_store.create_multipart(key, {})
    await object_store.put_part(key, upload_id, 1, chunks(b"abc"))
    await object_store.abort_multipart(key, upload_id)
    with pytest.raises(NoSuchUpload):
        await object_store.put_part(key, upload_id, 2, chunks(b"abc"))
    with pytest.raises(NoSuchUpload):
        await object_store.abort_multipart(key, upload_id)
    assert upload_id not in [u.upload_id for u in await object_store.list_multiparts(BUCKET)]


async def test_upload_belongs_to_its_key(object_store: ObjectStore) -> None:
    upload_id = await object_store.create_multipart(name("mine"), {})
    for other in (name("other"), name("mine/x")):
        with pytest.raises(NoSuchUpload):
            await object_store.list_parts(other, upload_id)
    for hostile in ("../../x", "", "no-such-upload", "a" * 32):
        with pytest.raises(NoSuchUpload):
            await object_store.list_parts(name("mine"), hostile)
    await object_store.abort_multipart(name("mine"), upload_id)


async def test_sweep_removes_what_no_intent_names(object_store: ObjectStore) -> None:
    kept = await object_store.stage(name("kept"), {}, chunks(b"abc"))
    lost = await object_store.stage(name("lost"), {}, chunks(b"abc"))
    await object_store.sweep([kept.token])
    assert (await object_store.complete(kept)).size == 3
    await object_store.discard(lost)
    assert await object_store.head(name("lost")) is None


async def test_a_part_is_scanned_as_the_whole_is(object_store: ObjectStore) -> None:
    for key in ("a", "d/1", "d/e/2", "d/e/f/3", "de/4"):
        await put(object_store, key, b"x")
    everything = await scanned(object_store)
    for prefix in ("", "d/", "d/e/", "none/"):
        for deep in (True, False):
            part = Part(BUCKET, prefix, deep)
            found = {n: e async for batch in object_store.scan(part) for n, e in batch}
            expected = {n: e for n, e in everything.items() if part.covers(n)}
            assert {n: e.version for n, e in found.items()} == {
                n: e.version for n, e in expected.items()
            }, part
    async for batch in object_store.scan(Part("other", "", deep=True)):
        assert batch == []
