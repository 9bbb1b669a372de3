"""The mount against its hub: names, changes, leases. Reads of bytes: tests/e2e/test_mount.py."""

import asyncio
import ctypes
import errno
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from hubspoke.core.ids import ObjectName
from hubspoke.values import StalenessRule
from tests.hub_bench import until
from tests.shell.fuse.conftest import SHORT, Mounted, mounted


def errno_of_stat(path: Path) -> int | None:
    try:
        os.stat(path)
    except OSError as e:
        return e.errno
    return None


async def test_no_change_waits_for_the_lease_while_its_folder_is_in_use(there: Mounted) -> None:
    """Lookups and listings hold the folder's lock that a notice wants, and wait for changes."""
    done = threading.Event()

    def look(i: int) -> None:
        while not done.is_set():
            for j in range(8):
                errno_of_stat(there.data / "dir" / f"{(i + j) % 8}")
            os.listdir(there.data)
            errno_of_stat(there.data / "dir" / "never")

    await there.put("dir/keep", b"")
    lookers = [asyncio.create_task(asyncio.to_thread(look, i)) for i in range(4)]
    try:
        for i in range(60):
            await asyncio.gather(*(there.put(f"dir/{(i + j) % 8}", b"%d" % i) for j in range(3)))
    finally:
        done.set()
        await asyncio.gather(*lookers)


async def test_stat_and_open_are_current_whenever_a_change_was_acknowledged(
    there: Mounted,
) -> None:
    path = there.data / "x"
    assert await there.run(lambda: errno_of_stat(path)) == errno.ENOENT
    for i in range(1, 200):
        data = bytes([i]) * i
        await there.put("x", data)
        size, found = await there.run(lambda: (os.stat(path).st_size, path.read_bytes()))
        assert (size, found) == (i, data)
    await there.bench.hub.delete(ObjectName("bkt", "x"))
    assert await there.run(lambda: errno_of_stat(path)) == errno.ENOENT


async def test_the_inode_number_stays_over_versions(there: Mounted) -> None:
    numbers = set()
    for data in (b"1", b"22", b"333"):
        await there.put("x", data)
        numbers.add(await there.run(lambda: (there.data / "x").stat().st_ino))
    listed = await there.run(lambda: [e.inode() for e in os.scandir(there.data)])
    assert len(numbers) == 1 and numbers == set(listed)


async def test_folders_come_with_their_first_file_and_go_with_their_last(there: Mounted) -> None:
    folder = there.data / "a" / "b"
    for _ in range(5):
        assert await there.run(lambda: errno_of_stat(folder)) == errno.ENOENT
        await there.put("a/b/c", b"x")
        assert await there.run(lambda: os.listdir(folder)) == ["c"]
        await there.bench.hub.delete(ObjectName("bkt", "a/b/c"))


async def test_a_file_that_becomes_a_folder_is_one_and_back(there: Mounted) -> None:
    await there.put("a", b"file")
    assert await there.run((there.data / "a").read_bytes) == b"file"
    await there.put("a/b", b"below")
    assert await there.run((there.data / "a").is_dir)
    assert await there.run((there.data / "a" / "b").read_bytes) == b"below"
    assert (await there.service.resolve(ObjectName("bkt", "a"))).entry.size == 4  # over S3
    await there.bench.hub.delete(ObjectName("bkt", "a/b"))
    assert await there.run((there.data / "a").read_bytes) == b"file"


async def test_keys_that_are_no_paths_are_not_shown_and_stay_readable(there: Mounted) -> None:
    hostile = ["a//b", "/x", "..", "d/../e", "./f", "long/" + "n" * 256, "g//", "h/"]
    for key in hostile:
        await there.put(key, b"here" if key != "h/" else b"")
    await there.put("ok", b"1")
    assert sorted(await there.run(lambda: os.listdir(there.data))) == ["h", "ok"]
    for name, number in (("a", errno.ENOENT), ("d", errno.ENOENT), ("n" * 256, errno.ENAMETOOLONG)):
        assert await there.run(partial(errno_of_stat, there.data / name)) == number
    for key in hostile:
        result = await there.service.resolve(ObjectName("bkt", key))
        assert result.entry.size == (0 if key == "h/" else 4)


