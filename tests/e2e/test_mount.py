"""Objects as files, through a real kernel mount."""

import errno
import json
import mmap
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mounts import Site, is_mounted, site
from tests.processes import get, get_json

MIB = 1 << 20
BIG = random.Random(1).randbytes(9 * MIB + 777)


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One spoke for the tests that only read."""
    with site(tmp_path_factory.mktemp("mount")) as made:
        (made.bucket / "a" / "deep").mkdir(parents=True)
        (made.bucket / "big.bin").write_bytes(BIG)
        (made.bucket / "empty").write_bytes(b"")
        (made.bucket / "a" / "deep" / "x.txt").write_bytes(b"deep down")
        (made.bucket / "a" / "\N{SNOWMAN}.txt").write_bytes(b"snow")
        with made.running_spoke("--passthrough", "off"):  # which would read unseen
            yield made


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    """A hub alone; the test starts its spoke."""
    with site(tmp_path) as made:
        yield made


def refused(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """The errno of an open; None if it is let."""
    try:
        os.close(os.open(path, flags))
    except OSError as e:
        return e.errno
    return None


def test_files_have_the_objects_bytes(store_of: Site) -> None:
    data = store_of.data
    assert (data / "big.bin").read_bytes() == BIG
    assert (data / "empty").read_bytes() == b""
    assert (data / "a" / "deep" / "x.txt").read_bytes() == b"deep down"
    assert (data / "a" / "\N{SNOWMAN}.txt").read_bytes() == b"snow"


def test_any_range_has_the_objects_bytes(store_of: Site) -> None:
    rng = random.Random(2)
    with open(store_of.data / "big.bin", "rb", buffering=0) as f:
        for _ in range(200):
            offset, length = rng.randrange(len(BIG) + 9000), rng.randrange(1, 300_000)
            f.seek(offset)
            got = b""
            while len(got) < length and (more := f.read(length - len(got))):
                got += more
            assert got == BIG[offset : offset + length]


def test_folders_are_the_keys_prefixes(store_of: Site) -> None:
    assert sorted(os.listdir(store_of.point)) == ["data"]
    assert sorted(os.listdir(store_of.data)) == ["a", "big.bin", "empty"]
    found = sorted(str(p.relative_to(store_of.data)) for p in store_of.data.rglob("*"))
    assert found == ["a", "a/deep", "a/deep/x.txt", "a/\N{SNOWMAN}.txt", "big.bin", "empty"]


def test_stat_shows_the_object(store_of: Site) -> None:
    shown, true = (store_of.data / "big.bin").stat(), (store_of.bucket / "big.bin").stat()
    assert stat.S_ISREG(shown.st_mode) and stat.S_IMODE(shown.st_mode) == 0o444
    assert (shown.st_size, shown.st_mtime_ns) == (true.st_size, true.st_mtime_ns)
    folder = (store_of.data / "a").stat()
    assert stat.S_ISDIR(folder.st_mode) and stat.S_IMODE(folder.st_mode) == 0o555


def test_what_is_not_there_is_enoent_and_what_is_written_erofs(store_of: Site) -> None:
    data = store_of.data
    assert refused(data / "nothing") == errno.ENOENT
    assert refused(store_of.point / "no-bucket") == errno.ENOENT
    assert refused(data / "new", os.O_WRONLY | os.O_CREAT) == errno.EROFS
    assert refused(data / "big.bin", os.O_WRONLY) == errno.EROFS
    changes: list[Callable[[], None]] = [
        lambda: os.unlink(data / "empty"),
        lambda: os.mkdir(data / "folder"),
        lambda: os.rename(data / "empty", data / "full"),
        lambda: os.truncate(data / "big.bin", 0),
        lambda: os.setxattr(data / "big.bin", "user.x", b"y"),
    ]
    for change in changes:
        with pytest.raises(OSError) as refusal:
            change()
        assert refusal.value.errno == errno.EROFS


def test_the_mounts_own_files_tell_of_the_spoke(store_of: Site) -> None:
    own = store_of.point / ".hubspoke"
    assert sorted(os.listdir(own)) == ["config", "report", "streams"]
    report = json.loads((own / "report").read_text())
    assert report["schema"] == 1 and report["kernel"]["cached_opens"] >= 0
    config = json.loads((own / "config").read_text())
    assert config["mount"] == str(store_of.point) and config["cache"] == [str(store_of.cache)]
    assert config["mount_umask"] == "022" and isinstance(config["passthrough"], bool)
    assert "streams" in json.loads((own / "streams").read_text())


def test_reads_are_counted_by_state(store_of: Site) -> None:
    before = get_json(store_of.spoke.admin + "/v1/report")[1]["reads"]
    with open(store_of.data / "big.bin", "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert f.read() == BIG
    after = get_json(store_of.spoke.admin + "/v1/report")[1]["reads"]
    assert after["bytes"] - before["bytes"] == len(BIG)
    assert after["hit_requests"] - before["hit_requests"] >= len(BIG) // MIB


def test_opens_whose_reads_the_kernel_may_answer_are_counted(place: Site) -> None:
    (place.bucket / "x").write_bytes(b"x")
    with place.running_spoke() as spoke:
        for _ in range(3):
            assert (place.data / "x").read_bytes() == b"x"
        report = get_json(spoke.admin + "/v1/report")[1]
        # Each open after the first found its page in the kernel: one read was seen.
        assert report["kernel"]["cached_opens"] + report["kernel"]["passthrough_opens"] >= 2
        assert report["reads"]["requests"] == 1
        assert b"hubspoke_mount_cached_opens_total" in get(spoke.admin + "/metrics")[1]


def test_a_signal_unmounts(place: Site) -> None:
    (place.bucket / "x").write_bytes(b"x")
    with place.running_spoke() as spoke:
        assert is_mounted(place.point)
        assert (place.data / "x").read_bytes() == b"x"
        assert spoke.stop() == 0
        assert not is_mounted(place.point)


def test_a_mount_in_use_is_taken_away_all_the_same(place: Site) -> None:
    (place.bucket / "x").write_bytes(b"x")
    with place.running_spoke() as spoke:
        held = os.open(place.data / "x", os.O_RDONLY)
        assert spoke.stop() == 0
        assert not is_mounted(place.point)
        spoke.expect("unmounted while in use")
        assert os.listdir(place.point) == []
        with pytest.raises(OSError) as lost:
            os.close(held)
        assert lost.value.errno == errno.ENOTCONN


def test_a_change_is_seen_by_the_next_open_and_never_by_an_open_handle(place: Site) -> None:
    with place.running_spoke():
        path, old = place.data / "x", b"0" * 300_000
        place.put("x", old)
        for i in range(1, 40):
            new = bytes([i]) * (300_000 if i % 2 else 200_000)
            with open(path, "rb", buffering=0) as f:
                assert os.pread(f.fileno(), 1000, 0) == old[:1000]
                place.put("x", new)
                with open(path, "rb") as g:
                    assert g.read() == new
                assert path.stat().st_size == len(new)
                try:
                    rest = os.pread(f.fileno(), 400_000, 1000)
                except OSError as e:
                    assert e.errno == errno.ESTALE
                else:
                    assert rest and old[1000:].startswith(rest)
            old = new


def test_names_come_and_go_at_once(place: Site) -> None:
    with place.running_spoke():
        for i in range(20):
            path = place.data / f"f{i}" / "in" / "x"
            assert refused(path) == errno.ENOENT
            assert not (place.data / f"f{i}").exists()
            place.put(f"f{i}/in/x", b"here")
            assert path.read_bytes() == b"here"
            assert f"f{i}" in os.listdir(place.data)


def received(place: Site) -> int:
    report = get_json(place.spoke.admin + "/v1/report")[1]
    return int(report["wan"]["payload_bytes"])


def fault(path: Path, pages: list[int]) -> None:
    """Map a file anew and touch these pages, as loaders of token files do for each batch."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        for page in pages:
            assert mapped[page * 4096 : page * 4096 + 2] == bytes([page % 251, page % 241])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set a mount's read-ahead")
def test_what_faults_of_a_mapping_bring_around_is_noticed_and_cut(place: Site) -> None:
    pages = 64 << 8  # 64 MiB
    page = bytes(4094)
    (place.bucket / "tokens.bin").write_bytes(
        b"".join(bytes([i % 251, i % 241]) + page for i in range(pages))
    )
    rng = random.Random(4)
    batches = [[rng.randrange(pages) for _ in range(12)] for _ in range(5)]
    with place.running_spoke("--prefetch", "off"):
        before = received(place)
        fault(place.data / "tokens.bin", batches[0])
        first = received(place) - before
        for batch in batches[1:]:
            fault(place.data / "tokens.bin", batch)
        rest = received(place) - before - first
    assert first > 12 * 128 * 1024  # it was not known yet, and is 256 KiB a fault
    assert rest <= 4 * 12 * 64 * 1024
