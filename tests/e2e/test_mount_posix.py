"""What programs expect of a read-only file system: calls one by one, then tools from the shelf."""

import errno
import fcntl
import hashlib
import mmap
import os
import random
import shutil
import stat
import subprocess
import tarfile
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.mounts import Site, site, wait_for
from tests.processes import get_json

LARGE = random.Random(4).randbytes(3_000_001)
MANY = 1200
NFC, NFD = unicodedata.normalize("NFC", "\u00e9"), unicodedata.normalize("NFD", "\u00e9")
FILES = {
    "large.bin": LARGE,
    "empty": b"",
    "one": b"1",
    "dir/a": b"a",
    "dir/deep/er/b": b"b",
    "dir/deep.txt": b"deep",
    "Case": b"upper",
    "case": b"lower",
    f"{NFC}.txt": b"composed",
    f"{NFD}.txt": b"decomposed",
    "white space\tand \\ 'quotes' \"too\"": b"odd",
    "line\nbreak": b"break",
    "-rf": b"dash",
    "l" * 255: b"long",
    **{f"many/{i:05}": b"%d" % i for i in range(MANY)},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("posix")) as made:
        for name, body in FILES.items():
            path = made.bucket / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        with made.running_spoke() as spoke:
            report = spoke.admin + "/v1/report"
            known = len(FILES)  # the hub runs while they are written, and is told of them
            wait_for(lambda: get_json(report)[1]["metadata"]["entries"] >= known, "known")
            yield made


@pytest.fixture(scope="module")
def data(place: Site) -> Path:
    return place.data


def refusal(call: Callable[[], object]) -> str | None:
    """Name of the errno; None if it was let."""
    try:
        call()
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    return None


def test_names_are_exact(data: Path) -> None:
    for name, body in FILES.items():
        if "/" not in name:
            assert (data / name).read_bytes() == body, name
    assert refusal(lambda: os.stat(data / "CASE")) == "ENOENT"
    assert sorted(os.listdir(data)) == sorted({name.split("/")[0] for name in FILES})
    assert refusal(lambda: os.stat(data / ("l" * 256))) == "ENAMETOOLONG"


def test_paths_resolve_as_everywhere(data: Path) -> None:
    assert (data / "dir" / ".." / "dir" / "." / "a").read_bytes() == b"a"
    assert os.path.samefile(data / "dir" / "..", data)
    assert refusal(lambda: os.stat(data / "one" / "below")) == "ENOTDIR"
    assert refusal(lambda: os.stat(f"{data}/one/")) == "ENOTDIR"
    assert refusal(lambda: os.listdir(data / "one")) == "ENOTDIR"
    assert refusal(lambda: os.open(data / "one", os.O_RDONLY | os.O_DIRECTORY)) == "ENOTDIR"
    assert refusal(lambda: os.open(data / "dir", os.O_WRONLY)) in ("EISDIR", "EROFS")
    assert refusal(lambda: os.readlink(data / "one")) == "EINVAL"


def test_stat_is_the_same_in_all_ways(data: Path) -> None:
    by_scan = {entry.name: entry for entry in os.scandir(data)}
    for name in ("large.bin", "dir", "empty", "l" * 255):
        path = data / name
        by_path = os.stat(path)
        fd = os.open(path, os.O_RDONLY)
        try:
            by_handle = os.fstat(fd)
        finally:
            os.close(fd)
        assert by_path == by_handle == os.lstat(path)
        assert by_scan[name].inode() == by_path.st_ino
        assert by_scan[name].is_dir() == stat.S_ISDIR(by_path.st_mode)
        assert by_path.st_dev == os.stat(data).st_dev
        assert by_path.st_nlink >= 1
    size = os.stat(data / "large.bin")
    assert size.st_size == len(LARGE)
    assert size.st_blocks * 512 >= len(LARGE)
    assert size.st_blksize >= 512
    assert (
        len({os.stat(data / name).st_ino for name in ("Case", "case", f"{NFC}.txt", f"{NFD}.txt")})
        == 4
    )


