"""A daemon that dies under its mount: readers wait, and go on."""

import errno
import mmap
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import Site, is_mounted, site, wait_for
from tests.processes import Running, get_json

MIB = 1 << 20
READY = r" ready data=\S+ admin=\S+ pid=(\d+)"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as made:
        yield made


def daemons(spoke: Running) -> list[int]:
    """Process ids of the daemons that have been ready, in order."""
    return [int(m[1]) for line in list(spoke.lines) if (m := re.search(READY, line))]


def kill_daemon(spoke: Running) -> None:
    """kill -9, and wait until the next one is ready."""
    before = daemons(spoke)
    os.kill(before[-1], signal.SIGKILL)
    wait_for(lambda: len(daemons(spoke)) > len(before), "ready again", 60)


def kernel(place: Site) -> Any:
    return get_json(place.spoke.admin + "/v1/report")[1]["kernel"]


def taken_over(spoke: Running) -> bool:
    return any("mount taken over" in line for line in spoke.lines)


@pytest.fixture
def keeping(place: Site) -> Iterator[Site]:
    """Skips where the kernel sends nothing again (Linux 6.9 is needed)."""
    with place.running_spoke() as spoke:
        if spoke.expect(r"mounted point=\S+ .*kept=(\w+)")[1] != "True":
            pytest.skip("this kernel does not send again what nobody answered")
        yield place


def read_under_kills(place: Site, kills: int) -> None:
    """Readers of open files and of files opened anew, while the daemon is killed."""
    bodies = {f"f{i}": random.Random(i).randbytes(2 * MIB + i) for i in range(6)}
    for name, body in bodies.items():
        place.put(name, body)
    stop, wrong, done = threading.Event(), list[str](), [0]

    def opening(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            name = rng.choice(list(bodies))
            try:
                if (place.data / name).read_bytes() != bodies[name]:
                    wrong.append(f"{name}: other bytes")
            except OSError as e:
                wrong.append(f"{name}: {e}")
            done[0] += 1

    def keeping_open(seed: int) -> None:
        rng = random.Random(seed)
        with (place.data / "f0").open("rb", buffering=0) as file:
            while not stop.is_set():
                at = rng.randrange(2 * MIB - 5000)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                try:
                    if os.pread(file.fileno(), 5000, at) != bodies["f0"][at : at + 5000]:
                        wrong.append(f"f0 at {at}: other bytes")
                except OSError as e:
                    wrong.append(f"f0 at {at}: {e}")
                done[0] += 1

    threads = [threading.Thread(target=opening, args=(i,)) for i in range(2)]
    threads += [threading.Thread(target=keeping_open, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(kills):
            seen = done[0]
            wait_for(lambda seen=seen: done[0] > seen + 20 or bool(wrong), "reading")  # type: ignore[misc]
            kill_daemon(place.spoke)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong, wrong[:5]
    assert os.listdir(place.data) == sorted(bodies)


def test_a_loader_goes_on_when_the_daemon_is_killed(keeping: Site) -> None:
    read_under_kills(keeping, 2)
    assert taken_over(keeping.spoke)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_loader_goes_on_over_many_kills(keeping: Site) -> None:
    for _ in range(4):  # more than five in a minute are given up
        read_under_kills(keeping, 4)
        time.sleep(60)


def test_a_file_that_stays_open_outlives_an_answer_that_is_not_used(keeping: Site) -> None:
    """The name has come to the whole file's node before the kill, and comes to the open one's
    after it: the kernel gives that reference back, and the handle needs the node."""
    body = random.Random(9).randbytes(2 * MIB)
    keeping.put("held", body)
    path = keeping.data / "held"
    with path.open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 4096, 0) == body[:4096]

        def passed() -> bool:
            assert path.read_bytes() == body
            return bool(kernel(keeping)["passthrough_opens"])

        wait_for(passed, "read by the kernel")
        kill_daemon(keeping.spoke)
        for _ in range(3):
            assert path.stat().st_size == len(body)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), 4096, MIB) == body[MIB : MIB + 4096]
            time.sleep(1.1)  # no event: the kernel asks for a name anew after a second


