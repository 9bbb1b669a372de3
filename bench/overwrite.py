"""What an acknowledged overwrite costs with spokes behind a 60 ms WAN, and whether any reads stale.

    python bench/overwrite.py [--rounds 500] [--names 64] [--parallel 8] [--spokes 2] [--rtt-ms 60]

Hub and followers in one process, each follower through the relay (hubspoke.lab.relay). After each
acknowledgement every spoke is asked for the name as a door would; an older version is a stale
read. Prints percentiles of the time from the call to the acknowledgement, in milliseconds.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectName
from hubspoke.core.leases import LeaseConfig
from hubspoke.hub.tuning import HubTuning
from hubspoke.lab.wan import RelayWan
from tests.hub_bench import HubBench, SpokeBench, running_spoke


async def is_stale(spoke: SpokeBench, name: ObjectName, version: str) -> bool:
    await spoke.follower.settled(name, spoke.follower._clock.now() + 5)
    assert spoke.follower.admit(name) is None, "no lease"
    return spoke.version(name.key) != version


async def measure(args: argparse.Namespace, state: Path) -> None:
    hub = HubBench(state / "hub", MemoryObjectStore(["bkt"]), HubTuning(lease=LeaseConfig()))
    await hub.start()
    wan = RelayWan.start(urlsplit(hub.url).port or 0, rtt_ms=args.rtt_ms)
    took: list[float] = []
    stale = 0
    async with AsyncExitStack() as stack:
        spokes = [
            await stack.enter_async_context(
                running_spoke(wan.spoke_url, state / f"s{i}", spoke_id=f"s{i}", lease=LeaseConfig())
            )
            for i in range(args.spokes)
        ]
        for spoke in spokes:
            await spoke.fresh()
        await hub.put("warm", b"x")
        numbers = iter(range(args.rounds))

        async def write(worker: int) -> None:
            nonlocal stale
            for n in numbers:
                # Each worker has names of its own, so that a later overwrite is never "stale".
                key = f"k{worker}-{n % max(1, args.names // args.parallel)}"
                before = time.perf_counter()
                entry = await hub.put(key, b"%08d" % n)
                took.append((time.perf_counter() - before) * 1e3)
                name = ObjectName("bkt", key)
                stale += sum([await is_stale(s, name, entry.version) for s in spokes])

        await asyncio.gather(*(write(w) for w in range(args.parallel)))
    await hub.stop()
    wan.close()
    cuts = statistics.quantiles(took, n=100)
    print(
        f"{args.rounds} overwrites, {args.spokes} spokes, {args.rtt_ms:.0f} ms ({wan.name}):"
        f" p50 {cuts[49]:.1f} p90 {cuts[89]:.1f} p99 {cuts[98]:.1f} max {max(took):.1f} ms,"
        f" {stale} stale reads of {args.rounds * args.spokes}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--names", type=int, default=64)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--spokes", type=int, default=2)
    parser.add_argument("--rtt-ms", type=float, default=60.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as d:
        uvloop.run(measure(args, Path(d)))


if __name__ == "__main__":
    main()
