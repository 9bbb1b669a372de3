"""Workloads of the simulator on real processes: hub, emulated WAN, spoke, and boto3 as the client.

    python bench/live_workloads.py [W1 W2 W4 W5 W10] [--work DIR] [--json] [--infer-order on|off]

The jobs are the simulator's own (ranks in lockstep, workers that take whole batches in turn), the
reads are boto3's. Sizes are parts of the full workload, so that two or three epochs take less than
four minutes on two cores: objects and cache are divided by PART, demand and the relay's rate by
PART / FASTER. Every sixteenth read is compared byte by byte with what the store holds. Beside it
the simulator runs the same job at the same size.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import boto3
import numpy as np
import numpy.typing as npt
from botocore import UNSIGNED
from botocore.config import Config

from bench.order_watch import OrderWatch
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.lab.stack import Stack, WanConfig
from hubspoke.sim.prediction.belady import belady
from hubspoke.sim.prediction.compare import planned
from hubspoke.sim.prediction.job import JobSpec
from hubspoke.sim.prediction.run import Options, run_workload
from hubspoke.sim.prediction.workload import Size, Workload
from hubspoke.sim.prediction.workloads import BY_NAME

PROCESSES: Final = 2
STEP_S: Final = 120.0  # a step that takes longer has failed
SAMPLED: Final = 16
STATES: Final = {"hit": 0, "late": 1, "miss": 2}


@dataclass(frozen=True, slots=True)
class Live:
    """faster: than 1/part of the demand. steps: of each epoch at most; epochs: at most."""

    part: int
    faster: float = 1.0
    steps: int | None = None
    epochs: int | None = None


RUNS: Final = {
    "W1": Live(16, steps=200),
    "W2": Live(16, 3.5),
    "W4": Live(48, 2.7),
    "W5": Live(16, steps=900, epochs=1),
    "W10": Live(64, 7.2),
}


def at_this_size(name: str, live: Live) -> Workload:
    """The workload with demand and rates `faster`, its jobs cut to `steps`."""
    whole = BY_NAME[name](Size(live.part))
    jobs = [
        replace(
            job,
            compute_s=job.compute_s / live.faster,
            steps=[min(n, live.steps or n) for n in job.steps[: live.epochs]],
        )
        for job in whole.jobs
    ]
    path = replace(whole.path, rate=whole.path.rate * live.faster)
    return replace(whole, jobs=jobs, path=path)


# -- content --------------------------------------------------------------------------------------


def words(number: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Eight-byte words of an object from a word on: splitmix64 of their place, so that nothing
    shrinks or repeats (Steele, Lea, Flood, OOPSLA 2014)."""
    z = np.arange(first, first + count, dtype=np.uint64) + np.uint64(number << 40)
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def content(number: int, offset: int, length: int) -> bytes:
    first, end = offset // 8, -(-(offset + length) // 8)
    found = words(number, first, end - first).tobytes()
    return found[offset - first * 8 :][:length]


def write_store(store: Path, workload: Workload) -> None:
    for number, (name, size) in enumerate(zip(workload.names, workload.sizes, strict=True)):
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for at in range(0, size, 8 << 20):
                file.write(content(number, at, min(8 << 20, size - at)))


# -- the job --------------------------------------------------------------------------------------


