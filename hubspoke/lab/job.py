"""The emulated training job: ranks with data-loader workers, and steps of fixed compute.

`python -m hubspoke.lab.job --help` runs it by hand against a folder or any S3 endpoint. A step
ends when every rank has its batch and the compute time has passed (as with FSDP, the slowest rank
rules); compute is a sleep to an absolute time, so one late wake-up does not add to the next. The
clock starts when all workers are connected and ends after the last step; the wait for the first
batch counts. Every byte read is compared with the dataset's own files.
"""

import math
import mmap
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hubspoke.errors import ConfigError
from hubspoke.lab.crew import Crew, shared_memory
from hubspoke.lab.dataset import DatasetIndex, load_index
from hubspoke.lab.measure import (
    RECORD_DTYPE,
    UNREAD,
    JobResult,
    Records,
    Seconds,
    WrongRead,
    hit_ratio_of,
    latency_of,
    phases,
    ratio,
    states_of,
    unique_bytes,
    windows,
)
from hubspoke.lab.meter import JobMeter
from hubspoke.lab.orders import Order, Plan, job_plan

StepProgress = Callable[[int, int], None]  # (steps done, steps in all)
CLIENTS = ("raw", "boto3")


@dataclass(frozen=True, slots=True)
class JobConfig:
    """One run. Defaults are the demo's scaled-down reference job.

    dataset: folder with the index and the true bytes. source: where the job reads, a folder or
    http://HOST:PORT/BUCKET[/PREFIX]; None is the dataset itself. per_rank: sequences in a rank's
    batch. read_bytes: size of one read, a divisor of the sequence; None is the sequence.
    steps: None is one epoch. seconds_max: end after the step in which this time is over; batches
    that were handed out by then are still read. admin: the spoke's admin port for the job's meter,
    or None.
    retry_s: for how long one read is tried again when the server is gone or busy.
    """

    name: str
    dataset: Path
    source: str | None = None
    order: Order = "sequential"
    ranks: int = 4
    per_rank: int = 6
    workers: int = 2
    prefetch_factor: int = 4
    compute_s: float = 0.020
    steps: int | None = None
    seconds_max: float | None = None
    seed: int = 0
    epoch: int = 0
    read_bytes: int | None = None
    client: str = "raw"
    admin: str | None = None
    retry_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("ranks", "per_rank", "workers", "prefetch_factor"):
            if getattr(self, name) < 1:
                raise ConfigError(f"job {name} {getattr(self, name)}: must be at least 1")
        if self.compute_s < 0 or self.retry_s < 0:
            raise ConfigError(
                f"job compute_s {self.compute_s}, retry_s {self.retry_s}: must not be negative"
            )
        if self.client not in CLIENTS:
            raise ConfigError(f"job client {self.client!r}: must be one of {', '.join(CLIENTS)}")


