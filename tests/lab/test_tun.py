"""The TUN router as a process, under the kernel's own TCP; skipped with the reason without root."""

import hashlib
import ipaddress
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hubspoke.errors import ConfigError
from hubspoke.lab.tun import Losses
from hubspoke.lab.tun_network import ADDRESS_POOL, NetworkFailed, free_subnet, ip, sweep
from hubspoke.lab.wan import TunWan, WanFailed

DEADLINE_S = 20.0
PORT = 7070
MIB = 1 << 20

reason = TunWan.available()
needs_root = pytest.mark.skipif(reason is not None, reason=f"TUN router: {reason}")

# Answers each connection: reads all, sends the same back.
ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    sock, _ = listener.accept()
    data = b""
    while piece := sock.recv(1 << 20):
        data += piece
    sock.sendall(data)
    sock.close()
"""


@contextmanager
def echo(wan: TunWan) -> Iterator[None]:
    """A hub inside the namespace."""
    command = [*wan.hub_command_prefix, sys.executable, "-c", ECHO, wan.hub_host, str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listening\n"
            yield
        finally:
            process.kill()


def connect(wan: TunWan, timeout: float = DEADLINE_S) -> socket.socket:
    return socket.create_connection((wan.hub_host, PORT), timeout=timeout)


def exchange(wan: TunWan, data: bytes) -> bytes:
    with connect(wan) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        back = bytearray()
        while piece := sock.recv(MIB):
            back += piece
    return bytes(back)


def namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob("hubspoke-*")}


def left_behind(pid: int) -> list[str]:
    links = [link["ifname"] for link in json.loads(ip("-json", "link"))]
    return [n for n in links if n.startswith(f"hs{pid}")] + [
        n for n in namespaces() if n == f"hubspoke-{pid}"
    ]


@needs_root
def test_bytes_pass_unchanged_and_are_counted_in_both_directions() -> None:
    data = random.Random(1).randbytes(3 * MIB)
    with TunWan.start(PORT, rtt_ms=10) as wan, echo(wan):
        assert hashlib.sha256(exchange(wan, data)).digest() == hashlib.sha256(data).digest()
        counters = wan.counters()
    for payload, on_wire in (
        (counters.to_hub_bytes, counters.to_hub_ip_bytes),
        (counters.to_spoke_bytes, counters.to_spoke_ip_bytes),
    ):
        assert on_wire is not None
        assert len(data) <= payload <= 1.01 * len(data), "more only by retransmission"
        assert 1.03 * payload < on_wire < 1.10 * payload, "52 bytes of headers for 1,448"


@needs_root
def test_the_round_trip_is_the_one_asked_for() -> None:
    with TunWan.start(PORT, rtt_ms=60) as wan, echo(wan):
        assert wan.name.startswith("TUN router, 60 ms, kernel TCP ")
        took = []
        for _ in range(5):
            start = time.monotonic()
            connect(wan).close()
            took.append(time.monotonic() - start)
        assert min(took) >= 0.0595
        assert sorted(took)[2] < 0.120  # generous: how exact it is, bench/wan.py measures


@needs_root
def test_a_partition_passes_nothing_and_heals_without_loss() -> None:
    with TunWan.start(PORT, rtt_ms=10) as wan, echo(wan), connect(wan) as sock:
        wan.partition()
        before = wan.counters()
        sock.sendall(b"lost at first")
        sock.shutdown(socket.SHUT_WR)
        assert not select.select([sock], [], [], 0.3)[0]
        with pytest.raises(TimeoutError):
            connect(wan, timeout=0.2)
        during = wan.counters()
        assert during.state == "partitioned"
        assert (during.to_hub_bytes, during.to_spoke_bytes) == (before.to_hub_bytes, 0)
        wan.heal()
        assert sock.recv(100) == b"lost at first"


@needs_root
def test_a_stall_holds_and_resume_lets_go() -> None:
    with TunWan.start(PORT, rtt_ms=10) as wan, echo(wan), connect(wan) as sock:
        wan.stall()
        sock.sendall(b"held")
        sock.shutdown(socket.SHUT_WR)
        assert not select.select([sock], [], [], 0.15)[0]
        wan.resume()
        assert sock.recv(100) == b"held"


@needs_root
def test_loss_and_a_rate_are_survived_by_the_kernels_tcp() -> None:
    data = random.Random(2).randbytes(MIB)
    with TunWan.start(PORT, rtt_ms=10, loss=0.01, rate_mbit=80, seed=1) as wan, echo(wan):
        start = time.monotonic()
        assert exchange(wan, data) == data
        assert time.monotonic() - start >= MIB / 10e6
        dropped = wan.counters().dropped_packets
        assert dropped is not None and dropped > 0


@needs_root
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_behind_after_a_signal(how: signal.Signals) -> None:
    wan = TunWan.start(PORT)
    pid = wan.pid
    assert len(left_behind(pid)) == 2, "the namespace and the spoke's device"
    os.kill(pid, how)
    wan.close()
    assert left_behind(pid) == []


@needs_root
def test_what_a_killed_router_left_is_swept_up_by_the_next() -> None:
    wan = TunWan.start(PORT)
    pid = wan.pid
    os.kill(pid, signal.SIGKILL)
    wan.close()
    assert f"hubspoke-{pid}" in namespaces()
    sweep()
    assert left_behind(pid) == []


@needs_root
def test_two_routers_live_side_by_side() -> None:
    with TunWan.start(PORT, rtt_ms=4) as one, TunWan.start(PORT, rtt_ms=4) as two:
        assert one.hub_host != two.hub_host
        with echo(one), echo(two):
            assert exchange(one, b"one") == b"one"
            assert exchange(two, b"two") == b"two"


@needs_root
def test_an_unknown_congestion_control_is_refused_naming_those_allowed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = namespaces()
    with pytest.raises(WanFailed, match="exit 1"):
        TunWan.start(PORT, congestion="wishful")
    assert "'wishful': expected one of" in capfd.readouterr().err
    assert namespaces() <= before


def test_a_missing_ip_command_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="apt install iproute2"):
        ip("netns")


def test_addresses_keep_clear_of_routes_that_exist() -> None:
    first = ipaddress.IPv4Network("198.18.0.0/30")
    assert free_subnet([ipaddress.IPv4Network("0.0.0.0/0")], 0) == first
    assert free_subnet([first], 0) == ipaddress.IPv4Network("198.18.0.4/30")
    assert free_subnet([ipaddress.IPv4Network("198.19.255.252/30")], 32767) == first
    with pytest.raises(NetworkFailed, match="no free"):
        free_subnet([ADDRESS_POOL], 5)


def test_losses_come_at_their_rate_and_again_from_their_seed() -> None:
    def positions(seed: int) -> list[int]:
        losses, found = Losses(0.01, seed), []
        for batch in range(5000):
            found += [batch * 20 + i for i in losses.among(20)]
        return found

    assert positions(1) == positions(1) != positions(2)
    assert 900 <= len(positions(1)) <= 1100  # 1,000 expected, three sigma is 95
    assert Losses(0.0, 1).among(10**9) == []
