"""What a sick cache disk costs a reader: latencies beside those of the hub without any cache.

    python -m bench.sick_disk [--rtt-ms 60] [--seconds 15] > sick_disk.json

A real hub behind an emulated WAN, a real spoke whose cache lies on a FUSE file system with faults
on command (tests/faults). Three boto3 clients read 4 KiB to 1 MiB at random and compare every
byte. The same clients first read through the same WAN from the hub itself ("hub"), and from a
spoke with a healthy disk and a cache of 4 MiB, where nearly all misses ("misses"): that is the
hub's latency as a spoke's readers see it. JSON on stdout, a table on stderr. Needs /dev/fuse.
"""

import argparse
import json
import platform
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from hubspoke.lab.wan import RelayWan
from tests.faults.conftest import OBJECTS, faulty_folder, wait_for, why_not
from tests.faults.readers import Readers
from tests.faults.test_sick_disk import PHASES
from tests.processes import get_json, hub, running, spoke

ALLOWED_MS = 100.0  # beyond the hub's own latency, at p99


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt-ms", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase")
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        sys.exit(f"sick_disk: {reason}")
    with tempfile.TemporaryDirectory(prefix="sick-disk-") as base:
        document = measure(Path(base), arguments.rtt_ms, arguments.seconds)
    print(json.dumps(document, indent=2))
    for name, row in document["phases"].items():
        print(f"{name:10} {row}", file=sys.stderr)
    sys.exit(0 if document["passed"] else 1)


def measure(base: Path, rtt_ms: float, seconds: float) -> dict[str, Any]:
    """One run of all phases."""
    store = base / "store" / "data"
    store.mkdir(parents=True)
    for key, body in OBJECTS.items():
        (store / key).write_bytes(body)
    with running(*hub(base / "store", base / "hub-state")) as a_hub:
        a_hub.ready()
        port = int(a_hub.data.rsplit(":", 1)[1])
        with RelayWan.start(port, rtt_ms=rtt_ms) as wan, faulty_folder(base / "faulty") as folder:
            remote = read_for(wan.spoke_url, seconds)
            with running(*spoke(wan.spoke_url, base / "small", "--cache-size", "4MiB")) as process:
                process.ready()
                wait_for(lambda: get_json(process.admin + "/readyz")[0] == 200, 15, "ready")
                misses = read_for(process.data, seconds)
            more = ["--cache-size", "32MiB", "--state", str(base / "state")]
            with running(*spoke(wan.spoke_url, folder.path, *more)) as process:
                process.ready()
                wait_for(lambda: get_json(process.admin + "/readyz")[0] == 200, 15, "ready")
                readers = Readers(process.data, sizes_max=1 << 20)
                seen = phases(readers, folder, process.admin, seconds)
                readers.stop()
    rows = {
        "hub": row(remote, "warm"),
        "misses": row(misses, "warm"),
        **{p: row(readers, p) for p in seen},
    }
    for phase, states in seen.items():
        rows[phase]["states"] = states
    worst = max(rows[p]["p99_ms"] for p in PHASES) - rows["misses"]["p99_ms"]
    return {
        "machine": platform.platform(),
        "rtt_ms": rtt_ms,
        "phases": rows,
        "failures": remote.failures + misses.failures + readers.failures,
        "p99_beyond_misses_ms": worst,
        "passed": worst <= ALLOWED_MS and not readers.failures,
    }


def read_for(url: str, seconds: float) -> Readers:
    """The clients for a while."""
    readers = Readers(url, sizes_max=1 << 20)
    threading.Event().wait(seconds)
    readers.stop()
    return readers


def phases(readers: Readers, folder: Any, admin: str, seconds: float) -> dict[str, list[str]]:
    """Each fault from a healthy disk; returns the states that were seen in each."""

    def state() -> str:
        folders = get_json(admin + "/v1/report")[1]["cache"]["folders"]
        return str(folders[0]["state"])

    def watch(phase: str, faults: dict[str, Any]) -> None:
        folder.fault(**faults)
        readers.phase = phase
        states = seen.setdefault(phase, [])
        for _ in range(int(seconds / 0.1)):
            if (now := state()) not in states:
                states.append(now)
            threading.Event().wait(0.1)

    seen: dict[str, list[str]] = {}
    watch("filling", {})
    for phase, faults in PHASES.items():
        watch(phase, faults)
        folder.fault()
        readers.phase = "healing"
        wait_for(lambda: state() == "healthy", 60, f"well after {phase}")
    watch("after", {})
    return seen


def row(readers: Readers, phase: str) -> dict[str, Any]:
    """Latencies of a phase, in milliseconds."""
    found = sorted(readers.latencies[phase])
    quantiles = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    last = len(found) - 1
    return {
        "reads": len(found),
        **{
            name: round(found[min(last, int(len(found) * q))] * 1e3, 1)
            for name, q in quantiles.items()
        },
        "max_ms": round(found[-1] * 1e3, 1),
    }


if __name__ == "__main__":
    main()