class Ranks:
    """Some ranks of a job, in one process; all ranks of all processes meet at every step."""

    def __init__(self, name: str, live: Live, url: str, ranks: Sequence[int], meet: Barrier):
        self.workload = at_this_size(name, live)
        self.spec: JobSpec = self.workload.jobs[0]
        self.ranks = ranks
        self.meet = meet
        self.rows: list[tuple[int, int, int, float]] = []  # epoch, batch, state, latency
        self.wrong: list[str] = []
        connections = len(ranks) * self.spec.workers
        self.client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            config=Config(
                signature_version=UNSIGNED,
                max_pool_connections=connections,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )

    def run(self) -> dict[str, Any]:
        epochs = []
        for epoch, steps in enumerate(self.spec.steps):
            self.meet.wait(STEP_S)
            began = time.perf_counter()
            first = self._epoch(epoch, steps)
            ended = time.perf_counter()
            epochs.append((steps, began, first, ended))
        return {"rows": self.rows, "wrong": self.wrong, "epochs": epochs}

    def _epoch(self, epoch: int, steps: int) -> float:
        """Returns when the first step was computed."""
        spec = self.spec
        done: dict[int, SimpleQueue[int]] = {rank: SimpleQueue() for rank in self.ranks}
        queues: dict[tuple[int, int], SimpleQueue[int | None]] = {}
        threads = []
        for rank in self.ranks:
            for worker in range(spec.workers):
                queue: SimpleQueue[int | None] = SimpleQueue()
                queues[rank, worker] = queue
                args = (epoch, rank, queue, done[rank])
                threads.append(threading.Thread(target=self._work, args=args, daemon=True))
        handed = {rank: deque(range(steps)) for rank in self.ranks}

        def hand(rank: int) -> None:
            if handed[rank]:
                step = handed[rank].popleft()
                queues[rank, step % spec.workers].put(step)

        for thread in threads:
            thread.start()
        for _ in range(spec.workers * spec.prefetch_factor):
            for rank in self.ranks:
                hand(rank)
        first = self._steps(steps, done, hand)
        for queue in queues.values():
            queue.put(None)
        for thread in threads:
            thread.join(STEP_S)
        return first

    def _steps(self, steps: int, done: dict[int, "SimpleQueue[int]"], hand: Any) -> float:
        ready: dict[int, set[int]] = {rank: set() for rank in self.ranks}
        first = 0.0
        for step in range(steps):
            for rank in self.ranks:
                while step not in ready[rank]:
                    ready[rank].add(done[rank].get(timeout=STEP_S))
                ready[rank].discard(step)
            self.meet.wait(STEP_S)
            for rank in self.ranks:
                hand(rank)
            time.sleep(self.spec.compute_s)
            first = first or time.perf_counter()
        return first

    def _work(
        self, epoch: int, rank: int, queue: "SimpleQueue[int | None]", done: "SimpleQueue[int]"
    ) -> None:
        while (step := queue.get()) is not None:
            for number, offset, length in self.spec.reads(epoch, rank, step):
                self._read(epoch, step, number, offset, length)
            done.put(step)

    def _read(self, epoch: int, step: int, number: int, offset: int, length: int) -> None:
        bucket, _, key = self.workload.names[number].partition("/")
        began = time.perf_counter()
        answer = self.client.get_object(
            Bucket=bucket, Key=key, Range=f"bytes={offset}-{offset + length - 1}"
        )
        body = answer["Body"].read()
        took = time.perf_counter() - began
        state = answer["ResponseMetadata"]["HTTPHeaders"]["x-hubspoke-cache"]
        self.rows.append((epoch, step, STATES[state], took))
        sampled = len(self.rows) % SAMPLED == 0
        if len(body) != length or (sampled and body != content(number, offset, length)):
            self.wrong.append(f"{key} {offset}+{length}: other bytes")


def ranks_of(
    name: str, live: Live, url: str, ranks: Sequence[int], meet: Barrier, out: Any
) -> None:
    try:
        out.put(Ranks(name, live, url, ranks, meet).run())
    except BaseException as e:
        meet.abort()
        out.put({"error": repr(e)})
        raise


def run_job(name: str, live: Live, url: str, workload: Workload) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    ranks = workload.jobs[0].ranks
    processes = min(PROCESSES, ranks)
    meet, out = context.Barrier(processes), context.Queue()
    started = [
        context.Process(
            target=ranks_of, args=(name, live, url, range(i, ranks, processes), meet, out)
        )
        for i in range(processes)
    ]
    for process in started:
        process.start()
    try:
        found = [out.get(timeout=600) for _ in started]
    finally:
        for process in started:
            process.join(10)
            process.kill()
    errors = [f["error"] for f in found if "error" in f]
    if errors:
        raise SystemExit(f"{name}: {errors}")
    return found


# -- what it showed -------------------------------------------------------------------------------


def steady(rows: npt.NDArray[np.float64], steps: int) -> int | None:
    """First batch of the first epoch from which every ten have 95 % hits; None: never."""
    own = rows[rows[:, 0] == 0]
    total = np.bincount(own[:, 1].astype(int), minlength=steps)
    hits = np.bincount(own[own[:, 2] == 0][:, 1].astype(int), minlength=steps)
    window = np.ones(min(10, steps))
    bad = np.flatnonzero(
        np.convolve(hits, window, "valid") < 0.95 * np.convolve(total, window, "valid")
    )
    if not len(bad):
        return 0
    return int(bad[-1]) + 1 if bad[-1] + 1 < steps - 9 else None


