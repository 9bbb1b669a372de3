"""The near sides that bench/mount.py compares: this folder itself, our mount, and two peers.

native: the same files copied to the local drive. spoke: `hubspoke spoke --mount`. masked: the same
without kernel passthrough, as on a kernel before 6.9. rclone, s3fs: mounts of the hub's S3 door
over the same WAN, with the command lines that were best for them. Each starts with an empty cache
and is ended by its `with` block. s3fs comes from the system (Debian package s3fs).
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers import rclone_mount
from hubspoke.errors import ConfigError
from hubspoke.lab.stack import Service, Stack

WAYS: Final = ("native", "spoke", "masked", "rclone", "s3fs")
OURS: Final = ("spoke", "masked")
PEERS: Final = ("rclone", "s3fs")
_START_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Near:
    """bucket: where the bucket "data" is seen. caches: what lies on the drive below it. pid: of
    what serves it, None for native. spoke: ours, for its report and its data port."""

    bucket: Path
    caches: tuple[Path, ...]
    pid: int | None = None
    spoke: Service | None = None

    def cpu_seconds(self) -> float:
        """Processor time so far of all threads of the server and of its children."""
        return 0.0 if self.pid is None else sum(map(_cpu_seconds, [self.pid, *_below(self.pid)]))

    def peak_mib(self) -> float:
        """Most memory that the server and its children have had, each at its own time, in MiB."""
        return 0.0 if self.pid is None else sum(map(_peak_mib, [self.pid, *_below(self.pid)]))

    def drop(self, *paths: Path) -> None:
        """Forget cached pages: those of the files by their own name, and those below.

        Only these, not the machine's: others measure too, and the hub's files shall stay in memory.
        """
        below = [p for folder in self.caches for p in folder.rglob("*")]
        for path in [*below, *paths]:
            with contextlib.suppress(OSError):  # evicted meanwhile; sockets
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)


def _cpu_seconds(pid: int) -> float:
    """By the scheduler's nanoseconds: a tick is as much as a whole GiB may cost."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(task.read_text().split()[0])
    return total / 1e9


def _peak_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _below(pid: int) -> list[int]:
    """Children, and theirs."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *_below(child)]
    return found


@contextlib.contextmanager
def near_side(
    way: str, stack: Stack, folder: Path, native: Path, *, prefetch: bool = True
) -> Iterator[Near]:
    """folder: a new one, removed at the end. native: where the copies are."""
    folder.mkdir(parents=True)
    try:
        match way:
            case "native":
                yield Near(native, (native,))
            case "spoke" | "masked":
                passthrough = "off" if way == "masked" else "on"
                more = ["--passthrough", passthrough]
                with _spoke(stack, folder, more, prefetch=prefetch) as near:
                    yield near
            case "rclone":
                with rclone_mount(stack.wan.spoke_url, folder / "rclone") as (at, pid):
                    yield Near(at, (folder / "rclone" / "cache",), pid)
            case "s3fs":
                with _s3fs(stack.wan.spoke_url, folder) as near:
                    yield near
            case _:
                raise ConfigError(f"{way}: expected one of {', '.join(WAYS)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _spoke(stack: Stack, folder: Path, more: list[str], *, prefetch: bool) -> Iterator[Near]:
    at, cache = folder / "mount", folder / "cache"
    at.mkdir()
    more = ["--mount", str(at), *more]
    with stack.spoke(f"spoke-{folder.name}", cache, prefetch=prefetch, more=more) as spoke:
        _await_mount(at, spoke.process, folder)
        yield Near(at / "data", (cache,), spoke.process.pid, spoke)


@contextlib.contextmanager
def _s3fs(url: str, folder: Path) -> Iterator[Near]:
    """s3fs mount of the bucket "data"."""
    if shutil.which("s3fs") is None:
        raise ConfigError("s3fs is missing; install the Debian package s3fs")
    at, cache, keys = folder / "mount", folder / "cache", folder / "keys"
    at.mkdir()
    cache.mkdir()
    keys.touch(0o600)
    keys.write_text("any:any\n")
    options = [f"url={url}", "use_path_request_style", f"passwd_file={keys}", f"use_cache={cache}"]
    options += ["ro", "enable_noobj_cache", "multipart_size=8", "parallel_count=8"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("AWS")}
    with (folder / "s3fs.log").open("wb") as log:
        process = subprocess.Popen(
            ["s3fs", "data", str(at), "-f", "-o", ",".join(options)],
            env=environ, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _await_mount(at, process, folder)
        yield Near(at, (cache,), process.pid)
    finally:
        subprocess.run(["fusermount", "-u", "-z", str(at)], check=False, timeout=_START_S)
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_mount(at: Path, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not os.path.ismount(at):
        if process.poll() is not None or time.monotonic() > deadline:
            logs = [p.read_text(errors="replace")[-1000:] for p in folder.glob("*.log")]
            raise ConfigError(f"nothing is mounted at {at}: {' '.join(logs)}")
        time.sleep(0.02)
