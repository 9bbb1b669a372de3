"""The relay as a process, between real sockets."""

import hashlib
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hubspoke.lab.path_model import INITIAL_WINDOW_BYTES
from hubspoke.lab.wan import RelayWan, WanCounters, WanFailed

DEADLINE_S = 20.0
RTT_MS = 20.0
MIB = 1 << 20


class Hub:
    """The far end: a listener whose connections the tests take one by one. Closes both ends."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listener.settimeout(DEADLINE_S)
        self.port: int = self.listener.getsockname()[1]
        self._sockets = [self.listener]

    def accept(self) -> socket.socket:
        sock, _ = self.listener.accept()
        sock.settimeout(DEADLINE_S)
        self._sockets.append(sock)
        return sock

    def connect(self, wan: RelayWan) -> socket.socket:
        """A spoke's connection through the WAN."""
        host, port = wan.spoke_url.removeprefix("http://").split(":")
        sock = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._sockets.append(sock)
        return sock

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def wan(hub: Hub) -> Iterator[RelayWan]:
    with RelayWan.start(hub.port, rtt_ms=RTT_MS) as wan:
        yield wan


def pair(wan: RelayWan, hub: Hub) -> tuple[socket.socket, socket.socket]:
    """Both ends of one relayed connection, its handshake done."""
    spoke = hub.connect(wan)
    far = hub.accept()
    spoke.sendall(b"?")
    assert far.recv(1) == b"?"
    far.sendall(b"!")
    assert spoke.recv(1) == b"!"
    return spoke, far


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(min(count - len(data), MIB))
        assert piece, f"end after {len(data)} of {count} bytes"
        data += piece
    return bytes(data)


def read_all(sock: socket.socket) -> bytes:
    data = bytearray()
    while piece := sock.recv(MIB):
        data += piece
    return bytes(data)


def until(wan: RelayWan, done: Callable[[WanCounters], bool]) -> WanCounters:
    """Ask for the counters until they are as wanted."""
    deadline = time.monotonic() + DEADLINE_S
    while not done(counters := wan.counters()):
        assert time.monotonic() < deadline, counters
        time.sleep(0.005)
    return counters


def settled(wan: RelayWan) -> WanCounters:
    """The counters when they no longer move (0.2 s: ten round trips)."""
    before, after = None, wan.counters()
    while before != after:
        time.sleep(0.2)
        before, after = after, wan.counters()
    return after


