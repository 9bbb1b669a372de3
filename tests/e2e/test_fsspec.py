"""`hubspoke://` through fsspec: a hub, an emulated WAN and a spoke as real processes."""

import errno
import io
import multiprocessing
import pickle
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
from botocore.config import Config

from hubspoke.frontends.fsspec import HubSpokeFileSystem
from hubspoke.lab.stack import Service, Stack, WanConfig

KEYS = ("a.bin", "dir/b.bin", "dir/sub/c d.txt", "dir/é+%2F&?#.bin", "dir2/x", "empty")
BIG = "train/tokens.bin"
BIG_BYTES = 24 << 20


@cache
def content(key: str) -> bytes:
    if key == "empty":
        return b""
    return random.Random(key).randbytes(BIG_BYTES if key == BIG else 70_000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    for key in (*KEYS, BIG):
        path = store / "data" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(key))
    (store / "none").mkdir()
    return store


@pytest.fixture(scope="module")
def stack(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    work = tmp_path_factory.mktemp("work")
    with Stack(store, work=work, logs=work, wan=WanConfig(rtt_ms=60.0)) as stack:
        yield stack


@pytest.fixture(scope="module")
def spoke(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with stack.spoke("spoke", tmp_path_factory.mktemp("cache")) as spoke:
        yield spoke


@pytest.fixture
def fs(spoke: Service) -> HubSpokeFileSystem:
    return HubSpokeFileSystem(f"http://{spoke.data}", skip_instance_cache=True)


def put_at_hub(stack: Stack, key: str, body: bytes) -> None:
    boto3.client(
        "s3",
        endpoint_url=f"http://{stack.hub.data}",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    ).put_object(Bucket="data", Key=key, Body=body)


def test_names_are_found(fs: HubSpokeFileSystem) -> None:
    assert fs.ls("", detail=False) == ["data", "none"]
    assert fs.ls("hubspoke://data/dir/", detail=False) == [
        "data/dir/b.bin",
        "data/dir/sub",
        "data/dir/é+%2F&?#.bin",
    ]
    assert fs.ls("none") == []
    assert sorted(fs.find("data/dir")) == sorted(f"data/{k}" for k in KEYS if k.startswith("dir/"))
    assert fs.find("data/dir", maxdepth=1, withdirs=True) == [
        "data/dir/b.bin",
        "data/dir/sub",
        "data/dir/é+%2F&?#.bin",
    ]
    assert fs.find("data/a.bin") == ["data/a.bin"]
    assert fs.glob("data/**/*.txt") == ["data/dir/sub/c d.txt"]
    assert fs.glob("hubspoke://data/d*/*") == [
        "data/dir/b.bin",
        "data/dir/sub",
        "data/dir/é+%2F&?#.bin",
        "data/dir2/x",
    ]
    assert [d for d, _, _ in fs.walk("data/dir")] == ["data/dir", "data/dir/sub"]


def test_what_a_name_is(fs: HubSpokeFileSystem) -> None:
    info = fs.info("hubspoke://data/a.bin")
    assert (info["name"], info["size"], info["type"]) == ("data/a.bin", 70_000, "file")
    assert fs.modified("data/a.bin") == info["LastModified"]
    assert fs.ls("data/a.bin")[0]["ETag"] == info["ETag"]
    assert fs.info("data/dir")["type"] == fs.info("data")["type"] == "directory"
    assert fs.isdir("data/dir") and fs.isfile("data/empty") and not fs.isfile("data/dir")
    assert fs.exists("data/dir/b.bin") and not fs.exists("data/di")
    assert not fs.exists("data/dir/b.bin/x") and not fs.isdir("other")
    with pytest.raises(FileNotFoundError, match="data/nothing"):
        fs.info("data/nothing")
    with pytest.raises(FileNotFoundError):
        fs.ls("data/nothing")


def test_bytes_of_any_key_and_slice(fs: HubSpokeFileSystem) -> None:
    for key in KEYS:
        assert fs.cat_file(f"data/{key}") == content(key)
    whole = content("a.bin")
    for start, end in [
        (0, 10), (5, None), (None, 7), (-5, None), (-9, -2), (69_990, 80_000),
        (70_000, None), (90_000, 90_010), (8, 8), (9, 3), (None, -69_999), (3, -1),
    ]:  # fmt: skip
        assert fs.cat_file("data/a.bin", start, end) == whole[start:end], (start, end)
    assert fs.cat(["data/a.bin", "data/empty"]) == {"data/a.bin": whole, "data/empty": b""}
    assert set(fs.cat("data/dir", recursive=True)) == {
        f"data/{k}" for k in KEYS if k.startswith("dir/")
    }
    with pytest.raises(FileNotFoundError):
        fs.cat_file("data/nothing", 5, 3)


def test_many_ranges_in_one_request(fs: HubSpokeFileSystem, spoke: Service) -> None:
    """A thousand ranges of one object, of other objects, behind the end, and of none at all."""
    before = spoke.ask("/v1/report")["reads"]["requests"]
    rng = random.Random(1)
    starts = [rng.randrange(BIG_BYTES) for _ in range(1000)]
    ends = [start + rng.randrange(1, 5000) for start in starts]
    paths = [f"hubspoke://data/{BIG}"] * 1000
    extra: list[tuple[str, int | None, int | None, bytes]] = [
        ("data/a.bin", None, None, content("a.bin")),
        (f"data/{BIG}", -3, None, content(BIG)[-3:]),
        (f"data/{BIG}", BIG_BYTES + 5, BIG_BYTES + 9, b""),
        (f"data/{BIG}", 0, None, content(BIG)),
    ]
    paths += [path for path, *_ in extra] + ["data/nothing", "other/x"]
    found = fs.cat_ranges(
        paths,
        starts + [a for _, a, _, _ in extra] + [0, 0],
        ends + [b for _, _, b, _ in extra] + [1, 1],
    )
    whole = content(BIG)
    wanted = [whole[a:b] for a, b in zip(starts, ends, strict=True)] + [w for *_, w in extra]
    assert found[:-2] == wanted
    assert [type(e) for e in found[-2:]] == [FileNotFoundError, FileNotFoundError]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["data/nothing", "data/a.bin"], 0, 5, on_error="raise")
    after = spoke.ask("/v1/report")["reads"]["requests"]
    assert after - before >= len(wanted)


def test_ranges_cost_what_they_are(stack: Stack, tmp_path: Path) -> None:
    """Cold, scattered: a page each and nothing around it."""
    with stack.spoke("cold", tmp_path / "cache") as spoke:
        fs = HubSpokeFileSystem(f"http://{spoke.data}", skip_instance_cache=True)
        starts = [i * 20_480 for i in random.Random(2).sample(range(BIG_BYTES // 20_480), 1000)]
        found = fs.cat_ranges([f"data/{BIG}"] * 1000, starts, [s + 4096 for s in starts])
        assert found == [content(BIG)[s : s + 4096] for s in starts]
        wan = spoke.ask("/v1/report")["wan"]
        assert wan["payload_bytes"] <= 1.05 * 1000 * 4096, wan


def test_an_open_file_is_one_version(fs: HubSpokeFileSystem, stack: Stack) -> None:
    put_at_hub(stack, "changing", b"old" * 20_000)
    with fs.open("data/changing") as file:
        assert file.read(3) == b"old"
        version = fs.ukey("data/changing")
        put_at_hub(stack, "changing", b"new" * 20_000)
        assert fs.ukey("data/changing") != version
        with pytest.raises(OSError, match="changing") as raised:
            file.read(30_000)
        assert raised.value.errno == errno.ESTALE
    with fs.open("data/changing") as file:
        assert file.read() == b"new" * 20_000


def test_a_file_reads_like_one(fs: HubSpokeFileSystem) -> None:
    whole = content("a.bin")
    with fs.open("hubspoke://data/a.bin") as file:
        file.seek(100)
        assert file.read(10) == whole[100:110] and file.tell() == 110
        file.seek(-7, io.SEEK_END)
        assert file.read() == whole[-7:] and file.read(5) == b""
        file.seek(0)
        assert b"".join(file) == whole
    with pytest.raises(IsADirectoryError):
        fs.open("data/dir")


def test_downloads_are_whole(fs: HubSpokeFileSystem, tmp_path: Path) -> None:
    fs.get("data/dir", str(tmp_path / "copy"), recursive=True)
    found = {
        p.relative_to(tmp_path / "copy").as_posix() for p in tmp_path.rglob("*") if p.is_file()
    }
    assert found == {k.removeprefix("dir/") for k in KEYS if k.startswith("dir/")}
    assert (tmp_path / "copy" / "b.bin").read_bytes() == content("dir/b.bin")


def test_writes_are_refused(fs: HubSpokeFileSystem, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: fs.pipe_file("data/new", b"x"),
        lambda: fs.put_file(str(tmp_path / "x"), "data/new"),
        lambda: fs.rm_file("data/a.bin"),
        lambda: fs.mkdir("data/new"),
        lambda: fs.open("data/new", "wb"),
    )
    for attempt in attempts:
        with pytest.raises(OSError, match="read-only") as raised:
            attempt()
        assert raised.value.errno == errno.EROFS
    assert not fs.exists("data/new") and fs.exists("data/a.bin")


def _read_in_child(fs: HubSpokeFileSystem, out: Any) -> None:
    out.put(fs.cat_file("data/a.bin", 10, 20))


def test_a_forked_worker_goes_on_with_it(fs: HubSpokeFileSystem) -> None:
    assert fs.cat_file("data/a.bin", 0, 5) == content("a.bin")[:5]
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    children = [context.Process(target=_read_in_child, args=(fs, out)) for _ in range(3)]
    for child in children:
        child.start()
    assert [out.get(timeout=30) for _ in children] == [content("a.bin")[10:20]] * 3
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    assert fs.cat_file("data/a.bin", 0, 5) == content("a.bin")[:5]


def test_it_is_known_to_fsspec_and_pickled(spoke: Service) -> None:
    url = f"http://{spoke.data}"
    with fsspec.open("hubspoke://data/a.bin", endpoint_url=url) as file:
        assert file.read() == content("a.bin")
    fs = fsspec.filesystem("hubspoke", endpoint_url=url)
    again = pickle.loads(pickle.dumps(fs))
    assert again.endpoint_url == url and again.cat_file("data/empty") == b""


def test_no_spoke_is_an_error_and_no_absence() -> None:
    fs = HubSpokeFileSystem("http://127.0.0.1:9", skip_instance_cache=True)
    for ask in (fs.exists, fs.isfile, fs.isdir, fs.cat_file):
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:9"):
            ask("data/a.bin")
    with pytest.raises(ValueError, match="endpoint_url='nowhere'"):
        HubSpokeFileSystem("nowhere", skip_instance_cache=True)


def test_a_port_that_is_no_door_is_an_error_and_no_absence(spoke: Service) -> None:
    """Its 404s would be an empty data set."""
    fs = HubSpokeFileSystem(f"http://{spoke.admin}", skip_instance_cache=True)
    for ask in (fs.exists, fs.isfile, fs.isdir, fs.cat_file, fs.info, fs.ls):
        with pytest.raises(OSError, match=f"{spoke.admin} answers, but not as a spoke's") as told:
            ask("data/a.bin")
        assert told.value.errno == errno.EPROTO


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"{", "ranges"),
        (b'{"ranges": [["data/a.bin", 0]]}', "ranges"),
        (b'{"ranges": [["data", 0, 1]]}', "'data' is no object"),
        (b'{"ranges": [["data/a.bin", 0.5, 1]]}', "ranges"),
        (b'{"ranges": [["a/b", 0, 1]' + b', ["a/b", 0, 1]' * 16_384 + b"]}", "16385 ranges"),
        (b'{"more": 1, "ranges": []}', "more"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(spoke: Service, body: bytes, wanted: str) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    request = Request(f"http://{spoke.data}/_hubspoke/v1/ranges", data=body, method="POST")
    with pytest.raises(HTTPError) as raised:
        urlopen(request, timeout=30)
    with raised.value as answer:
        assert answer.code == 400 and wanted in answer.read().decode()
