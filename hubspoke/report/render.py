"""The report as tables for people; nothing here is computed that is not in the JSON.

What is null is shown as a dash, money without a known price as "unknown". Units are chosen for
reading: KiB to TiB, ms, percent, USD.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table

DASH = "-"
UNKNOWN = "unknown"


def size(value: float | None) -> str:
    """1.5 GiB."""
    if value is None:
        return DASH
    number, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):  # noqa: B007 - used after the loop
        if abs(number) < 1024:
            break
        number /= 1024
    return f"{number:.0f} B" if unit == "B" else f"{number:.2f} {unit}"


def percent(value: float | None) -> str:
    """99.12 %."""
    return DASH if value is None else f"{value * 100:.2f} %"


def ms(value: float | None) -> str:
    """Three significant digits of milliseconds."""
    return DASH if value is None else f"{value:.3g} ms"


def usd(value: float | None) -> str:
    """Four digits after the point: a demo moves fractions of a cent."""
    return DASH if value is None else f"{value:.4f} USD"


def rate(value: float | None) -> str:
    """1.5 GiB/s."""
    return DASH if value is None else f"{size(value)}/s"


def number(value: float | None, digits: int = 0) -> str:
    """With thousands separated."""
    return DASH if value is None else f"{value:,.{digits}f}"


def seconds(value: float | None) -> str:
    """2.35 s."""
    return DASH if value is None else f"{value:,.2f} s"


def pairs(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", min_width=24)
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _reads(report: Mapping[str, Any]) -> Table:
    reads = report["reads"]
    return pairs(
        "Reads",
        [
            ("requests", number(reads["requests"])),
            ("bytes", size(reads["bytes"])),
            ("hit ratio, requests", percent(reads["hit_ratio"])),
            ("hit ratio, bytes", percent(reads["byte_hit_ratio"])),
            ("hit / late / miss", _three(reads)),
            ("stale", number(reads["stale_requests"])),
            ("waited for the hub", seconds(reads["wait_seconds"])),
        ],
    )


def _three(reads: Mapping[str, Any]) -> str:
    return " / ".join(number(reads[f"{state}_requests"]) for state in ("hit", "late", "miss"))


def _latency(report: Mapping[str, Any]) -> Table:
    table = Table(
        title="Latency of reads, inside the spoke", title_justify="left", box=None, pad_edge=False
    )
    names = ("p50", "p90", "p99", "p999", "max")
    for name in ("", *names):
        table.add_column(name, justify="right" if name else "left")
    for state, values in report["reads"]["latency_ms"].items():
        table.add_row(state, *(ms(values[name]) for name in names))
    return table


def _causes(report: Mapping[str, Any]) -> str:
    named = [f"{cause} {n}" for cause, n in report["misses_by_cause"].items() if n]
    return ", ".join(named) or "none"


def _warm_up(report: Mapping[str, Any]) -> Table:
    convergence, prefetch = report["convergence"], report["prefetch"]
    again = convergence["relearned"]
    return pairs(
        "Warm-up and prediction",
        [
            (f"hit ratio {convergence['threshold']:.0%} and more", _held(convergence)),
            *([("learned again", _learned_again(again))] if again else []),
            ("prefetched", size(prefetch["issued_bytes"])),
            ("accuracy", percent(prefetch["accuracy"])),
            ("coverage", percent(prefetch["coverage"])),
            ("late and missed reads", _causes(report)),
            ("model", str(report["model"])),
        ],
    )


def _held(convergence: Mapping[str, Any]) -> str:
    """From when on every window of reads was at the threshold or above."""
    reads = convergence["reads_to_threshold"]
    if reads is None:
        return "not yet"
    if not reads:
        return "from the first read on"
    return f"after {number(reads)} reads, {seconds(convergence['seconds_to_threshold'])}"


def _learned_again(relearned: Sequence[Mapping[str, Any]]) -> str:
    """Changes of the pattern of reads, each a warm-up of its own."""
    newest = relearned[-1]
    reads = newest["reads_to_threshold"]
    if reads is None:
        back = "not warm yet"
    else:
        back = f"warm again after {number(reads)} reads" if reads else "stayed warm"
    return f"changes of pattern: {len(relearned)}; the last: {newest['cause']}, {back}"


def _wan(report: Mapping[str, Any]) -> Table:
    wan = report["wan"]
    classes = {k: v for k, v in wan["by_class"].items() if v is not None}
    amplification, packed = wan["read_amplification"], wan["compression_ratio"] or 1.0
    compressed = packed >= 1.005  # what cannot be compressed travels as it is
    return pairs(
        "WAN",
        [
            ("received, compressed" if compressed else "received", size(wan["received_bytes"])),
            *((f"  for {name}", size(value)) for name, value in classes.items()),
            ("sent", size(wan["sent_bytes"])),
            *([("compressed by", f"a factor of {packed:.2f}")] if compressed else []),
            ("unique bytes read", size(wan["unique_bytes"])),
            ("received per unique byte", number(amplification, 3)),
            ("round trip", ms(wan["rtt_ms"])),
            ("rate of the path", rate(wan["bandwidth_bytes_per_second"])),
        ],
    )


def _amount(value: float | None) -> str:
    return UNKNOWN if value is None else usd(value)


def _per_gb(value: float | None) -> str:
    return UNKNOWN if value is None else f"{usd(value)}/GB"


def _money(report: Mapping[str, Any]) -> Table:
    cost = report["cost"]
    return pairs(
        "Money",
        [
            ("price, hub to spoke", _per_gb(cost["price_per_gb_hub_to_spoke"])),
            ("price, spoke to hub", _per_gb(cost["price_per_gb_spoke_to_hub"])),
            ("WAN traffic", _amount(cost["usd"])),
            ("the same reads, remote", _amount(cost["usd_remote_reads"])),
            ("saved", _amount(cost["saved_usd"])),
            ("a full copy, first month", _amount(cost["usd_full_copy"])),
            ("prices from", str(cost["price_source"] or "unknown; see --price").split(", http")[0]),
        ],
    )


def _state(report: Mapping[str, Any]) -> Table:
    cache, metadata = report["cache"], report["metadata"]
    return pairs(
        "Cache and metadata",
        [
            ("cached", f"{size(cache['bytes'])} of {size(cache['capacity_bytes'])}"),
            ("objects", number(cache["objects"])),
            ("evicted", size(cache["evicted_bytes"])),
            ("written to disk", size(cache["flash_written_bytes"])),
            ("corrupt blocks", number(cache["corrupt_blocks"])),
            *((f"folder {f['path']}", _folder(f)) for f in cache["folders"]),
            ("entries", number(metadata["entries"])),
            ("lease", str(metadata["lease"])),
            ("lag", seconds(metadata["lag_seconds"])),
            ("answers may be old by", seconds(metadata["staleness_seconds"])),
            ("without the hub", ", ".join(map(_policy, metadata.get("policy", [])))),
        ],
    )


def _policy(rule: Mapping[str, Any]) -> str:
    bound = rule["bounded_seconds"]
    answer = "strict" if bound is None else f"bounded:{bound:g}"
    return f"{rule['prefix']}={answer}" if rule["prefix"] else answer


def _folder(folder: Mapping[str, Any]) -> str:
    errors = folder["read_errors"] + folder["write_errors"]
    return f"{folder['state']}, {number(errors)} errors, {number(folder['slow_calls'])} slow calls"


def _wear(report: Mapping[str, Any]) -> Table:
    wear = report["endurance"]
    life = wear["expected_life_years"]
    rows = [
        ("written per day", size(wear["written_bytes_per_day"])),
        ("drive writes per day", number(wear["drive_writes_per_day"], 3)),
        ("share of the rated ones", percent(wear["dwpd_share"])),
        ("expected life", DASH if life is None else f"{number(life, 1)} years"),
    ]
    for drive in wear["drives"]:
        smart = drive["smart"]
        if smart is not None:
            warnings = ", ".join(smart["warnings"]) or "no warnings"
            used = f"{smart['used_percent']} % used, {smart['temperature_celsius']} C, {warnings}"
            rows.append((drive["device"], used))
    return pairs("Endurance", rows)


def jobs(report: Mapping[str, Any]) -> Table:
    table = Table(title="Jobs", title_justify="left", box=None, pad_edge=False)
    for name in ("", "utilisation", "samples/s", "hit ratio"):
        table.add_column(name, justify="right" if name else "left")
    for job in report["jobs"]:
        rate = number(job["samples_per_second"], 1)
        row = (job["name"], percent(job["utilisation"]), rate, percent(job["hit_ratio"]))
        table.add_row(*row)
    return table


def warm_jobs(report: Mapping[str, Any]) -> Table:
    table = Table(title="Warm jobs", title_justify="left", box=None, pad_edge=False)
    for name in ("", "does", "state", "objects", "cached", "of", "rate", "left", "errors"):
        left = name in ("", "does", "state")
        table.add_column(name, justify="left" if left else "right")
    for job in report["warm"]:
        failure = f" ({job['failure']['code']})" if job["failure"] else ""
        table.add_row(
            job["id"],
            job["action"],
            job["state"] + failure,
            f"{number(job['cached_objects'])}/{number(job['objects'])}",
            size(job["cached_bytes"]),
            size(job["bytes"]),
            rate(job["bytes_per_second"]),
            seconds(job["eta_seconds"]),
            number(job["problem_count"]),
        )
    return table


def render_report(report: Mapping[str, Any]) -> Group:
    """All sections, one under the other."""
    region = f" in {report['region']}" if report["region"] else ""
    head = f"{report['spoke']}{region}, {seconds(report['seconds'])} since {report['since']}"
    sections = [_reads, _latency, _warm_up, _wan, _money, _state, _wear]
    parts: list[Any] = [Panel.fit(head)]
    for section in sections:
        parts += [section(report), ""]
    if report["jobs"]:
        parts.append(jobs(report))
    if report["warm"]:
        parts.append(warm_jobs(report))
    return Group(*parts)
