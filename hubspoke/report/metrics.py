"""The Prometheus catalogue: every metric of a spoke and of a hub, one line each.

Decides names, units and help; the values are read from the report and the facts when Prometheus
asks, so that /metrics and /v1/report can never disagree. Base units, `_total` on counters; a
value that is null in the report has no sample.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hubspoke.core.health import DiskState
from hubspoke.core.ids import ReadState
from hubspoke.core.ledger import LatencyHistogram
from hubspoke.report.facts import HubFacts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# 100 us to 50 s: from a hit on NVMe to a read that waited for a hub to come back.
LATENCY_BOUNDS_S = tuple(round(m * 10.0**e, 6) for e in range(-4, 2) for m in (1, 2.5, 5))


class Row(NamedTuple):
    """One metric. path: where the value stands in the report, dotted. label: the label's name
    when the value there is an object of values; keys: which of its entries, all if empty."""

    name: str  # without the prefix and `_total`
    kind: str  # counter or gauge
    path: str
    help: str
    label: str = ""
    keys: tuple[tuple[str, str], ...] = ()  # (key in the report, label value)
    scale: float = 1.0


_STATES = tuple((f"{state.value}_requests", state.value) for state in ReadState)

SPOKE_METRICS = (
    Row("read_requests", "counter", "reads", "Object reads by state on arrival.", "state", _STATES),
    Row("read_stale_requests", "counter", "reads.stale_requests", "Reads answered with an age."),
    Row("read_bytes", "counter", "reads.bytes", "Bytes answered to readers."),
    Row("read_missed_bytes", "counter", "reads.missed_bytes", "Bytes not local when needed."),
    Row("read_wait_seconds", "counter", "reads.wait_seconds", "Time that reads waited for bytes."),
    Row("read_unique_bytes", "counter", "wan.unique_bytes", "Union of the pages readers asked."),
    Row("mount_cached_opens", "counter", "kernel.cached_opens", "Whose pages the kernel may have."),
    Row(
        "mount_passthrough_opens", "counter", "kernel.passthrough_opens", "The kernel reads alone."
    ),
    Row(
        "mount_passthrough_opened_bytes",
        "counter",
        "kernel.passthrough_bytes_opened",
        "Sizes of the files of those opens.",
    ),
    Row("misses", "counter", "misses_by_cause", "Late reads and misses by cause.", "cause"),
    Row("prefetch_issued_bytes", "counter", "prefetch.issued_bytes", "Asked for in advance."),
    Row("prefetch_used_bytes", "counter", "prefetch.used_bytes", "Prefetched, then read."),
    Row("prefetch_wasted_bytes", "counter", "prefetch.wasted_bytes", "Prefetched, then dropped."),
    Row("prefetch_in_flight_bytes", "gauge", "prefetch.in_flight_bytes", "On their way now."),
    Row("wan_received_bytes", "counter", "wan.by_class", "From the hub by class.", "class"),
    Row("wan_socket_received_bytes", "counter", "wan.received_bytes", "Read from hub sockets."),
    Row("wan_socket_sent_bytes", "counter", "wan.sent_bytes", "Written to hub sockets."),
    Row("wan_retransmitted_bytes", "counter", "wan.retransmitted_bytes", "Sent again (TCP_INFO)."),
    Row("wan_payload_bytes", "counter", "wan.payload_bytes", "Object bytes after decoding."),
    Row("wan_rtt_seconds", "gauge", "wan.rtt_ms", "Round trip to the hub.", scale=1e-3),
    Row(
        "wan_bandwidth_bytes_per_second",
        "gauge",
        "wan.bandwidth_bytes_per_second",
        "Bottleneck rate as estimated.",
    ),
    Row("cost_usd", "gauge", "cost.usd", "WAN traffic since the reset, in money."),
    Row("cost_saved_usd", "gauge", "cost.saved_usd", "Against remote reads without a cache."),
    Row("cache_bytes", "gauge", "cache.bytes", "Bytes that lie in the cache."),
    Row("cache_capacity_bytes", "gauge", "cache.capacity_bytes", "The cache's hard limit."),
    Row("cache_objects", "gauge", "cache.objects", "Object versions with a page present."),
    Row("cache_blocks", "gauge", "cache.blocks", "Blocks with a page present."),
    Row("cache_evicted_bytes", "counter", "cache.evicted_bytes", "Dropped to make room."),
    Row("cache_flash_written_bytes", "counter", "cache.flash_written_bytes", "Written to disk."),
    Row("cache_corrupt_blocks", "counter", "cache.corrupt_blocks", "Failed their digest."),
    Row("cache_memory_bytes", "gauge", "cache.memory_bytes", "On their way to readers, unstored."),
    Row(
        "endurance_written_bytes_per_day",
        "gauge",
        "endurance.written_bytes_per_day",
        "To all cache folders, at the rate since the reset.",
    ),
    Row(
        "endurance_dwpd_share",
        "gauge",
        "endurance.dwpd_share",
        "Of the drive writes per day that the drives are rated for.",
    ),
    Row(
        "endurance_expected_life_years",
        "gauge",
        "endurance.expected_life_years",
        "Of the drives, at this rate.",
    ),
    Row("metadata_sequence", "gauge", "metadata.sequence", "Last change the replica applied."),
    Row("metadata_hub_sequence", "gauge", "metadata.hub_sequence", "Last change at the hub."),
    Row("metadata_entries", "gauge", "metadata.entries", "Objects in the replica."),
    Row("metadata_lag_seconds", "gauge", "metadata.lag_seconds", "Age of the last word."),
    Row("metadata_staleness_seconds", "gauge", "metadata.staleness_seconds", "Without lease."),
    Row("convergence_reads", "gauge", "convergence.reads_to_threshold", "Reads before warm."),
)

# Of each cache folder, from `cache.folders`.
FOLDER_METRICS = (
    Row("cache_folder_objects", "gauge", "objects", "Objects with a file in the folder."),
    Row("cache_folder_read_errors", "counter", "read_errors", "Reads that failed."),
    Row("cache_folder_write_errors", "counter", "write_errors", "Writes that failed."),
    Row("cache_folder_slow_calls", "counter", "slow_calls", "Calls that took too long."),
    Row("cache_folder_state_changes", "counter", "state_changes", "Changes of its state."),
)
FOLDER_STATES = tuple(state.value for state in DiskState)

# Of each drive under the cache, from `endurance.drives`.
DRIVE_METRICS = (
    Row("drive_written_bytes", "counter", "written_bytes", "By everybody (/sys/block)."),
    Row("drive_read_bytes", "counter", "read_bytes", "By everybody (/sys/block)."),
    Row("drive_busy_seconds", "counter", "busy_seconds", "With a request under way."),
    Row("drive_in_flight", "gauge", "in_flight", "Requests under way: the queue's depth."),
    Row("drive_used_percent", "gauge", "smart.used_percent", "Of the rated life (SMART)."),
    Row("drive_temperature_celsius", "gauge", "smart.temperature_celsius", "SMART."),
    Row("drive_media_errors", "counter", "smart.media_errors", "SMART."),
)
PRESSURE_METRICS = (
    Row("io_pressure_some_seconds", "counter", "some_seconds", "Some task waited for I/O."),
    Row("io_pressure_full_seconds", "counter", "full_seconds", "All tasks waited for I/O."),
)

JOB_METRICS = (
    Row("job_utilisation", "gauge", "utilisation", "compute / (compute + wait)."),
    Row("job_samples", "counter", "samples", "Samples as posted by the job."),
    Row("job_compute_seconds", "counter", "compute_seconds", "Compute as posted by the job."),
    Row("job_wait_seconds", "counter", "wait_seconds", "Waiting as posted by the job."),
)

# Of each warm job, from `warm`.
WARM_METRICS = (
    Row("warm_job_objects", "gauge", "objects", "Objects that the job means."),
    Row("warm_job_cached_objects", "gauge", "cached_objects", "Of these, wholly cached."),
    Row("warm_job_bytes", "gauge", "bytes", "Bytes that the job means."),
    Row("warm_job_cached_bytes", "gauge", "cached_bytes", "Of these, cached."),
    Row("warm_job_fetched_bytes", "gauge", "fetched_bytes", "Brought by the job since its start."),
    Row("warm_job_problems", "gauge", "problem_count", "Objects that could not be brought."),
)
WARM_STATES = ("matching", "running", "done", "failed", "cancelled")

HUB_METRICS = (
    Row("hub_objects", "gauge", "objects", "Objects in the namespace."),
    Row("hub_sequence", "gauge", "sequence", "Last change in the log."),
    Row("hub_spokes", "gauge", "spokes", "Spokes that follow the feed."),
    Row("hub_requests", "counter", "requests", "Requests by operation.", "operation"),
    Row("hub_sent_bytes", "counter", "sent_bytes", "Object bytes to spokes and clients."),
    Row("hub_received_bytes", "counter", "received_bytes", "Object bytes from writers."),
    Row("hub_writable", "gauge", "writable", "1 while the log can be written."),
    Row("hub_watched_folders", "gauge", "watch.folders", "Folders whose changes are told."),
    Row("hub_watch_events", "counter", "watch.events", "From the kernel, since the set-up."),
    Row("hub_watch_waiting", "gauge", "watch.waiting", "Noticed and not yet looked at."),
    Row("hub_watch_lost", "counter", "watch.lost", "Times that changes were not told."),
    Row("hub_changes_found", "counter", "watch.changes", "Made behind the hub's back."),
    Row("hub_rescans", "counter", "watch.rescans", "Comparisons of the whole store."),
    Row("hub_rescan_seconds", "gauge", "watch.last_rescan_seconds", "Duration of the last."),
    Row("hub_list_requests", "counter", "watch.list_requests", "LIST requests to the store."),
    Row("hub_skipped_names", "gauge", "skipped", "Names left out by the last scan.", "reason"),
)


WATCH_MODES = ("starting", "notifications", "rescan", "off")


def _value(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = None if value is None else value[key]
    return value


def _family(row: Row, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
    return kind(f"hubspoke_{row.name}", row.help, labels=labels)


def _metric(row: Row, document: Mapping[str, Any]) -> Metric:
    value = _value(document, row.path)
    if not row.label:
        family = _family(row, [])
        if value is not None:
            family.add_metric([], value * row.scale)
        return family
    family = _family(row, [row.label])
    for key, label in row.keys or tuple((key, key) for key in value):
        if value[key] is not None:
            family.add_metric([label], value[key])
    return family


def _each(
    rows: Iterable[Row], label: str, key: str, documents: Iterable[Mapping[str, Any]]
) -> Iterable[Metric]:
    """Metrics of several things of a kind, told apart by `label`, the value of `key`."""
    documents = list(documents)
    for row in rows:
        family = _family(row, [label])
        for document in documents:
            value = _value(document, row.path)
            if value is not None:
                family.add_metric([document[key] or ""], value)
        yield family


def _folder_states(folders: Iterable[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "hubspoke_cache_folder_state", "1 for the state it is in.", labels=["folder", "state"]
    )
    for folder in folders:
        for state in FOLDER_STATES:
            family.add_metric([folder["path"] or "", state], float(folder["state"] == state))
    return family


def _warm_states(jobs: Iterable[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "hubspoke_warm_job_state", "1 for the state it is in.", labels=["warm_job", "state"]
    )
    for job in jobs:
        for state in WARM_STATES:
            family.add_metric([job["id"], state], float(job["state"] == state))
    return family


def _disks(report: Mapping[str, Any]) -> Iterable[Metric]:
    folders, endurance = report["cache"]["folders"], report["endurance"]
    yield _folder_states(folders)
    yield from _each(FOLDER_METRICS, "folder", "path", folders)
    yield from _each(DRIVE_METRICS, "device", "device", endurance["drives"])
    if endurance["io_pressure"] is not None:
        for row in PRESSURE_METRICS:
            yield _metric(row, endurance["io_pressure"])


def _latency(latency: Mapping[ReadState, LatencyHistogram]) -> Metric:
    family = HistogramMetricFamily(
        "hubspoke_read_latency_seconds",
        "Arrival of a read to its last byte, by state.",
        labels=["state"],
    )
    for state, histogram in latency.items():
        buckets = [(str(le), float(n)) for le, n in histogram.cumulative(LATENCY_BOUNDS_S)]
        buckets.append(("+Inf", float(histogram.count)))
        family.add_metric([state.value], buckets, sum_value=histogram.sum_s)
    return family


class _Collector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def _render(metrics: Callable[[], Iterable[Metric]]) -> bytes:
    """The text format; a registry of its own, because two processes' metrics never mix."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics))
    return generate_latest(registry)


