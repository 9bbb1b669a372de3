"""What every block store promises, and what the file store promises after a crash."""

import errno
import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubspoke import wire
from hubspoke.adapters import cache_index
from hubspoke.adapters.block_store import FileBlockStore
from hubspoke.adapters.memory_blocks import FaultyBlockStore, MemoryBlockStore
from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES, ObjectName, Version
from hubspoke.errors import ConfigError
from hubspoke.ports import BlockStore

NAME = ObjectName("data", "dir/ü//x")
SIZE = 3 * BLOCK_BYTES + 100
V = Version("v1")


def memory(_: Path) -> Callable[[], BlockStore]:
    store = MemoryBlockStore()
    return lambda: store


def one_folder(tmp: Path) -> Callable[[], BlockStore]:
    return lambda: FileBlockStore([tmp / "a"])


def two_folders(tmp: Path) -> Callable[[], BlockStore]:
    return lambda: FileBlockStore([tmp / "a", tmp / "b"])


def faultless(tmp: Path) -> Callable[[], BlockStore]:
    return lambda: FaultyBlockStore(FileBlockStore([tmp / "a"]), lambda _: None)


@pytest.fixture(params=[memory, one_folder, two_folders, faultless])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], BlockStore]:
    """Opens the same store again and again."""
    made: Callable[[], BlockStore] = request.param(tmp_path)
    return made


@pytest.fixture
def store(reopen: Callable[[], BlockStore]) -> Iterator[BlockStore]:
    s = reopen()
    assert s.load() == []
    yield s
    s.close()


def put(s: BlockStore, number: int, offset: int, data: bytes) -> None:
    s.write(number, offset, data, wire.digest(data))


def test_written_frames_are_read_back(store: BlockStore) -> None:
    store.create(1, NAME, V, SIZE)
    put(store, 1, 4096, b"x" * 8192)
    put(store, 1, 3 * BLOCK_BYTES, b"tail" * 25)
    assert store.read(1, 4096, 8192) == b"x" * 8192
    assert store.read(1, 3 * BLOCK_BYTES, 100) == b"tail" * 25
    now = store.read_now(1, 5000, 10)
    assert now is None or now == b"x" * 10
    assert store.written_bytes == 8292


def test_a_read_past_the_end_is_an_error_not_fewer_bytes(store: BlockStore) -> None:
    store.create(1, NAME, V, SIZE)
    with pytest.raises(OSError, match="ends at"):
        store.read(1, SIZE - 10, 20)


def test_frames_are_found_again_with_their_digests(
    store: BlockStore, reopen: Callable[[], BlockStore]
) -> None:
    for number in (1, 2, 3):
        store.create(number, ObjectName("data", f"k{number}"), V, SIZE)
        put(store, number, 0, bytes([number]) * 4096)
    store.close()
    again = reopen()
    found = {o.number: o for o in again.load()}
    assert set(found) == {1, 2, 3}
    for number, o in found.items():
        assert (o.name, o.version, o.size) == (ObjectName("data", f"k{number}"), V, SIZE)
        (frame,) = o.frames
        data = again.read(number, frame.offset, frame.length)
        assert wire.digest(data) == frame.digest
    again.close()


def test_a_punched_block_is_not_found_again(
    store: BlockStore, reopen: Callable[[], BlockStore]
) -> None:
    store.create(7, NAME, V, SIZE)
    put(store, 7, 0, b"a" * 4096)
    put(store, 7, BLOCK_BYTES, b"b" * 4096)
    store.punch(7, 0, BLOCK_BYTES)
    store.close()
    again = reopen()
    (o,) = again.load()
    assert [f.offset for f in o.frames] == [BLOCK_BYTES]
    again.close()


def test_a_dropped_object_is_gone(store: BlockStore, reopen: Callable[[], BlockStore]) -> None:
    store.create(7, NAME, V, SIZE)
    put(store, 7, 0, b"a" * 4096)
    store.drop(7)
    store.close()
    again = reopen()
    assert again.load() == []
    again.close()