def abort(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_bytes_pass_unchanged_both_ways_on_many_connections(wan: RelayWan, hub: Hub) -> None:
    connections, each = 12, 2 * MIB

    def send(sock: socket.socket, seed: int) -> str:
        chance = random.Random(seed)
        data, at = chance.randbytes(each), 0
        while at < each:
            count = int(2 ** chance.uniform(0, 20))
            sock.sendall(data[at : at + count])
            at += count
        sock.shutdown(socket.SHUT_WR)
        return hashlib.sha256(data).hexdigest()

    pairs = [pair(wan, hub) for _ in range(connections)]
    with ThreadPoolExecutor(4 * connections) as pool:
        tasks = []
        for seed, (spoke, far) in enumerate(pairs):
            for source, target, salt in ((spoke, far, 0), (far, spoke, 1000)):
                tasks.append(
                    (pool.submit(send, source, seed + salt), pool.submit(read_all, target))
                )
        for sent, received in tasks:
            data = received.result(DEADLINE_S)
            assert hashlib.sha256(data).hexdigest() == sent.result(DEADLINE_S)
    counters = until(wan, lambda c: c.connections_current == 0)
    expected = connections * (each + 1)
    assert counters.to_hub_bytes == counters.to_hub_accepted_bytes == expected
    assert counters.to_spoke_bytes == counters.to_spoke_accepted_bytes == expected
    assert (counters.connections_total, counters.buffered_bytes) == (connections, 0)
    assert (counters.to_hub_discarded_bytes, counters.to_spoke_discarded_bytes) == (0, 0)


def test_a_connection_costs_a_round_trip_before_its_first_byte(hub: Hub) -> None:
    with RelayWan.start(hub.port, rtt_ms=100) as wan:
        start = time.monotonic()
        spoke = hub.connect(wan)
        spoke.sendall(b"?")
        far = hub.accept()
        assert time.monotonic() - start >= 0.050
        assert far.recv(1) == b"?"
        assert time.monotonic() - start >= 0.150
        far.sendall(b"!")
        assert spoke.recv(1) == b"!"
        assert time.monotonic() - start >= 0.200
        start = time.monotonic()
        spoke.sendall(b"?")
        far.recv(1)
        far.sendall(b"!")
        spoke.recv(1)
        assert 0.100 <= time.monotonic() - start < 5


def test_a_half_closed_connection_still_carries_the_answer(wan: RelayWan, hub: Hub) -> None:
    spoke, far = pair(wan, hub)
    spoke.sendall(b"question")
    spoke.shutdown(socket.SHUT_WR)
    assert read_all(far) == b"question"
    far.sendall(b"answer" * 10_000)
    far.close()
    assert read_all(spoke) == b"answer" * 10_000
    until(wan, lambda c: c.connections_current == 0)


def test_slow_start_lets_ten_segments_pass_before_the_first_acknowledgement(
    wan: RelayWan, hub: Hub
) -> None:
    spoke, far = pair(wan, hub)
    settled(wan)
    wan.stall()  # no acknowledgement comes back, so the first window is all there is
    far.sendall(bytes(200_000))
    counters = settled(wan)
    assert counters.state == "stalled"
    assert counters.to_spoke_accepted_bytes == 1 + INITIAL_WINDOW_BYTES
    assert counters.to_spoke_bytes == 1
    wan.resume()
    assert read_exactly(spoke, 200_000) == bytes(200_000)


@pytest.mark.parametrize("idle_reset", [True, False])
def test_idle_connections_start_over(hub: Hub, idle_reset: bool) -> None:
    with RelayWan.start(hub.port, rtt_ms=RTT_MS, idle_reset=idle_reset) as wan:
        spoke, far = pair(wan, hub)
        far.sendall(bytes(MIB))
        read_exactly(spoke, MIB)
        time.sleep(0.2 + 2 * RTT_MS / 1e3)  # being idle longer than RTO is what is tested
        wan.stall()
        far.sendall(bytes(100_000))
        accepted = settled(wan).to_spoke_accepted_bytes
        assert accepted == 1 + MIB + (INITIAL_WINDOW_BYTES if idle_reset else 100_000)


def test_a_reader_that_stops_stops_the_sender_and_costs_bounded_memory(hub: Hub) -> None:
    window = 256 << 10
    with RelayWan.start(hub.port, rtt_ms=RTT_MS, window_bytes=window, slow_start=False) as wan:
        spoke, far = pair(wan, hub)
        far.setblocking(False)
        sent = 0
        while select.select([], [far], [], 1.0)[1]:
            sent += far.send(bytes(MIB))
        held = wan.counters()
        assert held.to_spoke_accepted_bytes is not None and held.buffered_bytes is not None
        assert held.to_spoke_accepted_bytes - held.to_spoke_bytes == held.buffered_bytes <= window
        assert held.to_spoke_accepted_bytes < 1 + sent, "the rest must wait in the sender's socket"
        far.setblocking(True)
        far.close()
        assert len(read_all(spoke)) == sent
        assert until(wan, lambda c: c.buffered_bytes == 0).to_spoke_bytes == 1 + sent


def test_a_partition_passes_nothing_and_heals_without_loss(wan: RelayWan, hub: Hub) -> None:
    spoke, far = pair(wan, hub)
    settled(wan)
    wan.partition()
    spoke.sendall(b"lost at first")
    late = hub.connect(wan)
    late.sendall(b"new")
    before = settled(wan)
    assert (before.state, before.to_hub_bytes) == ("partitioned", 1)
    assert not select.select([far, hub.listener], [], [], 0.3)[0]
    wan.heal()
    assert read_exactly(far, 13) == b"lost at first"
    assert read_exactly(hub.accept(), 3) == b"new"
    assert wan.counters().state == "open"


def test_a_stall_holds_and_resume_lets_go_in_order(wan: RelayWan, hub: Hub) -> None:
    spoke, far = pair(wan, hub)
    wan.stall()
    for i in range(100):
        spoke.sendall(bytes([i]))
    assert not select.select([far], [], [], 0.2)[0]
    wan.resume()
    assert read_exactly(far, 100) == bytes(range(100))


def test_reset_aborts_both_ends(wan: RelayWan, hub: Hub) -> None:
    spoke, far = pair(wan, hub)
    wan.reset()
    for sock in (spoke, far):
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert wan.counters().connections_current == 0
    pair(wan, hub)  # new ones are welcome


def test_a_reset_by_one_end_reaches_the_other_after_the_bytes_before_it(
    wan: RelayWan, hub: Hub
) -> None:
    spoke, far = pair(wan, hub)
    spoke.sendall(b"last words")
    until(wan, lambda c: c.to_hub_accepted_bytes == 11)
    abort(spoke)
    assert read_exactly(far, 10) == b"last words"
    with pytest.raises(ConnectionResetError):
        far.recv(1)
    until(wan, lambda c: c.connections_current == 0)


def test_bytes_for_a_reader_that_is_gone_are_counted_as_discarded(wan: RelayWan, hub: Hub) -> None:
    spoke, far = pair(wan, hub)
    far.sendall(bytes(4 * MIB))
    spoke.recv(1)
    abort(spoke)
    with pytest.raises(ConnectionError):
        while True:
            far.sendall(bytes(MIB))
    done = until(wan, lambda c: c.connections_current == 0)
    assert done.to_spoke_accepted_bytes is not None and done.to_spoke_discarded_bytes is not None
    assert done.to_spoke_accepted_bytes == done.to_spoke_bytes + done.to_spoke_discarded_bytes


def test_a_refused_connection_is_reset_after_a_round_trip(hub: Hub) -> None:
    with RelayWan.start(hub.port, rtt_ms=100) as wan:
        hub.listener.close()
        start = time.monotonic()
        with pytest.raises(ConnectionResetError):
            hub.connect(wan).recv(1)
        assert time.monotonic() - start >= 0.100


def test_connections_share_a_rate_cap(hub: Hub) -> None:
    with RelayWan.start(hub.port, rtt_ms=RTT_MS, rate_mbit=80, slow_start=False) as wan:
        pairs = [pair(wan, hub) for _ in range(4)]
        start = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            for _, far in pairs:
                pool.submit(far.sendall, bytes(MIB))
            readers = [pool.submit(read_exactly, spoke, MIB) for spoke, _ in pairs]
            for reader in readers:
                reader.result(DEADLINE_S)
        # Capped: it cannot be faster. How much slower depends on the machine, so no upper bound.
        assert time.monotonic() - start >= 4 * MIB / 10e6
        assert wan.name == "relay, 20 ms, 4 MiB window, 80 Mbit/s"


def test_the_path_changes_while_it_runs(wan: RelayWan, hub: Hub) -> None:
    spoke, far = pair(wan, hub)
    wan.set(rtt_ms=300, slow_start=False)
    assert wan.name == "relay, 300 ms, 4 MiB window"
    start = time.monotonic()
    spoke.sendall(b"x")
    far.recv(1)
    assert time.monotonic() - start >= 0.150


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rtt": 5}, "set rtt=5"),
        ({"rtt_ms": -1}, "rtt_ms: expected a number >= 0"),
        ({"window_bytes": 10}, "window of 10 bytes"),
        ({"slow_start": 1}, "slow_start=1"),
    ],
)
def test_a_senseless_request_is_refused_and_changes_nothing(
    wan: RelayWan, change: dict[str, float], words: str
) -> None:
    name = wan.name
    with pytest.raises(WanFailed, match=words):
        wan.set(**change)
    wan.set()
    assert wan.name == name