def spoke_metrics(
    report: Mapping[str, Any], latency: Mapping[ReadState, LatencyHistogram], ready: bool
) -> bytes:
    """The spoke's /metrics from its report of the same moment."""

    def metrics() -> Iterable[Metric]:
        info = GaugeMetricFamily("hubspoke_spoke_info", "1.", labels=["spoke", "region", "model"])
        info.add_metric([report["spoke"], report["region"] or "", report["model"]], 1)
        yield info
        yield GaugeMetricFamily("hubspoke_ready", "1 when /readyz is 200.", value=float(ready))
        lease = GaugeMetricFamily("hubspoke_metadata_lease_valid", "1 under a valid lease.")
        lease.add_metric([], float(report["metadata"]["lease"] == "valid"))
        yield lease
        for row in SPOKE_METRICS:
            yield _metric(row, report)
        yield from _each(JOB_METRICS, "job", "name", report["jobs"])
        yield from _each(WARM_METRICS, "warm_job", "id", report["warm"])
        yield _warm_states(report["warm"])
        yield from _disks(report)
        yield _latency(latency)

    return _render(metrics)


def hub_metrics(facts: HubFacts, ready: bool) -> bytes:
    """The hub's /metrics."""
    document = {
        "objects": facts.objects,
        "sequence": facts.sequence,
        "spokes": len(facts.spokes),
        "requests": facts.requests,
        "sent_bytes": facts.sent_bytes,
        "received_bytes": facts.received_bytes,
        "writable": float(not facts.limits),
        "skipped": facts.skipped,
        "watch": asdict(facts.watch),
    }

    def metrics() -> Iterable[Metric]:
        info = GaugeMetricFamily("hubspoke_hub_info", "1.", labels=["region", "epoch"])
        info.add_metric([facts.region, facts.epoch], 1)
        yield info
        yield GaugeMetricFamily("hubspoke_ready", "1 when /readyz is 200.", value=float(ready))
        for row in HUB_METRICS:
            yield _metric(row, document)
        mode = GaugeMetricFamily("hubspoke_hub_watch_mode", "1 for the mode.", labels=["mode"])
        for each in WATCH_MODES:
            mode.add_metric([each], float(facts.watch.mode == each))
        yield mode

    return _render(metrics)
