"""What is recognised and what is left alone: hits, traffic and waste of each way of reading.

    python bench/patterns.py [--only TEXT] [--json]

In the simulator, over 60 ms and 1 GB/s (tests/sim/prediction/patterns.py has the ways). Hits are
counted after the first ten batches, a second; random reads are of a set ten times the cache, and
shown with prediction and without. No order is inferred.
"""

import argparse
import json
import sys
from typing import Any

import numpy as np

from hubspoke.sim.prediction.result import unique_pages
from hubspoke.sim.prediction.run import Options, run_workload
from hubspoke.sim.prediction.world import World
from tests.sim.prediction.patterns import Way, partly_read, recognised, unpredictable

WARM_UP_BATCHES = 10


def way(w: Way) -> dict[str, Any]:
    world = World(w.workload, search_s=None)
    world.run()
    reads = world.recorder.reads()
    later = reads.batches >= WARM_UP_BATCHES
    if w.cold:
        later &= reads.offsets > 0
    unique = unique_pages(reads, np.ones(len(reads.at), dtype=bool)) * 4096
    return {
        "hits": round(float(np.mean(reads.states[later] == 0)), 4),
        "first_batches_hits": round(float(np.mean(reads.states[~later] == 0)), 4),
        "wan_of_unique": round(world.path.delivered / unique, 3),
    }


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--only", default="", metavar="TEXT", help="those with this in their title")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = p.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for w in recognised() + partly_read():
        if a.only in w.workload.title:
            found[w.workload.title] = way(w)
    for workload in unpredictable():
        if a.only in workload.title:
            on, off = (
                run_workload(workload, Options(prefetch=p, search_s=None)) for p in (True, False)
            )
            found[workload.title] = {
                "waste_of_demand": round(on["waste"] * on["egress_bytes"] / off["egress_bytes"], 4),
                "p50_ms": [on["p50_ms"], off["p50_ms"]],
                "p99_ms": [on["p99_ms"], off["p99_ms"]],
            }
    if a.json:
        print(json.dumps({"schema": 1, "kind": "patterns", "ways": found}, indent=1))
        return 0
    for title, figures in found.items():
        print(f"  {title:32}" + "  ".join(f"{k}={v}" for k, v in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