async def test_a_large_folder_is_listed_whole_from_any_place(there: Mounted) -> None:
    names = [f"{i:05}" for i in range(1200)]
    for at in range(0, len(names), 100):
        await asyncio.gather(*(there.put(f"many/{n}", b"") for n in names[at : at + 100]))
    assert await there.run(lambda: sorted(os.listdir(there.data / "many"))) == names
    assert await there.run(lambda: walked(there.data / "many")) == names


def walked(folder: Path) -> list[str]:
    """By readdir(3), going back to places and rewinding."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
    libc.readdir.argtypes = libc.closedir.argtypes = libc.rewinddir.argtypes = [ctypes.c_void_p]
    libc.telldir.argtypes, libc.telldir.restype = [ctypes.c_void_p], ctypes.c_long
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    stream = libc.opendir(os.fsencode(folder))

    def name() -> str | None:
        entry = libc.readdir(stream)
        return os.fsdecode(ctypes.string_at(entry + 19)) if entry else None

    first: list[str] = []
    places: list[int] = []
    while (found := name()) is not None:
        first.append(found)
        places.append(libc.telldir(stream))
    for i in (0, 1, 700, 3, 1100, 1199):
        libc.seekdir(stream, places[i])
        assert name() == first[i + 1]
    libc.rewinddir(stream)
    again: list[str] = []
    while (found := name()) is not None:
        again.append(found)
    libc.closedir(stream)
    assert again == first
    return sorted(n for n in first if n not in (".", ".."))


async def test_without_the_hub_what_is_cached_is_read_and_nothing_is_absent(
    tmp_path: Path,
) -> None:
    rules = StalenessRule("bkt/strict", None), StalenessRule("bkt/", 3600.0)
    async with mounted(tmp_path, SHORT, *rules) as there:
        for key in ("bounded/x", "strict/x"):
            await there.put(key, b"cached")
            assert await there.run((there.data / key).read_bytes) == b"cached"
        await there.put("bounded/y", b"not cached")
        held = await there.run(lambda: os.open(there.data / "strict" / "x", os.O_RDONLY))
        await there.bench.stop()
        # The last lease runs out, and the kernel's names with it.
        await until(lambda: there.service.follower.lease_state() != "valid", "the lease's end")
        assert await there.run((there.data / "bounded" / "x").read_bytes) == b"cached"
        assert await there.run(lambda: os.listdir(there.data / "bounded")) == ["x", "y"]
        for path in ("strict/x", "strict/none", "bounded/y"):
            with pytest.raises(OSError) as refusal:
                await there.run((there.data / path).read_bytes)
            assert refusal.value.errno == errno.EIO, path
        assert await there.run(lambda: os.pread(held, 100, 0)) == b"cached"
        await there.run(lambda: os.close(held))


async def test_a_reader_that_is_killed_leaves_nothing_waiting(tmp_path: Path) -> None:
    async with mounted(tmp_path, SHORT) as there:
        await there.put("x", b"far away")
        size = await there.run(lambda: (there.data / "x").stat().st_size)
        assert size == 8
        await there.bench.stop()
        script = "import sys; print('open', flush=True); open(sys.argv[1]).read()"
        reader = await there.run(
            lambda: subprocess.Popen(
                [sys.executable, "-c", script, there.data / "x"], stdout=subprocess.PIPE
            )
        )
        assert reader.stdout is not None
        assert await there.run(reader.stdout.readline) == b"open\n"
        reader.terminate()
        await there.run(lambda: reader.wait(5))
        reader.stdout.close()
        assert await there.run(lambda: os.listdir(there.point)) == ["bkt"]
