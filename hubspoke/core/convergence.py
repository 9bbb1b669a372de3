"""Warm-up: when did reads become fast for good, and what did a changed pattern cost?

Decides how reads are grouped into windows and from which read on the hit ratio held. It never
looks at a clock: times come in with each read. Memory is bounded for runs of any length: the
threshold is tracked as reads arrive, so windows are kept for display only, the first
WINDOWS_HEAD (the warm-up) and the last WINDOWS_TAIL (the present); those between are counted
and forgotten.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

WINDOW_READS = 1_000  # INTERFACE: windows of 1,000 reads
THRESHOLD = 0.94  # the hit ratio the design's sources claim; below it a job notices
WINDOWS_HEAD = 500  # half a million reads: far beyond any warm-up worth plotting
WINDOWS_TAIL = 500
RELEARNED_MAX = 100


class Window(NamedTuple):
    """reads: in this window, always WINDOW_READS; latencies in milliseconds."""

    reads: int
    hit_ratio: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in the run: what had been read before it, and when it came."""

    reads: int
    bytes: int
    at: float  # seconds on the clock the reads are stamped with


@dataclass(slots=True)
class Relearned:
    """A change of the access pattern; reads_to_threshold is None while it has not held again."""

    at: float
    cause: str
    reads_before: int
    reads_to_threshold: int | None = None


class Convergence:
    """Windows of WINDOW_READS reads, and the read from which every later window held."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        self.first_read_at: float | None = None
        self.windows_forgotten = 0
        self._head: list[Window] = []
        self._tail: deque[Window] = deque()
        self._held_since: Mark | None = None
        self._relearned: deque[Relearned] = deque(maxlen=RELEARNED_MAX)
        self._reads = 0  # in windows that are complete
        self._bytes = 0  # of all reads
        self._latencies = array("d")
        self._hits = 0
        self._window_start = Mark(0, 0, 0.0)

    def read(self, hit: bool, length: int, latency_s: float, now: float) -> None:
        """Count one read; amortised below a microsecond, one sort per window."""
        latencies = self._latencies
        if not latencies:
            self._window_start = Mark(self._reads, self._bytes, now)
            if self.first_read_at is None:
                self.first_read_at = now
        latencies.append(latency_s)
        self._bytes += length
        if hit:
            self._hits += 1
        if len(latencies) >= WINDOW_READS:
            self._close_window()

    def hits(
        self, lengths: Sequence[int], latencies_s: Sequence[float], at: Sequence[float]
    ) -> None:
        """`read` of many hits in order."""
        done = 0
        while done < len(lengths):
            latencies = self._latencies
            if not latencies:
                self.read(True, lengths[done], latencies_s[done], at[done])
                done += 1
                continue
            stop = min(len(lengths), done + WINDOW_READS - len(latencies))
            latencies.extend(latencies_s[done:stop])
            self._bytes += sum(lengths[done:stop])
            self._hits += stop - done
            done = stop
            if len(latencies) >= WINDOW_READS:
                self._close_window()

    def relearned(self, at: float, cause: str) -> None:
        """The pattern changed at `at` (seconds, the reads' clock) because of `cause`.

        The window in progress counts for the new pattern: if it still holds, the change cost 0.
        """
        self._relearned.append(Relearned(at, cause, self._reads + len(self._latencies)))

    def held_since(self) -> Mark | None:
        """The first read of the first window from which every later one was at or above the
        threshold; None if the last complete window was below it, or there is none yet."""
        return self._held_since

    def windows(self) -> list[Window]:
        """The complete windows in order; `windows_forgotten` are missing after WINDOWS_HEAD."""
        return [*self._head, *self._tail]

    def relearned_entries(self) -> list[Relearned]:
        """The last RELEARNED_MAX changes of pattern, oldest first."""
        return list(self._relearned)

    def _close_window(self) -> None:
        ordered = sorted(self._latencies)
        ratio = self._hits / WINDOW_READS
        window = Window(
            reads=WINDOW_READS,
            hit_ratio=ratio,
            p50_ms=ordered[WINDOW_READS // 2 - 1] * 1e3,
            p99_ms=ordered[WINDOW_READS * 99 // 100 - 1] * 1e3,
        )
        self._keep(window)
        self._settle(ratio >= self.threshold)
        self._reads += WINDOW_READS
        self._latencies = array("d")
        self._hits = 0

    def _keep(self, window: Window) -> None:
        if len(self._head) < WINDOWS_HEAD:
            self._head.append(window)
            return
        if len(self._tail) == WINDOWS_TAIL:
            self._tail.popleft()
            self.windows_forgotten += 1
        self._tail.append(window)

    def _settle(self, held: bool) -> None:
        if not held:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = self._window_start
        if not self._relearned:
            return
        # Only the newest change is open: an older one ended when the pattern changed again.
        newest = self._relearned[-1]
        if not held:
            newest.reads_to_threshold = None
        elif newest.reads_to_threshold is None:
            newest.reads_to_threshold = max(self._window_start.reads - newest.reads_before, 0)
