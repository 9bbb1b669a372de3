"""A real torch DataLoader without a seed behind an emulated WAN: is its seed found beside it?

    python bench/torch_loader.py [--python PYTHON] [--step-s S] [--seed SEED] [--infer-order on|off]

`DataLoader(shuffle=True)`, four workers, 20,000 files of 12 KiB, a cache of half of them, 60 ms and
a path 2.5 times as fast as the job reads. The first epoch is read whole and the second in part.
Told: when the seed was believed and the next epoch's order known, hits before and after, hits of
the second epoch's first batches, and what the search took of the processors. PYTHON: one that has
torch (the default is the environment of tests/golden). SEED: of the process; `SOON` is none that is
tried before all are searched, and is found early among them.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.order_watch import OrderWatch
from hubspoke.lab.stack import ProcessFailed, Stack, WanConfig
from tests.clients.environments import environment
from tests.golden.make import ALONE, REQUIREMENTS

JOB: Final = Path(__file__).parent.parent / "tests" / "clients" / "torch_job.py"
FILES: Final = 20_000
FILE_BYTES: Final = 12 << 10
WORKERS: Final = 4
BATCH: Final = 50
FASTER: Final = 2.5  # the path, than the job
RUN_S: Final = 900.0
STEP_S: Final = 0.35
SECOND: Final = 100
# The loader draws 21,889,881 for its first epoch.
SOON: Final = 524_722
STATES: Final = {"hit": 0, "late": 1, "miss": 2}


@dataclass(frozen=True, slots=True)
class Setting:
    """step_s: a batch's computing. second: batches of the second epoch. infer: `--infer-order`.
    seed: of the process, None: nobody sets one."""

    python: Path
    step_s: float = STEP_S
    second: int = SECOND
    infer: bool = True
    seed: int | None = None


def write_files(folder: Path) -> None:
    rng = np.random.default_rng(20_000)
    folder.mkdir(parents=True)
    for i in range(FILES):
        (folder / f"{i:06}.bin").write_bytes(i.to_bytes(8, "little") + rng.bytes(FILE_BYTES - 8))


def shares(rows: npt.NDArray[np.float64]) -> float | None:
    """Hits among the reads; None of none."""
    return round(float((rows[:, 2] == 0).mean()), 4) if len(rows) else None


def run(setting: Setting, work: Path) -> dict[str, Any]:
    """The figures of one run; `work` is left as it was."""
    folder = Path(tempfile.mkdtemp(prefix="torch-", dir=work))
    try:
        write_files(folder / "store" / "data" / "images")
        demand = BATCH / setting.step_s * FILE_BYTES
        wan = WanConfig(rate_mbit=FASTER * demand * 8 / 1e6)
        flags = ["--cache-size", str(FILES * FILE_BYTES // 2)]
        flags += ["--infer-order", "on" if setting.infer else "off"]
        with (
            Stack(folder / "store", work=folder, logs=folder, wan=wan) as stack,
            stack.spoke("spoke", folder / "cache", more=flags) as spoke,
            OrderWatch(spoke) as watch,
        ):
            found = read(setting, f"http://{spoke.data}/data/images", folder)
            report = spoke.ask("/v1/report")
        return document(setting, found, watch, report)
    finally:
        shutil.rmtree(folder)


def read(setting: Setting, url: str, folder: Path) -> dict[str, Any]:
    command = [str(setting.python), str(JOB), url, str(FILES), str(WORKERS), str(BATCH)]
    command += [str(setting.step_s), f"{FILES // BATCH},{setting.second}", str(folder / "rows")]
    command += [] if setting.seed is None else [str(setting.seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    if done.returncode:
        raise ProcessFailed(f"job: status {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads((folder / "rows").read_text())
    return found


def document(
    setting: Setting, found: dict[str, Any], watch: OrderWatch, report: dict[str, Any]
) -> dict[str, Any]:
    rows = np.array([(e, i, STATES[s], at, took) for e, i, s, at, took in found["rows"]])
    first, second = rows[rows[:, 0] == 0], rows[rows[:, 0] == 1]
    began = float(first[:, 3].min())
    believed, following = watch.first(0), watch.first(0, following=True)
    after = first[first[:, 3] > (believed or np.inf) + 5.0]
    return {
        "infer_order": setting.infer,
        "step_s": setting.step_s,
        "process_seed": found["seed"],
        "orders": watch.orders,
        "believed_after_s": None if believed is None else round(believed - began, 1),
        "next_known_after_s": None if following is None else round(following - began, 1),
        "epoch_s": round(float((first[:, 3] + first[:, 4]).max()) - began, 1),
        "search_cpu_s": round(watch.search_cpu_s, 1),
        "read_when_believed": int((first[:, 3] < believed).sum()) if believed else None,
        "hits_before": shares(first[first[:, 3] <= (believed or np.inf)]),
        "hits_after": shares(after),  # from five seconds later on
        "second_first_batch": shares(second[:BATCH]),
        "second_ten_batches": shares(second[: 10 * BATCH]),
        "second": shares(second),
        "epoch_misses": [int((e[:, 2] != 0).sum()) for e in (first, second)],
        "received_bytes": report["wan"]["received_bytes"],
        "wasted_bytes": report["prefetch"]["wasted_bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path)
    parser.add_argument("--step-s", type=float, default=STEP_S)
    parser.add_argument("--second", type=int, default=SECOND)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--infer-order", choices=("on", "off"), default="on")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    python = args.python or environment("golden", *REQUIREMENTS, alone=ALONE) / "python"
    infer = args.infer_order == "on"
    found = run(Setting(python, args.step_s, args.second, infer, args.seed), args.work)
    if args.json:
        json.dump(found, sys.stdout, indent=2)
        return
    for key, value in found.items():
        print(f"{key:20} {value}")


if __name__ == "__main__":
    main()
