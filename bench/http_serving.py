"""Warm ranged GETs: a spoke's data port against nginx, the same client, in turns.

    python bench/http_serving.py [--runs 3] [--seconds 3] [--json]

nginx has one worker, sendfile and open_file_cache; the client is `wrk -t1 -c16`, which asks for
random ranges of one object that both have in the page cache. Then requests (4 KiB ranges over 16
connections, HEADs over 8) are offered at a fixed rate by a client of our own that never waits with
the next one for the last: latency counts from the moment a request was due. Needs the packages
nginx-light and wrk.

Medians of the turns; ratios are taken inside a turn. The spoke predicts, as always.
"""

import argparse
import json
import os
import random
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.peers import GIB, KeptConnection, cpu_seconds, load, median
from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.lab.stack import Stack, WanConfig

SIZES: Final = {"4k": 4 << 10, "256k": 256 << 10, "8m": 8 << 20}
OBJECT_BYTES: Final = 256 << 20
CONNECTIONS: Final = 16
_RANGES = 2_048

_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that are offered at a fixed rate. size: of the range, 0 with HEAD."""

    method: str
    size: int
    per_s: int
    connections: int


OFFERED: Final = {
    "offered": Load("GET", SIZES["4k"], 3_000, CONNECTIONS),
    "head": Load("HEAD", 0, 2_000, 8),
}
ROWS: Final = (*SIZES, *OFFERED)

NGINX = """
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
daemon off;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_requests 100000000;
    open_file_cache max=1000 inactive=1h;
    open_file_cache_valid 1h;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""

WRK = """
local requests, at = {}, 0
init = function()
  for line in io.lines("%s") do
    requests[#requests + 1] = wrk.format("GET", "/data/object", {["Range"] = line})
  end
end
request = function()
  at = at %% #requests + 1
  return requests[at]
end
"""