def test_the_daemon_ends_in_order_when_the_process_that_keeps_its_mount_is_killed(
    place: Site,
) -> None:
    with place.running_spoke() as spoke:
        os.kill(spoke.pid, signal.SIGKILL)
        spoke.expect("spoke stopped")
        assert not any("Traceback" in line for line in spoke.lines)
        assert not is_mounted(place.point)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts something over it")
def test_what_somebody_mounted_over_it_is_left_alone(keeping: Site) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", keeping.point], check=True, timeout=30)
    try:
        kill_daemon(keeping.spoke)
    finally:
        subprocess.run(["umount", keeping.point], check=True, timeout=30)
    keeping.put("k", b"body")
    assert (keeping.data / "k").read_bytes() == b"body"
    keeping.spoke.process.terminate()
    keeping.spoke.expect("spoke stopped")
    assert not is_mounted(keeping.point)


def test_what_was_passed_through_stays_whole(place: Site) -> None:
    """An open and mapped whole file outlives the daemon and is pinned in the next one's cache."""
    held = random.Random(1).randbytes(5 * MIB)
    place.put("held", held)
    others = {f"f{i}": random.Random(i + 2).randbytes(4 * MIB) for i in range(8)}
    for name, body in others.items():
        place.put(name, body)
    with place.running_spoke("--cache-size", "16MiB") as spoke:
        words = spoke.expect(r"mounted point=\S+ .*passthrough=(\w+) kept=(\w+)")
        if "False" in (words[1], words[2]):
            pytest.skip("this kernel has not both")
        path = place.data / "held"
        assert path.read_bytes() == held

        def passed() -> bool:
            with path.open("rb") as file:
                assert file.read(1) == held[:1]
            return bool(kernel(place)["passthrough_opens"])

        wait_for(passed, "passed through")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            kill_daemon(spoke)
            for name, body in others.items():  # twice the cache
                assert (place.data / name).read_bytes() == body
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.read() == held
            assert mapped[:] == held
            place.put("held", held[::-1])
            assert path.read_bytes() == held[::-1]
            assert mapped[:] == held
        for name, body in others.items():
            assert (place.data / name).read_bytes() == body


def test_a_change_while_the_daemon_is_away_is_seen_by_the_next_open(keeping: Site) -> None:
    keeping.put("f", b"old" * 1000)
    path = keeping.data / "f"
    with path.open("rb") as file:
        assert file.read(3) == b"old"
        before = daemons(keeping.spoke)
        os.kill(before[-1], signal.SIGKILL)
        keeping.put("f", b"new" * 1000)  # waits until the lease of the killed one is over
        assert path.read_bytes() == b"new" * 1000
        try:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), 3, 0) in (b"old",)
        except OSError as e:
            assert e.errno in (errno.ESTALE, errno.EIO), e


def test_the_end_of_the_parent_is_the_end_of_all(keeping: Site) -> None:
    daemon = daemons(keeping.spoke)[-1]
    assert daemon != keeping.spoke.pid
    keeping.spoke.process.kill()
    wait_for(lambda: not is_mounted(keeping.point), "unmounted")
    wait_for(lambda: not Path(f"/proc/{daemon}").exists(), "gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_is_one_signal(keeping: Site, number: int) -> None:
    """As `timeout`, a shell's `kill %1` and systemd send it: the daemon's and the parent's."""
    parent = keeping.spoke.pid
    os.kill(daemons(keeping.spoke)[-1], number)
    os.kill(parent, number)
    assert keeping.spoke.wait(30) == 0
    assert "spoke stopped" in keeping.spoke.log and not is_mounted(keeping.point)


def test_a_daemon_that_dies_all_the_time_is_given_up(keeping: Site) -> None:
    for _ in range(5):
        kill_daemon(keeping.spoke)
    os.kill(daemons(keeping.spoke)[-1], signal.SIGKILL)
    assert keeping.spoke.wait(30) == 1
    assert "given up" in keeping.spoke.log and not is_mounted(keeping.point)