# -- the file store alone ---------------------------------------------------------------------


def filled(tmp_path: Path) -> Path:
    s = FileBlockStore([tmp_path])
    s.load()
    s.create(1, NAME, V, SIZE)
    for i in range(3):
        put(s, 1, i * 4096, bytes([i]) * 4096)
    s.close()
    return tmp_path


def test_punching_frees_disk_space(tmp_path: Path) -> None:
    s = FileBlockStore([tmp_path])
    s.load()
    s.create(1, NAME, V, SIZE)
    put(s, 1, 0, os.urandom(256 << 10))
    os.sync()
    before = os.stat(tmp_path / "data" / "1").st_blocks
    s.punch(1, 0, BLOCK_BYTES)
    assert os.stat(tmp_path / "data" / "1").st_blocks < before
    assert os.stat(tmp_path / "data" / "1").st_size == SIZE
    s.close()


@pytest.mark.parametrize(("size", "floor"), [(10 << 30, (10 << 30) // 20), (4 << 40, 1 << 30)])
def test_some_of_the_disk_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, floor: int
) -> None:
    store = FileBlockStore([tmp_path])
    fields = list(os.statvfs(tmp_path))
    # Block and fragment size, blocks in all, free, and free for others than root.
    fields[:5] = [4096, 4096, size // 4096, size // 4096, (3 << 30) // 4096]
    told = os.statvfs_result(fields)
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    assert store.room() == (3 << 30) - floor
    fields[4] = 0
    told = os.statvfs_result(fields)
    assert store.room() == -floor


def test_a_write_that_fails_half_way_gives_its_space_back(tmp_path: Path) -> None:
    store = FileBlockStore([tmp_path])
    store.load()
    store.create(1, NAME, V, SIZE)
    put(store, 1, 0, os.urandom(8192))
    file = tmp_path / "data" / "1"
    before = file.stat().st_blocks
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES + 100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            put(store, 1, BLOCK_BYTES, os.urandom(256 << 10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.stat().st_blocks == before

    def full(point: str) -> None:
        if point == "write:data":
            raise OSError(errno.ENOSPC, "no room for the record")

    store._folders[0].at = full
    with pytest.raises(OSError, match="no room"):
        put(store, 1, BLOCK_BYTES, os.urandom(256 << 10))
    assert file.stat().st_blocks == before
    store.close()


def test_what_takes_space_is_told_where_it_is_more_than_known(tmp_path: Path) -> None:
    s = FileBlockStore([tmp_path])
    s.load()
    s.create(1, NAME, V, 2 * BLOCK_BYTES + 5)
    put(s, 1, 0, b"a" * 4096)
    put(s, 1, BLOCK_BYTES, b"b" * 8192)
    put(s, 1, 2 * BLOCK_BYTES, b"c" * 5)
    assert s.allocated({1: 1 << 30, 2: 0}) == []
    runs = [(1, 0, 4096), (1, BLOCK_BYTES, 8192), (1, 2 * BLOCK_BYTES, 5)]
    assert s.allocated({1: 4096}) == runs
    s.close()


@pytest.mark.parametrize("first", [0, 64, 192, 256])
def test_a_punched_frame_takes_no_other_one_of_its_block_with_it(
    reopen: Callable[[], BlockStore], first: int
) -> None:
    s = reopen()
    s.load()
    s.create(1, NAME, V, 2 * BLOCK_BYTES)
    for page in range(0, 512, 64):
        put(s, 1, page * 4096, bytes([1 + page // 64]) * 64 * 4096)
    s.punch(1, first * 4096, 64 * 4096)
    s.close()
    s = reopen()
    (o,) = s.load()
    assert [f.offset // 4096 for f in o.frames] == [p for p in range(0, 512, 64) if p != first]
    s.close()


@pytest.mark.parametrize("cut", [1, 5, 23])
def test_a_torn_index_keeps_what_came_before(tmp_path: Path, cut: int) -> None:
    index = filled(tmp_path) / "index"
    index.write_bytes(index.read_bytes()[:-cut])
    s = FileBlockStore([tmp_path])
    (o,) = s.load()
    assert [f.offset for f in o.frames] == [0, 4096]
    put(s, 1, 2 * 4096, b"z" * 4096)
    s.close()
    (o,) = FileBlockStore([tmp_path]).load()
    assert [f.offset for f in o.frames] == [0, 4096, 8192]


def test_an_index_of_another_format_is_set_aside(tmp_path: Path) -> None:
    index = filled(tmp_path) / "index"
    index.write_bytes(b"HSCI\x63\x00\x00\x00" + index.read_bytes()[8:])
    s = FileBlockStore([tmp_path])
    assert s.load() == []
    s.close()
    assert (tmp_path / "index.unknown").exists()
    assert os.listdir(tmp_path / "data") == []


def test_index_without_data_and_data_without_index_are_dropped(tmp_path: Path) -> None:
    filled(tmp_path)
    os.rename(tmp_path / "data" / "1", tmp_path / "data" / "99")
    s = FileBlockStore([tmp_path])
    assert s.load() == []
    assert os.listdir(tmp_path / "data") == []
    s.close()


def test_a_flipped_index_byte_costs_one_frame(tmp_path: Path) -> None:
    index = filled(tmp_path) / "index"
    data = bytearray(index.read_bytes())
    data[-40] ^= 1
    parsed = cache_index.parse(bytes(data))
    assert parsed.sound == parsed.slots - 1
    assert sum(len(o.frames) for o in parsed.objects.values()) == 2


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigError, match=r"--cache .*f"):
        FileBlockStore([tmp_path / "f"]).load()


def test_files_beyond_the_descriptor_limit_are_still_read(tmp_path: Path) -> None:
    s = FileBlockStore([tmp_path])
    s.load()
    for n in range(1, 700):
        s.create(n, ObjectName("b", str(n)), V, 4096)
        put(s, n, 0, n.to_bytes(2, "big") * 2048)
    assert all(s.read(n, 0, 2) == n.to_bytes(2, "big") for n in range(1, 700))
    s.close()


def test_injected_faults_reach_the_caller(tmp_path: Path) -> None:
    s = FaultyBlockStore(MemoryBlockStore(), lambda method: 5 if method == "write" else None)
    s.create(1, NAME, V, SIZE)
    with pytest.raises(OSError, match="injected into write"):
        put(s, 1, 0, b"x")


@pytest.mark.parametrize("seed", range(8))
def test_a_frame_is_gone_when_any_page_of_it_was_punched_later(seed: int) -> None:
    rng, pages = random.Random(seed), 3 * 256
    size = pages * PAGE_BYTES - 100
    data = cache_index.head()
    for number in (1, 2):
        data += cache_index.object_record(number, NAME, V, size)
    frames: dict[int, tuple[int, int, int]] = {}  # by digest: object, first page, end
    for digest in range(300):
        number = rng.randint(1, 2)
        if rng.random() < 0.5:
            first = rng.randrange(pages - 1)
            last = min(first + rng.randint(1, 64), (first // 256 + 1) * 256)
            length = min(last * PAGE_BYTES, size) - first * PAGE_BYTES
            data += cache_index.frame_record(number, first * PAGE_BYTES, length, digest)
            frames[digest] = number, first, last
            continue
        first = rng.randrange(pages - 1)
        last = min(first + rng.randint(1, 600 if rng.random() < 0.1 else 40), pages)
        length = min(last * PAGE_BYTES, size) - first * PAGE_BYTES
        data += cache_index.punch_record(number, first * PAGE_BYTES, length)
        for other, (n, a, b) in list(frames.items()):
            if n == number and a < last and first < b:
                del frames[other]
    found = {f.digest for o in cache_index.parse(data).objects.values() for f in o.frames}
    assert found <= frames.keys()
    for digest in frames.keys() - found:
        n, a, b = frames[digest]
        later = (frames[d] for d in frames if d > digest)
        assert any(m == n and a < y and x < b for m, x, y in later), "nothing replaced it"
