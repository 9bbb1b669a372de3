"""The arithmetic of a long-distance path: windows, slow start, delay, a shared rate.

Decides how many bytes a sender may put in flight, when they reach the far end and when their
acknowledgement is back. Pure: bytes are counted, never touched; the time comes in as an argument,
so the tests run it on a virtual clock and the relay (relay.py) on the real one. It must never read
a clock, a socket or a random number. It never loses anything: loss is the TUN router's business
(tun.py).

    sender --may_send--> [ in flight, rtt/2 ] --arrive--> held at the receiver --deliver--> gone
       ^                                                                             |
       +------------------ acknowledged, rtt/2 after delivery -----------------------+
"""

import enum
import math
from collections import deque
from dataclasses import dataclass
from typing import Final

SEGMENT_BYTES: Final = 1460  # payload of an Ethernet-sized TCP segment
INITIAL_WINDOW_BYTES: Final = 10 * SEGMENT_BYTES  # RFC 6928
RTO_VARIANCE_S: Final = 0.200  # Linux: RTO = smoothed RTT + at least 200 ms
RTO_MAX_S: Final = 120.0  # RFC 6298 section 2.4 allows a ceiling; Linux uses 120 s
SYN_RTO_S: Final = 1.0  # RFC 6298 section 2.1

# What one connection may hold in one direction when its window is switched off: 64 MiB in 30 ms is
# 2.2 GB/s, more than the machine moves. In flight counts until the acknowledgement: twice as long.
BUFFER_BYTES_MAX: Final = 64 << 20
UNLIMITED_WINDOW_BYTES: Final = 2 * BUFFER_BYTES_MAX

# How long one who is not first in line waits for the first to take its turn.
_TURN_S: Final = 0.000_1

# Reading less than this at a time from a sender would be a silly window: a read per few bytes.
_WORTHWHILE_BYTES: Final = 16 << 10


class End(enum.Enum):
    """How a sender ended its direction."""

    FIN = "fin"
    RST = "rst"


@dataclass(frozen=True, slots=True)
class PathConfig:
    """One emulated path. Every figure measured over it should carry `name()`."""

    rtt_s: float = 0.060
    # 4 MiB is Linux's default ceiling of a sender's buffer (tcp_wmem), hence of its window. None:
    # off.
    window_bytes: int | None = 4 << 20
    slow_start: bool = True
    idle_reset: bool = True
    rate_bytes_per_s: float | None = None  # shared by all connections, for each direction
    queue_s: float = 0.050  # what the bottleneck holds before it pushes back, in time at its rate

    def __post_init__(self) -> None:
        assert self.rtt_s >= 0 and self.queue_s > 0, self
        assert self.window_bytes is None or self.window_bytes >= INITIAL_WINDOW_BYTES, self
        assert self.rate_bytes_per_s is None or self.rate_bytes_per_s > 0, self

    @property
    def one_way_s(self) -> float:
        """Seconds from one end to the other."""
        return self.rtt_s / 2

    @property
    def rto_s(self) -> float:
        """Seconds after which TCP sends again what was not acknowledged; longer is idle."""
        return self.rtt_s + RTO_VARIANCE_S

    @property
    def window_limit_bytes(self) -> int:
        """Most bytes a connection may have unacknowledged in one direction."""
        return self.window_bytes or UNLIMITED_WINDOW_BYTES

    @property
    def buffer_bytes(self) -> int:
        """Most undelivered bytes a connection needs memory for in one direction."""
        return min(self.window_limit_bytes, BUFFER_BYTES_MAX)

    def name(self) -> str:
        """What the path is, for a table's head: "60 ms, slow start, 4 MiB window"."""
        parts = [f"{self.rtt_s * 1e3:g} ms"]
        if self.slow_start:
            parts.append("slow start" if self.idle_reset else "slow start kept when idle")
        if self.window_bytes:
            parts.append(f"{self.window_bytes / 2**20:g} MiB window")
        else:
            parts.append("no window")
        if self.rate_bytes_per_s:
            parts.append(f"{self.rate_bytes_per_s * 8e-6:g} Mbit/s")
        return ", ".join(parts)


