"""`hubspoke simulate`: runs workloads and shows what they reach."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hubspoke.errors import ConfigError
from hubspoke.sim.prediction.order_answers import SEARCH_S
from hubspoke.sim.prediction.plot import check_plot, plot
from hubspoke.sim.prediction.run import (
    OURS,
    Options,
    check,
    check_run,
    chosen,
    policies,
    run_all,
    run_trace,
)

TABLE_WIDTH = 130


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. prefetch: on, off or None; trace: instead of workloads; capacity: of
    the trace's cache, bytes; policies: each in the spoke's place, or our own; infer_order: on, off
    or both, for our own; search_s: what it takes to try all seeds."""

    names: Sequence[str] = ()
    part: int = 1
    prefetch: str | None = None
    seed: int = 0
    trace: Path | None = None
    capacity: int | None = None
    plots: Path | None = None
    as_json: bool = False
    policies: Sequence[str] = ()
    infer_order: Sequence[str] = ()
    search_s: float = SEARCH_S
    runway_s: float = 0.0


def simulate(request: Request) -> None:
    """Raises ConfigError; FormatError for a file that is no trace; OSError for one that cannot be
    read, or written."""
    if request.prefetch not in ("on", "off", None):
        raise ConfigError(f"--prefetch {request.prefetch}: on or off")
    on = None if request.prefetch is None else request.prefetch == "on"
    each = [
        Options(
            request.part,
            on,
            request.seed,
            p,
            request.search_s if infer else None,
            request.runway_s if p == OURS else 0.0,
        )
        for p in policies(request.policies)
        for infer in (_inferring(request.infer_order) if p == OURS else (False,))
    ]
    for options in each:
        check(options)
    if request.trace is not None:
        documents = _of_trace(request, request.trace, each)
    elif request.capacity is not None:
        raise ConfigError("--cache-size: of a --trace; a workload has its own")
    else:
        documents = _of_workloads(request, each)
    if request.as_json:
        print(json.dumps({"workloads": documents}, indent=2))
    else:
        Console(width=max(Console().width, TABLE_WIDTH)).print(table(documents))


def _inferring(words: Sequence[str]) -> list[bool]:
    for word in words:
        if word not in ("on", "off"):
            raise ConfigError(f"--infer-order {word}: on or off")
    return [word == "on" for word in dict.fromkeys(words)] or [True]


def _of_trace(request: Request, trace: Path, each: Sequence[Options]) -> list[dict[str, Any]]:
    refused = {
        "WORKLOAD": bool(request.names),
        "--scale": request.part != 1,
        "--seed": request.seed != 0,
        "--plot": request.plots is not None,
    }
    wrong = [name for name, given in refused.items() if given]
    if wrong:
        raise ConfigError(f"--trace and {', '.join(wrong)}: a trace is as it was recorded")
    return [run_trace(trace, options, request.capacity) for options in each]


def _of_workloads(request: Request, each: Sequence[Options]) -> list[dict[str, Any]]:
    wanted, plots = chosen(request.names), request.plots
    if plots is not None:
        check_plot(plots)

    def done(document: dict[str, Any]) -> None:
        if plots is not None:
            plot(document, plots)
        if not request.as_json:
            who = f"{document['workload']} {_policy(document)}"
            print(f"{who}: {document['reads']:,} reads, {document['cpu_s']} s", file=sys.stderr)

    runs = [(name, options) for name in wanted for options in each]
    for name, options in runs:
        check_run(name, options)
    return run_all(runs, done)


def table(documents: Sequence[dict[str, Any]]) -> Table:
    """A row for each run, in the measures of the table of workloads."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("")
    for heading in ("policy", "reads", "hits", "of ceiling", "steady", "egress", "of MIN", "waste"):
        shown.add_column(heading, justify="left" if heading == "policy" else "right")
    for heading in ("utilisation", "bound", "p50", "p99"):
        shown.add_column(heading, justify="right")
    for d in documents:
        jobs = d["jobs"]
        shown.add_row(
            d["workload"],
            _policy(d),
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


def _policy(document: dict[str, Any]) -> str:
    inferring = document.get("infer_order", True)
    return str(document["policy"]) if inferring else f"{document['policy']}, infer-order off"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _batch(value: int | None) -> str:
    return "never" if value is None else str(value)
