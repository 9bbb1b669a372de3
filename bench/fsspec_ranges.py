"""A thousand cold ranges through fsspec in one call, and the same call of s3fs at the same spoke.

    python bench/fsspec_ranges.py [--ranges 1000] [--range-kib 4] [--runs 3] [--wan tun]

Each reader in turn takes ranges of an object that nobody read before, through a new spoke with an
empty cache: `cat_ranges` of `hubspoke://` (one request), then of s3fs (a GET each). Beside the
time stands what the path needs for so many bytes: the same number read in one piece on a kept
connection, once through a new spoke too, whose connections to the hub are in slow start (the cold
piece), and once behind the s3fs reads, which have opened their windows (the warm piece). CPU times
are those of the one call, of all threads, until it returns. s3fs comes from a virtual environment
of its own (.venvs/s3fs); --without-s3fs leaves it and the warm piece out.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.peers import KeptConnection, load
from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.frontends.fsspec import HubSpokeFileSystem
from hubspoke.lab.stack import Service, Stack, WanConfig
from tests.clients.environments import environment

OBJECT_BYTES = 1 << 28
S3FS = textwrap.dedent("""
    import json, sys, time
    import s3fs

    url, path, starts, length = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    fs = s3fs.S3FileSystem(key="any", secret="any", client_kwargs={"endpoint_url": url})
    fs.cat_file("data/small")
    began = time.perf_counter()
    found = fs.cat_ranges([path] * len(starts), starts, [s + length for s in starts])
    took = time.perf_counter() - began
    assert [len(f) for f in found] == [length] * len(starts), found[:3]
    print(took)
""")


def cpu_ms(service: Service) -> float:
    """Used so far by all threads of the process."""
    tasks = Path(f"/proc/{service.process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e6


def ours(spoke: Service, path: str, starts: list[int], length: int) -> float:
    fs = HubSpokeFileSystem(f"http://{spoke.data}", skip_instance_cache=True)
    fs.cat_file("data/small")
    began = time.perf_counter()
    found = fs.cat_ranges([path] * len(starts), starts, [s + length for s in starts])
    took = time.perf_counter() - began
    assert [len(f) for f in found] == [length] * len(starts), found[:3]
    return took


def theirs(spoke: Service, path: str, starts: list[int], length: int) -> float:
    python = environment("s3fs", "s3fs", "numpy") / "python"
    url = f"http://{spoke.data}"
    command = [str(python), "-c", S3FS, url, path, json.dumps(starts), str(length)]
    return float(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)


def one_piece(spoke: Service, path: str, length: int) -> float:
    connection = KeptConnection(spoke.data)
    connection.get("/data/small")
    began = time.perf_counter()
    connection.get("/" + path, 0, length)
    took = time.perf_counter() - began
    connection.close()
    return took


def measure(a: argparse.Namespace, work: Path) -> dict[str, Any]:
    (work / "logs").mkdir()
    bucket = work / "store" / "data"
    bucket.mkdir(parents=True)
    (bucket / "small").write_bytes(b"x")
    (work / "store" / "apart").mkdir()
    for name in ("data/ours", "data/theirs", "apart/piece"):  # a neighbour would be brought ahead
        with (work / "store" / name).open("wb") as file:
            for _ in range(OBJECT_BYTES >> 20):
                file.write(os.urandom(1 << 20))
    length = a.range_kib << 10
    rng = random.Random(7)
    found: dict[str, list[float]] = defaultdict(list)
    with Stack(work / "store", work=work, logs=work / "logs", wan=WanConfig(a.wan)) as stack:
        for run in range(a.runs):
            places = rng.sample(range(OBJECT_BYTES // length), a.ranges)
            starts = [place * length for place in places]
            with stack.spoke(f"piece-{run}", work / f"piece-{run}") as spoke:
                found["cold_piece_s"].append(one_piece(spoke, "apart/piece", a.ranges * length))
            with stack.spoke(f"spoke-{run}", work / f"cache-{run}") as spoke:
                before = spoke.ask("/v1/report")["wan"]["payload_bytes"]
                used = cpu_ms(spoke), cpu_ms(stack.hub), 1e3 * time.process_time()
                found["hubspoke_s"].append(ours(spoke, "data/ours", starts, length))
                now = cpu_ms(spoke), cpu_ms(stack.hub), 1e3 * time.process_time()
                for name, a_ms, b_ms in zip(("spoke", "hub", "client"), used, now, strict=True):
                    found[f"{name}_cpu_ms"].append(b_ms - a_ms)
                after = spoke.ask("/v1/report")["wan"]["payload_bytes"]
                found["payload_of_asked"].append((after - before) / (a.ranges * length))
                if not a.without_s3fs:
                    found["s3fs_s"].append(theirs(spoke, "data/theirs", starts, length))
                    found["warm_piece_s"].append(one_piece(spoke, "apart/piece", a.ranges * length))
        path, rtt_s = stack.wan.name, stack.rtt_s
    figures = {name: statistics.median(values) for name, values in found.items()}
    beyond_s = figures["hubspoke_s"] - figures["cold_piece_s"]
    figures["round_trips_beyond_cold_piece"] = beyond_s / rtt_s
    return {
        "schema": 1,
        "kind": "fsspec_ranges",
        "wan": path,
        "ranges": a.ranges,
        "range_kib": a.range_kib,
        "load": load(),
        "figures": figures,
    }


def main() -> int:
    p = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--ranges", type=int, default=1000, metavar="N", help="in one call")
    p.add_argument("--range-kib", type=int, default=4, metavar="N", help="size of a range")
    p.add_argument("--runs", type=int, default=3, metavar="N", help="turns")
    p.add_argument("--wan", choices=("relay", "tun"), default="tun", help="tun needs root")
    p.add_argument("--without-s3fs", action="store_true", help="leave it and the warm piece out")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = p.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hubspoke-ranges-") as temporary:
            document = measure(a, Path(temporary))
    except HubSpokeError as e:
        print(f"bench/fsspec_ranges.py: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    if a.json:
        print(json.dumps(document, indent=1))
        return 0
    print(f"{a.ranges} cold ranges of {a.range_kib} KiB; WAN: {document['wan']}")
    print("  " + "  ".join(f"{k}={v:.4g}" for k, v in document["figures"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
