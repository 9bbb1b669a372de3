"""What the folder store adds to the contract: names that are paths, and changes behind its back."""
# ruff: noqa: ASYNC240 - the files of a test are small and local

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hubspoke.adapters import folder_reads
from hubspoke.adapters.folder_store import FolderStore, FolderStoreTuning
from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.errors import (
    BucketNotEmpty,
    ConfigError,
    InvalidKey,
    InvalidRequest,
    NoSuchBucket,
    NoSuchKey,
    StoreUnavailable,
    VersionChanged,
)


def name(key: str, bucket: str = "data") -> ObjectName:
    return ObjectName(bucket, key)


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
async def store(tmp_path: Path, bucket: Path) -> AsyncIterator[FolderStore]:
    store = FolderStore(tmp_path)
    await store.open()
    yield store
    await store.close()


async def put(store: FolderStore, key: str, data: bytes = b"x") -> ObjectEntry:
    return await store.complete(await store.stage(name(key), {}, chunks(data)))


async def keys(store: FolderStore) -> set[str]:
    return {n.key async for batch in store.scan() for n, _ in batch}


async def head(store: FolderStore, key: str) -> ObjectEntry:
    entry = await store.head(name(key))
    assert entry is not None
    return entry


async def test_a_put_is_a_file_under_its_own_name(store: FolderStore, bucket: Path) -> None:
    for key in ("a", "d/e/f", "A", "é", "e\u0301", "new\nline", "sp ace", "back\\slash", "\x01"):
        await put(store, key, key.encode())
        assert (bucket / key).read_bytes() == key.encode()
    assert await keys(store) == {
        "a",
        "d/e/f",
        "A",
        "é",
        "e\u0301",
        "new\nline",
        "sp ace",
        "back\\slash",
        "\x01",
    }


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("/lead", "empty path segment"),
        ("a//b", "empty path segment"),
        ("//", "empty path segment"),
        ("a//", "empty path segment"),
        ("..", "is '..'"),
        ("a/../../b", "is '..'"),
        ("./a", "is '.'"),
        ("a/./b", "is '.'"),
        ("a/..", "is '..'"),
        ("x" * 256, "more than 255 bytes"),
        ("é" * 128, "more than 255 bytes"),
        ("a\0b", "NUL"),
        ("x/" * 512 + "y", "1025 bytes"),
    ],
)
async def test_keys_that_are_no_paths_are_refused_with_the_reason(
    store: FolderStore, tmp_path: Path, key: str, reason: str
) -> None:
    before = sorted(p for p in tmp_path.rglob("*") if ".hubspoke" not in p.parts)
    with pytest.raises(InvalidKey, match=re.escape(reason)):
        await store.stage(name(key), {}, chunks(b"x"))
    with pytest.raises(InvalidKey, match=re.escape(reason)):
        await store.create_multipart(name(key), {})
    assert await store.head(name(key)) is None
    await store.delete(name(key))
    assert sorted(p for p in tmp_path.rglob("*") if ".hubspoke" not in p.parts) == before


async def test_object_and_folder_of_one_name_exclude_each_other(store: FolderStore) -> None:
    await put(store, "a")
    with pytest.raises(InvalidKey, match="is an object itself"):
        await put(store, "a/b")
    with pytest.raises(InvalidKey, match="without the '/'"):
        await put(store, "a/", b"")
    await put(store, "d/e")
    with pytest.raises(InvalidKey, match="other objects lie below"):
        await put(store, "d")
    assert await keys(store) == {"a", "d/e"}


async def test_conflict_that_comes_after_the_staging_is_found_at_completion(
    store: FolderStore,
) -> None:
    staged = await store.stage(name("a"), {}, chunks(b"x"))
    await put(store, "a/b")
    with pytest.raises(InvalidKey):
        await store.complete(staged)
    await store.discard(staged)
    assert await keys(store) == {"a/b"}


async def test_marker_with_bytes_is_refused(store: FolderStore) -> None:
    with pytest.raises(InvalidKey, match="holds no bytes"):
        await store.stage(name("a/"), {}, chunks(b"", b"x"))
    with pytest.raises(InvalidKey, match="holds no bytes"):
        await store.create_multipart(name("a/"), {})


async def test_delete_removes_folders_that_are_empty_without_it(
    store: FolderStore, bucket: Path
) -> None:
    await put(store, "a/b/c/d")
    await put(store, "a/e")
    await put(store, "m/", b"")
    await put(store, "m/n/o")
    await store.delete(name("a/b/c/d"))
    assert not (bucket / "a/b").exists()
    assert (bucket / "a/e").exists()
    await store.delete(name("m/n/o"))
    assert not (bucket / "m/n").exists()
    assert await keys(store) == {"a/e", "m/"}
    await store.delete(name("m/"))
    assert not (bucket / "m").exists()
    await store.delete(name("a/e"))
    assert bucket.exists(), "an empty bucket is a bucket"


