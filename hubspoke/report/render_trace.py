"""A trace's summary, and what a replay of it found, as tables for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hubspoke.report.render import DASH, ms, number, percent, seconds, size

_SHOWN = 10


def render_summary(s: Mapping[str, Any], name: str) -> Group:
    """name: of the file."""
    states = " / ".join(number(s[f"{word}_requests"]) for word in ("hit", "late", "miss"))
    lines = [
        ("objects", f"{number(s['objects'])}, {size(s['object_bytes'])}"),
        ("reads", f"{number(s['reads'])}, {size(s['bytes'])}"),
        ("clients", number(s["clients"])),
        ("duration", seconds(s["seconds"])),
        ("hit / late / miss", states),
        ("state not known", number(s["unknown_requests"])),
        ("hit ratio", percent(s["hit_ratio"])),
    ]
    table = Table(title=Text(name), title_justify="left", show_header=False, box=None)
    table.add_column(style="dim", min_width=24)
    table.add_column(overflow="fold")
    for label, value in lines:
        table.add_row(label, value)
    for fact, known in s["facts"].items():
        table.add_row(Text(fact), Text(DASH if known is None else str(known)))
    return Group(table, _histogram(s), _top(s))


def render_replay(r: Mapping[str, Any], endpoint: str) -> Group:
    """endpoint: that was read from."""
    words = ("hit", "late", "miss", "stale", "unknown")
    table = Table(title=Text(endpoint), title_justify="left", show_header=False, box=None)
    table.add_column(style="dim", min_width=24)
    table.add_column(overflow="fold")
    for label, value in [
        ("reads", f"{number(r['reads'])}, {size(r['bytes'])}"),
        ("duration", seconds(r["seconds"])),
        ("hit ratio", percent(r["hit_ratio"])),
        ("hit ratio as recorded", percent(r["recorded_hit_ratio"])),
        ("behind its time", seconds(r["lag_seconds"])),
        ("missing / failed", f"{number(r['missing_requests'])} / {number(r['failed_requests'])}"),
    ]:
        table.add_row(label, value)
    latencies = Table(title="Latency to the last byte", title_justify="left", box=None)
    latencies.add_column("state")
    for column in ("reads", "p50", "p90", "p99", "max"):
        latencies.add_column(column, justify="right")
    for word in words:
        if (took := r["latency_ms"].get(word)) is not None:
            shown = (ms(took[q]) for q in ("p50", "p90", "p99", "max"))
            latencies.add_row(word, number(r[f"{word}_requests"]), *shown)
    return Group(table, latencies)


def _histogram(s: Mapping[str, Any]) -> Table:
    table = Table(title="Reads by size", title_justify="left", box=None)
    table.add_column("up to", justify="right")
    table.add_column("reads", justify="right")
    for row in s["read_bytes_histogram"]:
        table.add_row(size(row["up_to_bytes"]), number(row["reads"]))
    return table


def _top(s: Mapping[str, Any]) -> Table:
    table = Table(title="Objects by bytes read", title_justify="left", box=None)
    table.add_column("object", overflow="fold")
    for column in ("size", "reads", "bytes", "hits"):
        table.add_column(column, justify="right")
    for row in s["top_objects"][:_SHOWN]:
        table.add_row(
            Text(row["name"]),
            size(row["size"]),
            number(row["reads"]),
            size(row["bytes"]),
            number(row["hit_requests"]),
        )
    return table