def run_job(config: JobConfig, progress: StepProgress = lambda _done, _of: None) -> JobResult:
    """Run the job to its end in this process and its workers.

    progress is called after every step, inside the compute time. Raises ConfigError, FormatError
    (dataset) and JobFailed; on any exception, KeyboardInterrupt included, the workers are ended.
    """
    index = load_index(config.dataset)
    plan = job_plan(
        config.order,
        sequences=index.sequences,
        ranks=config.ranks,
        per_rank=config.per_rank,
        steps=config.steps,
        seed=config.seed,
        epoch=config.epoch,
    )
    read_bytes = config.read_bytes or index.sequence_bytes
    if read_bytes < 1 or index.sequence_bytes % read_bytes:
        raise ConfigError(
            f"job read_bytes {read_bytes}: must divide a sequence of {index.sequence_bytes} bytes"
        )
    steps, ranks, per_rank = plan.shape
    reads = per_rank * (index.sequence_bytes // read_bytes)
    with ExitStack() as stack:
        plan_fd = stack.enter_context(shared_memory(plan.nbytes))
        size = steps * ranks * reads * RECORD_DTYPE.itemsize
        records_fd = stack.enter_context(shared_memory(size))
        with mmap.mmap(plan_fd, plan.nbytes) as memory:
            memory[:] = plan.astype("<i8").tobytes()
        setup = _setup(config, index, read_bytes, plan_fd, records_fd)
        crew = Crew(
            setup,
            ranks=ranks,
            workers=config.workers,
            prefetch_factor=config.prefetch_factor,
            steps=steps,
        )
        meter = JobMeter(config.admin, config.name) if config.admin else None
        with crew:
            timing = _train(crew, config, steps, meter, progress)
            summaries = crew.finish()
        with mmap.mmap(records_fd, size, access=mmap.ACCESS_READ) as memory:
            records = np.frombuffer(bytes(memory), RECORD_DTYPE).reshape(steps, ranks, reads)
    return _result(config, index, plan, read_bytes, records, timing, summaries)


def _setup(
    config: JobConfig, index: DatasetIndex, read_bytes: int, plan_fd: int, records_fd: int
) -> dict[str, Any]:
    source = config.source or str(config.dataset)
    starts = np.cumsum([0, *(file.sequences for file in index.files)]).tolist()
    return {
        "names": [file.name for file in index.files],
        "starts": starts,
        "truth": str(config.dataset),
        "source": source,
        "client": config.client if "://" in source else "path",
        "sequence_bytes": index.sequence_bytes,
        "read_bytes": read_bytes,
        "per_rank": config.per_rank,
        "ranks": config.ranks,
        "plan_fd": plan_fd,
        "records_fd": records_fd,
        "retry_s": config.retry_s,
    }


@dataclass(frozen=True, slots=True)
class _Timing:
    waits: Seconds  # per step
    seconds: float  # wall time
    lag_seconds: float


def _train(
    crew: Crew, config: JobConfig, steps: int, meter: JobMeter | None, progress: StepProgress
) -> _Timing:
    """All steps, or those before the time limit, on one time line.

    Each begins where the last ended, plus its wait.

    A batch that is there when the step begins costs no wait, whatever this process was late by:
    only time blocked for data counts.
    """
    waits: list[float] = []
    limit = math.inf if config.seconds_max is None else config.seconds_max
    samples = config.ranks * config.per_rank
    if meter:
        meter.start()
    try:
        start = at = time.monotonic()
        crew.begin()
        for step in range(steps):
            waited = 0.0
            if crew.take(step):
                now = time.monotonic()
                waited = max(0.0, now - at)
                at += waited
            waits.append(waited)
            at += config.compute_s
            if meter:
                meter.add(samples, config.compute_s, waited)
            if at - start >= limit and step + 1 < steps:
                crew.hand_out_no_more()
                steps = step + 1
            progress(step + 1, steps)
            pause = at - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            if step + 1 == steps:
                break
        end = time.monotonic()
    finally:
        if meter:
            meter.stop()
    return _Timing(np.array(waits), end - start, end - at)


def _result(
    config: JobConfig,
    index: DatasetIndex,
    plan: Plan,
    read_bytes: int,
    records: Records,
    timing: _Timing,
    summaries: list[dict[str, Any]],
) -> JobResult:
    _, ranks, per_rank = plan.shape
    steps = len(timing.waits)
    samples = ranks * per_rank
    starts = np.cumsum([0, *(file.sequences for file in index.files)])
    # A sequence counts as read by its first piece: one that is begun is finished.
    first_pieces = records["state"][..., :: index.sequence_bytes // read_bytes]
    numbers = plan[first_pieces != UNREAD]
    files = np.searchsorted(starts, numbers, side="right") - 1
    offsets = (numbers - starts[files]) * index.sequence_bytes
    compute = steps * config.compute_s
    wait = float(timing.waits.sum())
    states = states_of(records)
    reads = sum(states.values())
    source = config.source or str(config.dataset)
    return JobResult(
        name=config.name,
        source=source,
        order=config.order,
        client=config.client if "://" in source else "path",
        ranks=ranks,
        workers=config.workers,
        prefetch_factor=config.prefetch_factor,
        steps=steps,
        steps_planned=len(plan),
        samples=steps * samples,
        reads=reads,
        bytes=reads * read_bytes,
        unique_bytes=unique_bytes(offsets, files, index.sequence_bytes),
        seconds=timing.seconds,
        compute_seconds=compute,
        wait_seconds=wait,
        lag_seconds=timing.lag_seconds,
        first_wait_seconds=float(timing.waits[0]),
        utilisation=ratio(compute, compute + wait),
        samples_per_second=ratio(steps * samples, timing.seconds),
        states=states,
        hit_ratio=hit_ratio_of(states),
        latency_ms=latency_of(records),
        wrong_bytes=sum(s["wrong_bytes"] for s in summaries),
        wrong=tuple(WrongRead(*at) for s in summaries for at in s["wrong"]),
        retries=int(records["retries"].sum()),
        reader_cpu_seconds=sum(s["user_s"] + s["system_s"] for s in summaries),
        phases=phases(records, timing.waits, config.compute_s, samples),
        windows=windows(records, timing.waits, config.compute_s, samples),
    )


if __name__ == "__main__":
    from hubspoke.lab.job_cli import main

    raise SystemExit(main())