def test_large_directory_is_listed_once_and_whole(data: Path) -> None:
    assert sorted(os.listdir(data / "many")) == [f"{i:05}" for i in range(MANY)]
    with os.scandir(data / "many") as entries:  # given up half-way, and begun anew
        some = [next(entries).name for _ in range(MANY // 2)]
    assert len(set(some)) == MANY // 2
    assert len(os.listdir(data / "many")) == MANY


@pytest.mark.parametrize(
    "change",
    [
        lambda d: os.open(d / "one", os.O_WRONLY),
        lambda d: os.open(d / "one", os.O_RDWR),
        lambda d: os.open(d / "one", os.O_WRONLY | os.O_TRUNC),
        lambda d: os.open(d / "new", os.O_WRONLY | os.O_CREAT),
        lambda d: os.truncate(d / "one", 0),
        lambda d: os.unlink(d / "one"),
        lambda d: os.mkdir(d / "new"),
        lambda d: os.rmdir(d / "dir"),
        lambda d: os.rename(d / "one", d / "two"),
        lambda d: os.link(d / "one", d / "two"),
        lambda d: os.symlink("one", d / "two"),
        lambda d: os.mkfifo(d / "new"),
        lambda d: os.chmod(d / "one", 0o777),
        lambda d: os.chown(d / "one", 1, 1),
        lambda d: os.utime(d / "one"),
        lambda d: os.setxattr(d / "one", "user.x", b"y"),
        lambda d: os.removexattr(d / "one", "user.x"),
    ],
)
def test_every_change_is_erofs(data: Path, change: Callable[[Path], object]) -> None:
    assert refusal(lambda: change(data)) == "EROFS"
    assert (data / "one").read_bytes() == b"1"


def test_labels_and_access_lists_are_not_supported(data: Path) -> None:
    """`ls -l` asks for both with each file, until it hears that; ENODATA would be 4,000 requests
    for 2,000 files."""
    for name in ("security.selinux", "system.posix_acl_access", "system.posix_acl_default"):
        for path in (data / "one", data / "dir"):
            assert refusal(partial(os.getxattr, path, name)) == "ENOTSUP"
    assert refusal(lambda: os.getxattr(data / "one", "user.not-there")) == "ENODATA"


def test_access_says_read_only(data: Path) -> None:
    assert os.access(data / "one", os.R_OK)
    assert not os.access(data / "one", os.W_OK)
    assert os.access(data / "dir", os.R_OK | os.X_OK)
    assert os.statvfs(data).f_flag & os.ST_RDONLY


def test_offsets_behave(data: Path) -> None:
    fd = os.open(data / "large.bin", os.O_RDONLY)
    try:
        assert os.lseek(fd, 0, os.SEEK_END) == len(LARGE)
        assert os.read(fd, 10) == b""
        assert os.pread(fd, 10, len(LARGE) + 100) == b""
        assert os.pread(fd, 100, len(LARGE) - 3) == LARGE[-3:]
        assert os.lseek(fd, 5, os.SEEK_SET) == 5
        assert os.read(fd, 3) == LARGE[5:8]
        other = os.dup(fd)
        assert os.read(other, 3) == LARGE[8:11]  # one offset for both
        os.close(other)
        assert os.lseek(fd, 100, os.SEEK_DATA) == 100
        assert os.lseek(fd, 100, os.SEEK_HOLE) == len(LARGE)
        assert refusal(lambda: os.lseek(fd, len(LARGE), os.SEEK_DATA)) == "ENXIO"
        assert refusal(lambda: os.write(fd, b"x")) == "EBADF"
    finally:
        os.close(fd)


def test_maps_may_be_private_and_written_but_not_shared_and_written(data: Path) -> None:
    with (data / "large.bin").open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            mapped[0:4] = b"mine"
            assert mapped[4:9000] == LARGE[4:9000]
            tail = len(LARGE) % mmap.PAGESIZE
            assert mapped[-tail:] == LARGE[-tail:]
        assert os.pread(file.fileno(), 4, 0) == LARGE[:4]
        shared = {"flags": mmap.MAP_SHARED, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
        with pytest.raises(PermissionError):
            mmap.mmap(file.fileno(), 0, **shared)


def test_locks_hold_on_this_host(data: Path) -> None:
    with (data / "one").open("rb") as first, (data / "one").open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert refusal(lambda: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)) == "EAGAIN"
        fcntl.flock(first, fcntl.LOCK_UN)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(first, fcntl.LOCK_SH)  # a read lock is all a reader may have
        assert refusal(lambda: fcntl.lockf(first, fcntl.LOCK_EX)) == "EBADF"


def test_copy_file_range_and_sendfile(data: Path, tmp_path: Path) -> None:
    source = os.open(data / "large.bin", os.O_RDONLY)
    target = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    try:
        done = 0
        while n := os.sendfile(target, source, done, 1 << 20):
            done += n
        assert (tmp_path / "copy").read_bytes() == LARGE
    finally:
        os.close(source)
        os.close(target)
    shutil.copyfile(data / "large.bin", tmp_path / "again")  # sendfile, or copy_file_range
    assert (tmp_path / "again").read_bytes() == LARGE


def test_forked_child_reads_on(data: Path) -> None:
    script = "import os; os.lseek(0, 7, 0); os.write(1, os.read(0, 5)); os.execvp('cat', ['cat'])"
    with (data / "large.bin").open("rb") as file:
        done = subprocess.run(
            ["python3", "-c", script], stdin=file, capture_output=True, timeout=30, check=True
        )
    assert done.stdout == LARGE[7:]


def tool(*command: str | Path, cwd: Path | None = None) -> bytes:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(600)
def test_tools_find_copy_and_compare_everything(data: Path, place: Site, tmp_path: Path) -> None:
    found = tool("find", ".", "-type", "f", "-print0", cwd=data).decode().split("\0")[:-1]
    assert sorted(found) == sorted(f"./{name}" for name in FILES)
    tool("cp", "-r", data, tmp_path / "copied")
    tool("diff", "-r", tmp_path / "copied", place.bucket)
    tool("diff", "-r", data, place.bucket)
    tool("tar", "-cf", tmp_path / "all.tar", "-C", data, ".")
    with tarfile.open(tmp_path / "all.tar") as tar:
        assert {m.name for m in tar if m.isfile()} == {f"./{name}" for name in FILES}
    sizes = int(tool("du", "-sb", "--apparent-size", data / "many").split()[0])
    assert sizes >= sum(len(b) for n, b in FILES.items() if n.startswith("many/"))
    sums = tool("sha256sum", data / "large.bin").split()[0].decode()
    assert sums == hashlib.sha256(LARGE).hexdigest()
    assert tool("grep", "-rl", "^deep$", data / "dir").decode().split() == [
        str(data / "dir/deep.txt")
    ]