def document(
    name: str, live: Live, workload: Workload, found: list[dict[str, Any]], report: dict[str, Any]
) -> dict[str, Any]:
    rows = np.array([row for f in found for row in f["rows"]])
    spec = workload.jobs[0]
    ceiling = 1 - workload.first_misses / len(rows)
    hit_ratio = float((rows[:, 2] == 0).mean())
    egress = report["wan"]["received_bytes"]
    minimum = belady(planned(workload), workload.capacity).egress_bytes
    epochs = []
    for epoch, (steps, _, first, ended) in enumerate(found[0]["epochs"]):
        own = rows[rows[:, 0] == epoch]
        epochs.append(
            {
                "reads": len(own),
                "hit_ratio": round(float((own[:, 2] == 0).mean()), 4),
                "p50_ms": round(float(np.percentile(own[:, 3], 50)) * 1e3, 2),
                "p99_ms": round(float(np.percentile(own[:, 3], 99)) * 1e3, 2),
                "utilisation": round((steps - 1) * spec.compute_s / (ended - first), 4),
                "seconds": round(ended - found[0]["epochs"][epoch][1], 1),
            }
        )
    return {
        "workload": name,
        "part": live.part,
        "faster": live.faster,
        "wan": f"relay, 60 ms, {workload.path.rate / 1e6:.0f} MB/s",
        "hit_ratio": round(hit_ratio, 5),
        "of_ceiling": round(hit_ratio / ceiling, 5),
        "batches_to_steady": steady(rows, spec.steps[0]),
        "received_bytes": egress,
        "of_minimum": round(egress / minimum, 4),
        "waste": round(report["prefetch"]["wasted_bytes"] / egress, 4),
        "wrong": sum(len(f["wrong"]) for f in found),
        "epochs": epochs,
    }


def one(name: str, work: Path, infer: str | None) -> dict[str, Any]:
    live = RUNS[name]
    workload = at_this_size(name, live)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
    try:
        (folder / "store").mkdir()
        write_store(folder / "store", workload)
        wan = WanConfig(rate_mbit=workload.path.rate * 8 / 1e6)
        flags = ["--cache-size", str(workload.capacity // PAGE_BYTES * PAGE_BYTES)]
        if infer is not None:
            flags += ["--infer-order", infer]
        with (
            Stack(folder / "store", work=folder, logs=folder, wan=wan) as stack,
            stack.spoke("spoke", folder / "cache", more=flags) as spoke,
        ):
            with OrderWatch(spoke) as watch:
                found = run_job(name, live, f"http://{spoke.data}", workload)
            report = spoke.ask("/v1/report")
        made = document(name, live, workload, found, report)
        believed, began = watch.first(0), found[0]["epochs"][0][1]
        return made | {
            "infer_order": infer or "on",
            "believed_after_s": None if believed is None else round(believed - began, 1),
            "search_cpu_s": round(watch.search_cpu_s, 1),
            "orders": watch.orders,
        }
    finally:
        shutil.rmtree(folder)


def rows_of(d: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{d['workload']:4} 1/{d['part']}, {d['faster']:g} x as fast; {d['wan']}: hits "
        f"{d['hit_ratio']:.4f} = {d['of_ceiling']:.4f} of the ceiling, steady after "
        f"{d['batches_to_steady']}, WAN {d['of_minimum']:.3f} x the least, waste {d['waste']:.3f}, "
        f"wrong {d['wrong']}; --infer-order {d['infer_order']}, an order after "
        f"{d['believed_after_s']} s ({d['search_cpu_s']} s of CPU): {d['orders'][:1]}"
    )
    for number, e in enumerate(d["epochs"], 1):
        yield f"     epoch {number}: {e}"
    s = d["simulated"]
    yield f"     simulated: hits {s['hit_ratio']:.4f}, WAN {s['of_minimum']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="W", help=", ".join(RUNS))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--infer-order", choices=("on", "off"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    unknown = set(args.workloads) - set(RUNS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: one of {', '.join(RUNS)}")
    documents = []
    for name in args.workloads or RUNS:
        found = one(name, args.work, args.infer_order)
        simulated = run_workload(at_this_size(name, RUNS[name]), Options(RUNS[name].part))
        found["simulated"] = {k: simulated[k] for k in ("hit_ratio", "of_ceiling", "of_minimum")}
        documents.append(found)
        if not args.json:
            print("\n".join(rows_of(found)), flush=True)
    if args.json:
        json.dump(documents, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
