"""`hubspoke simulate`: runs workloads and shows what they reach."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hubspoke.errors import ConfigError
from hubspoke.sim.prediction.plot import check_plot, plot
from hubspoke.sim.prediction.run import Options, check, chosen, run_all

TABLE_WIDTH = 130


def simulate(
    names: Sequence[str],
    *,
    part: int,
    prefetch: str,
    seed: int,
    as_json: bool,
    plots: Path | None,
) -> None:
    """Raises ConfigError; OSError where a picture cannot be written."""
    if prefetch not in ("on", "off"):
        raise ConfigError(f"--prefetch {prefetch}: on or off")
    options = Options(part, prefetch == "on", seed)
    check(options)
    wanted = chosen(names)
    if plots is not None:
        check_plot(plots)

    def done(document: dict[str, Any]) -> None:
        if plots is not None:
            plot(document, plots)
        if not as_json:
            say = f"{document['workload']}: {document['reads']:,} reads, {document['cpu_s']} s"
            print(say, file=sys.stderr)

    documents = run_all(wanted, options, done)
    if as_json:
        print(json.dumps({"workloads": documents}, indent=2))
    else:
        console = Console()
        console.print(table(documents), width=max(console.width, TABLE_WIDTH))


def table(documents: Sequence[dict[str, Any]]) -> Table:
    """A row for each run, in the measures of the table of workloads."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("", "reads", "hits", "of ceiling", "steady", "egress", "of MIN", "waste"):
        shown.add_column(heading, justify="right" if heading else "left")
    for heading in ("utilisation", "bound", "p50", "p99"):
        shown.add_column(heading, justify="right")
    for d in documents:
        jobs = d["jobs"]
        shown.add_row(
            d["workload"],
            f"{d['reads']:,}",
            _percent(d["hit_ratio"]),
            _percent(d["of_ceiling"]),
            ", ".join(_batch(job["batches_to_steady"]) for job in jobs),
            f"{d['egress_bytes'] / 1e9:.2f} GB",
            f"{d['of_minimum']:.3f}",
            _percent(d["waste"]),
            ", ".join(_percent(job["utilisation"]) for job in jobs),
            ", ".join(_percent(job["bound"]) for job in jobs),
            f"{d['p50_ms']:.2f} ms",
            f"{d['p99_ms']:.2f} ms",
        )
    return shown


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _batch(value: int | None) -> str:
    return "never" if value is None else str(value)