async def test_folders_are_no_objects_unless_they_were_put(
    store: FolderStore, bucket: Path
) -> None:
    (bucket / "made/by/hand").mkdir(parents=True)
    assert await keys(store) == set()
    assert await store.head(name("made/by/")) is None
    assert await store.head(name("made")) is None
    await put(store, "made", b"x")  # an empty tree of folders is nothing in S3's eyes
    assert await keys(store) == {"made"}


async def test_same_size_overwrite_behind_the_stores_back_is_seen(
    store: FolderStore, bucket: Path
) -> None:
    path = bucket / "f"
    path.write_bytes(b"a" * 8)
    first = await head(store, "f")
    assert await store.read(name("f"), first.version, 0, 8) == b"a" * 8
    with path.open("r+b") as file:
        file.write(b"b" * 8)
    os.utime(path, ns=(path.stat().st_atime_ns, first.modified_ns))  # and its time set back
    with pytest.raises(VersionChanged):
        await store.read(name("f"), first.version, 0, 8)
    second = await head(store, "f")
    assert second.version != first.version
    assert await store.read(name("f"), second.version, 0, 8) == b"b" * 8


@pytest.mark.parametrize("way", ["replace", "unlink", "rename", "truncate", "link over"])
async def test_kept_descriptor_does_not_outlive_its_name(
    store: FolderStore, bucket: Path, way: str
) -> None:
    path, other = bucket / "f", bucket / "other"
    path.write_bytes(b"a" * 8192)
    entry = await head(store, "f")
    assert await store.read(name("f"), entry.version, 0, 8) == b"a" * 8
    match way:
        case "replace":
            other.write_bytes(b"b" * 8192)
            other.replace(path)
        case "unlink":
            path.unlink()
        case "rename":
            path.rename(other)
        case "truncate":
            os.truncate(path, 4096)
        case "link over":
            path.unlink()
            path.symlink_to("nowhere")
    with pytest.raises((VersionChanged, NoSuchKey)):
        await store.read(name("f"), entry.version, 0, 8)


async def test_bytes_of_two_versions_never_come_in_one_read(
    store: FolderStore, bucket: Path
) -> None:
    path = bucket / "f"
    size = 1 << 20
    path.write_bytes(b"0" * size)
    done = asyncio.Event()

    def overwrite() -> None:
        with path.open("r+b") as file:
            for i in range(60):
                file.seek(0)
                file.write(b"%d" % (i % 10) * size)
                file.flush()

    async def reader() -> int:
        reads = 0
        while not done.is_set():
            found = await store.head(name("f"))
            assert found is not None
            try:
                data = await store.read(name("f"), found.version, 0, size)
            except VersionChanged:
                continue
            assert data == data[:1] * size
            reads += 1
        return reads

    readers = [asyncio.create_task(reader()) for _ in range(3)]
    await asyncio.to_thread(overwrite)
    done.set()
    await asyncio.wait_for(asyncio.gather(*readers), 30)


async def test_version_is_given_only_when_its_clock_tick_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a")
    pauses: list[float] = []
    now = [path.stat().st_ctime_ns + 5_000_000]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += int(seconds * 1e9)

    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    folder_reads.settled(lambda: os.stat(path))
    assert pauses == [pytest.approx(0.015)]


async def test_scanned_files_have_an_etag_that_is_no_md5(store: FolderStore, bucket: Path) -> None:
    (bucket / "f").write_bytes(b"abc")
    entry = await head(store, "f")
    assert not re.fullmatch(r"[0-9a-f]{32}(-\d+)?", entry.etag)
    assert "-" in entry.etag
    written = await put(store, "g", b"abc")
    assert written.etag == "900150983cd24fb0d6963f7d28e17f72"
    assert len(entry.version) <= 128 and entry.version.isascii()


