"""A real mount for tests: a hub, a spoke with `--mount`, and what is wanted of the host for it."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import Running, get_json, hub, put, running, spoke


def why_not() -> str | None:
    """Why nothing can be mounted here; None if it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse to open"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "not root, and no fusermount3 (apt-get install fuse3)"
    return None


class Site:
    """A store, its hub, and a spoke that shows it at `point`. Files of `store` are objects."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.store = base / "store"
        self.point = base / "mnt"
        self.cache = base / "cache"
        self.bucket = self.store / "data"
        self.hub: Running
        self.spoke: Running

    @property
    def data(self) -> Path:
        """The bucket as it is mounted."""
        return self.point / "data"

    def put(self, key: str, body: bytes) -> None:
        """A change through the hub: acknowledged when this returns."""
        assert put(f"{self.hub.data}/data/{key}", body) == 200

    @contextmanager
    def running_spoke(self, *more: str) -> Iterator[Running]:
        """A spoke that is ready and follows the hub; its mount never outlives this."""
        arguments = spoke(self.hub.data, self.cache, "--mount", str(self.point), *more)
        try:
            with running(*arguments) as process:
                process.ready()
                wait_for(lambda: get_json(process.admin + "/readyz")[0] == 200, "ready")
                self.spoke = process
                yield process
        finally:
            unmounted(self.point)


def unmounted(point: Path) -> None:
    """Take away what a process that was killed left."""
    if is_mounted(point):
        command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        subprocess.run([*command, str(point)], check=True, timeout=30)


def is_mounted(point: Path) -> bool:
    """By the kernel's table: the mount itself may not answer."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split(" ")[4] == str(point) for line in lines)


@contextmanager
def site(base: Path) -> Iterator[Site]:
    """The hub runs; a spoke is started by the test."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    made = Site(base)
    made.bucket.mkdir(parents=True, exist_ok=True)
    made.point.mkdir()
    with running(*hub(made.store, base / "hub-state")) as process:
        made.hub = process.ready()
        yield made


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Poll what cannot be awaited."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not {what} after {timeout_s} s"
        time.sleep(0.02)
