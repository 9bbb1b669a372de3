"""fio through the mount, each block verified by its own checksum and offset.

Needs the system's fio (Debian package fio).
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts import Site, site

SIZE = 24 << 20
VERIFY = ["--verify=crc32c", "--verify_interval=4096", "--verify_fatal=1", "--verify_state_save=0"]
JOBS = {
    "sequential": ["--rw=read", "--bs=1M", "--ioengine=psync"],
    "random": ["--rw=randread", "--bs=4k", "--ioengine=psync"],
    "mmap": ["--rw=randread", "--bs=4k", "--ioengine=mmap"],
    "libaio-direct": [
        "--rw=randread",
        "--bs=64k",
        "--ioengine=libaio",
        "--direct=1",
        "--iodepth=16",
    ],
    "four-jobs": ["--rw=randread", "--bs=16k", "--ioengine=psync", "--numjobs=4"],
    "vectors": ["--rw=read", "--bs=128k", "--ioengine=pvsync2"],
}

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="no fio (apt-get install fio)")


def fio(path: Path, *arguments: str) -> str:
    command = ["fio", "--name=job", f"--filename={path}", f"--size={SIZE}", *VERIFY, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("fio")) as made:
        true = made.base / "true"
        fio(true, "--rw=write", "--bs=4k", "--ioengine=psync", "--do_verify=0")
        for job in JOBS:  # an object each, so that each job begins cold
            shutil.copyfile(true, made.bucket / job)
        damaged = bytearray(true.read_bytes())
        damaged[SIZE // 2 + 2000] ^= 1
        (made.bucket / "damaged").write_bytes(damaged)
        with made.running_spoke():
            yield made


@pytest.mark.parametrize("job", JOBS)
def test_fio_finds_every_block_as_it_was_written(place: Site, job: str) -> None:
    """Cold, then complete."""
    for _ in range(2):
        fio(place.data / job, "--readonly", *JOBS[job])


def test_fio_would_find_one_wrong_bit(place: Site) -> None:
    with pytest.raises(AssertionError, match="crc32c: verify failed"):
        fio(place.data / "damaged", "--readonly", *JOBS["sequential"])
