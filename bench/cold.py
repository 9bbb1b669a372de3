"""Cold sequential reads over the WAN, side by side with rclone and with the ceiling of the path.

    python bench/cold.py [--mib 512] [--runs 3] [--wan tun] [--only spoke rclone ceiling]

One plain client reads one object that the near side has never seen, in turns:
- spoke: GET on one connection through a spoke with an empty cache;
- rclone: a file of `rclone mount --vfs-read-chunk-streams 16` with an empty cache;
- ceiling: 32 threads with raw sockets pull 4 MiB ranges into memory and do nothing else.
All three read the hub's own S3 door or protocol over the same WAN; the object is random, so that
nothing compresses, and lies in the hub's page cache. Then the first byte on kept connections, of
objects not yet seen. Medians, ratios inside each turn, JSON with --json.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers import (
    GIB,
    KeptConnection,
    cpu_seconds,
    fetch_ceiling,
    load,
    median,
    rclone_mount,
    read_file,
)
from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.lab.stack import Service, Stack, WanConfig

WAYS = ("spoke", "rclone", "ceiling")
FIRST_BYTES = 20  # objects whose first byte is timed
SMALL_BYTES = 4 << 20


class Bench:
    """One stack, one large object, and an empty near side for each turn."""

    def __init__(self, stack: Stack, work: Path, size: int) -> None:
        self._stack = stack
        self._work = work
        self._size = size
        self._turn = 0

    def _folder(self, name: str) -> Path:
        self._turn += 1
        folder = self._work / f"{name}-{self._turn}"
        folder.mkdir()
        return folder

    @contextmanager
    def fresh_spoke(self) -> Iterator[Service]:
        cache = self._folder("cache")
        try:
            with self._stack.spoke(f"spoke-{self._turn}", cache) as spoke:
                yield spoke
        finally:
            shutil.rmtree(cache)

    def spoke(self) -> dict[str, float]:
        with self.fresh_spoke() as spoke:
            connection = KeptConnection(spoke.data)
            figures = self._timed(
                spoke.process.pid, lambda: connection.get("/data/large")[1], hub=True
            )
            connection.close()
            return figures

    def rclone(self) -> dict[str, float]:
        with rclone_mount(self._stack.wan.spoke_url, self._folder("rclone")) as (at, pid):
            return self._timed(pid, lambda: read_file(at / "large"))

    def ceiling(self) -> dict[str, float]:
        host, port = self._stack.wan.spoke_url.removeprefix("http://").split(":")
        took = fetch_ceiling(host, int(port), "/data/large", self._size, connections=32)
        return {"mb_per_s": self._size / took / 1e6}

    def _timed(self, pid: int, read: Callable[[], int], *, hub: bool = False) -> dict[str, float]:
        pids = {"cpu_s_per_gib": pid}
        if hub:
            pids["hub_cpu_s_per_gib"] = self._stack.hub.process.pid
        wan_before = self._stack.wan.counters().to_spoke_bytes
        before = {name: cpu_seconds(p) for name, p in pids.items()}
        started = time.perf_counter()
        got = read()
        took = time.perf_counter() - started
        if got != self._size:
            raise ConnectionError(f"{got} of {self._size} bytes")
        used = {n: (cpu_seconds(p) - before[n]) / got * GIB for n, p in pids.items()}
        wan = self._stack.wan.counters().to_spoke_bytes - wan_before
        return {"mb_per_s": got / took / 1e6, **used, "wan_of_read": wan / got}

    def first_bytes(self) -> dict[str, float]:
        """Milliseconds to the first byte of GETs of objects not yet seen, one after another."""
        ranged, whole = [], []
        with self.fresh_spoke() as spoke:
            connection = KeptConnection(spoke.data)
            for i in range(2 * FIRST_BYTES):
                time.sleep(0.1)
                # In folders of their own, so that no object announces the next one.
                path = f"/data/{i}/object"
                if i % 2:
                    ranged.append(connection.get(path, SMALL_BYTES // 2, 4096)[0])
                else:
                    whole.append(connection.get(path)[0])
            connection.close()
        return {
            "first_byte_4k_ms_p50": median(ranged) * 1e3,
            "first_byte_4k_ms_max": max(ranged) * 1e3,
            "first_byte_whole_ms_p50": median(whole) * 1e3,
            "first_byte_whole_ms_max": max(whole) * 1e3,
        }


def build(store: Path, size: int) -> None:
    """`large`, and small objects in a folder each."""
    bucket = store / "data"
    bucket.mkdir(parents=True)
    with (bucket / "large").open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
    for i in range(2 * FIRST_BYTES):
        (bucket / str(i)).mkdir()
        (bucket / str(i) / "object").write_bytes(os.urandom(SMALL_BYTES))


def measure(a: argparse.Namespace, work: Path) -> dict[str, Any]:
    (work / "logs").mkdir()
    size = a.mib << 20
    build(work / "store", size)
    turns: list[dict[str, dict[str, float]]] = []
    loads = []
    wan = WanConfig(a.wan, a.rtt_ms, a.rate_mbit, a.congestion)
    with Stack(work / "store", work=work, logs=work / "logs", wan=wan) as stack:
        bench = Bench(stack, work, size)
        for turn in range(a.runs):
            loads.append(load())
            turns.append({})
            for name in a.only:
                # Nobody pays for what the one before has left to be written to the disk.
                os.sync()
                turns[-1][name] = getattr(bench, name)()
            shown = {n: f"{f['mb_per_s']:.0f} MB/s" for n, f in turns[-1].items()}
            print(f"turn {turn + 1} of {a.runs}, load {loads[-1]:.1f}: {shown}", file=sys.stderr)
        first = bench.first_bytes() if "spoke" in a.only else {}
        name = stack.wan.name
    figures = {
        way: {key: median([t[way][key] for t in turns]) for key in turns[0][way]} for way in a.only
    }
    ratios = {
        f"spoke_of_{other}": median([t["spoke"]["mb_per_s"] / t[other]["mb_per_s"] for t in turns])
        for other in a.only
        if other != "spoke" and "spoke" in a.only
    }
    return {
        "schema": 1,
        "kind": "cold",
        "wan": name,
        "mib": a.mib,
        "cores": os.cpu_count(),
        "load": loads,
        "medians": figures,
        "ratios": ratios,
        "first_byte": first,
        "turns": turns,
    }


def main() -> int:
    p = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--mib", type=int, default=2048, metavar="N", help="size of the object")
    p.add_argument("--runs", type=int, default=3, metavar="N", help="turns")
    p.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="ways")
    p.add_argument("--wan", choices=("relay", "tun"), default="tun", help="tun needs root")
    p.add_argument("--rtt-ms", type=float, default=60.0, metavar="MS", help="round trip")
    p.add_argument("--rate-mbit", type=float, default=0.0, metavar="R", help="0: no cap")
    p.add_argument("--congestion", metavar="NAME", help="the hub's, with tun: cubic, bbr")
    p.add_argument("--work", type=Path, metavar="DIR", help="where object and caches lie")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = p.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hubspoke-cold-", dir=a.work) as temporary:
            document = measure(a, Path(temporary))
    except HubSpokeError as e:
        print(f"bench/cold.py: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    if a.json:
        print(json.dumps(document, indent=1))
        return 0
    print(f"cold {a.mib} MiB; WAN: {document['wan']}; medians of {a.runs}")
    for way, figures in document["medians"].items():
        print(f"  {way:8} " + "  ".join(f"{k}={v:.4g}" for k, v in figures.items()))
    for name, value in {**document["ratios"], **document["first_byte"]}.items():
        print(f"  {name} {value:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
