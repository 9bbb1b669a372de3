"""How long a change made behind the hub's back takes to be seen at a spoke behind a 60 ms WAN.

    python bench/out_of_band.py [--rounds 30] [--rtt-ms 60] [--files 0] [--tree 0]

Hub, relay and spoke are processes. Each round makes every kind of change in the store's folder
and asks the spoke over HTTP, without a pause, until it answers as the folder is. Prints
percentiles in milliseconds by kind, from the call that made the change. --files: how many other
files, 1,000 to a folder, lie in the store. --tree: only the watch of a tree of so many files,
100 to a folder: the time it takes to set up, its memory, and how soon a file is told.
"""

import argparse
import asyncio
import http.client
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from hubspoke.adapters.folder_watch import FolderWatch
from hubspoke.core.noticed import Notice
from hubspoke.lab.stack import Stack, WanConfig

DEADLINE_S = 20.0
Answer = tuple[int, bytes]


class Step(NamedTuple):
    make: Callable[[], object]
    path: str  # to ask the spoke for
    shows: Callable[[Answer], bool]


class Client:
    """One kept connection to a spoke's data port."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(f"//{address}")
        assert parts.hostname and parts.port
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)

    def get(self, path: str) -> Answer:
        self._connection.request("GET", "/" + quote(path))
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def until(self, path: str, wanted: Callable[[Answer], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not wanted(self.get(path)):
            if time.monotonic() > deadline:
                raise SystemExit(f"{path}: not seen within {DEADLINE_S:.0f} s: {self.get(path)}")
            time.sleep(0.001)


def is_body(body: bytes) -> Callable[[Answer], bool]:
    return lambda answer: answer == (200, body)


def is_gone(answer: Answer) -> bool:
    return answer[0] == 404


def changes(root: Path, n: int) -> dict[str, Step]:
    """By kind, to be made in this order."""
    bkt, beside = root / "bkt", root / "beside"
    file = bkt / f"k{n}"
    folder, bucket = bkt / f"d{n}", root / f"bucket{n}"

    def replace() -> None:
        beside.write_bytes(b"two")
        beside.rename(file)

    def append() -> None:
        with file.open("ab") as f:
            f.write(b"+")

    def filled() -> None:
        (folder / "deep").mkdir(parents=True)
        for i in range(10):
            (folder / "deep" / f"f{i}").write_bytes(b"x")

    def new_bucket() -> None:
        bucket.mkdir()
        (bucket / "k").write_bytes(b"x")

    return {
        "create": Step(lambda: file.write_bytes(b"one"), f"bkt/k{n}", is_body(b"one")),
        "overwrite by rename": Step(replace, f"bkt/k{n}", is_body(b"two")),
        "overwrite in place": Step(lambda: file.write_bytes(b"owt"), f"bkt/k{n}", is_body(b"owt")),
        "append": Step(append, f"bkt/k{n}", is_body(b"owt+")),
        "rename": Step(lambda: file.rename(bkt / f"r{n}"), f"bkt/r{n}", is_body(b"owt+")),
        "delete": Step((bkt / f"r{n}").unlink, f"bkt/r{n}", is_gone),
        "mkdir with files": Step(filled, f"bkt/d{n}/deep/f9", is_body(b"x")),
        "new bucket": Step(new_bucket, f"bucket{n}/k", is_body(b"x")),
    }


def fill(root: Path, files: int) -> None:
    for at in range(0, files, 1000):
        folder = root / "bkt" / "others" / f"{at // 1000:05}"
        folder.mkdir(parents=True)
        for i in range(min(1000, files - at)):
            os.mknod(folder / f"{i:04}")


def measure(args: argparse.Namespace, work: Path) -> None:
    root = work / "store"
    (root / "bkt").mkdir(parents=True)
    fill(root, args.files)
    took: dict[str, list[float]] = {}
    wan = WanConfig(kind="relay", rtt_ms=args.rtt_ms)
    with Stack(root, work=work, logs=work, wan=wan) as stack:
        cache = work / "cache"
        with stack.spoke("spoke", cache) as spoke:
            client = Client(spoke.data)
            while (watch := stack.hub.ask("/readyz")["watch"]) != "notifications":
                assert watch == "starting", watch
                time.sleep(0.05)
            # The first change of a hub with a fresh state waits out leases of another one.
            (root / "bkt" / "first").touch()
            client.until("bkt/first", is_body(b""))
            for n in range(args.rounds):
                for kind, (make, path, wanted) in changes(root, n).items():
                    before = time.perf_counter()
                    make()
                    client.until(path, wanted)
                    took.setdefault(kind, []).append((time.perf_counter() - before) * 1e3)
            print("watch:", stack.hub.ask("/v1/status")["watch"])
    took["all"] = [ms for times in took.values() for ms in times]
    for kind, times in took.items():
        cut = statistics.quantiles(times, n=100, method="inclusive")
        shown = f"p50 {cut[49]:7.1f}   p99 {cut[98]:7.1f}   max {max(times):7.1f} ms"
        print(f"{kind:<22} {len(times):>5} changes   {shown}", flush=True)


async def measure_tree(args: argparse.Namespace, work: Path) -> None:
    root = work / "store"
    for at in range(0, args.tree, 100):
        folder = root / "bkt" / f"{at // 10_000:04}" / f"{at // 100 % 100:02}"
        folder.mkdir(parents=True)
        for i in range(min(100, args.tree - at)):
            os.mknod(folder / f"{i:02}")
    got: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(notices: Sequence[Notice]) -> None:
        if not got.done():
            got.set_result(None)

    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = FolderWatch(root)
    before = time.perf_counter()
    fault = await source.start(tell)
    took = time.perf_counter() - before
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss) / 1024
    print(f"{args.tree:,} files: {source.folders:,} folders watched in {took:.2f} s", fault or "")
    print(f"memory of the process grew by {grown:.1f} MiB")
    before = time.perf_counter()
    (root / "bkt" / "0000" / "00" / "new").touch()
    await got
    print(f"one file told after {(time.perf_counter() - before) * 1e3:.1f} ms")
    await source.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rtt-ms", type=float, default=60.0)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--tree", type=int, default=0)
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="out-of-band-"))
    try:
        if args.tree:
            asyncio.run(measure_tree(args, work))
        else:
            measure(args, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