async def test_links_are_followed_to_files_inside_only(
    store: FolderStore, bucket: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_bytes(b"secret")
    (bucket / "real").write_bytes(b"real")
    (bucket / "sub").mkdir()
    (bucket / "sub/f").write_bytes(b"f")
    (bucket / "inside").symlink_to("real")
    (bucket / "out").symlink_to(outside / "secret")
    (bucket / "outdir").symlink_to(outside)
    (bucket / "indir").symlink_to("sub")
    (bucket / "dangling").symlink_to("nothing")
    assert await keys(store) == {"real", "sub/f", "inside"}
    entry = await head(store, "inside")
    assert await store.read(name("inside"), entry.version, 0, 4) == b"real"
    for key in ("out", "outdir/secret", "indir/f", "dangling"):
        assert await store.head(name(key)) is None, key
        with pytest.raises(NoSuchKey):
            await store.read(name(key), entry.version, 0, 1)
    for key in ("outdir/new", "indir/new"):
        with pytest.raises(InvalidKey, match="symbolic link"):
            await put(store, key)
        await store.delete(name(key))
    await store.delete(name("outdir/secret"))
    assert (outside / "secret").exists()
    assert list(outside.iterdir()) == [outside / "secret"]
    await put(store, "out", b"new")  # replaces the link, not what it leads to
    assert (outside / "secret").read_bytes() == b"secret"
    assert (bucket / "out").read_bytes() == b"new"
    assert store.skipped.counts["a link out of the folder"] == 2


async def test_what_cannot_be_an_object_is_skipped_and_counted(
    store: FolderStore, bucket: Path, tmp_path: Path
) -> None:
    (bucket / "good").write_bytes(b"")
    (Path(os.fsdecode(os.fsencode(bucket) + b"/bad\xff"))).write_bytes(b"")
    os.mkfifo(bucket / "pipe")
    (tmp_path / "file beside").write_bytes(b"")
    (tmp_path / "No_Bucket").mkdir()
    deep = bucket
    for _ in range(5):
        deep = deep / ("x" * 250)
        deep.mkdir()
    (deep / "f").write_bytes(b"")
    assert await keys(store) == {"good"}
    assert store.skipped.counts == {
        "not UTF-8": 1,
        "not a file": 1,
        "longer than a key may be": 1,
        "beside the buckets: not a folder": 1,
        "beside the buckets: not a legal bucket name": 1,
    }
    assert store.skipped.examples["not UTF-8"][0].endswith("bad\\udcff")
    assert await store.head(name("pipe")) is None


async def test_staging_is_never_listed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "data")
    await store.open()
    staged = await store.stage(name("a"), {}, chunks(b"x"))
    upload_id = await store.create_multipart(name("b"), {})
    await store.put_part(name("b"), upload_id, 1, chunks(b"x"))
    assert await keys(store) == set()
    for key in (".hubspoke", ".hubspoke/x", ".hubspoke/staging/x"):
        with pytest.raises(InvalidKey, match="own folder"):
            await put(store, key)
        assert await store.head(name(key)) is None
    (tmp_path / "link").symlink_to(".hubspoke/uploads")
    await put(store, "c/.hubspoke")
    await store.complete(staged)
    assert await keys(store) == {"a", "c/.hubspoke"}
    await store.close()


async def test_staged_bytes_survive_a_restart(tmp_path: Path, bucket: Path) -> None:
    first = FolderStore(tmp_path)
    await first.open()
    kept = await first.stage(name("kept"), {"content-type": "a/b"}, chunks(b"kept"))
    done = await first.stage(name("done"), {}, chunks(b"done"))
    entry = await first.complete(done)
    await first.stage(name("orphan"), {}, chunks(b"orphan"))
    upload_id = await first.create_multipart(name("multi"), {})
    part = await first.put_part(name("multi"), upload_id, 1, chunks(b"part"))
    await first.close()

    second = FolderStore(tmp_path)
    await second.open()
    await second.sweep({kept.token, done.token})
    assert len(list((tmp_path / ".hubspoke/staging").iterdir())) == 1
    assert (await second.complete(kept)).headers == {"content-type": "a/b"}
    assert (bucket / "kept").read_bytes() == b"kept"
    assert await second.complete(done) == entry
    assert await second.list_parts(name("multi"), upload_id) == [part]
    await second.close()


async def test_sweep_keeps_uploads_and_removes_their_debris(
    store: FolderStore, tmp_path: Path
) -> None:
    upload_id = await store.create_multipart(name("multi"), {})
    part = await store.put_part(name("multi"), upload_id, 1, chunks(b"part"))
    uploads = tmp_path / ".hubspoke/uploads"
    (uploads / upload_id / "tmp-cut-short").write_bytes(b"x")
    (uploads / ("0" * 32)).mkdir()
    await store.sweep(())
    assert sorted(p.name for p in (uploads / upload_id).iterdir()) == [f"00001-{part.etag}", "info"]
    assert [p.name for p in uploads.iterdir()] == [upload_id]