def test_a_request_that_is_not_json_is_answered_with_an_error(wan: RelayWan) -> None:
    with socket.create_connection(wan._control, timeout=DEADLINE_S) as sock:
        sock.sendall(b"counters please\n")
        assert b'"error"' in read_all(sock)


def test_the_relay_ends_when_its_owner_is_killed() -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from hubspoke.lab.wan import RelayWan; import time\n"
            "print(RelayWan.start(9).pid, flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    with owner.stdout:
        pid = int(owner.stdout.readline())
    watch = os.pidfd_open(pid)
    owner.kill()
    owner.wait(DEADLINE_S)
    assert select.select([watch], [], [], DEADLINE_S)[0], "still running"
    os.close(watch)


def test_sigterm_ends_the_relay_with_status_0(hub: Hub) -> None:
    wan = RelayWan.start(hub.port)
    pair(wan, hub)
    os.kill(wan.pid, signal.SIGTERM)
    assert wan._process.wait(DEADLINE_S) == 0
    wan.close()
    with pytest.raises(WanFailed, match="exit 0"):
        wan.counters()


def test_a_wrong_argument_fails_the_start_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WanFailed, match="no ready line, exit 2"):
        RelayWan.start(9, rtt_ms=-1)
    assert "--rtt-ms" in capfd.readouterr().err


def test_threads_of_the_caller_may_end_without_ending_the_relay(hub: Hub) -> None:
    started: list[RelayWan] = []
    thread = threading.Thread(target=lambda: started.append(RelayWan.start(hub.port)))
    thread.start()
    thread.join(DEADLINE_S)
    with started[0] as wan:
        pair(wan, hub)
