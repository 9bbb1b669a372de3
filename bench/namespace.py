"""A namespace of many names: loading, looking up, listing, and a snapshot through the WAN.

    python bench/namespace.py [--objects 200000] [--rtt-ms 60]

Names look like samples of a data set. Prints one figure a line; the folder is a temporary one.
"""

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectEntry, ObjectName, StoredObject, Version
from hubspoke.core.noticed import Part
from hubspoke.hub.tuning import HubTuning
from hubspoke.lab.wan import RelayWan
from tests.hub_bench import HubBench, running_spoke

BATCH = 2000


class ManyObjects(MemoryObjectStore):
    """Lists names that it makes up, all of them always; holds no bytes."""

    def __init__(self, count: int) -> None:
        super().__init__(["data"])
        self._count = count

    async def scan(self, part: Part | None = None) -> AsyncIterator[list[StoredObject]]:
        for start in range(0, self._count, BATCH):
            yield [
                (
                    ObjectName("data", f"train/shard-{i // 1000:05}/sample-{i:08}.bin"),
                    ObjectEntry(Version(f"v{i:x}"), 4096 + i, f"{i:032x}", 1_700_000_000 << 30),
                )
                for i in range(start, min(start + BATCH, self._count))
            ]


def show(what: str, value: float, unit: str) -> None:
    print(f"{what:<46} {value:>12,.2f} {unit}", flush=True)


async def measure(args: argparse.Namespace, state: Path) -> None:
    n = args.objects
    hub = HubBench(state / "hub", ManyObjects(n), HubTuning())
    before = time.perf_counter()
    await hub.start()
    show(f"first index of {n:,} names", time.perf_counter() - before, "s")
    wan = RelayWan.start(urlsplit(hub.url).port or 0, rtt_ms=args.rtt_ms)
    before = time.perf_counter()
    async with running_spoke(wan.spoke_url, state / "spoke") as spoke:
        async with asyncio.timeout(600):
            while spoke.follower.lease_state() != "valid":  # noqa: ASYNC110 - a figure, to 10 ms
                await asyncio.sleep(0.01)
        show(f"snapshot to a spoke, {args.rtt_ms:.0f} ms", time.perf_counter() - before, "s")
        assert len(spoke.namespace) == n
        pages, after = [], ""
        for _ in range(min(200, n // 1000)):
            before = time.perf_counter()
            page = spoke.namespace.scan("data", after=after, limit=1000)
            pages.append((time.perf_counter() - before) * 1e3)
            after = page[-1].name.key
        show("page of 1,000 keys, median", statistics.median(pages), "ms")
        show("page of 1,000 keys, worst", max(pages), "ms")
        names = [
            ObjectName("data", f"train/shard-{i // 1000:05}/sample-{i:08}.bin")
            for i in range(0, n, max(1, n // 20_000))
        ]
        before = time.perf_counter()
        for name in names:
            assert spoke.namespace.get(name) is not None
        show("lookup", (time.perf_counter() - before) / len(names) * 1e6, "us")
    before = time.perf_counter()
    async with running_spoke(wan.spoke_url, state / "spoke") as spoke:
        await spoke.fresh()
        show("restart of the spoke until its lease", time.perf_counter() - before, "s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    show("peak memory of this process, hub and spoke", peak, "MiB")
    wan.close()
    await hub.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--rtt-ms", type=float, default=60.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as d:
        uvloop.run(measure(args, Path(d)))


if __name__ == "__main__":
    main()
