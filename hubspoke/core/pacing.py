"""A model of the path to the hub: round trip, rate, and how much each connection may carry.

Every connection ("lane") starts with TCP's initial window and grows as bytes are delivered; the
kernel does the real congestion control, this model only decides how much one request should ask
for, so that a request on a cold connection is not given a megabyte that would crawl through
slow start while others wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass

INITIAL_WINDOW_BYTES = 14_600  # 10 segments of 1,460 bytes, RFC 6928
IDLE_RESET_S = 0.25  # kernels forget the window after one retransmission timeout (RFC 2861)
# A lane's rate is taken over so long. It rises at once and falls by a share: a sample in which the
# lane waited for its next request says less than it carries.
RATE_SAMPLE_S = 0.05
RATE_KEPT = 0.7
WINDOW_S = 0.06  # a round trip, where only the window is known


@dataclass(frozen=True, slots=True)
class PacingConfig:
    # 32 lanes x 14.6 kB = 467 kB in the first round trip of a cold start, and 2 MiB each make
    # 64 MiB in flight: 1 GiB at 60 ms took 2.9 s, over 16 lanes 3.4 s (bench/cold.py).
    lanes: int = 32
    # Kept free of prefetches, so that a demand never waits for a lane behind one.
    demand_lanes: int = 8
    # Warming at the hub's full rate: 8 lanes x 4 MiB at 60 ms are 560 MB/s. While readers or
    # predictions have requests under way it gets a share of the path that they hardly feel.
    warm_lanes: int = 8
    warm_lanes_beside: int = 2
    # The kernel's default tcp_wmem lets one connection have 4 MiB under way.
    window_bytes_max: int = 4 << 20
    # A lane is asked for about two windows: with less it would be idle for a round trip each time,
    # with more the tail would wait for one slow lane. It is topped up when half is delivered.
    windows_in_flight: int = 2
    in_flight_bytes_min: int = 256 << 10
    in_flight_bytes_max: int = 16 << 20
    # One behind the other on a connection: small requests must not pile up on one lane.
    requests_per_lane: int = 4
    # A prefetch that no reader has come for so long after it was to be there is given up: the job
    # has ended, or reads otherwise.
    overdue_s: float = 60.0
    # zstd level 1 packs about 400 MB/s on one core of the hub: on a faster path it would be the
    # bottleneck.
    compress_below_bytes_per_second: float = 250e6


@dataclass(slots=True, eq=False)
class Lane:
    """One kept connection. window: bytes that are believed to travel in one round trip. rate: bytes
    per second it was seen to carry; 0 before the first sample.

    The window is only a belief: kernels leave slow start early when delays grow, on some
    connections at a tenth of what others reach (HyStart; 400 to 5,900 segments on one path).
    """

    index: int
    window: float = INITIAL_WINDOW_BYTES
    requests: int = 0
    prefetches: int = 0  # of the requests, those that no reader waits for
    in_flight: int = 0  # bytes asked for and not delivered yet
    last_used: float = float("-inf")
    rate: float = 0.0
    _sampled_from: float | None = None
    _sample_bytes: int = 0

    def takes_s(self, bytes_: int) -> float:
        """See `take_s`."""
        return take_s((self,), bytes_)[0][0]

    def room(self, config: PacingConfig, now: float) -> int:
        """Bytes that may be asked for now; 0 while enough of what was asked for is under way."""
        if self.requests == 0 and now - self.last_used > IDLE_RESET_S:
            self.window = INITIAL_WINDOW_BYTES
        wanted = int(self.window) * config.windows_in_flight
        most = min(max(wanted, config.in_flight_bytes_min), config.in_flight_bytes_max)
        if self.requests and (
            self.requests >= config.requests_per_lane or self.in_flight > most // 2
        ):
            return 0
        return most - self.in_flight

    def asked(self, bytes_: int, *, prefetch: bool) -> None:
        """One more request goes out."""
        self.requests += 1
        self.prefetches += prefetch
        self.in_flight += bytes_

    def delivered(self, config: PacingConfig, bytes_: int, now: float) -> None:
        """Slow start: the window grows by what was acknowledged."""
        self.window = min(self.window + bytes_, config.window_bytes_max)
        self.in_flight -= bytes_
        self.last_used = now
        if self._sampled_from is None:
            self._sampled_from, self._sample_bytes = now, 0
            return
        self._sample_bytes += bytes_
        took = now - self._sampled_from
        if took >= RATE_SAMPLE_S:
            rate = self._sample_bytes / took
            self.rate = max(rate, RATE_KEPT * self.rate + (1 - RATE_KEPT) * rate)
            self._sampled_from, self._sample_bytes = now, 0

    def ended(self, undelivered: int, now: float, *, prefetch: bool) -> None:
        """A request has ended; what it did not deliver is no longer under way."""
        assert self.requests > 0, self
        self.requests -= 1
        self.prefetches -= prefetch
        self.in_flight -= undelivered
        self.last_used = now
        if not self.requests:
            self._sampled_from = None


def take_s(lanes: Iterable[Lane], bytes_: int) -> list[tuple[float, int]]:
    """How long so much more would take behind what is under way, as far as lanes are to be
    compared, and the lane's number: in slow start a lane carries twice as much as just now."""
    found = []
    for lane in lanes:
        speed, rate = lane.window / WINDOW_S, 2 * lane.rate
        if rate and rate < speed:
            speed = rate
        found.append(((lane.in_flight + bytes_) / speed, lane.index))
    return found


class PathModel:
    """Minimum round trip and delivered rate, over all lanes together.

    Source: BBR's two filters (Cardwell et al., ACM Queue 2016), on requests instead of packets:
    the minimum of the round trips, the maximum of the recent delivery rates. A sample in which the
    path ran empty tells what was asked for, not what the path carries; as in BBR it counts only
    if it is above all others: six reads of one byte made a path of 600 MB/s one of 5 B/s.
    """

    RATE_WINDOW_S = 10.0
    SAMPLE_S = 0.05

    def __init__(self) -> None:
        self.rtt_s: float | None = None
        self._rates: list[tuple[float, float]] = []  # (time, bytes/s), rates decreasing
        self._sample_start: float | None = None
        self._sample_bytes = 0
        self._ran_empty = False

    def round_trip(self, seconds: float) -> None:
        if seconds > 0 and (self.rtt_s is None or seconds < self.rtt_s):
            self.rtt_s = seconds

    def delivered(self, bytes_: int, now: float, *, more: bool) -> None:
        """Payload bytes came in; rates are sampled over at least 50 ms of delivery.

        more: bytes that were asked for are still under way.
        """
        start = self._sample_start
        if start is None or now - start > 20 * self.SAMPLE_S:
            self._sample_start, self._sample_bytes, self._ran_empty = now, 0, not more
            return
        self._sample_bytes += bytes_
        if now - start >= self.SAMPLE_S:
            self._sampled(self._sample_bytes / (now - start), now)
            self._sample_start, self._sample_bytes, self._ran_empty = now, 0, not more
        elif not more:
            self._ran_empty = True

    def _sampled(self, rate: float, now: float) -> None:
        if self._ran_empty and self._rates and rate < self._rates[0][1]:
            return
        while self._rates and self._rates[-1][1] <= rate:
            self._rates.pop()
        self._rates.append((now, rate))

    def rate(self, now: float) -> float | None:
        """Bytes per second the path has recently delivered; None before the first sample."""
        while len(self._rates) > 1 and now - self._rates[0][0] > self.RATE_WINDOW_S:
            del self._rates[0]
        return self._rates[0][1] if self._rates else None
