"""What a run has shown, in the measures of the table."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hubspoke.core.ids import PAGE_BYTES, ReadState
from hubspoke.sim.prediction.compare import against_minimum, trace_of
from hubspoke.sim.prediction.job import Job
from hubspoke.sim.prediction.recorder import CODES, Reads
from hubspoke.sim.prediction.world import World

STEADY_BATCHES = 10
STEADY_HITS = 0.95
STEADY_P99_S = 0.005
CURVE_POINTS = 200


@dataclass(frozen=True, slots=True)
class Counts:
    """Of some reads. Latencies in milliseconds; None where there is no read."""

    reads: int
    hits: int
    late: int
    misses: int
    hit_ratio: float | None
    bytes: int
    unique_bytes: int
    p50_ms: float | None
    p99_ms: float | None


def counts(reads: Reads, chosen: npt.NDArray[np.bool_]) -> Counts:
    """unique_bytes: of the pages touched, whole pages."""
    states, latencies = reads.states[chosen], reads.latencies[chosen]
    n = len(states)
    hits = int(np.count_nonzero(states == CODES[ReadState.HIT]))
    late = int(np.count_nonzero(states == CODES[ReadState.LATE]))
    p50, p99 = np.percentile(latencies, (50, 99)) * 1e3 if n else (None, None)
    return Counts(
        reads=n,
        hits=hits,
        late=late,
        misses=n - hits - late,
        hit_ratio=hits / n if n else None,
        bytes=int(reads.lengths[chosen].sum()),
        unique_bytes=unique_pages(reads, chosen) * PAGE_BYTES,
        p50_ms=None if p50 is None else round(float(p50), 3),
        p99_ms=None if p99 is None else round(float(p99), 3),
    )


def unique_pages(reads: Reads, chosen: npt.NDArray[np.bool_]) -> int:
    """Pages touched by at least one of the chosen reads: the length of the union of spans."""
    first = reads.offsets[chosen] // PAGE_BYTES
    last = -(-(reads.offsets[chosen] + reads.lengths[chosen]) // PAGE_BYTES)
    base = reads.objects[chosen].astype(np.int64) << 40
    order = np.argsort(base + first, kind="stable")
    first, last = (base + first)[order], (base + last)[order]
    if not len(first):
        return 0
    covered = np.maximum.accumulate(last)
    start = np.maximum(first[1:], covered[:-1])
    new = np.maximum(covered[1:] - start, 0)
    return int(last[0] - first[0] + new.sum())


def batches_to_steady(reads: Reads, chosen: npt.NDArray[np.bool_], batches: int) -> int | None:
    """First batch from which every 10 batches have 95 % hits and a p99 below 5 ms; None if it
    was never so, or there are fewer batches."""
    batch = reads.batches[chosen]
    total = np.bincount(batch, minlength=batches)
    hits = np.bincount(batch[reads.states[chosen] == CODES[ReadState.HIT]], minlength=batches)
    slow = np.bincount(batch[reads.latencies[chosen] >= STEADY_P99_S], minlength=batches)
    window = np.ones(STEADY_BATCHES, dtype=np.int64)
    if batches < STEADY_BATCHES:
        return None
    n, h, s = (np.convolve(x, window, "valid") for x in (total, hits, slow))
    bad = np.flatnonzero((h < STEADY_HITS * n) | (s > 0.01 * n))
    if not len(bad):
        return 0
    after = int(bad[-1]) + 1
    return after if after < len(n) else None


def result(world: World, cpu_s: float) -> dict[str, Any]:
    """The JSON document of one run."""
    reads, workload = world.recorder.reads(), world.workload
    total = counts(reads, np.ones(len(reads.at), dtype=bool))
    outcome = world.reader.outcome(world.engine.now)
    ceiling = 1 - workload.first_misses / total.reads
    jobs = [_job(world, job, reads) for job in world.jobs]
    assert total.hit_ratio is not None
    trace = trace_of(workload.names, workload.sizes, reads)
    return {
        "workload": workload.name,
        "title": workload.title,
        "reads": total.reads,
        "hits": total.hits,
        "late": total.late,
        "misses": total.misses,
        "hit_ratio": total.hit_ratio,
        "ceiling": ceiling,
        "of_ceiling": total.hit_ratio / ceiling if ceiling > 0 else None,
        "causes": outcome.causes,
        "p50_ms": total.p50_ms,
        "p99_ms": total.p99_ms,
        "bytes": total.bytes,
        "unique_bytes": total.unique_bytes,
        "egress_bytes": world.path.delivered,
        **against_minimum(trace, workload.capacity, world.path.delivered),
        "waste": outcome.unused_bytes / world.path.delivered if world.path.delivered else 0.0,
        "written_bytes": world.disk.written_bytes,
        "stale_reads": outcome.stale_reads,
        "jobs": jobs,
        "simulated_s": world.engine.now,
        "cpu_s": round(cpu_s, 2),
        "cpu_us_per_read": round(cpu_s / total.reads * 1e6, 1),
    }


def _job(world: World, job: Job, reads: Reads) -> dict[str, Any]:
    spec, capacity = job.spec, world.workload.capacity
    own = (reads.clients >= job.client) & (reads.clients < job.client + spec.clients)
    epochs: list[dict[str, Any]] = []
    first = 0
    for times in job.epochs:
        chosen = own & (reads.batches >= first) & (reads.batches < first + times.steps)
        first += times.steps
        of_epoch = counts(reads, chosen)
        # What has to cross the path in this epoch at least: all of it, later what is not kept.
        kept = capacity if epochs else 0
        must = max(0, of_epoch.unique_bytes - kept)
        busy_s = times.steps * spec.compute_s
        needed_s = max(
            busy_s, must / world.path.config.rate, of_epoch.bytes / world.disk.config.rate
        )
        epochs.append(
            {
                "reads": of_epoch.reads,
                "hits": of_epoch.hits,
                "late": of_epoch.late,
                "misses": of_epoch.misses,
                "hit_ratio": of_epoch.hit_ratio,
                "p50_ms": of_epoch.p50_ms,
                "p99_ms": of_epoch.p99_ms,
                "seconds": times.ended - times.began,
                "utilisation": times.utilisation(spec.compute_s),
                "bound": busy_s / needed_s,
            }
        )
    return {
        "steps": first,
        "batches_to_steady": batches_to_steady(reads, own, first),
        "utilisation": _mean([e["utilisation"] for e in epochs], job),
        "bound": _mean([e["bound"] for e in epochs], job),
        "epochs": epochs,
        "curve": curve(job, reads, own),
    }


def curve(job: Job, reads: Reads, own: npt.NDArray[np.bool_]) -> dict[str, list[Any]]:
    """The run by parts of its steps, to be drawn: columns of equal length."""
    waits = np.array([w for epoch in job.epochs for w in epoch.waits])
    batch, latencies, hit = reads.batches[own], reads.latencies[own], reads.states[own] == 0
    order = np.argsort(batch, kind="stable")
    batch, latencies, hit = batch[order], latencies[order] * 1e3, hit[order]
    bounds = np.unique(np.linspace(0, len(waits), CURVE_POINTS + 1).astype(np.int64))
    columns: dict[str, list[Any]] = {
        name: [] for name in ("steps", "hit_ratio", "p50_ms", "p99_ms", "utilisation")
    }
    for a, b in pairwise(bounds.tolist()):
        i, j = np.searchsorted(batch, (a, b)).tolist()
        if i == j:
            continue
        p50, p99 = np.percentile(latencies[i:j], (50, 99)).tolist()
        busy_s = (b - a) * job.spec.compute_s
        columns["steps"].append((a + b) / 2)
        columns["hit_ratio"].append(float(hit[i:j].mean()))
        columns["p50_ms"].append(round(p50, 3))
        columns["p99_ms"].append(round(p99, 3))
        columns["utilisation"].append(busy_s / (busy_s + float(waits[a:b].sum())))
    return columns


def _mean(values: list[float | None], job: Job) -> float | None:
    """Of shares of time: the harmonic mean by steps, which is that of the whole time."""
    known = [(v, t.steps) for v, t in zip(values, job.epochs, strict=True) if v]
    if not known:
        return None
    return sum(n for _, n in known) / sum(n / v for v, n in known)
