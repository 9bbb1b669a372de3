"""Open cache files: bounded, never closed in use, and never a disk's call under the lock."""

import os
import threading
from pathlib import Path

import pytest

from hubspoke.adapters import open_files
from hubspoke.adapters.cached_open import open_cached
from hubspoke.adapters.open_files import OpenFiles


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_file_is_opened_once_and_found_without_a_disk(tmp_path: Path) -> None:
    files = OpenFiles(tmp_path)
    assert files.acquire_now(1) is None
    with pytest.raises(FileNotFoundError):
        files.acquire(1)
    fd = files.acquire(1, create=True)
    assert files.acquire(1) == files.acquire_now(1) == fd
    files.close()
    assert not is_open(fd)


def test_idle_files_beyond_the_bound_are_closed_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "OPEN_FILES_MAX", 2)
    files = OpenFiles(tmp_path)
    used = files.acquire(1, create=True)
    idle = [files.acquire(n, create=True) for n in (2, 3)]
    files.release(2)
    files.release(3)
    files.acquire(4, create=True)
    assert is_open(used) and not any(is_open(fd) for fd in idle[:1])
    assert files.acquire_now(1) == used
    files.close()


def test_a_removed_file_is_closed_when_nobody_uses_it(tmp_path: Path) -> None:
    files = OpenFiles(tmp_path)
    fd = files.acquire(1, create=True)
    files.forget(1)
    assert is_open(fd)
    files.release(1)
    files.forget(2)
    assert not is_open(fd)
    files.close()


def test_a_folder_that_hangs_does_not_keep_open_files_from_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OpenFiles(tmp_path)
    fd = files.acquire(1, create=True)
    hangs, go_on, real = threading.Event(), threading.Event(), os.open

    def hanging(path: Path, flags: int, mode: int) -> int:
        hangs.set()
        assert go_on.wait(30)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", hanging)
    opened: list[int] = []
    threads = [
        threading.Thread(target=lambda: opened.append(files.acquire(2, create=True)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert hangs.wait(30)
    assert files.acquire_now(1) == fd and files.acquire_now(2) is None
    files.release(1)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert opened[0] == opened[1] == files.acquire_now(2)
    files.close()


def test_a_file_is_opened_without_a_thread_where_its_inode_is_in_memory(tmp_path: Path) -> None:
    files, opened = OpenFiles(tmp_path), []
    path = tmp_path / "1"
    path.write_bytes(b"bytes")
    before = open_cached(str(path))
    if before is None:
        pytest.skip("this kernel has no RESOLVE_CACHED")
    os.close(before)
    try:
        fd = files.acquire_now(1)
        assert fd is not None and os.pread(fd, 8, 0) == b"bytes"
        opened.append(fd)
        assert files.acquire(1) == fd
    finally:
        files.close()
    assert not is_open(opened[0])


def test_nothing_is_closed_without_a_thread_and_many_at_once_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(open_files, "CLOSED_AT_ONCE", 2)
    files = OpenFiles(tmp_path)
    idle = [files.acquire(n, create=True) for n in (1, 2, 3)]
    for n in (1, 2, 3):
        files.release(n)
    (tmp_path / "4").touch()
    assert files.acquire_now(4) is None  # it would be one too many
    assert all(is_open(fd) for fd in idle)
    assert files.acquire(4) not in idle
    assert not any(is_open(fd) for fd in idle)
    files.close()
