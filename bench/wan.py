"""How true and how fast the emulated WANs are: round trip, handshake, throughput, processor time.

    python bench/wan.py [--runs 3] [--mib 512] [--only relay|tun] > wan.json

JSON on stdout, a table on stderr. Every row names its WAN; figures are medians of the runs. A hub
in another process sends zeros from memory, the spoke reads them in threads and throws them away, so
the emulator is the slowest of the three. It must never be quoted without the machine it ran on.
"""

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from hubspoke.lab.wan import RelayWan, TunWan

_DEADLINE_S: Final = 60.0
_PIECE: Final = bytes(1 << 20)
_PINGS: Final = 100
_CONNECTS: Final = 20
_GIB: Final = 1 << 30
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

AnyWan = RelayWan | TunWan


@dataclass(frozen=True, slots=True)
class Row:
    """What one WAN did; times in milliseconds, rates in 10^6 bytes a second."""

    wan: str
    rtt_ms_p50: float
    rtt_ms_p99: float
    loaded_rtt_ms_p50: float  # beside two connections that read as fast as they can
    connect_and_reply_ms: float
    mb_per_s: dict[int, float]  # by number of connections
    cpu_s_per_gib: dict[int, float]  # of the emulator's process


def serve(host: str, port: int) -> None:
    """The hub: for each line with a number sends so many bytes, for 0 a single one."""
    listener = socket.create_server((host, port), backlog=64)
    print(listener.getsockname()[1], flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=_answer, args=(sock,), daemon=True).start()


