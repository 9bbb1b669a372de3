"""The reference job as a repeatable measurement: `python bench/reference_job.py --help`.

Runs the demo's ways n times in turns (all ways once, then again), so that a slow minute of the
machine meets all of them, and gives the median of each figure. The checks of the demo are held
against every turn. Results go to one folder: results.json, and one picture for each turn.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from hubspoke import __version__
from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.lab.checks import Check, evaluate
from hubspoke.lab.dataset import DatasetConfig, build_dataset
from hubspoke.lab.demo import BUCKET, Bars, given_price
from hubspoke.lab.interrupt import interruptible
from hubspoke.lab.job import CLIENTS, JobConfig
from hubspoke.lab.show import picture
from hubspoke.lab.stack import Stack, WanConfig, require_wan
from hubspoke.lab.ways import WAYS, Runner, Way, WayResult


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="bench/reference_job.py",
        description="The ways of `hubspoke demo`, measured n times in turns; medians.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = p.add_argument
    add("--runs", type=int, default=3, metavar="N", help="turns")
    names = [way.name for way in WAYS]
    add("--ways", nargs="+", choices=names, default=names, metavar="WAY", help=", ".join(names))
    add("--steps", type=int, default=999, metavar="N", help="steps of the whole job")
    add("--ranks", type=int, default=4, metavar="N", help="ranks in lockstep")
    add("--per-rank", type=int, default=6, metavar="N", help="sequences in a rank's batch")
    add("--workers", type=int, default=2, metavar="N", help="worker processes of each rank")
    add("--prefetch-factor", type=int, default=4, metavar="N", help="batches queued per worker")
    add("--compute-ms", type=float, default=20.0, metavar="MS", help="compute of each step")
    add("--read-bytes", type=int, metavar="N", help="size of one read; None is a sequence of 8,192")
    add("--client", choices=CLIENTS, default="raw", help="S3 client of the job")
    add("--files", type=int, default=8, metavar="N", help="token files")
    add("--wan", choices=("relay", "tun"), default="relay", help="emulator; tun needs root")
    add("--rtt-ms", type=float, default=60.0, metavar="MS", help="round trip of the WAN")
    add("--rate-mbit", type=float, default=0.0, metavar="R", help="its rate each way, 0: no cap")
    add("--price", metavar="USD", help="per GB, instead of the package's table")
    add("--data", type=Path, default=Path("out/data"), metavar="DIR", help="data set, kept")
    add("--out", type=Path, metavar="DIR", help="results; None is a new folder under out/")
    add("--json", action="store_true", help="one JSON document on stdout, nothing else")
    return p.parse_args(argv)


def figures(result: WayResult) -> dict[str, float | None]:
    """What is compared between turns, of one way."""
    job, wan = result.job, result.wan
    values: dict[str, float | None] = {
        "utilisation": job.utilisation,
        "wait_seconds": job.wait_seconds,
        "first_wait_seconds": job.first_wait_seconds,
        "samples_per_second": job.samples_per_second,
        "hit_ratio": job.hit_ratio,
        "read_p50_ms": job.latency_ms.p50,
        "read_p99_ms": job.latency_ms.p99,
        "read_p999_ms": job.latency_ms.p999,
        "wan_to_spoke_bytes": wan.to_spoke_bytes if wan else None,
        "wan_to_hub_bytes": wan.to_hub_bytes if wan else None,
        "wan_of_unique": wan.both / job.unique_bytes if wan else None,
        "usd": result.usd,
        "wrong_bytes": job.wrong_bytes,
        "lag_seconds": job.lag_seconds,
    }
    for phase in job.phases:
        values[f"utilisation_from_step_{phase.first_step}"] = phase.utilisation
        values[f"hit_ratio_from_step_{phase.first_step}"] = phase.hit_ratio
    return values


def medians(turns: Sequence[Mapping[str, WayResult]]) -> dict[str, dict[str, Any]]:
    """For each way and figure its median, least and greatest over the turns."""
    summary: dict[str, dict[str, Any]] = {}
    for name in turns[0]:
        of_turns = [figures(turn[name]) for turn in turns]
        summary[name] = {key: _spread(f.get(key) for f in of_turns) for key in of_turns[0]}
    return summary


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": statistics.median(known), "min": min(known), "max": max(known)}


def measure(a: argparse.Namespace, out: Path, screen: Console) -> dict[str, Any]:
    """Run all turns and return the document that is saved and printed."""
    price = given_price(a.price)
    require_wan(a.wan)
    ways = [way for way in WAYS if way.name in a.ways]
    _check_order(ways)
    if a.runs < 1:
        raise ConfigError(f"--runs {a.runs}: must be at least 1")
    dataset = a.data.absolute() / BUCKET
    config = DatasetConfig(sequences=a.steps * a.ranks * a.per_rank, files=a.files)
    job = JobConfig(
        name="bench",
        dataset=dataset,
        ranks=a.ranks,
        per_rank=a.per_rank,
        workers=a.workers,
        prefetch_factor=a.prefetch_factor,
        compute_s=a.compute_ms / 1000,
        read_bytes=a.read_bytes,
        client=a.client,
    )
    turns: list[dict[str, WayResult]] = []
    checks: list[tuple[Check, ...]] = []
    with tempfile.TemporaryDirectory(prefix="hubspoke-bench-") as temporary:
        work = Path(temporary)
        (work / "logs").mkdir()
        with Bars(screen) as bars:
            index = build_dataset(dataset, config, progress=bars.update)
        wan = WanConfig(a.wan, a.rtt_ms, a.rate_mbit)
        with Stack(dataset.parent, work=work, logs=work / "logs", wan=wan, price=a.price) as stack:
            for turn in range(a.runs):
                screen.print(f"turn {turn + 1} of {a.runs}")
                with Bars(screen) as bars:
                    runner = Runner(stack, job, caches=work, price=price, progress=bars.update)
                    turns.append(runner.run(ways))
                checks.append(evaluate(turns[-1]))
                title = f"Reference job, turn {turn + 1}; WAN: {stack.wan.name}"
                picture(out / f"run-{turn + 1}.png", title, turns[-1])
            path = stack.wan.name
    return {
        "schema": 1,
        "kind": "reference_job",
        "version": __version__,
        "cores": os.cpu_count(),
        "wan": path,
        "parameters": {k: str(v) if isinstance(v, Path) else v for k, v in vars(a).items()},
        "dataset": msgspec.to_builtins(index),
        "medians": medians(turns),
        "turns": [
            {
                "ways": {name: result.to_json() for name, result in turn.items()},
                "checks": [asdict(check) for check in held],
            }
            for turn, held in zip(turns, checks, strict=True)
        ],
        "passed": all(check.passed for held in checks for check in held),
    }


def _check_order(ways: Sequence[Way]) -> None:
    """A warm way needs the cold one before it."""
    for i, way in enumerate(ways):
        if way.source == "spoke" and not way.fresh:
            before = ways[i - 1] if i else None
            if before is None or before.order != way.order or before.source != "spoke":
                cold = next(
                    w for w in WAYS if w.source == "spoke" and w.fresh and w.order == way.order
                )
                raise ConfigError(f"--ways {way.name}: needs {cold.name} right before it")


def table(document: Mapping[str, Any]) -> Table:
    """Medians, one column for each way."""
    n = len(document["turns"])
    view = Table(title=f"Medians of {n} turns; WAN: {document['wan']}", title_justify="left")
    view.add_column("")
    ways = document["medians"]
    for name in ways:
        view.add_column(name, justify="right")
    keys = list(dict.fromkeys(key for values in ways.values() for key in values))
    for key in keys:
        cells = [values.get(key) for values in ways.values()]
        view.add_row(key, *("-" if c is None else f"{c['median']:.4g}" for c in cells))
    return view


def main(argv: Sequence[str] | None = None) -> int:
    a = arguments(argv)
    screen = Console(stderr=True)
    out = a.out or Path("out") / time.strftime("bench-%Y%m%d-%H%M%S")
    try:
        with interruptible():
            out.mkdir(parents=True, exist_ok=True)
            document = measure(a, out, screen)
    except KeyboardInterrupt:
        return 130
    except HubSpokeError as e:
        print(f"bench/reference_job.py: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    text = json.dumps(document, indent=1)
    (out / "results.json").write_text(text + "\n")
    if a.json:
        print(text)
    else:
        Console(width=max(Console().width, 150)).print(table(document))
        failed = {
            check["name"]: check["figure"]
            for turn in document["turns"]
            for check in turn["checks"]
            if not check["passed"]
        }
        for name, figure in failed.items():
            print(f"FAIL {name}: {figure}")
        print(f"Results and pictures: {out}")
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
