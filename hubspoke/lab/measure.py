"""What a run of the training job has shown: utilisation, stalls, latencies and cache states.

Pure arithmetic on the records of reads and steps. A step's *wait* is the time it was blocked for
data; *utilisation* is compute / (compute + wait). Latencies are milliseconds, everything else in
the unit its name ends with; what was not measured is None (null in JSON).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.lab.readers import STATE_NAMES, STATE_NONE

WINDOW_STEPS = 10
PHASES = ((0, 100), (100, 150), (150, None))  # the phases of warm-up that the field reports
UNREAD = 0

# One read, as worker.RECORD writes it.
RECORD_DTYPE = np.dtype(
    [("start", "<f8"), ("latency", "<f4"), ("state", "u1"), ("wrong", "u1"), ("retries", "<u2")]
)
Records = npt.NDArray[np.void]  # [step, rank, read of the batch], dtype RECORD_DTYPE
Seconds = npt.NDArray[np.float64]  # [step]


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the reads' latencies in milliseconds."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True, slots=True)
class Span:
    """The steps from `first_step` (inclusive) to `end_step` (exclusive)."""

    first_step: int
    end_step: int
    compute_seconds: float
    wait_seconds: float
    utilisation: float
    samples_per_second: float
    reads: int
    hit: int
    late: int
    miss: int
    hit_ratio: float | None
    latency_ms: Latency


@dataclass(frozen=True, slots=True)
class WrongRead:
    """offset: of the first wrong byte in the object. bytes: how many differed in that read."""

    object: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class JobResult:
    """reads: answered reads, exactly, those of batches that no step took included. unique_bytes:
    union of the 4 KiB pages read. steps: fewer than steps_planned when the time was over.

    seconds: wall time from the first batch asked for to the end of the last step.
    lag_seconds: how far the steps ended behind compute + wait, i.e. what this machine was too slow
    to emulate on time. reader_cpu_seconds: of all workers, the check of the bytes included.
    """

    name: str
    source: str
    order: str
    client: str
    ranks: int
    workers: int
    prefetch_factor: int
    steps: int
    steps_planned: int
    samples: int
    reads: int
    bytes: int
    unique_bytes: int
    seconds: float
    compute_seconds: float
    wait_seconds: float
    lag_seconds: float
    first_wait_seconds: float
    utilisation: float
    samples_per_second: float
    states: dict[str, int]
    hit_ratio: float | None
    latency_ms: Latency
    wrong_bytes: int
    wrong: tuple[WrongRead, ...]
    retries: int
    reader_cpu_seconds: float
    phases: tuple[Span, ...]
    windows: tuple[Span, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers."""
        return asdict(self)

    def first_window_at(self, utilisation: float) -> int | None:
        """First step of the first window with at least this utilisation."""
        for window in self.windows:
            if window.utilisation >= utilisation:
                return window.first_step
        return None


def latency_of(records: Records) -> Latency:
    """Percentiles over the answered reads in `records` (at least one)."""
    done = records["latency"][records["state"] != UNREAD].astype(np.float64) * 1000
    p50, p90, p99, p999, top = np.percentile(done, (50, 90, 99, 99.9, 100)).tolist()
    return Latency(p50, p90, p99, p999, top)


def states_of(records: Records) -> dict[str, int]:
    """How many reads were answered with which x-hubspoke-cache; "none": without the header."""
    counts = np.bincount(records["state"].ravel(), minlength=len(STATE_NAMES)).tolist()
    return {name: counts[code] for code, name in enumerate(STATE_NAMES) if code != UNREAD}


def hit_ratio_of(states: dict[str, int]) -> float | None:
    """Hits per read that came from a cache; None when no answer named a state."""
    known = sum(states.values()) - states[STATE_NAMES[STATE_NONE]]
    return states["hit"] / known if known else None


def span(
    records: Records, waits: Seconds, compute_s: float, samples: int, first: int, end: int
) -> Span:
    """Figures of the steps first..end-1. samples: sequences in one step, over all ranks."""
    steps = end - first
    compute = steps * compute_s
    wait = float(waits[first:end].sum())
    part = records[first:end]
    states = states_of(part)
    return Span(
        first_step=first,
        end_step=end,
        compute_seconds=compute,
        wait_seconds=wait,
        utilisation=ratio(compute, compute + wait),
        samples_per_second=ratio(steps * samples, compute + wait),
        reads=sum(states.values()),
        hit=states["hit"],
        late=states["late"],
        miss=states["miss"],
        hit_ratio=hit_ratio_of(states),
        latency_ms=latency_of(part),
    )


def ratio(part: float, whole: float) -> float:
    """part / whole, 1 when there is nothing at all (no compute and no wait)."""
    return part / whole if whole > 0 else 1.0


def phases(records: Records, waits: Seconds, compute_s: float, samples: int) -> tuple[Span, ...]:
    """The phases 0-100, 100-150 and 150- as far as the run went."""
    steps = len(waits)
    return tuple(
        span(records, waits, compute_s, samples, first, min(end or steps, steps))
        for first, end in PHASES
        if first < steps
    )


def windows(records: Records, waits: Seconds, compute_s: float, samples: int) -> tuple[Span, ...]:
    """Windows of WINDOW_STEPS steps; the last may be shorter."""
    steps = len(waits)
    return tuple(
        span(records, waits, compute_s, samples, first, min(first + WINDOW_STEPS, steps))
        for first in range(0, steps, WINDOW_STEPS)
    )


def unique_bytes(offsets: npt.NDArray[np.int64], files: npt.NDArray[np.int64], length: int) -> int:
    """Bytes in the union of the 4 KiB pages of the ranges [offset, offset + length) of `files`."""
    distinct = np.unique(np.stack((files, offsets)), axis=1)
    last = (distinct[1] + length - 1) // PAGE_BYTES
    first = distinct[1] // PAGE_BYTES
    # Ranges are sorted by file and offset: a page can only repeat the one before.
    before = np.empty_like(first)
    before[0] = -1
    same = distinct[0][1:] == distinct[0][:-1]
    before[1:] = np.where(same, last[:-1], -1)
    return int((last - np.maximum(first, before + 1) + 1).clip(0).sum()) * PAGE_BYTES
