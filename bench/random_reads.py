"""Random reads over a cold object: what crosses the WAN for what was asked, and how long it takes.

    python bench/random_reads.py [--reads 200] [--read-kib 256] [--wan tun]

One reader takes ranges of an object in a random order without repeats, one after another, through
a spoke with an empty cache: once of random bytes, which nothing can pack, and once of text-like
bytes that travel compressed. Counted are payload bytes of the protocol before and after packing,
and all bytes of the WAN, each against the pages that were asked for. JSON with --json.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.peers import KeptConnection, load
from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.lab.stack import Stack, WanConfig

OBJECT_BYTES = 1 << 30
PAGE_BYTES = 4096
WORDS = [b"region", b"shard", b"token", b"epoch", b"of", b"the", b"a", b"cache", b"page", b"and"]


def build(bucket: Path) -> None:
    """Two objects that share no bytes: one that packs and one that does not."""
    bucket.mkdir(parents=True)
    rng = random.Random(1)
    with (bucket / "random").open("wb") as file:
        for _ in range(OBJECT_BYTES >> 20):
            file.write(os.urandom(1 << 20))
    with (bucket / "text").open("wb") as file:
        for _ in range(OBJECT_BYTES >> 20):
            words = b" ".join(rng.choices(WORDS, k=8192))
            file.write((words * (1 + (1 << 20) // len(words)))[: 1 << 20])


def one(stack: Stack, cache: Path, name: str, a: argparse.Namespace) -> dict[str, float]:
    """All reads of one object on one kept connection."""
    size = a.read_kib << 10
    order = list(range(OBJECT_BYTES // size))
    random.Random(a.seed).shuffle(order)
    took: list[float] = []
    with stack.spoke(f"spoke-{name}", cache) as spoke:
        connection = KeptConnection(spoke.data)
        stats = spoke.ask("/v1/report")
        before = stack.wan.counters().to_spoke_bytes
        for index in order[: a.reads]:
            started = time.perf_counter()
            connection.get(f"/data/{name}", index * size, size)
            took.append(time.perf_counter() - started)
        connection.close()
        time.sleep(0.5)  # what is still on its way counts too
        wan = stack.wan.counters().to_spoke_bytes - before
        after = spoke.ask("/v1/report")
    asked = a.reads * -(-size // PAGE_BYTES) * PAGE_BYTES
    took.sort()
    payload = after["wan"]["payload_bytes"] - stats["wan"]["payload_bytes"]
    ratio = after["wan"]["compression_ratio"]
    return {
        "payload_of_asked": payload / asked,
        "packed_of_asked": payload / asked / ratio,
        "wan_of_asked": wan / asked,
        "p50_ms": took[len(took) // 2] * 1e3,
        "p99_ms": took[len(took) * 99 // 100] * 1e3,
    }


def measure(a: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Both objects."""
    (work / "logs").mkdir()
    build(work / "store" / "data")
    wan = WanConfig(a.wan, a.rtt_ms, a.rate_mbit)
    with Stack(work / "store", work=work, logs=work / "logs", wan=wan) as stack:
        figures = {name: one(stack, work / f"cache-{name}", name, a) for name in ("random", "text")}
        path = stack.wan.name
    return {
        "schema": 1,
        "kind": "random_reads",
        "wan": path,
        "reads": a.reads,
        "read_kib": a.read_kib,
        "load": load(),
        "figures": figures,
    }


def main() -> int:
    p = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--reads", type=int, default=200, metavar="N", help="ranges of each object")
    p.add_argument("--read-kib", type=int, default=256, metavar="N", help="size of a range")
    p.add_argument("--seed", type=int, default=7, metavar="N", help="of the order")
    p.add_argument("--wan", choices=("relay", "tun"), default="tun", help="tun needs root")
    p.add_argument("--rtt-ms", type=float, default=60.0, metavar="MS", help="round trip")
    p.add_argument("--rate-mbit", type=float, default=0.0, metavar="R", help="0: no cap")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = p.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hubspoke-random-") as temporary:
            document = measure(a, Path(temporary))
    except HubSpokeError as e:
        print(f"bench/random_reads.py: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    if a.json:
        print(json.dumps(document, indent=1))
        return 0
    print(f"{a.reads} random reads of {a.read_kib} KiB; WAN: {document['wan']}")
    for name, figures in document["figures"].items():
        print(f"  {name:7}" + "  ".join(f"{k}={v:.4g}" for k, v in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