def _answer(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(ConnectionError), sock, sock.makefile("rb") as lines:
        for line in lines:
            left = int(line) or 1
            while left:
                left -= sock.send(_PIECE[:left] if left < len(_PIECE) else _PIECE)


@contextlib.contextmanager
def hub(prefix: Sequence[str], host: str, port: int) -> Iterator[int]:
    """A `serve` process, and the port it got."""
    command = [*prefix, sys.executable, __file__, "--serve", host, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def connect(wan: AnyWan) -> socket.socket:
    """A connection of the spoke's."""
    host, port = wan.spoke_url.removeprefix("http://").rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), timeout=_DEADLINE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def ping(sock: socket.socket) -> float:
    """One byte there and back, in milliseconds."""
    start = time.monotonic()
    sock.sendall(b"0\n")
    assert sock.recv(1), "the hub closed the connection"
    return (time.monotonic() - start) * 1e3


def read(sock: socket.socket, count: int, buffer: bytearray) -> None:
    """Ask for `count` bytes and throw them away."""
    sock.sendall(b"%d\n" % count)
    while count:
        got = sock.recv_into(buffer, min(count, len(buffer)))
        assert got, "the hub closed the connection"
        count -= got


def connect_and_reply(wan: AnyWan) -> float:
    """A new connection and its first byte, in milliseconds."""
    start = time.monotonic()
    with connect(wan) as sock:
        ping(sock)
    return (time.monotonic() - start) * 1e3


def loaded_pings(wan: AnyWan, sock: socket.socket) -> list[float]:
    """Round trips while two other connections read all the time."""
    stop = threading.Event()

    def load() -> None:
        buffer = bytearray(1 << 20)
        with connect(wan) as other:
            while not stop.is_set():
                read(other, 8 << 20, buffer)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1.0)  # past slow start
        return [ping(sock) for _ in range(_PINGS // 2)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def cpu_s(pid: int) -> float:
    """Processor seconds, user and system, of a process."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def throughput(wan: AnyWan, connections: int, total: int) -> tuple[float, float]:
    """Fresh connections read `total` bytes together: (10^6 bytes/s, CPU s/GiB of the emulator).

    The handshake is over before the clock starts; slow start is in the figure, as in a real fetch.
    """
    socks = [connect(wan) for _ in range(connections)]
    for sock in socks:
        ping(sock)
    each = total // connections
    threads = [
        threading.Thread(target=read, args=(sock, each, bytearray(1 << 20))) for sock in socks
    ]
    before, start = cpu_s(wan.pid), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    spent = cpu_s(wan.pid) - before
    for sock in socks:
        sock.close()
    return each * connections / took / 1e6, spent / (each * connections) * _GIB


def measure(wan: AnyWan, runs: int, total: int) -> Row:
    """All figures of one WAN."""
    with connect(wan) as sock:
        ping(sock)  # the handshake
        rtts = sorted(ping(sock) for _ in range(_PINGS))
        loaded = loaded_pings(wan, sock)
    rates: dict[int, float] = {}
    costs: dict[int, float] = {}
    for connections in (1, 8, 16):
        # One windowed connection is slow: less suffices to see it, past its slow start.
        amount = total if connections > 1 or "no window" in wan.name else total // 2
        results = [throughput(wan, connections, amount) for _ in range(runs)]
        rates[connections] = round(statistics.median(rate for rate, _ in results), 1)
        costs[connections] = round(statistics.median(cost for _, cost in results), 2)
    return Row(
        wan=wan.name,
        rtt_ms_p50=round(statistics.median(rtts), 2),
        rtt_ms_p99=round(rtts[int(len(rtts) * 0.99) - 1], 2),
        loaded_rtt_ms_p50=round(statistics.median(loaded), 2),
        connect_and_reply_ms=round(
            statistics.median(connect_and_reply(wan) for _ in range(_CONNECTS)), 2
        ),
        mb_per_s=rates,
        cpu_s_per_gib=costs,
    )


def relays(runs: int, total: int) -> Iterator[Row]:
    """The relay as tests and demo use it, without windows, and with a rate cap."""
    with hub([], "127.0.0.1", 0) as port:
        starts: list[Callable[[], RelayWan]] = [
            lambda: RelayWan.start(port),
            lambda: RelayWan.start(port, window_bytes=0, slow_start=False),
            lambda: RelayWan.start(port, rate_mbit=1000),
        ]
        for start in starts:
            with start() as wan:
                yield measure(wan, runs, total)


def routers(runs: int, total: int) -> Iterator[Row]:
    """The TUN router with the kernel's default, and with the rate and loss of a bad line."""
    starts: list[Callable[[], TunWan]] = [
        lambda: TunWan.start(7070),
        lambda: TunWan.start(7070, congestion="reno"),
        lambda: TunWan.start(7070, rate_mbit=1000),
        lambda: TunWan.start(7070, loss=1e-4),
    ]
    for start in starts:
        with start() as wan, hub(wan.hub_command_prefix, wan.hub_host, wan.hub_port):
            yield measure(wan, runs, total)


def show(rows: list[Row]) -> None:
    """The table, on stderr."""
    columns = [
        "RTT p50",
        "p99",
        "loaded",
        "connect",
        "MB/s x1",
        "x8",
        "x16",
        "CPU s/GiB x1",
        "x8",
        "x16",
    ]
    width = max(len(row.wan) for row in rows)
    print(f"{'WAN':{width}}", *(f"{column:>7}" for column in columns), file=sys.stderr)
    for row in rows:
        times = (row.rtt_ms_p50, row.rtt_ms_p99, row.loaded_rtt_ms_p50, row.connect_and_reply_ms)
        figures = [f"{ms:.2f}" for ms in times]
        figures += [f"{rate:.0f}" for rate in row.mb_per_s.values()]
        figures += [f"{cost:.2f}" for cost in row.cpu_s_per_gib.values()]
        cells = (f"{figure:>{max(7, len(c))}}" for figure, c in zip(figures, columns, strict=True))
        print(f"{row.wan:{width}}", *cells, file=sys.stderr)


def main() -> None:
    """Measure what the machine allows; a WAN it does not allow is named with the reason."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="of each throughput; the median counts")
    parser.add_argument("--mib", type=int, default=512, help="bytes of one throughput run")
    parser.add_argument("--only", choices=["relay", "tun"])
    parser.add_argument("--serve", nargs=2, metavar=("HOST", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], int(given.serve[1]))
    rows: list[Row] = []
    reason = TunWan.available()
    if given.only != "tun":
        rows += relays(given.runs, given.mib << 20)
    if given.only != "relay":
        if reason is None:
            rows += routers(given.runs, given.mib << 20)
        else:
            print(f"no TUN router: {reason}", file=sys.stderr)
    document = {
        "schema": 1,
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "runs": given.runs,
        "rows": [asdict(row) for row in rows],
        "not_measured": {} if reason is None or given.only == "relay" else {"tun": reason},
    }
    print(json.dumps(document, indent=1))
    if rows:
        show(rows)


if __name__ == "__main__":
    main()
