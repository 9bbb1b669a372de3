"""One relayed connection: two sockets, and for each direction memory and a pump.

Decides when bytes pass, by the arithmetic of path_model.py. It must never lose, change or reorder a
byte of a connection that lives, and never hold more of it in memory than its window: what does not
fit stays in the sender's socket. FIN and RST pass in order, after the delay.
"""

import mmap
import select
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Final

from hubspoke.lab.loop import EDGE_BOTH, Loop
from hubspoke.lab.path_model import (
    SYN_RTO_S,
    End,
    PathConfig,
    SharedLink,
    Way,
    next_retry,
)

# One read: large enough that the loop's own cost vanishes, small enough to take turns.
READ_BYTES_MAX: Final = 512 << 10
READS_PER_TURN: Final = 4
# What the kernel may hold on our side of each loopback socket. The default would let autotuning
# hide 32 MiB of a sender's bytes before the emulated path, where neither window nor queue sees
# them.
SOCKET_BUFFER_BYTES: Final = 1 << 20

_ABORT: Final = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close() sends RST
_TROUBLE: Final = select.EPOLLERR | select.EPOLLHUP | select.EPOLLRDHUP


class Ring:
    """Bytes of one way between accepting and delivering; pages are touched only when used."""

    __slots__ = ("_memory", "_start", "_view", "capacity", "used")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._start = 0
        self._memory = mmap.mmap(-1, capacity, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)

    def space(self, count: int) -> memoryview:
        """Where the next bytes go: at most `count`, in one piece; empty when the ring is full."""
        end = (self._start + self.used) % self.capacity
        count = min(count, self.capacity - self.used, self.capacity - end)
        return self._view[end : end + count]

    def fill(self, count: int) -> None:
        """`count` bytes were put into `space`."""
        self.used += count

    def head(self, count: int) -> memoryview:
        """The oldest bytes: at most `count`, in one piece."""
        return self._view[self._start : min(self._start + count, self.capacity)]

    def drop(self, count: int) -> None:
        """The oldest `count` bytes are no longer needed."""
        self.used -= count
        # Starting over when empty keeps short exchanges on the same few pages.
        self._start = (self._start + count) % self.capacity if self.used else 0

    def close(self) -> None:
        """Give the memory back."""
        self._view.release()
        self._memory.close()


class Endpoint:
    """One socket of a connection and what epoll last said about it."""

    __slots__ = ("failed", "readable", "sock", "trouble", "writable")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.readable = False
        self.writable = False
        self.trouble = False  # FIN or RST is waiting: read on until it shows
        self.failed = False  # reset by its peer

    def note(self, events: int) -> None:
        """Take in what epoll reports; edge-triggered, so flags stay until a call would block."""
        if events & (select.EPOLLIN | _TROUBLE):
            self.readable = True
        if events & select.EPOLLOUT:
            self.writable = True
        if events & _TROUBLE:
            self.trouble = True

    def broken(self) -> bool:
        """Whether the kernel reports an error (an event may also be one of a reused descriptor)."""
        return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


@dataclass(slots=True)
class Totals:
    """Exact bytes of one direction over all connections, open and closed.

    accepted == delivered + discarded + what is in the relay now.
    """

    accepted: int = 0
    delivered: int = 0
    discarded: int = 0


@dataclass(eq=False, slots=True)
class Path:
    """What all connections of a relay share."""

    loop: Loop
    target: tuple[str, int]
    config: PathConfig
    links: tuple[SharedLink | None, SharedLink | None]  # to the hub, to the spoke
    passing: bool = True
    to_hub: Totals = field(default_factory=Totals)
    to_spoke: Totals = field(default_factory=Totals)
    connections: dict["Connection", None] = field(default_factory=dict)  # in order of arrival


class Pump:
    """Moves the bytes of one way from `source` to `target`."""

    def __init__(
        self, connection: "Connection", way: Way, source: Endpoint, target: Endpoint, totals: Totals
    ) -> None:
        self._connection = connection
        self._path = connection.path
        self.way = way
        self._source = source
        self._target = target
        self._totals = totals
        self.ring = Ring(way.config.buffer_bytes)
        self.hold_until = 0.0
        self._wake_at = float("inf")
        self._turn_wanted = False
        self.finished = False  # its end was delivered

    def run(self) -> None:
        """Deliver what is due, take the acknowledgements, accept what the window lets in."""
        if self._connection.closed:
            return
        now = time.monotonic()
        if self._path.passing and now >= self.hold_until:
            self._deliver(now)
            if self._connection.closed:
                return
            self.way.acknowledge(now)
        self._accept(now)
        when = self.way.next_time(now)
        if now < self.hold_until:
            when = max(when, self.hold_until)
        # While nothing passes, only the switch can change that: it runs every pump again.
        if when < self._wake_at and self._path.passing:
            self._wake_at = when
            self._path.loop.at(when, self._wake)

    def _wake(self) -> None:
        if time.monotonic() >= self._wake_at:
            self._wake_at = float("inf")
            self.run()

    def _again(self) -> None:
        self._turn_wanted = False
        self.run()

    def _deliver(self, now: float) -> None:
        way = self.way
        held = way.arrive(now)
        while held and self._target.writable:
            try:
                sent = self._target.sock.send(self.ring.head(held))
            except BlockingIOError:
                self._target.writable = False
                break
            except OSError:
                self._connection.fail(self._target)
                return
            self.ring.drop(sent)
            way.deliver(sent, now)
            self._totals.delivered += sent
            held -= sent
        if way.end_arrived(now) and not self.finished:
            self.finished = True
            self._connection.end_of_way(self._target, way.end)

    def _accept(self, now: float) -> None:
        source, way = self._source, self.way
        for _ in range(READS_PER_TURN):
            if not source.readable or self._target.failed:
                break
            allowed = way.may_send(now)
            space = self.ring.space(min(allowed, READ_BYTES_MAX))
            if not space:
                break
            try:
                got = source.sock.recv_into(space)
            except BlockingIOError:
                source.readable = False
                way.rest()
                break
            except OSError:
                self._connection.fail(source)
                break
            if not got:
                source.readable = False
                way.finish(End.FIN, now)
                break
            self.ring.fill(got)
            way.send(got, now)
            self._totals.accepted += got
            if got < len(space) and not source.trouble:
                source.readable = False  # the queue was emptied: more bytes are a new edge
        else:
            if not self._turn_wanted:
                self._turn_wanted = True
                self._path.loop.soon(self._again)

    def discard(self) -> None:
        """Forget what was not delivered: the receiver is gone."""
        lost = self.way.discard()
        self._totals.discarded += lost
        self.ring.drop(self.ring.used)


