"""Command line of the emulated training job: `python -m hubspoke.lab.job`.

It only parses, builds a missing dataset on request and prints; a wrong value exits with status 2,
a job that failed or read a wrong byte with 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.lab.dataset import DatasetConfig, build_dataset
from hubspoke.lab.interrupt import interruptible
from hubspoke.lab.job import CLIENTS, JobConfig, run_job
from hubspoke.lab.measure import JobResult, Span
from hubspoke.lab.orders import ORDERS


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m hubspoke.lab.job",
        description="Emulated training job: real worker processes read token sequences by path or "
        "by S3, compare every byte with the dataset, and compute is a sleep.",
    )
    add = p.add_argument
    add("dataset", type=Path, help="folder of a dataset: its index, and the true bytes")
    add("--source", help="folder or http://HOST:PORT/BUCKET[/PREFIX] to read (default: DATASET)")
    add("--build", action="store_true", help="build DATASET first if it is not there")
    add(
        "--name", default="job", help="name of the job on the spoke's report (default: %(default)s)"
    )
    add("--order", choices=ORDERS, default="sequential")
    add("--ranks", type=int, default=4, metavar="N", help="(default: %(default)s)")
    add("--per-rank", type=int, default=6, metavar="N", help="sequences in a rank's batch")
    add("--workers", type=int, default=2, metavar="N", help="worker processes of each rank")
    add("--prefetch-factor", type=int, default=4, metavar="N", help="batches queued per worker")
    add("--compute-ms", type=float, default=20.0, metavar="MS", help="compute of each step")
    add("--steps", type=int, metavar="N", help="only the first N steps (default: one epoch)")
    add("--seconds", type=float, metavar="S", help="end after the step in which S have passed")
    add("--seed", type=int, default=0, help="seed of the order `distributed`")
    add("--epoch", type=int, default=0, help="epoch of the order `distributed`")
    add("--read-bytes", type=int, metavar="N", help="size of one read (default: the sequence)")
    add("--client", choices=CLIENTS, default="raw", help="S3 client (default: %(default)s)")
    add("--admin", metavar="URL", help="admin port of the spoke, for the job's meter")
    add("--retry-seconds", type=float, default=30.0, metavar="S", help="patience with one read")
    add("--json", action="store_true", help="print the result as one JSON document")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    a = parser().parse_args(arguments)
    try:
        with interruptible():
            result = _run(a)
    except KeyboardInterrupt:
        return 130
    except HubSpokeError as e:
        print(f"{e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    print(json.dumps(result.to_json()) if a.json else text(result))
    return 1 if result.wrong_bytes else 0


def _run(a: argparse.Namespace) -> JobResult:
    if a.build:
        build_dataset(a.dataset, DatasetConfig())
    return run_job(
        JobConfig(
            name=a.name,
            dataset=a.dataset,
            source=a.source,
            order=a.order,
            ranks=a.ranks,
            per_rank=a.per_rank,
            workers=a.workers,
            prefetch_factor=a.prefetch_factor,
            compute_s=a.compute_ms / 1000,
            steps=a.steps,
            seconds_max=a.seconds,
            seed=a.seed,
            epoch=a.epoch,
            read_bytes=a.read_bytes,
            client=a.client,
            admin=a.admin,
            retry_s=a.retry_seconds,
        )
    )


def text(result: JobResult) -> str:
    """The result for a person."""
    lines = [
        f"{result.name}: {result.steps} steps, {result.reads} reads of {result.source}",
        f"utilisation {result.utilisation:.4f}, stalls {result.wait_seconds:.3f} s "
        f"(first batch {result.first_wait_seconds:.3f} s), "
        f"{result.samples_per_second:.0f} samples/s",
        f"states {result.states}, wrong bytes {result.wrong_bytes}, retries {result.retries}",
        f"unique {result.unique_bytes} B of {result.bytes} B read, "
        f"{1e6 * result.reader_cpu_seconds / result.reads:.0f} us CPU a read in the workers, "
        f"behind its time by {result.lag_seconds * 1000:.1f} ms",
    ]
    lines += [_span(phase) for phase in result.phases]
    lines += [f"wrong: {w.object} at {w.offset}, {w.bytes} bytes" for w in result.wrong]
    return "\n".join(lines)


def _span(s: Span) -> str:
    hits = "-" if s.hit_ratio is None else f"{s.hit_ratio:.4f}"
    at = s.latency_ms
    return (
        f"steps {s.first_step:>4}-{s.end_step:<4} utilisation {s.utilisation:.4f}, "
        f"hit ratio {hits}, latency ms p50 {at.p50:.2f} p99 {at.p99:.2f} max {at.max:.2f}"
    )
