"""Folders are held by one process, and a cache knows how much of its disk it may use."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubspoke.adapters.folders import (
    DISK_SHARE,
    FREE_SHARE,
    FolderLocks,
    Room,
    capacity,
    outside,
    outside_of_any_store,
    refuse_mistakes,
    room,
)
from hubspoke.errors import ConfigError, FolderInUse


@pytest.fixture
def locks() -> Iterator[FolderLocks]:
    made = FolderLocks()
    yield made
    made.release()


def test_a_folder_is_made_and_held(tmp_path: Path, locks: FolderLocks) -> None:
    folder, others = tmp_path / "a" / "b", FolderLocks()
    locks.take(folder, "--state")
    with pytest.raises(FolderInUse, match=f"^--cache: '{folder}': in use by process {os.getpid()}"):
        others.take(folder, "--cache")
    locks.release()
    others.take(folder, "--cache")
    others.release()


def test_one_folder_under_two_names_is_locked_once(tmp_path: Path, locks: FolderLocks) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    locks.take(tmp_path / "cache", "--cache")
    locks.take(tmp_path / "link", "--state")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"^--state: .*expected a folder that can be written"):
        locks.take(tmp_path / "file" / "x", "--state")


def test_a_dead_process_holds_nothing(tmp_path: Path, locks: FolderLocks) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from hubspoke.adapters.folders import FolderLocks\n"
        "FolderLocks().take(pathlib.Path(sys.argv[1]), '--cache')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, tmp_path], timeout=60, check=False)
    assert ended.returncode == -9
    locks.take(tmp_path, "--cache")
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def failure(number: int) -> ConfigError:
    error = ConfigError(f"--cache: {os.strerror(number)}")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


def test_a_spoke_is_refused_when_all_its_folders_are_mistakes() -> None:
    mistakes = [failure(e) for e in (errno.EACCES, errno.ENOTDIR)]
    with pytest.raises(ConfigError, match="--cache: Permission denied"):
        refuse_mistakes(mistakes, 2)
    refuse_mistakes(mistakes, 3)
    for number in (errno.EIO, errno.EROFS, errno.ENXIO, errno.ESTALE, errno.ENOTCONN):
        refuse_mistakes([failure(errno.EACCES), failure(number)], 2)


def test_room_counts_each_disk_once_and_what_the_cache_has(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "1").write_bytes(bytes(range(256)) * 4096)
    (tmp_path / "empty").mkdir()
    there = room([tmp_path / "a", tmp_path / "b", tmp_path / "empty"])
    disk = os.statvfs(tmp_path)
    assert there.free == pytest.approx(disk.f_bavail * disk.f_frsize, rel=0.1)
    assert 2 << 20 <= there.used < 3 << 20


def test_capacity_is_a_share_of_the_free_space_and_stable_over_restarts() -> None:
    assert capacity(None, Room(1000, 0)) == int(1000 * FREE_SHARE)
    assert capacity(None, Room(400, 600)) == int(1000 * FREE_SHARE)


def test_capacity_is_clamped_to_the_disk_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert capacity(500, Room(1000, 0)) == 500
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        assert capacity(5000, Room(1000, 0)) == int(1000 * DISK_SHARE)
    assert "--cache-size clamped to the disk" in caplog.text


def test_a_folder_in_a_store_is_refused_however_it_is_written(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "bkt").mkdir(parents=True)
    (tmp_path / "link").symlink_to(store / "bkt")
    for folder in (store, store / "bkt" / "state", tmp_path / "x" / ".." / "store" / "s"):
        with pytest.raises(ConfigError, match=r"^--state: .* lies in the store"):
            outside(folder, store, "--state")
    with pytest.raises(ConfigError, match="expected a folder outside of the store"):
        outside(tmp_path / "link" / "state", store, "--state")
    for folder in (tmp_path, tmp_path / "store-2", tmp_path / "state"):
        outside(folder, store, "--state")


def test_a_cache_in_a_store_that_was_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store" / ".hubspoke").mkdir(parents=True)
    outside_of_any_store(tmp_path / "cache", "--cache")
    with pytest.raises(ConfigError, match=r"^--cache: .* lies in the store"):
        outside_of_any_store(tmp_path / "store" / "bkt" / "cache", "--cache")
