"""Whole files that the kernel reads by itself, through a real mount."""

import errno
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import Site, site, wait_for
from tests.processes import get_json

MIB = 1 << 20
BIG = random.Random(1).randbytes(9 * MIB + 777)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as made:
        (made.bucket / "big.bin").write_bytes(BIG)
        yield made


def kernel(place: Site) -> Any:
    return get_json(place.spoke.admin + "/v1/report")[1]["kernel"]


def reads(place: Site) -> int:
    found: int = get_json(place.spoke.admin + "/v1/report")[1]["reads"]["requests"]
    return found


def whole(place: Site, path: Path, body: bytes) -> None:
    """Read it until it is here as a whole and its name is looked up anew."""
    assert path.read_bytes() == body
    passed = kernel(place)["passthrough_opens"]

    def is_passed() -> bool:
        with path.open("rb") as file:
            assert file.read(1) == body[:1]
        return bool(kernel(place)["passthrough_opens"] > passed)

    wait_for(is_passed, "passed through")


@pytest.fixture
def able(place: Site) -> Iterator[Site]:
    with place.running_spoke() as spoke:
        if spoke.expect(r"mounted point=\S+ .*passthrough=(\w+)")[1] != "True":
            pytest.skip("this kernel, or this user, has no passthrough")
        yield place


def test_a_whole_file_is_read_unseen(able: Site) -> None:
    path = able.data / "big.bin"
    whole(able, path, BIG)
    before, opens = reads(able), kernel(able)
    assert path.read_bytes() == BIG
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[MIB : MIB + 10] == BIG[MIB : MIB + 10]
    after = kernel(able)
    assert reads(able) == before
    assert after["passthrough_opens"] == opens["passthrough_opens"] + 2
    assert after["passthrough_bytes_opened"] == opens["passthrough_bytes_opened"] + 2 * len(BIG)


def test_off_sees_each_read(place: Site) -> None:
    with place.running_spoke("--passthrough", "off"):
        path = place.data / "big.bin"
        assert path.read_bytes() == BIG
        for _ in range(3):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            before = reads(place)
            assert os.pread(fd, 4096, 0) == BIG[:4096]
            os.close(fd)
            assert reads(place) > before
        assert kernel(place)["passthrough_opens"] == 0


def test_an_old_handle_keeps_old_bytes(able: Site) -> None:
    """Overwritten while open, mapped and passed through: the old file lasts as its reader does."""
    path = able.data / "big.bin"
    whole(able, path, BIG)
    new = random.Random(2).randbytes(len(BIG))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        able.put("big.bin", new)
        assert path.read_bytes() == new
        assert file.read() == BIG
        assert mapped[:] == BIG
    whole(able, path, new)
    assert path.read_bytes() == new


def test_what_is_passed_through_is_not_evicted(place: Site) -> None:
    """Files of four times the cache are read while one is held open: at most half is pinned."""
    bodies = {f"f{i}": random.Random(i).randbytes(4 * MIB) for i in range(16)}
    for name, body in bodies.items():
        (place.bucket / name).write_bytes(body)
    with place.running_spoke("--cache-size", "16MiB") as spoke:
        if spoke.expect(r"mounted point=\S+ .*passthrough=(\w+)")[1] != "True":
            pytest.skip("this kernel, or this user, has no passthrough")
        held = []
        for name in ("f0", "f1"):
            whole(place, place.data / name, bodies[name])
            held.append((place.data / name).open("rb"))
        opens = kernel(place)["passthrough_opens"]
        for name, body in bodies.items():
            with (place.data / name).open("rb") as file:
                assert file.read() == body, name
        # f0 and f1 are half of the cache: nothing else is lent beside them.
        assert kernel(place)["passthrough_opens"] == opens + 2
        for name, file in zip(("f0", "f1"), held, strict=True):
            assert file.read() == bodies[name]
            file.close()
        cache = get_json(place.spoke.admin + "/v1/report")[1]["cache"]
        assert cache["bytes"] <= cache["capacity_bytes"]


MAPPED = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        body = view[:]
print(len(body), *set(body))
"""


def read_mapped(path: Path) -> bytes:
    """In a process of its own: where the mapped version is gone, the kernel's word is SIGBUS."""
    result = subprocess.run([sys.executable, "-c", MAPPED, path], capture_output=True, timeout=60)
    if result.returncode:
        assert result.returncode == -signal.SIGBUS or b"OSError" in result.stderr, result
        raise OSError(errno.ESTALE, "the mapped version is gone")
    size, *seen = map(int, result.stdout.split())
    assert len(seen) == 1, f"a mix of {seen}"
    return bytes(seen) * size


def change_and_read(place: Site, rounds: int) -> None:
    """Readers by open, by a mapping and by a handle kept a while, one writer: no reader ever has
    bytes of two versions, nor of an older one than was acknowledged before it opened."""
    size = 3 * MIB
    acknowledged = [0]
    place.put("turn", bytes([0]) * size)
    path = place.data / "turn"
    stop = threading.Event()
    wrong: list[str] = []
    done = [0]

    def reader(mapped: bool) -> None:
        while not stop.is_set():
            least = acknowledged[0]
            try:
                body = read_mapped(path) if mapped else path.read_bytes()
            except OSError:  # ESTALE: its version is gone
                continue
            except AssertionError as e:
                wrong.append(str(e))
                continue
            seen = set(body)
            if len(seen) != 1 or len(body) != size:
                wrong.append(f"a mix of {seen}, {len(body)} bytes")
            elif (next(iter(seen)) - least) % 256 > 128:
                wrong.append(f"{seen} after {least}")
            done[0] += 1

    threads = [threading.Thread(target=reader, args=(m,)) for m in (False, False, True)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(1, rounds + 1):
            place.put("turn", bytes([turn % 256]) * size)
            acknowledged[0] = turn % 256
            assert path.read_bytes() == bytes([turn % 256]) * size
            if wrong:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not wrong, wrong[:5]
    assert done[0] > rounds // 4


def test_no_mix_and_nothing_old(able: Site) -> None:
    change_and_read(able, 25)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_no_mix_and_nothing_old_for_long(able: Site) -> None:
    change_and_read(able, 1000)
