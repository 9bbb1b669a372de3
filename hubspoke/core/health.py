"""Whether a cache folder may be written and read: one state machine per folder.

It decides from the outcomes of calls alone; it never touches a disk and never declares one dead
for good. A folder that only gets slow or full loses its fills first and is still read: what lies
there is worth keeping.

              errors or slow calls          reads fail or are slow
    HEALTHY ----------------------> SUSPECT ----------------------> BYPASSED <--+
       ^   written and read           | read, not written             | pause  | a probe failed:
       |   ^                          |                               v        | longer pause
       |   +--- probes were good -----+                            PROBING ----+
       +------------------- probes were good --------------------------+

Probes are real small writes and reads; several in a row have to be good, so that a disk that
fails one call in ten does not come back between two failures. Who falls ill again soon after
recovery waits longer each time.

Source: the circuit breaker (Nygard, Release It!, 2007), with a half-open step; the figures are
our own.
"""

import enum
from collections import deque
from dataclasses import dataclass


class DiskState(enum.Enum):
    """What may be done with a folder."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    BYPASSED = "bypassed"
    PROBING = "probing"


class Call(enum.Enum):
    """Fills and reads are judged apart: a full disk reads well."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class HealthConfig:
    # One bad sector is no sick disk; a third failing call within a minute is one.
    window_s: float = 60.0
    suspect_errors: int = 3
    # Every failed read costs a call and then the hub; ten a minute are no use any more.
    bypass_errors: int = 10
    # NVMe answers in 1 ms and a hard disk with a queue in 100; later ones are not from a queue.
    slow_s: float = 0.25
    slow_window_s: float = 10.0
    suspect_slow: int = 3
    # Readers are better off with the hub when half of the reads are slow.
    bypass_slow: int = 4
    slow_share: float = 0.5
    # Calls remembered for the share; at more calls it is one of the last so many.
    calls_kept: int = 256
    # A writeback or a controller reset is over within a second; a dead disk is asked six times a
    # minute, which costs nothing.
    pause_s: float = 1.0
    pause_max_s: float = 10.0
    # A round is about five calls: with one call in ten failing, eight rounds pass once in 70.
    probe_rounds: int = 8
    probe_interval_s: float = 0.1
    # Ill again within this time after recovery: the pause goes on growing.
    relapse_s: float = 60.0


class FolderHealth:
    """One folder. Times are seconds on one monotonic clock."""

    def __init__(self, config: HealthConfig, now: float) -> None:
        self.config = config
        self.state = DiskState.HEALTHY
        self.since = now
        self.errors = {call: 0 for call in Call}
        self.slow_calls = 0
        self.changes = 0
        self.last_error: str | None = None
        self._failed: dict[Call, deque[float]] = {
            call: deque(maxlen=config.calls_kept) for call in Call
        }
        # (time, it was slow) of the last calls
        self._reads: deque[tuple[float, bool]] = deque(maxlen=config.calls_kept)
        self._slow: deque[float] = deque(maxlen=config.calls_kept)
        self._pause_s = config.pause_s
        self._probe_at = now
        self._good_probes = 0

    @property
    def writable(self) -> bool:
        """Whether fills may go there."""
        return self.state is DiskState.HEALTHY

    @property
    def readable(self) -> bool:
        """Whether reads should be tried there before the hub."""
        return self.state in (DiskState.HEALTHY, DiskState.SUSPECT)

    def not_opened(self, now: float, error: str) -> bool:
        """The folder could not be opened at start. Returns that the state changed."""
        self.last_error = error
        self._fall(DiskState.BYPASSED, now)
        return True

    # -- calls --------------------------------------------------------------------------------

    def succeeded(self, call: Call, now: float) -> None:
        """A call ended well and in time."""
        if call is Call.READ:
            self._reads.append((now, False))

    def failed(self, call: Call, now: float, error: str) -> bool:
        """A call ended with an error. Returns whether the state changed."""
        self.errors[call] += 1
        self.last_error = error
        self._failed[call].append(now)
        return self._judge(now)

    def slow(self, call: Call, now: float) -> bool:
        """A call took, or is taking, more than `slow_s`; told once a call."""
        self.slow_calls += 1
        self._slow.append(now)
        if call is Call.READ:
            self._reads.append((now, True))
        return self._judge(now)

    def _judge(self, now: float) -> bool:
        c = self.config
        if not self.readable:
            return False
        for times in self._failed.values():
            _forget(times, now - c.window_s)
        _forget(self._slow, now - c.slow_window_s)
        while self._reads and self._reads[0][0] < now - c.slow_window_s:
            self._reads.popleft()
        slow_reads = sum(slow for _, slow in self._reads)
        hangs = slow_reads >= c.bypass_slow and slow_reads >= c.slow_share * len(self._reads)
        if len(self._failed[Call.READ]) >= c.bypass_errors or hangs:
            self._fall(DiskState.BYPASSED, now)
            return True
        errors = sum(len(times) for times in self._failed.values())
        if self.writable and (errors >= c.suspect_errors or len(self._slow) >= c.suspect_slow):
            self._fall(DiskState.SUSPECT, now)
            return True
        return False

    def _fall(self, state: DiskState, now: float) -> None:
        if self.writable and now - self.since > self.config.relapse_s:
            self._pause_s = self.config.pause_s
        self._enter(state, now)
        self._probe_at = now + self._pause_s
        self._good_probes = 0

    def _enter(self, state: DiskState, now: float) -> None:
        self.state, self.since = state, now
        self.changes += 1

    # -- probes -------------------------------------------------------------------------------

    def probe_due(self, now: float) -> bool:
        """Whether a probe should run now; a bypassed folder is then PROBING."""
        if self.state is DiskState.HEALTHY or now < self._probe_at:
            return False
        if self.state is DiskState.BYPASSED:
            self._enter(DiskState.PROBING, now)
        self._probe_at = now + self.config.probe_interval_s
        return True

    def probed(self, now: float, *, good: bool) -> bool:
        """A round of probing ended, well and in time or not. Returns whether the folder is
        healthy again."""
        c = self.config
        if self.state in (DiskState.HEALTHY, DiskState.BYPASSED):
            return False
        if not good:
            self._good_probes = 0
            self._pause_s = min(2 * self._pause_s, c.pause_max_s)
            self._probe_at = now + self._pause_s
            if self.state is DiskState.PROBING:
                self._enter(DiskState.BYPASSED, now)
            return False
        self._good_probes += 1
        if self._good_probes < c.probe_rounds:
            return False
        # Twice as long the next time, unless it stays well for a while.
        self._pause_s = min(2 * self._pause_s, c.pause_max_s)
        for times in (*self._failed.values(), self._slow):
            times.clear()
        self._reads.clear()
        self._enter(DiskState.HEALTHY, now)
        return True


def _forget(times: deque[float], before: float) -> None:
    while times and times[0] < before:
        times.popleft()