@contextmanager
def nginx(root: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """HOST:PORT and the worker's pid."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, root=root))
    # As root its worker would be another user, who may not see the folder.
    run = ["nginx", "-c", str(config)] + (["-g", "user root;"] if os.geteuid() == 0 else [])
    with subprocess.Popen(run, stderr=subprocess.DEVNULL) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            deadline = time.monotonic() + 10
            while not (worker := children.read_text().split()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ConfigError(f"nginx did not start; see {folder}/error.log")
                time.sleep(0.02)
            yield f"127.0.0.1:{port}", int(worker[0])
        finally:
            process.terminate()


def wrk(address: str, pid: int, size: int, seconds: int, folder: Path) -> dict[str, float]:
    """One run of `wrk`, and the server's processor time meanwhile."""
    rng = random.Random(size)
    ranges = folder / f"ranges-{size}"
    starts = [rng.randrange(OBJECT_BYTES // size) * size for _ in range(_RANGES)]
    ranges.write_text("".join(f"bytes={a}-{a + size - 1}\n" for a in starts))
    script = folder / f"wrk-{size}.lua"
    script.write_text(WRK % ranges)
    before = cpu_seconds(pid)
    done = subprocess.run(
        ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", str(script),
         f"http://{address}"],
        check=True, capture_output=True, text=True, timeout=seconds + 30,
    )  # fmt: skip
    used = cpu_seconds(pid) - before
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise ConnectionError(done.stdout)
    found = re.search(r"(\d+) requests in ([\d.]+)s", done.stdout)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", done.stdout)
    assert found is not None and p99 is not None, done.stdout
    requests, took = int(found[1]), float(found[2])
    return {
        "requests_per_s": requests / took,
        "gb_per_s": requests * size / took / 1e9,
        "p99_ms": float(p99[1]) * _UNITS[p99[2]],
        "cpu_us_per_request": used / requests * 1e6,
        "cpu_s_per_gib": used / (requests * size) * GIB,
    }


class _Offered:
    """One connection of the offered load: what is due waits here, what is asked for there."""

    def __init__(self, address: str, load: Load) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due: deque[tuple[float, int]] = deque()
        self.asked_for: float | None = None
        self.left = 0
        self.head = b""
        self._host = address
        self._load = load

    def ask(self) -> None:
        if self.asked_for is None and self.due:
            self.asked_for, first = self.due.popleft()
            size = self._load.size
            lines = f"Host: {self._host}\r\n"
            if size:
                lines += f"Range: bytes={first}-{first + size - 1}\r\n"
            request = f"{self._load.method} /data/object HTTP/1.1\r\n{lines}\r\n"
            self.socket.sendall(request.encode())
            self.left, self.head = size, b""

    def readable(self) -> float | None:
        """When the request was due whose answer is now whole."""
        data = self.socket.recv(256 << 10)
        if not data:
            raise ConnectionError(f"{self._host} closed the connection")
        if not self.head.endswith(b"\r\n\r\n"):
            head, end, data = (self.head + data).partition(b"\r\n\r\n")
            self.head = head + end
            if not end:
                return None
            if (b" 206 " if self._load.size else b" 200 ") not in head[:20]:
                raise ConnectionError(f"{head[:300]!r}")
        self.left -= len(data)
        if self.left:
            return None
        due, self.asked_for = self.asked_for, None
        return due


def offered(address: str, pid: int, load: Load, seconds: int) -> dict[str, float]:
    """`load.per_s` requests a second, whatever the answers do."""
    rng = random.Random(load.size)
    connections = [_Offered(address, load) for _ in range(load.connections)]
    by_fd = {c.socket.fileno(): c for c in connections}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    total, n = load.per_s * seconds, 0
    starts = OBJECT_BYTES // load.size if load.size else 1
    latencies: list[float] = []
    before, start = cpu_seconds(pid), time.perf_counter()
    while len(latencies) < total:
        now = time.perf_counter()
        while n < total and start + n / load.per_s <= now:
            c = connections[n % len(connections)]
            c.due.append((start + n / load.per_s, rng.randrange(starts) * load.size))
            c.ask()
            n += 1
        wait = max(0.0, start + n / load.per_s - now) if n < total else 1.0
        for fd, _ in poll.poll(wait if wait > 0.001 else 0):
            c = by_fd[fd]
            due = c.readable()
            if due is not None:
                latencies.append(time.perf_counter() - due)
                c.ask()
    used = cpu_seconds(pid) - before
    poll.close()
    for c in connections:
        c.socket.close()
    latencies.sort()
    return {
        "p50_ms": latencies[total // 2] * 1e3,
        "p99_ms": latencies[total * 99 // 100] * 1e3,
        "cpu_us_per_request": used / total * 1e6,
    }


def measure(a: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All turns."""
    (work / "logs").mkdir()
    bucket = work / "store" / "data"
    bucket.mkdir(parents=True)
    with (bucket / "object").open("wb") as file:
        for _ in range(OBJECT_BYTES >> 20):
            file.write(os.urandom(1 << 20))
    turns: list[dict[str, dict[str, dict[str, float]]]] = []
    loads = []
    wan = WanConfig("relay", 1.0, 0.0)  # not in the way of what is warm
    with (
        Stack(work / "store", work=work, logs=work / "logs", wan=wan) as stack,
        stack.spoke("spoke", work / "cache") as spoke,
        nginx(work / "store", work) as (nginx_address, nginx_pid),
    ):
        for address in (spoke.data, nginx_address):
            connection = KeptConnection(address)
            connection.get("/data/object")
            connection.close()
        servers = {"spoke": (spoke.data, spoke.process.pid), "nginx": (nginx_address, nginx_pid)}
        for turn in range(a.runs):
            loads.append(load())
            figures: dict[str, dict[str, dict[str, float]]] = {}
            for name in a.only:
                if (size := SIZES.get(name)) is not None:
                    figures[name] = {
                        server: wrk(*at, size, a.seconds, work) for server, at in servers.items()
                    }
                else:
                    figures[name] = {
                        server: offered(*at, OFFERED[name], a.seconds)
                        for server, at in servers.items()
                    }
            turns.append(figures)
            print(f"turn {turn + 1} of {a.runs}, load {loads[-1]:.1f}", file=sys.stderr)
    return {
        "schema": 1,
        "kind": "http_serving",
        "cores": os.cpu_count(),
        "load": loads,
        "connections": CONNECTIONS,
        "offered": {row: asdict(load) for row, load in OFFERED.items()},
        "medians": {
            row: {
                server: {
                    k: median([t[row][server][k] for t in turns]) for k in turns[0][row][server]
                }
                for server in turns[0][row]
            }
            for row in turns[0]
        },
        "ratios": {
            row: median(
                [
                    t[row]["spoke"]["requests_per_s"] / t[row]["nginx"]["requests_per_s"]
                    for t in turns
                ]
            )
            for row in turns[0]
            if row in SIZES
        },
        "turns": turns,
    }


def main() -> int:
    p = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--runs", type=int, default=3, metavar="N", help="turns")
    p.add_argument("--seconds", type=int, default=3, metavar="S", help="of each measurement")
    p.add_argument(
        "--only", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help=f"of {', '.join(ROWS)}"
    )
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = p.parse_args()
    try:
        for program, package in (("nginx", "nginx-light"), ("wrk", "wrk")):
            if shutil.which(program) is None:
                raise ConfigError(f"{program} is missing: install the package {package}")
        with tempfile.TemporaryDirectory(prefix="hubspoke-http-") as temporary:
            document = measure(a, Path(temporary))
    except HubSpokeError as e:
        print(f"bench/http_serving.py: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    if a.json:
        print(json.dumps(document, indent=1))
        return 0
    for row, servers in document["medians"].items():
        for server, figures in servers.items():
            shown = "  ".join(f"{k}={v:.4g}" for k, v in figures.items())
            print(f"{row:8} {server:6} {shown}")
        if row in document["ratios"]:
            print(f"{row:8} ratio  {document['ratios'][row]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