class SharedLink:
    """The bottleneck of one direction: a rate and a queue that all connections share.

    A full queue pushes back on the senders instead of dropping, because a relay cannot lose bytes.
    Senders that were pushed back take turns in the order they came; without that, the one that was
    served last asks first again and starves the others.
    """

    def __init__(self, rate_bytes_per_s: float, queue_s: float) -> None:
        self._rate = rate_bytes_per_s
        self._free_at = -math.inf
        # About 2 ms of the link at a time keeps connections interleaved like packets would be.
        self.quantum_bytes = int(min(max(rate_bytes_per_s * 0.002, SEGMENT_BYTES), 256 << 10))
        self._queue_s = max(queue_s, 2 * self.quantum_bytes / rate_bytes_per_s)
        self._waiting: dict[object, None] = {}  # senders pushed back, in order of arrival

    def room(self, sender: object, now: float) -> int:
        """Bytes `sender` may put into the queue now; 0 puts it in line: ask again at `retry_at`."""
        waiting_s = max(0.0, self._free_at - now)
        fits = (self._queue_s - waiting_s) * self._rate >= self.quantum_bytes
        if fits and next(iter(self._waiting), sender) is sender:
            self._waiting.pop(sender, None)
            return self.quantum_bytes
        self._waiting[sender] = None
        return 0

    def leave(self, sender: object) -> None:
        """`sender` has nothing to send for now, so it must not hold up those behind it."""
        self._waiting.pop(sender, None)

    def retry_at(self, sender: object, now: float) -> float:
        """When a sender that got no room should ask again: those before it come first."""
        # A microsecond more than exact, or rounding would wake it just too early. Never at once:
        # the one in front is only about to be asked.
        room_at = self._free_at - self._queue_s + self.quantum_bytes / self._rate + 1e-6
        before = next((i for i, other in enumerate(self._waiting) if other is sender), 0)
        return max(room_at + before * self.quantum_bytes / self._rate, now + _TURN_S)

    def depart(self, count: int, now: float) -> float:
        """Queue `count` bytes; returns when the last of them leaves."""
        self._free_at = max(self._free_at, now) + count / self._rate
        return self._free_at


