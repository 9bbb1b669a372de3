"""Reads of all kinds through the mount, cold and warm, by several processes: every byte."""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mounts import Site, site

SIZES = (0, 1, 4095, 4096, 4097, (1 << 20) + 1, 5_243_657, 12 << 20)
PROCESSES, OPERATIONS = 3, 250
DEADLINE_S = 100.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as made:
        rng = random.Random(3)
        for number, size in enumerate(SIZES):
            (made.bucket / f"{number}.bin").write_bytes(rng.randbytes(size))
        yield made


def check(place: Site, first_seed: int) -> None:
    """Some processes beside each other; each says what was wrong."""
    arguments = [sys.executable, "-m", "tests.mount_checker", str(place.data), str(place.bucket)]
    with ExitStack() as ended:
        started = []
        for i in range(PROCESSES):
            process = subprocess.Popen(
                [*arguments, str(first_seed + i), str(OPERATIONS)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            ended.enter_context(process)
            ended.callback(process.kill)
            started.append(process)
        for process in started:
            told, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, told[-3000:]
            assert f"{OPERATIONS} operations, 0 wrong" in told


@pytest.mark.parametrize(
    "flags",
    [(), ("--prefetch", "off"), ("--passthrough", "off")],
    ids=["default", "no-prefetch", "no-passthrough"],
)
def test_every_kind_of_read_gives_the_objects_bytes(place: Site, flags: tuple[str, ...]) -> None:
    """From an empty cache: files are partly there while they are read, complete while they are
    open, and complete when they are opened."""
    with place.running_spoke(*flags):
        check(place, 10)
        check(place, 20)


def test_cache_of_an_earlier_start_gives_the_objects_bytes(place: Site) -> None:
    with place.running_spoke() as spoke:
        for path in place.data.iterdir():
            path.read_bytes()
        assert spoke.stop() == 0
    with place.running_spoke():
        check(place, 30)