async def test_buckets(store: FolderStore, tmp_path: Path, bucket: Path) -> None:
    await store.create_bucket("more")
    await store.create_bucket("more")
    assert await store.buckets() == ["data", "more"]
    await put(store, "a/b")
    with pytest.raises(BucketNotEmpty):
        await store.delete_bucket("data")
    (tmp_path / "more/empty/folders").mkdir(parents=True)
    await store.delete_bucket("more")
    assert await store.buckets() == ["data"]
    with pytest.raises(NoSuchBucket):
        await store.delete_bucket("more")
    for illegal in ("..", ".hubspoke", "No_Bucket", "a"):
        with pytest.raises(InvalidRequest):
            await store.create_bucket(illegal)
        with pytest.raises(NoSuchBucket):
            await store.delete_bucket(illegal)


async def test_folder_as_one_bucket(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    store = FolderStore(tmp_path, "data")
    await store.open()
    assert await store.buckets() == ["data"]
    assert await keys(store) == {"f"}
    await store.create_bucket("data")
    with pytest.raises(InvalidRequest):
        await store.create_bucket("other")
    with pytest.raises(InvalidRequest):
        await store.delete_bucket("data")
    await store.close()


async def test_empty_root_has_no_buckets(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    await store.open()
    assert await store.buckets() == []
    assert await keys(store) == set()
    await store.close()


async def test_unusable_roots_are_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for root, what in ((tmp_path / "missing", "No such file"), (file, "Not a directory")):
        store = FolderStore(root)
        with pytest.raises(ConfigError, match=f"{re.escape(str(root))}.*{what}"):
            await store.open()
        await store.close()
    store = FolderStore(tmp_path, "No_Bucket")
    with pytest.raises(ConfigError, match="No_Bucket"):
        await store.open()
    await store.close()


async def test_folders_without_rights(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights do not bind root, who often runs tests: the refusal is played."""
    (bucket / "closed").mkdir()
    (bucket / "open").write_bytes(b"")
    scandir, listdir = os.scandir, os.listdir
    closed = [os.fsencode(bucket / "closed")]

    def refused(path: bytes) -> bool:
        if path in closed:
            raise PermissionError(13, "Permission denied", path)
        return False

    monkeypatch.setattr(os, "scandir", lambda path: refused(path) or scandir(path))
    monkeypatch.setattr(os, "listdir", lambda path: refused(path) or listdir(path))
    store = FolderStore(tmp_path)
    await store.open()
    assert await keys(store) == {"open"}
    assert store.skipped.counts == {"a folder that may not be read": 1}
    await store.close()
    closed.append(os.fsencode(tmp_path))
    store = FolderStore(tmp_path)
    with pytest.raises(ConfigError, match="Permission denied"):
        await store.open()
    await store.close()


async def test_full_disk_is_an_unavailable_store(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hubspoke.adapters.folder_staging.os.write", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        await put(store, "a")
    assert list((tmp_path / ".hubspoke/staging").iterdir()) == []


async def test_many_files_are_read_with_few_descriptors(tmp_path: Path, bucket: Path) -> None:
    store = FolderStore(tmp_path, tuning=FolderStoreTuning(open_files_max=4))
    await store.open()
    for i in range(40):
        (bucket / str(i)).write_bytes(b"%d" % i)
    entries = {n: entry async for batch in store.scan() for n, entry in batch}

    def descriptors() -> int:
        links = (os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists())
        return sum(str(bucket) in link for link in links)

    for _ in range(2):
        results = await asyncio.gather(
            *(store.read(n, entry.version, 0, entry.size) for n, entry in entries.items())
        )
        assert results == [n.key.encode() for n in entries]
        assert descriptors() <= 4
    await store.close()
    assert descriptors() == 0


async def test_concurrent_puts_and_deletes_in_one_folder(store: FolderStore) -> None:
    async def churn(i: int) -> None:
        for _ in range(10):
            await put(store, f"d/e/{i}")
            await store.delete(name(f"d/e/{i}"))

    await asyncio.wait_for(asyncio.gather(*(churn(i) for i in range(8))), 60)
    assert await keys(store) == set()


@pytest.mark.parametrize("date_ns", [2**63 + 10**18, 2**63 - 1, 0, -(10**18)])
async def test_a_file_may_have_any_date(store: FolderStore, bucket: Path, date_ns: int) -> None:
    (bucket / "k").write_bytes(b"x")
    os.utime(bucket / "k", ns=(date_ns, date_ns))
    entry = await store.head(name("k"))
    assert entry is not None
    assert entry.modified_ns == min(date_ns, 2**63 - 1)  # what log and wire can hold
    assert await store.read(name("k"), entry.version, 0, 1) == b"x"
    assert [batch async for batch in store.scan()] == [[(name("k"), entry)]]