class SendWindow:
    """What one sender may have unacknowledged: min(congestion window, window of the path).

    Slow start doubles once a round trip (the window grows by what is acknowledged, RFC 5681 section
    3.1), only while the sender uses it (RFC 7661's reason, Linux's rule: more than half of it was
    in flight), and starts over after an idle RTO (RFC 5681 section 4.1; Linux halves once per RTO
    instead, so this is the harsher of the two). There is no loss, so there is no congestion
    avoidance.
    """

    __slots__ = ("_last_sent_at", "congestion_bytes", "in_flight_bytes")

    def __init__(self, config: PathConfig) -> None:
        self.congestion_bytes = INITIAL_WINDOW_BYTES
        self.in_flight_bytes = 0
        self._last_sent_at = -math.inf

    def limit(self, config: PathConfig) -> int:
        """Most bytes in flight as things stand."""
        if not config.slow_start:
            return config.window_limit_bytes
        return min(self.congestion_bytes, config.window_limit_bytes)

    def allowance(self, config: PathConfig, now: float) -> int:
        """Bytes that may be sent now; 0 as well when it is too little to be worth a read."""
        idle = self.in_flight_bytes == 0 and now - self._last_sent_at > config.rto_s
        if idle and config.idle_reset:
            self.congestion_bytes = min(self.congestion_bytes, INITIAL_WINDOW_BYTES)
        limit = self.limit(config)
        room = limit - self.in_flight_bytes
        return room if room >= min(_WORTHWHILE_BYTES, limit // 4) else 0

    def sent(self, count: int, now: float) -> None:
        """Note that `count` bytes went out."""
        self.in_flight_bytes += count
        self._last_sent_at = now

    def acknowledged(self, config: PathConfig, count: int) -> None:
        """Note that `count` bytes are known to have arrived."""
        assert count <= self.in_flight_bytes, (count, self.in_flight_bytes)
        if self.congestion_bytes < 2 * self.in_flight_bytes:
            grown = self.congestion_bytes + count
            self.congestion_bytes = min(grown, config.window_limit_bytes)
        self.in_flight_bytes -= count

    def timed_out(self) -> None:
        """Fall to one segment, as after a retransmission timeout (RFC 5681, section 3.1)."""
        self.congestion_bytes = SEGMENT_BYTES


class Way:
    """One direction of one connection: bytes accepted, in flight, held, delivered, acknowledged.

    accepted_bytes == bytes in flight + held_bytes + delivered_bytes, until `discard`.
    """

    def __init__(self, config: PathConfig, link: SharedLink | None, opens_at: float) -> None:
        """opens_at: when the handshake lets the first byte go."""
        self.config = config
        self.link = link
        self.opens_at = opens_at
        self.window = SendWindow(config)
        self.accepted_bytes = 0
        self.delivered_bytes = 0
        self.held_bytes = 0
        self.end: End | None = None
        self._arrivals: deque[tuple[float, int]] = deque()
        self._acks: deque[tuple[float, int]] = deque()
        self._last_due = -math.inf
        self._end_due = math.inf
        self._quiet_since = -math.inf  # when the oldest unacknowledged byte was sent, or later
        self._blocked_until = -math.inf  # the shared queue was full; when to ask again

    @property
    def undelivered_bytes(self) -> int:
        """What needs memory: accepted and not yet handed to the receiver."""
        return self.accepted_bytes - self.delivered_bytes

    def may_send(self, now: float) -> int:
        """Bytes to accept from the sender now."""
        self._blocked_until = -math.inf
        if now < self.opens_at or self.end is not None:
            return 0
        allowed = self.window.allowance(self.config, now)
        if self.link is None:
            return allowed
        if not allowed:
            self.link.leave(self)
            return 0
        room = self.link.room(self, now)
        if not room:
            self._blocked_until = self.link.retry_at(self, now)
        return min(allowed, room)

    def send(self, count: int, now: float) -> None:
        """Accept `count` bytes, at most what `may_send` said."""
        if not self.window.in_flight_bytes:
            self._quiet_since = now
        self.window.sent(count, now)
        self.accepted_bytes += count
        leaves = self.link.depart(count, now) if self.link is not None else now
        self._arrivals.append((self._in_order(leaves), count))

    def finish(self, end: End, now: float) -> None:
        """The sender sends no more; the far end hears of it after the bytes before it."""
        if self.end is None or end is End.RST:
            self.end = end
            self._end_due = self._in_order(now)
        self.rest()

    def rest(self) -> None:
        """The sender has nothing to send for now."""
        if self.link is not None:
            self.link.leave(self)
        self._blocked_until = -math.inf

    def arrive(self, now: float) -> int:
        """Move what has reached the far end to `held_bytes`; returns those."""
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] <= now:
            self.held_bytes += arrivals.popleft()[1]
        return self.held_bytes

    def deliver(self, count: int, now: float) -> None:
        """`count` of the held bytes were handed to the receiver."""
        assert count <= self.held_bytes, (count, self.held_bytes)
        self.held_bytes -= count
        self.delivered_bytes += count
        self._acks.append((now + self.config.one_way_s, count))

    def end_arrived(self, now: float) -> bool:
        """The end has come through, after every byte before it was delivered."""
        return now >= self._end_due and not self.held_bytes and not self._arrivals

    def acknowledge(self, now: float) -> None:
        """Take the acknowledgements that are back at the sender."""
        acks = self._acks
        while acks and acks[0][0] <= now:
            self.window.acknowledged(self.config, acks.popleft()[1])
            self._quiet_since = now

    def next_time(self, now: float) -> float:
        """When something changes by itself (infinity: never)."""
        times = [self._end_due if self.end_pending(now) else math.inf]
        if now < self.opens_at:
            times.append(self.opens_at)
        if self._arrivals:
            times.append(self._arrivals[0][0])
        if self._acks:
            times.append(self._acks[0][0])
        if self._blocked_until > -math.inf:
            times.append(self._blocked_until)
        return min(times)

    def end_pending(self, now: float) -> bool:
        """An end is under way and not there yet."""
        return self.end is not None and now < self._end_due

    def outage_over(self, began: float, now: float) -> float:
        """A silent outage from `began` to `now` is over; returns when TCP would notice.

        Unacknowledged bytes are sent again at RTO, doubled each time (RFC 6298, section 5.5), so
        what was lost passes at the first such time after the outage, out of a window of one
        segment.
        """
        if not self.window.in_flight_bytes and not self.end_pending(began):
            return now
        self.window.timed_out()
        return next_retry(max(began, self._quiet_since), self.config.rto_s, now)

    def discard(self) -> int:
        """Forget every undelivered byte (the receiver is gone); returns how many they were."""
        lost = self.undelivered_bytes
        self.accepted_bytes -= lost
        self.held_bytes = 0
        self._arrivals.clear()
        self.rest()
        return lost

    def _in_order(self, leaves: float) -> float:
        # A path that gets shorter at run time must not let a byte overtake an earlier one.
        self._last_due = max(self._last_due, leaves + self.config.one_way_s)
        return self._last_due


def next_retry(first_sent: float, rto_s: float, now: float) -> float:
    """The first retransmission at or after `now` of what was sent at `first_sent` (RFC 6298)."""
    wait_s = rto_s
    when = first_sent + wait_s
    while when < now:
        wait_s = min(2 * wait_s, RTO_MAX_S)
        when += wait_s
    return when
