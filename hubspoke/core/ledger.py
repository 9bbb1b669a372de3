"""The ledger of a spoke: every read by state and cause, every byte by class and use.

Decides how events are counted, and nothing else: it never looks at a clock, a socket or a price.
All counters only grow until `reset`, so the difference of two snapshots is what happened between
them. Memory is fixed however long the spoke runs: latencies go into log-spaced buckets.
"""

from collections.abc import Iterator, Sequence
from math import frexp

from hubspoke.core.convergence import Convergence
from hubspoke.core.ids import ReadState, TrafficClass

CAUSES = (
    "cold_start",
    "not_predicted",
    "late_bandwidth",
    "late_deadline",
    "evicted",
    "invalidated",
    "bypassed",
)

# Each power of two is cut into 64 equal parts, so a bucket is at most 1/64 of its value wide and
# its middle is within 0.8 % of every latency in it. From 2^-24 s (60 ns) to 2^14 s (4.5 hours):
# what lies outside is counted at the edge.
_PARTS = 64
_EXPONENT_MIN = -23
_EXPONENT_MAX = 14
_BUCKETS = (_EXPONENT_MAX - _EXPONENT_MIN + 1) * _PARTS
_OFFSET = _EXPONENT_MIN * _PARTS + _PARTS  # frexp mantissas lie in [0.5, 1): parts 64..127


def _bucket_middle(index: int) -> float:
    exponent, part = divmod(index, _PARTS)
    return float((part + _PARTS + 0.5) / (2 * _PARTS) * 2.0 ** (exponent + _EXPONENT_MIN))


class LatencyHistogram:
    """Seconds in log-spaced buckets; quantiles within 1 % (own, the HdrHistogram idea)."""

    __slots__ = ("_counts", "count", "max_s", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one latency; negative ones count as the smallest bucket."""
        self.add_all((seconds,))

    def add_all(self, latencies_s: Sequence[float]) -> None:
        """`add` of each."""
        counts = self._counts
        for seconds in latencies_s:
            mantissa, exponent = frexp(seconds)
            index = exponent * _PARTS + int(mantissa * (2 * _PARTS)) - _OFFSET
            if index < 0 or seconds <= 0.0:
                index = 0
            elif index >= _BUCKETS:
                index = _BUCKETS - 1
            counts[index] += 1
        self.count += len(latencies_s)
        self.sum_s += sum(latencies_s)
        self.max_s = max(self.max_s, max(latencies_s, default=0.0))

    def quantile(self, q: float) -> float | None:
        """Seconds below which a share `q` (0..1) of the latencies lies; None if there is none."""
        if self.count == 0:
            return None
        rank = max(1, -(-round(q * 1_000_000) * self.count // 1_000_000))
        seen = 0
        for index, n in enumerate(self._counts):
            seen += n
            if seen >= rank:
                return min(_bucket_middle(index), self.max_s)
        raise AssertionError("the buckets hold fewer latencies than were counted")

    def cumulative(self, bounds_s: tuple[float, ...]) -> Iterator[tuple[float, int]]:
        """Each bound with the number of latencies up to it, to the bucket's width (1.6 %)."""
        index, seen = 0, 0
        for bound in bounds_s:
            while index < _BUCKETS and _bucket_middle(index) <= bound:
                seen += self._counts[index]
                index += 1
            yield bound, seen


class Ledger:
    """All counters of one spoke since `since`.

    now: seconds on the clock that every later call uses. unix_ns: the same moment in Unix time.
    """

    def __init__(self, now: float, unix_ns: int) -> None:
        self.reset(now, unix_ns)

    def reset(self, now: float, unix_ns: int) -> None:
        """Start every counter again from zero at this moment."""
        self.since = now
        self.since_unix_ns = unix_ns
        self.requests = {state: 0 for state in ReadState}
        self.latency = {state: LatencyHistogram() for state in ReadState}
        self.stale_requests = 0
        self.read_bytes = 0
        self.missed_bytes = 0
        self.wait_s = 0.0
        self.misses_by_cause = dict.fromkeys(CAUSES, 0)
        self.unique_bytes = 0
        self.prefetch_issued_bytes = 0
        self.prefetch_used_bytes = 0
        self.prefetch_wasted_bytes = 0
        self.payload_bytes = {traffic_class: 0 for traffic_class in TrafficClass}
        self.corrupt_frames = 0
        self.convergence = Convergence()

    def read(
        self,
        state: ReadState,
        length: int,
        missed_bytes: int,
        cause: str | None,
        latency_s: float,
        wait_s: float,
        now: float,
        stale: bool = False,
    ) -> None:
        """One object read that reached a door and was answered.

        state: on arrival. length: bytes answered. missed_bytes: those of them that were not
        local when the reader reached them. cause: one of CAUSES, None exactly for a hit.
        latency_s: arrival to the last byte ready for the door. wait_s: the part of it spent
        waiting for the hub. stale: answered without a lease, whatever the state.
        """
        assert (cause is None) == (state is ReadState.HIT), (state, cause)
        self.requests[state] += 1
        self.read_bytes += length
        if cause is not None:
            self.misses_by_cause[cause] += 1
            self.missed_bytes += missed_bytes
            self.wait_s += wait_s
        if stale:
            self.stale_requests += 1
        self.latency[state].add(latency_s)
        self.convergence.read(cause is None, length, latency_s, now)

    def hits(
        self, lengths: Sequence[int], latencies_s: Sequence[float], at: Sequence[float]
    ) -> None:
        """`read` of many hits that were answered under a lease, in order: a third of its cost."""
        self.requests[ReadState.HIT] += len(lengths)
        self.read_bytes += sum(lengths)
        self.latency[ReadState.HIT].add_all(latencies_s)
        self.convergence.hits(lengths, latencies_s, at)

    def unique(self, bytes_: int) -> None:
        """Readers asked for this many bytes of pages that nobody had asked for before."""
        self.unique_bytes += bytes_

    def prefetch_issued(self, bytes_: int) -> None:
        """A prefetch of this many bytes was sent to the hub."""
        self.prefetch_issued_bytes += bytes_

    def prefetch_used(self, bytes_: int) -> None:
        """Prefetched bytes were read for the first time."""
        self.prefetch_used_bytes += bytes_

    def prefetch_wasted(self, bytes_: int) -> None:
        """Prefetched bytes were dropped before anybody read them."""
        self.prefetch_wasted_bytes += bytes_

    def payload(self, traffic_class: TrafficClass, bytes_: int) -> None:
        """Object bytes arrived, counted after decoding."""
        self.payload_bytes[traffic_class] += bytes_

    def corrupt(self) -> None:
        """A frame failed its digest: on the wire or on the disk."""
        self.corrupt_frames += 1

    def relearned(self, at: float, cause: str) -> None:
        """The access pattern changed and is being learned again."""
        self.convergence.relearned(at, cause)

    @property
    def requests_total(self) -> int:
        return sum(self.requests.values())
