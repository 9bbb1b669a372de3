"""A spoke now, as one document and as one screen: what it does, and what it believes.

Lines are bounded in number and in width: a spoke of a thousand streams still fits a screen.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hubspoke.report.render import (
    DASH,
    jobs,
    ms,
    number,
    pairs,
    percent,
    rate,
    seconds,
    size,
    warm_jobs,
)


def status_document(
    before: Mapping[str, Any],
    report: Mapping[str, Any],
    readiness: Mapping[str, Any],
    streams: list[dict[str, Any]],
    data_sets: list[dict[str, Any]],
) -> dict[str, Any]:
    """A spoke now, from two reports a moment apart. A rate is null when a reset lies between."""
    wan, elapsed = report["wan"], report["seconds"] - before["seconds"]

    def rate(now: float, then: float) -> float | None:
        same = before["since"] == report["since"] and elapsed > 0
        return (now - then) / elapsed if same else None

    return {
        "schema": 1,
        "spoke": report["spoke"],
        "ready": readiness["ready"],
        "reasons": readiness["reasons"],
        "hit_ratio": report["reads"]["hit_ratio"],
        "requests_per_second": rate(report["reads"]["requests"], before["reads"]["requests"]),
        "received_bytes_per_second": rate(wan["received_bytes"], before["wan"]["received_bytes"]),
        "sent_bytes_per_second": rate(wan["sent_bytes"], before["wan"]["sent_bytes"]),
        "rtt_ms": wan["rtt_ms"],
        "prefetch_in_flight_bytes": report["prefetch"]["in_flight_bytes"],
        "cache_bytes": report["cache"]["bytes"],
        "cache_capacity_bytes": report["cache"]["capacity_bytes"],
        "lease": report["metadata"]["lease"],
        "lag_seconds": report["metadata"]["lag_seconds"],
        "staleness_seconds": report["metadata"]["staleness_seconds"],
        "policy": report["metadata"].get("policy", []),
        "writeback_pending_bytes": report["writeback"]["pending_bytes"],
        "jobs": report["jobs"],
        "warm": report["warm"],
        "streams": streams,
        "data_sets": data_sets,
    }


def render_status(status: Mapping[str, Any], streams_max: int = 20) -> Group:
    """One screen. streams_max: lines for streams, and for jobs on data sets."""
    if status["ready"]:
        ready = "[green]ready[/green]"
    else:
        ready = "[red]not ready[/red]: " + "; ".join(status["reasons"])
    now = pairs(
        "",
        [
            ("hit ratio, requests", percent(status["hit_ratio"])),
            ("reads", f"{number(status['requests_per_second'], 1)}/s"),
            ("received", rate(status["received_bytes_per_second"])),
            ("sent", rate(status["sent_bytes_per_second"])),
            ("round trip", ms(status["rtt_ms"])),
            ("prefetches on their way", size(status["prefetch_in_flight_bytes"])),
            ("cached", f"{size(status['cache_bytes'])} of {size(status['cache_capacity_bytes'])}"),
            ("lease", f"{status['lease']}, lag {seconds(status['lag_seconds'])}"),
        ],
    )
    parts: list[Any] = [f"{status['spoke']}  {ready}", now]
    if status["jobs"]:
        parts.append(jobs(status))
    if status["warm"]:
        parts.append(warm_jobs(status))
    if status["data_sets"]:
        parts.append(_data_sets(status["data_sets"], streams_max))
    if status["streams"]:
        parts.append(_streams(status["streams"], streams_max))
    return Group(*parts)


def _table(title: str, count: int, most: int, names: Sequence[str]) -> Table:
    """One line for each: what is believed first, and why at the end, as far as there is room."""
    shown = f"{title} ({count}, the first {most})" if count > most else title
    table = Table(title=shown, title_justify="left", box=None, pad_edge=False, expand=True)
    table.add_column(names[0], no_wrap=True, overflow="ellipsis", ratio=2)
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("because", no_wrap=True, overflow="ellipsis", ratio=3)
    return table


def _streams(streams: Sequence[Mapping[str, Any]], most: int) -> Table:
    names = ("object", "pattern", "at", "rate", "ahead", "fetched by", "of use")
    table = _table("Streams", len(streams), most, names)
    for s in streams[:most]:
        table.add_row(
            Text(str(s["object"])),
            "layout" if s["layout"] else str(s["pattern"]),
            size(s["position"]),
            rate(s["bytes_per_second"]),
            seconds(s["ahead_seconds"]),
            str(s["source"] or DASH),
            percent(s["accuracy"]),
            Text(str(s["why"])),
        )
    return table


def _data_sets(sets: Sequence[Mapping[str, Any]], most: int) -> Table:
    lines = [(s, job) for s in sets for job in s["jobs"]]
    names = ("data set", "epoch", "read", "order", "ahead", "fetched by")
    table = _table("Data sets, by job", len(lines), most, names)
    for s, job in lines[:most]:
        order = job["order"]
        known = "in any order" if job["believed"] else DASH
        table.add_row(
            Text(str(s["folder"])),
            number(job["epoch"] + 1),
            percent(job["read_items"] / s["items"] if s["items"] else None),
            Text(str(order["family"]) if order else known),
            seconds(job["ahead_seconds"]),
            str(s["source"] or DASH),
            Text(str(job["why"])),
        )
    return table
