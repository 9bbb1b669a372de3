"""What programs do with files: direct I/O, mappings, sendfile, locks, attributes; and mounting."""

import errno
import fcntl
import mmap
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts import Site, is_mounted, site, unmounted, wait_for
from tests.processes import Running, get, get_json, running, spoke

BODY = random.Random(3).randbytes(3_000_001)
NOBODY = 65534


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("use")) as made:
        (made.bucket / "f").write_bytes(BODY)
        options = ("--mount-uid", "1234", "--mount-gid", "4321", "--mount-umask", "027")
        with made.running_spoke(*options, "--allow-other", "on"):
            yield made


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as made:
        (made.bucket / "f").write_bytes(BODY)
        yield made


@pytest.fixture
def walkable() -> Iterator[Site]:
    """Where any user may come: pytest's own folders are closed to others at each start of it."""
    with tempfile.TemporaryDirectory(prefix="hubspoke-") as base:
        os.chmod(base, 0o711)
        with site(Path(base)) as made:
            (made.bucket / "f").write_bytes(BODY)
            yield made


def test_direct_io_reads_the_bytes(shown: Site) -> None:
    fd = os.open(shown.data / "f", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 1 << 20) as aligned:
            assert os.preadv(fd, [aligned], 4096) == 1 << 20
            assert aligned[:] == BODY[4096 : 4096 + (1 << 20)]
            tail = len(BODY) // 4096 * 4096
            assert os.preadv(fd, [aligned], tail) == len(BODY) - tail
    finally:
        os.close(fd)


