"""The mount, side by side with the local drive and with two other mounts, over the WAN.

    python bench/mount.py sequential random partial    # or cold strided window small job batches
    python bench/mount.py --runs 3 --ways spoke rclone --json cold

Measures, each cold from an empty cache and in turns (all ways once, then again):
- sequential: a complete file of 512 MiB read by fio in 1 MiB, from page cache and from the drive;
- random: the same in 4 KiB at random offsets;
- partial: 512 MiB of a file of which the rest is not cached, read by fio;
- cold: 2 GiB in order, never seen here;
- strided: four processes, each reads every 4th record of 256 KiB, never seen; WAN bytes;
- window: records of 128 KiB, shuffled inside each 2 MiB, against the same in order, never seen;
- small: `ls -l` of 2,000 files of 100 KiB, then reading all: cold, from the drive, again;
- job: the reference job by path: utilisation of the first 50 steps and after, cold and warm;
- batches: 2 MiB a step of 20 ms, as job;
- many: 1,000 open files of 2 MiB, one after the other and 40 at a time in turns, never seen.
Random bytes, so that nothing compresses; they stay in the hub's page cache. What is slow is cut
after --cut seconds: rates are of the part done, and WAN bytes hold what was fetched ahead of it.
Medians; ratios inside each turn. A hypervisor that takes back what is free lets each page cost 2 to
9 us again, and a mount, whose pages are in the page cache twice, pays twice: 512 MiB from the drive
at 2.0 GB/s became 0.7 to 1.0 without a mount and 0.6 of 1.7 through one, when the memory had been
free for three seconds. So before a cold read memory is touched, and before a read from the drive
the same file is read and dropped, whoever reads.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.fio_runs import fio
from bench.mount_reads import (
    read_files,
    read_open_files,
    read_records,
    read_start,
    read_strided,
    touch_memory,
)
from bench.mounts import OURS, PEERS, WAYS, Near, near_side
from bench.peers import GIB, KeptConnection, load, median, read_file
from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.lab.dataset import DatasetConfig, build_dataset
from hubspoke.lab.job import JobConfig, run_job
from hubspoke.lab.stack import Stack, WanConfig

KIB, MIB = 1 << 10, 1 << 20
MEDIUM, LARGE, PARTIAL = 512 * MIB, 2048 * MIB, 640 * MIB
TOUCHED, DRIVE_READS, IDLE_S = 6 << 30, 5, 1.0
FILES, FILE_BYTES = 2000, 100 * KIB
MANY, MANY_BYTES = 1000, 2 * MIB
HEAD_STEPS: Final = 50
Figures = dict[str, float]


class Bench:
    """One stack, and an empty near side for each measurement."""

    def __init__(self, stack: Stack, work: Path, *, steps: int, cut_s: float) -> None:
        """cut_s: for how long one order of reads goes on at most."""
        self._stack, self._work, self._steps, self._cut_s = stack, work, steps, cut_s
        self._turn = 0

    def near(self, way: str, *, prefetch: bool = True) -> Any:
        self._turn += 1
        os.sync()  # nobody pays for what the one before has left to be written
        folder = self._work / f"{way}-{self._turn}"
        return near_side(way, self._stack, folder, self._work / "native", prefetch=prefetch)

    def fetched(self, near: Near, read: Callable[[], tuple[float, int]]) -> Figures:
        """read: returns seconds and bytes. wan_of_read: bytes that crossed for each byte read, by
        the emulator, which counts what TCP sends again (much, where cores are short);
        received_of_read: the same by the spoke's own sockets."""
        touch_memory(TOUCHED)
        before = self._stack.wan.counters().to_spoke_bytes, _received(near)
        seconds, size = read()
        after = self._stack.wan.counters().to_spoke_bytes, _received(near)
        figures = {
            "mb_per_s": size / seconds / 1e6,
            "wan_of_read": (after[0] - before[0]) / size,
        }
        if near.spoke is not None:
            figures["received_of_read"] = (after[1] - before[1]) / size
        return figures

    def sequential(self, way: str) -> Figures:
        with self.near(way) as near:
            path = near.bucket / "medium" / "object"
            read_file(path)
            disk = self._from_drive(near, path, "1M")
            memory = _with_cpu(near, lambda: fio(path, rw="read", block="1M", loops=4))
            return _prefixed(disk=disk, memory=memory)

    def _from_drive(self, near: Near, path: Path, block: str, **more: int) -> Figures:
        """Medians of reads of what is on the drive only. of_beside: against a copy of the file on
        the same drive, read in between; seconds later the drive is another."""
        beside = self._work / "native" / "medium" / "object"
        reads = []
        for _ in range(DRIVE_READS):
            _given_up(near, beside)
            there = fio(beside, rw="read", block=block)["mb_per_s"]
            _given_up(near, path, **more)
            read = _with_cpu(near, lambda: fio(path, rw="read", block=block, **more))
            reads.append({**read, "of_beside": read["mb_per_s"] / there})
        return {key: median([each[key] for each in reads]) for key in reads[0]}

    def random(self, way: str) -> Figures:
        with self.near(way) as near:
            path = near.bucket / "medium" / "object"
            read_file(path)
            near.drop(path)
            disk = fio(path, rw="randread", block="4k", size=128 * MIB, seconds=4)
            read_file(path)
            memory = fio(path, rw="randread", block="4k", size=512 * MIB, seconds=4)
            return _prefixed(disk=disk, memory=memory)

    def partial(self, way: str) -> Figures:
        # Without prefetch: it would complete the file.
        with self.near(way, prefetch=False) as near:
            path = near.bucket / "partial" / "object"
            if near.spoke is None:
                read_start(path, MEDIUM)
            else:  # by its S3 door, many round trips at a time
                connection = KeptConnection(near.spoke.data)
                connection.get("/data/partial/object", 0, MEDIUM)
                connection.close()
            disk = self._from_drive(near, path, "1M", size=MEDIUM)
            memory = _with_cpu(near, lambda: fio(path, rw="read", block="1M", size=MEDIUM, loops=4))
            return _prefixed(disk=disk, memory=memory)

    def cold(self, way: str) -> Figures:
        with self.near(way) as near:
            path, cpu = near.bucket / "large" / "object", near.cpu_seconds()
            figures = self.fetched(
                near, lambda: read_records(path, range(LARGE // MIB), MIB, self._cut_s)
            )
            return {**figures, "cpu_s": near.cpu_seconds() - cpu}

    def strided(self, way: str) -> Figures:
        with self.near(way) as near:
            path = near.bucket / "medium" / "object"
            return self.fetched(near, lambda: read_strided(path, 256 * KIB, 4, self._cut_s))

    def window(self, way: str) -> Figures:
        record, window = 128 * KIB, 2 * MIB
        per_window, rng = window // record, random.Random(7)
        in_order = list(range(MEDIUM // record))
        shuffled = [
            i for first in range(0, len(in_order), per_window)
            for i in rng.sample(in_order[first : first + per_window], per_window)
        ]  # fmt: skip
        parts = {}
        for name, order in (("in_order", in_order), ("shuffled", shuffled)):
            with self.near(way) as near:
                path = near.bucket / "medium" / "object"
                parts[name] = self.fetched(
                    near, partial(read_records, path, order, record, self._cut_s)
                )
        ratio = parts["shuffled"]["mb_per_s"] / parts["in_order"]["mb_per_s"]
        return {**_prefixed(**parts), "shuffled_of_in_order": ratio}

    def small(self, way: str) -> Figures:
        with self.near(way) as near:
            folder = near.bucket / "small"
            if way == "native":
                near.drop()
            started = time.perf_counter()
            subprocess.run(["ls", "-l", folder], stdout=subprocess.DEVNULL, check=True, timeout=120)
            listed = time.perf_counter() - started
            paths = [folder / f"{i:06}.jpg" for i in range(FILES)]
            cold, read = read_files(paths, FILE_BYTES, self._cut_s)
            near.drop(*paths[:read])
            drive, _ = read_files(paths[:read], FILE_BYTES, self._cut_s)
            again, _ = read_files(paths[:read], FILE_BYTES, self._cut_s)
            return {
                "ls_s": listed,
                "cold_files_per_s": cold,
                "drive_files_per_s": drive,
                "again_files_per_s": again,
            }

    def many(self, way: str) -> Figures:
        figures = {}
        for name, threads in (("sequence", 1), ("parallel", 40)):
            with self.near(way) as near:
                paths = [near.bucket / "many" / f"{i:04}" for i in range(MANY)]
                read = read_open_files(paths, threads, self._cut_s)
                figures[f"{name}_mb_per_s"] = read.size / read.seconds / 1e6
                figures[f"{name}_longest_s"] = read.longest_s
                figures[f"{name}_of_all"] = read.size / (MANY * MANY_BYTES)
                figures[f"{name}_peak_mib"] = near.peak_mib()
        return figures

    def job(self, way: str) -> Figures:
        return self._job(way, "job", ranks=4, per_rank=6, workers=2, steps=self._steps)

    def batches(self, way: str) -> Figures:
        return self._job(way, "batches", ranks=1, per_rank=1, workers=2, steps=256)

    def _job(self, way: str, name: str, **shape: Any) -> Figures:
        figures = {}
        with self.near(way) as near:
            for state in ("cold", "warm"):
                result = run_job(
                    JobConfig(
                        name=name, dataset=self._work / "store" / "data" / name,
                        source=str(near.bucket / name), **shape,
                    )
                )  # fmt: skip
                if result.wrong_bytes:
                    raise ConnectionError(f"{way} {name} {state}: {result.wrong_bytes} wrong bytes")
                head = [w for w in result.windows if w.end_step <= HEAD_STEPS]
                rest = [w for w in result.windows if w.first_step >= HEAD_STEPS]
                figures[f"{state}_first_{HEAD_STEPS}"] = _utilisation(head)
                figures[f"{state}_after"] = _utilisation(rest)
                figures[f"{state}_first_wait_s"] = result.first_wait_seconds
        return figures


def _given_up(near: Near, path: Path, **more: int) -> None:
    """Read a file and forget its pages: the next to read it gets their memory at once."""
    fio(path, rw="read", block="1M", **more)
    near.drop(path)


def _received(near: Near) -> int:
    return 0 if near.spoke is None else int(near.spoke.ask("/v1/report")["wan"]["received_bytes"])


def _utilisation(spans: Iterable[Any]) -> float:
    spans = list(spans)
    compute = sum(s.compute_seconds for s in spans)
    waited = sum(s.wait_seconds for s in spans)
    return float(compute / (compute + waited))


def _with_cpu(near: Near, work: Callable[[], Figures]) -> Figures:
    """cpu_s_per_gib: beyond what the server takes when nobody reads."""
    before, began = near.cpu_seconds(), time.perf_counter()
    figures = work()
    took, used = time.perf_counter() - began, near.cpu_seconds() - before
    before = near.cpu_seconds()
    time.sleep(IDLE_S)
    used = max(0.0, used - (near.cpu_seconds() - before) * took / IDLE_S)
    return {**figures, "cpu_s_per_gib": used / figures["bytes"] * GIB}


def _prefixed(**parts: Figures) -> Figures:
    return {
        f"{part}_{name}": value
        for part, figures in parts.items()
        for name, value in figures.items()
        if name != "bytes"
    }


MEASURES: Final = (
    "sequential", "random", "partial", "cold", "strided", "window", "small", "job", "batches",
    "many",
)  # fmt: skip
_NATIVE: Final = {"sequential", "random", "small", "job", "batches"}  # that a local copy can do
# What the first figure of a measure is, of which ratios are made; True: more is better.
_HEADLINES: Final = {
    "sequential": ("disk_mb_per_s", "memory_mb_per_s"),
    "random": ("disk_ops_per_s", "memory_ops_per_s"),
    "partial": ("disk_mb_per_s", "memory_mb_per_s"),
    "cold": ("mb_per_s",),
    "strided": ("mb_per_s",),
    "window": ("shuffled_mb_per_s",),
    "many": ("sequence_mb_per_s", "parallel_mb_per_s"),
    "small": ("cold_files_per_s", "drive_files_per_s", "again_files_per_s"),
    "job": (f"cold_first_{HEAD_STEPS}", "cold_after", f"warm_first_{HEAD_STEPS}", "warm_after"),
    "batches": (f"cold_first_{HEAD_STEPS}", "cold_after", f"warm_first_{HEAD_STEPS}", "warm_after"),
}


def build(work: Path, measures: Sequence[str], steps: int) -> None:
    """The objects that the measures read, and copies for native."""
    bucket, native = work / "store" / "data", work / "native"
    bucket.mkdir(parents=True)
    native.mkdir()
    wanted = set(measures)
    if wanted & {"sequential", "random", "strided", "window", "partial"}:
        _random_file(bucket / "medium" / "object", MEDIUM)
        shutil.copytree(bucket / "medium", native / "medium")
    if "partial" in wanted:
        _random_file(bucket / "partial" / "object", PARTIAL)
    if "cold" in wanted:
        _random_file(bucket / "large" / "object", LARGE)
    if "small" in wanted:
        (bucket / "small").mkdir()
        for i in range(FILES):
            (bucket / "small" / f"{i:06}.jpg").write_bytes(os.urandom(FILE_BYTES))
        shutil.copytree(bucket / "small", native / "small")
    if "many" in wanted:
        (bucket / "many").mkdir()
        for i in range(MANY):
            (bucket / "many" / f"{i:04}").write_bytes(os.urandom(MANY_BYTES))
    for name, config in (
        ("job", DatasetConfig(sequences=steps * 24)),
        ("batches", DatasetConfig(sequences=256, sequence_tokens=MIB, files=1)),
    ):
        if name in wanted:
            build_dataset(bucket / name, config)
            shutil.copytree(bucket / name, native / name)


def _random_file(path: Path, size: int) -> None:
    """In a folder of its own, so that no object announces the next one."""
    path.parent.mkdir()
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))


def measure(a: argparse.Namespace, work: Path) -> dict[str, Any]:
    (work / "logs").mkdir()
    build(work, a.measures, a.steps)
    wan = WanConfig(a.wan, a.rtt_ms, congestion=a.congestion)
    results: dict[str, Any] = {}
    with Stack(work / "store", work=work, logs=work / "logs", wan=wan) as stack:
        bench = Bench(stack, work, steps=a.steps, cut_s=a.cut)
        for name in a.measures:
            ways = [w for w in a.ways if w != "native" or name in _NATIVE]
            turns: list[dict[str, Figures]] = []
            for turn in range(a.runs):
                turns.append({way: getattr(bench, name)(way) for way in ways})
                key = _HEADLINES[name][0]
                shown = {way: f"{figures[key]:.4g}" for way, figures in turns[-1].items()}
                print(
                    f"{name} {turn + 1}/{a.runs} load {load():.1f} {key}: {shown}", file=sys.stderr
                )
            results[name] = _summary(name, turns)
        named = stack.wan.name
    return {
        "schema": 1,
        "kind": "mount",
        "wan": named,
        "cores": os.cpu_count(),
        "runs": a.runs,
        "measures": results,
    }


def _summary(name: str, turns: list[dict[str, Figures]]) -> dict[str, Any]:
    ways = list(turns[0])
    medians = {
        way: {key: median([t[way][key] for t in turns]) for key in turns[0][way]} for way in ways
    }
    ratios = {}
    peers = [way for way in ways if way in PEERS]
    for ours in (way for way in ways if way in OURS):
        for key in _HEADLINES[name]:
            if "native" in ways:
                of = [t[ours][key] / t["native"][key] for t in turns]
                ratios[f"{ours} {key} of native"] = median(of)
            if peers:
                of = [t[ours][key] / max(t[p][key] for p in peers) for t in turns]
                ratios[f"{ours} {key} of best peer"] = median(of)
    return {"medians": medians, "ratios": ratios, "turns": turns}


def main() -> int:
    p = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("measures", nargs="+", choices=MEASURES, metavar="MEASURE", help="see above")
    p.add_argument("--runs", type=int, default=3, metavar="N", help="turns")
    p.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="side by side")
    p.add_argument("--steps", type=int, default=250, metavar="N", help="of job")
    p.add_argument("--cut", type=float, default=15.0, metavar="S", help="reads end then")
    p.add_argument("--wan", choices=("relay", "tun"), default="tun", help="tun needs root")
    p.add_argument("--rtt-ms", type=float, default=60.0, metavar="MS", help="round trip")
    p.add_argument("--congestion", metavar="NAME", help="the hub's, with tun: cubic, bbr")
    p.add_argument("--work", type=Path, metavar="DIR", help="where objects and caches lie")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = p.parse_args()
    if a.runs < 1 or a.steps <= HEAD_STEPS:
        p.error(f"--runs {a.runs} --steps {a.steps}: expected at least 1 and {HEAD_STEPS + 1}")
    try:
        with tempfile.TemporaryDirectory(prefix="hubspoke-mount-", dir=a.work) as temporary:
            document = measure(a, Path(temporary))
    except HubSpokeError as e:
        print(f"bench/mount.py: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    if a.json:
        print(json.dumps(document, indent=1))
        return 0
    print(f"mount; WAN: {document['wan']}; medians of {a.runs}")
    for name, result in document["measures"].items():
        print(name)
        for way, figures in result["medians"].items():
            print(f"  {way:7} " + "  ".join(f"{k}={v:.4g}" for k, v in figures.items()))
        for ratio, value in result["ratios"].items():
            print(f"  {ratio}: {value:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
