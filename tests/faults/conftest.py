"""A hub, and a spoke whose cache lies on a file system with faults on command."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hubspoke.lab.guard import guard
from tests.processes import Running, get_json, hub, running, spoke

MIB = 1 << 20
OBJECTS = {f"part-{i}": random.Random(i).randbytes(12 * MIB + 77 * i) for i in range(4)}


def why_not() -> str | None:
    """Why no FUSE file system can be mounted here; None if one can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse to open"
    if shutil.which("fusermount3") is None:
        return "no fusermount3 (apt-get install fuse3)"
    if found := find_library("fuse3"):  # mfusepy prefers libfuse 2, which s3fs brings along
        os.environ.setdefault("FUSE_LIBRARY_PATH", found)
    try:
        import mfusepy
    except (ImportError, OSError) as e:
        return f"mfusepy: {e}"
    return None if mfusepy.fuse_version_major == 3 else "libfuse 3 is needed"


@dataclass
class Folder:
    """A mounted folder. `fault(...)` says what goes wrong from now on."""

    path: Path
    control: Path

    def fault(self, **faults: Any) -> None:
        new = self.control.with_suffix(".new")
        new.write_text(json.dumps(faults))
        new.replace(self.control)


@contextmanager
def faulty_folder(base: Path) -> Iterator[Folder]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    source, mount, control = base / "source", base / "cache", base / "faults.json"
    for folder in (source, mount):
        folder.mkdir(parents=True)
    control.write_text("{}")
    command = [sys.executable, "-m", "tests.faults.fault_fs", str(source), str(mount), str(control)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    guard().add(process.pid)
    try:
        wait_for(mount.is_mount, 15, "mounted")
        yield Folder(mount, control)
    finally:
        control.write_text("{}")
        subprocess.run(["fusermount3", "-u", "-z", str(mount)], check=False, timeout=30)
        process.kill()
        process.wait(30)
        guard().drop(process.pid)


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not {what} after {timeout_s} s"
        time.sleep(0.02)


class Site:
    """A running spoke: its folders and its report."""

    def __init__(self, process: Running) -> None:
        self.process = process

    def cache(self) -> dict[str, Any]:
        section: dict[str, Any] = get_json(self.process.admin + "/v1/report")[1]["cache"]
        return section

    def states(self) -> list[str]:
        return [folder["state"] for folder in self.cache()["folders"]]


@contextmanager
def site(base: Path, *folders: Path, cache_size: str = "32MiB") -> Iterator[Site]:
    store = base / "store" / "data"
    store.mkdir(parents=True)
    for key, body in OBJECTS.items():
        (store / key).write_bytes(body)
    more = [a for folder in folders[1:] for a in ("--cache", str(folder))]
    more += ["--cache-size", cache_size, "--state", str(base / "spoke-state")]
    with running(*hub(base / "store", base / "hub-state")) as a_hub:
        a_hub.ready()
        with running(*spoke(a_hub.data, folders[0], *more)) as process:
            process.ready()
            wait_for(lambda: get_json(process.admin + "/readyz")[0] == 200, 15, "ready")
            yield Site(process)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with faulty_folder(tmp_path / "faulty") as mounted:
        yield mounted