def test_a_mapping_has_the_bytes_and_zeros_behind_the_end(shown: Site) -> None:
    rng = random.Random(4)
    with (
        open(shown.data / "f", "rb") as f,
        mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        assert len(mapped) == len(BODY)
        for _ in range(300):
            at = rng.randrange(len(BODY))
            assert mapped[at : at + 777] == BODY[at : at + 777]


def test_sendfile_and_copy_read_the_bytes(shown: Site, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(shown.data / "f", "rb") as f:
        sent = os.sendfile(ours.fileno(), f.fileno(), 1000, 50_000)
        assert theirs.recv(sent, socket.MSG_WAITALL) == BODY[1000 : 1000 + sent]
    subprocess.run(["cp", shown.data / "f", tmp_path / "copy"], check=True, timeout=60)
    assert (tmp_path / "copy").read_bytes() == BODY


def test_locks_are_the_hosts_own(shown: Site) -> None:
    path = shown.data / "f"
    with open(path, "rb") as a, open(path, "rb") as b:
        fcntl.flock(a, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(a, fcntl.LOCK_UN)
        fcntl.lockf(a, fcntl.LOCK_SH)  # a record lock, of this process
        script = "import fcntl, sys; fcntl.lockf(open(sys.argv[1]), fcntl.LOCK_SH)"
        subprocess.run([sys.executable, "-c", script, path], check=True, timeout=60)


def test_owner_and_modes_are_as_told(shown: Site) -> None:
    found = (shown.data / "f").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 4321, 0o440)
    folder = shown.data.stat()
    assert (folder.st_uid, folder.st_gid, stat.S_IMODE(folder.st_mode)) == (1234, 4321, 0o550)


def test_extended_attributes_tell_what_a_file_is(shown: Site) -> None:
    path = shown.data / "f"
    names = {f"user.hubspoke.{n}" for n in ("version", "state", "etag")}
    assert set(os.listxattr(path)) == names
    path.read_bytes()
    assert os.getxattr(path, "user.hubspoke.state") == b"complete"
    assert os.getxattr(path, "user.hubspoke.version")
    with pytest.raises(OSError) as refusal:
        os.getxattr(path, "user.other")
    assert refusal.value.errno == errno.ENODATA
    assert os.listxattr(shown.data) == []


def test_the_file_system_is_as_large_as_the_cache(shown: Site) -> None:
    there = os.statvfs(shown.point)
    cache = get_json(shown.spoke.admin + "/v1/report")[1]["cache"]
    assert there.f_blocks * there.f_frsize == cache["capacity_bytes"] // 4096 * 4096
    assert there.f_namemax == 255
    assert there.f_flag & os.ST_RDONLY


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_modes_are_kept_and_other_users_let_in_as_told(walkable: Site) -> None:
    script = f"import os, sys; os.setgid({NOBODY}); os.setuid({NOBODY})\n" + (
        "try: open(sys.argv[1]).close()\nexcept OSError as e: sys.exit(e.errno)"
    )

    def read_by_nobody(*options: str) -> int:
        with walkable.running_spoke(*options):
            command = [sys.executable, "-c", script, str(walkable.data / "f")]
            return subprocess.run(command, timeout=60).returncode

    assert read_by_nobody() == errno.EACCES
    assert read_by_nobody("--allow-other", "on", "--mount-umask", "027") == errno.EACCES
    assert read_by_nobody("--allow-other", "on") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: all other tests mount by the helper")
@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="no fusermount3")
def test_without_root_it_is_mounted_by_the_helper(walkable: Site) -> None:
    place = walkable
    for folder in (place.point, place.base / "nobody"):
        folder.mkdir(exist_ok=True)
        os.chown(folder, NOBODY, NOBODY)
    command = spoke(place.hub.data, place.base / "nobody", "--mount", str(place.point))
    becoming = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    process = Running(*command, prefix=becoming)
    try:
        process.ready()
        assert is_mounted(place.point)
        script = f"import os, sys; os.setgid({NOBODY}); os.setuid({NOBODY})\n" + (
            "sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
        )
        wait_for(lambda: get_json(process.admin + "/readyz")[0] == 200, "ready")
        done = subprocess.run(
            [sys.executable, "-c", script, place.data / "f"], capture_output=True, timeout=60
        )
        assert done.stdout == BODY, done.stderr
        assert process.stop() == 0
        assert not is_mounted(place.point)
    finally:
        process.end()
        unmounted(place.point)


def test_what_a_killed_spoke_left_is_cleaned_up_by_the_next(place: Site) -> None:
    with place.running_spoke() as first:
        held = os.open(place.data / "f", os.O_RDONLY)
        os.killpg(first.process.pid, signal.SIGKILL)  # and what would have cleaned up
        first.wait()
        assert is_mounted(place.point)
        with pytest.raises(OSError) as dead:
            os.listdir(place.data)
        assert dead.value.errno == errno.ENOTCONN
        with place.running_spoke() as second:
            second.expect("left behind")
            assert (place.data / "f").read_bytes() == BODY
        with pytest.raises(OSError):
            os.close(held)


def test_mount_points_that_cannot_be_are_refused_by_name(place: Site) -> None:
    file, inside = place.base / "file", place.cache / "mnt"
    file.touch()
    inside.mkdir(parents=True)
    wrong = {
        place.base / "nothing": "expected an existing folder",
        file: "expected an existing folder",
        inside: "lies in the folder of --cache",
        place.base: "or around it",
    }
    for point, why in wrong.items():
        command = spoke(place.hub.data, place.cache, "--mount", str(point))
        with running(*command) as process:
            assert process.wait() == 2
            assert f"--mount: {str(point)!r}" in process.log and why in process.log


def test_a_mount_of_another_spoke_is_not_taken(place: Site) -> None:
    with place.running_spoke():
        command = spoke(place.hub.data, place.base / "other", "--mount", str(place.point))
        with running(*command) as process:
            assert process.wait() == 2
            assert "another process has its mount there" in process.log
        assert (place.data / "f").read_bytes() == BODY


@pytest.mark.skipif(os.geteuid() != 0, reason="umount is root's")
def test_a_spoke_whose_mount_was_taken_away_goes_on_over_s3(place: Site) -> None:
    with place.running_spoke() as process:
        assert (place.data / "f").read_bytes() == BODY
        subprocess.run(["umount", place.point], check=True, timeout=60)
        process.expect("unmounted by somebody else")
        place.put("f", b"new")
        assert get(process.data + "/data/f")[1] == b"new"
        assert process.stop() == 0


def test_a_full_cache_streams_a_larger_file(place: Site) -> None:
    large = random.Random(5).randbytes(24 << 20)
    (place.bucket / "large").write_bytes(large)
    with place.running_spoke("--cache-size", "8MiB"):
        wait_for((place.data / "large").exists, "shown")
        assert (place.data / "large").read_bytes() == large