class Connection:
    """A spoke's socket, the hub's socket, and a pump each way."""

    def __init__(self, path: Path, spoke: socket.socket) -> None:
        self.path = path
        self.closed = False
        self._connected = False
        self._arrived_at = time.monotonic()
        self._syn_arrives_at = float("inf")
        self._spoke = Endpoint(spoke)
        hub = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._hub = Endpoint(hub)
        for sock in (spoke, hub):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        config, never = path.config, float("inf")
        to_hub, to_spoke = path.links
        self.up = Pump(self, Way(config, to_hub, never), self._spoke, self._hub, path.to_hub)
        self.down = Pump(self, Way(config, to_spoke, never), self._hub, self._spoke, path.to_spoke)
        path.loop.add(spoke.fileno(), EDGE_BOTH, self._on_spoke)
        path.connections[self] = None
        if path.passing:
            self._start_handshake(self._arrived_at)

    def _start_handshake(self, when: float) -> None:
        """The emulated SYN leaves at `when`; the kernel answered its own long ago."""
        config, loop = self.path.config, self.path.loop
        self._syn_arrives_at = when + config.one_way_s
        self.up.way.opens_at = when + config.rtt_s
        self.down.way.opens_at = when + config.rtt_s + config.one_way_s
        loop.at(self._syn_arrives_at, self._reach_hub)
        loop.at(self.up.way.opens_at, self.up.run)

    def _reach_hub(self) -> None:
        late = (
            time.monotonic() < self._syn_arrives_at
        )  # a timer of a handshake that was started over
        if self.closed or self._connected or late or not self.path.passing:
            return
        self._connected = True
        self._hub.sock.connect_ex(self.path.target)  # what comes of it is an event
        self.path.loop.add(self._hub.sock.fileno(), EDGE_BOTH, self._on_hub)

    def pass_again(self, lost_since: float | None, now: float) -> None:
        """Go on after a stall (None), or after everything sent since `lost_since` was dropped."""
        if not self._connected:
            lost = lost_since is not None
            self._start_handshake(next_retry(self._arrived_at, SYN_RTO_S, now) if lost else now)
        for pump in (self.up, self.down):
            if lost_since is not None:
                pump.hold_until = pump.way.outage_over(lost_since, now)
            pump.run()

    def take_config(self) -> None:
        """The path was changed at run time; what is under way keeps its times."""
        for pump, link in zip((self.up, self.down), self.path.links, strict=True):
            pump.way.config = self.path.config
            pump.way.link = link
            pump.run()

    def _on_spoke(self, events: int) -> None:
        self._spoke.note(events)
        self._turn(self.up, self.down, self._spoke, events)

    def _on_hub(self, events: int) -> None:
        self._hub.note(events)
        self._turn(self.down, self.up, self._hub, events)

    def _turn(self, reads: Pump, writes: Pump, endpoint: Endpoint, events: int) -> None:
        reads.run()
        if events & select.EPOLLERR and not self.closed and endpoint.broken():
            self.fail(endpoint)
        if events & select.EPOLLOUT:
            writes.run()

    def fail(self, endpoint: Endpoint) -> None:
        """`endpoint` was reset: what was for it is lost, and the other side hears of it later."""
        if endpoint.failed or self.closed:
            return
        endpoint.failed = True
        leaving, arriving = (
            (self.up, self.down) if endpoint is self._spoke else (self.down, self.up)
        )
        arriving.discard()
        leaving.way.finish(End.RST, time.monotonic())
        if self._spoke.failed and self._hub.failed:
            self.close()
        else:
            leaving.run()

    def end_of_way(self, target: Endpoint, end: End | None) -> None:
        """A FIN or RST has come through to `target`."""
        if end is End.RST:
            target.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            self.close()
            return
        try:
            target.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.fail(target)
            return
        if self.up.finished and self.down.finished:
            self.close()

    def abort(self) -> None:
        """RST to both ends now."""
        for endpoint in (self._spoke, self._hub):
            endpoint.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self.close()

    def close(self) -> None:
        """Let go of the sockets and the memory."""
        self.closed = True
        self.path.loop.remove(self._spoke.sock.fileno())
        if self._connected:
            self.path.loop.remove(self._hub.sock.fileno())
        self._spoke.sock.close()
        self._hub.sock.close()
        for pump in (self.up, self.down):
            pump.discard()
            pump.ring.close()
        del self.path.connections[self]
