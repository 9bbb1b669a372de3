"""The report, schema 1: counters and facts in, one JSON document out.

Decides the names and the ratios of INTERFACE's `/v1/report`; every key is always there. Ratios
are fractions of 1, times carry their unit in the name. What is not known or not built is null.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from hubspoke.core.convergence import Convergence
from hubspoke.core.ids import ReadState, TrafficClass
from hubspoke.core.jobs import Job
from hubspoke.core.ledger import LatencyHistogram, Ledger
from hubspoke.report.cost import Prices, cost_section
from hubspoke.report.facts import EnduranceFacts, KernelCounters, SpokeFacts

SCHEMA = 1
WARM_KEYS = (
    "id",
    "action",
    "state",
    "started",
    "seconds",
    "objects",
    "cached_objects",
    "bytes",
    "cached_bytes",
    "fetched_bytes",
    "bytes_per_second",
    "eta_seconds",
    "problem_count",
    "failure",
)
WARM_ENDED_MAX = 8  # of the jobs that have ended, the newest; /v1/warm has them all
NS = 1_000_000_000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def rfc3339(unix_ns: int) -> str:
    """UTC with milliseconds."""
    moment = datetime.fromtimestamp(unix_ns / NS, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ratio(part: float, whole: float) -> float | None:
    """part / whole, None without a whole."""
    return part / whole if whole else None


def finite(document: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not have."""
    if isinstance(document, dict):
        return {key: finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [finite(value) for value in document]
    if isinstance(document, float) and not math.isfinite(document):
        return None
    return document


def build_report(
    ledger: Ledger,
    facts: SpokeFacts,
    jobs: Sequence[Job],
    prices: Prices,
    now: float,
    unix_ns: int,
) -> dict[str, Any]:
    """now, unix_ns: the moment of `facts`, on the ledger's clock and in Unix time."""
    return {
        "schema": SCHEMA,
        "spoke": facts.spoke,
        "region": facts.region or None,
        "since": rfc3339(ledger.since_unix_ns),
        "at": rfc3339(unix_ns),
        "seconds": now - ledger.since,
        "model": facts.model,
        "reads": _reads(ledger),
        "kernel": _kernel(facts),
        "jobs": [job_section(job) for job in jobs],
        "prefetch": _prefetch(ledger, facts),
        "misses_by_cause": dict(ledger.misses_by_cause),
        "convergence": _convergence(ledger),
        "wan": _wan(ledger, facts),
        "cost": cost_section(
            prices,
            received_bytes=facts.wan.received_bytes,
            sent_bytes=facts.wan.sent_bytes + (facts.wan.retransmitted_bytes or 0),
            read_bytes=ledger.read_bytes,
            full_copy_bytes=facts.full_copy_bytes,
        ),
        "cache": asdict(facts.cache),
        "endurance": _endurance(facts),
        "metadata": asdict(facts.metadata),
        "warm": [{key: job[key] for key in WARM_KEYS} for job in _warm_shown(facts)],
        # Writes go to the hub's door: nothing is staged at a spoke.
        "writeback": dict.fromkeys(
            (
                "staged_bytes",
                "pending_bytes",
                "replicated_bytes",
                "oldest_pending_seconds",
                "failed",
            )
        ),
    }


def _warm_shown(facts: SpokeFacts) -> list[dict[str, Any]]:
    """Jobs under way and the last that have ended, newest first."""
    active = [job for job in facts.warm if job["state"] in ("matching", "running")]
    ended = [job for job in facts.warm if job["state"] not in ("matching", "running")]
    return active + ended[:WARM_ENDED_MAX]


def _kernel(facts: SpokeFacts) -> dict[str, int | None]:
    """All None without a mount: no kernel answers reads behind the spoke's back."""
    if facts.kernel is not None:
        return asdict(facts.kernel)
    return dict.fromkeys(f.name for f in fields(KernelCounters))


def _endurance(facts: SpokeFacts) -> dict[str, Any]:
    if facts.endurance is not None:
        return asdict(facts.endurance)
    return {**dict.fromkeys(f.name for f in fields(EnduranceFacts)), "drives": []}


def latency_ms(histogram: LatencyHistogram) -> dict[str, float | None]:
    """Quantiles in milliseconds, all None before the first read."""

    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * 1e3

    values = {name: ms(histogram.quantile(q)) for name, q in QUANTILES.items()}
    values["max"] = ms(histogram.max_s) if histogram.count else None
    return values


def _reads(ledger: Ledger) -> dict[str, Any]:
    requests = ledger.requests_total
    return {
        "requests": requests,
        "bytes": ledger.read_bytes,
        "hit_requests": ledger.requests[ReadState.HIT],
        "late_requests": ledger.requests[ReadState.LATE],
        "miss_requests": ledger.requests[ReadState.MISS],
        "stale_requests": ledger.stale_requests,
        "hit_ratio": ratio(ledger.requests[ReadState.HIT], requests),
        "byte_hit_ratio": ratio(ledger.read_bytes - ledger.missed_bytes, ledger.read_bytes),
        "missed_bytes": ledger.missed_bytes,
        "wait_seconds": ledger.wait_s,
        "latency_ms": {state.value: latency_ms(ledger.latency[state]) for state in ReadState},
    }


def job_section(job: Job) -> dict[str, Any]:
    """One entry of `jobs`: the rates, and the sums they come from."""
    return {
        "name": job.name,
        "utilisation": job.utilisation(),
        "samples_per_second": job.samples_per_second(),
        "hit_ratio": job.hit_ratio(),
        "samples": job.samples,
        "compute_seconds": job.compute_s,
        "wait_seconds": job.wait_s,
    }


def _prefetch(ledger: Ledger, facts: SpokeFacts) -> dict[str, Any]:
    """accuracy: used / fetched. coverage: bytes that would have missed and did not."""
    used = ledger.prefetch_used_bytes
    fetched = ledger.prefetch_issued_bytes - facts.prefetch_in_flight_bytes
    return {
        "issued_bytes": ledger.prefetch_issued_bytes,
        "used_bytes": used,
        "wasted_bytes": ledger.prefetch_wasted_bytes,
        "in_flight_bytes": facts.prefetch_in_flight_bytes,
        "accuracy": ratio(used, fetched) if fetched > 0 else None,
        "coverage": ratio(used, used + ledger.missed_bytes),
        "runway_seconds": facts.runway_seconds,
    }


def _convergence(ledger: Ledger) -> dict[str, Any]:
    convergence = ledger.convergence
    held, first = convergence.held_since(), convergence.first_read_at
    return {
        "threshold": convergence.threshold,
        "reads_to_threshold": None if held is None else held.reads,
        "bytes_to_threshold": None if held is None else held.bytes,
        "seconds_to_threshold": None if held is None or first is None else held.at - first,
        "windows": [window._asdict() for window in convergence.windows()],
        "windows_forgotten": convergence.windows_forgotten,
        "relearned": _relearned(convergence, ledger),
    }


def _relearned(convergence: Convergence, ledger: Ledger) -> list[dict[str, Any]]:
    return [
        {
            "at": rfc3339(ledger.since_unix_ns + int((entry.at - ledger.since) * NS)),
            "cause": entry.cause,
            "reads_to_threshold": entry.reads_to_threshold,
        }
        for entry in convergence.relearned_entries()
    ]


def _wan(ledger: Ledger, facts: SpokeFacts) -> dict[str, Any]:
    wan = facts.wan
    by_class: dict[str, int | None] = {
        traffic_class.value: wan.received_by_class.get(traffic_class.value, 0)
        for traffic_class in TrafficClass
    }
    for_reads = sum(by_class[c.value] or 0 for c in (TrafficClass.DEMAND, TrafficClass.PREFETCH))
    return {
        "received_bytes": wan.received_bytes,
        "sent_bytes": wan.sent_bytes,
        "retransmitted_bytes": wan.retransmitted_bytes,
        "payload_bytes": wan.payload_bytes,
        "unique_bytes": ledger.unique_bytes,
        "read_amplification": ratio(for_reads, ledger.unique_bytes),
        "compression_ratio": ratio(wan.payload_bytes, wan.encoded_bytes),
        "rtt_ms": wan.rtt_ms,
        "bandwidth_bytes_per_second": wan.bandwidth_bytes_per_second,
        "by_class": {**by_class, "writeback": None},
    }
