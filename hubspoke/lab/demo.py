"""`hubspoke demo`: the main job on one machine, in one go, with nothing left behind.

    data set -> hub -> emulated WAN -> for each way: spoke, job, an idle second, report
    -> tables, report, checks -> results.json and a picture

Decides the order of the ways, where results go and what the exit status means: 0 all checks
passed, 1 a check or the job failed, 2 a wrong setting, 130 interrupted. All processes and
temporary folders are gone when it returns, however it does; the data set stays for the next run.
"""

import json
import math
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hubspoke import __version__
from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.lab.checks import evaluate
from hubspoke.lab.dataset import DatasetIndex, build_dataset
from hubspoke.lab.interrupt import interruptible
from hubspoke.lab.job import JobConfig
from hubspoke.lab.show import picture, whole
from hubspoke.lab.stack import Stack, WanConfig, WanKind, require_wan, room_for
from hubspoke.lab.ways import WAYS, Runner, WayResult
from hubspoke.report.cost import PriceOverride, parse_price
from hubspoke.report.plots import require_matplotlib

BUCKET = "tokens"
RTT_MS_MAX = 2000.0
_ROOM_BYTES = 1 << 30  # data set, one cache and the half-built next one, with something to spare
_TEXT_COLUMNS_MIN = 100  # five ways side by side


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """data: folder for the data set, kept between runs. out: where results go; None is a new
    folder under ./out. text: files and folders to tokenize; empty is this Python's own. wan,
    rtt_ms, price: what the flags say, checked by `run_demo`. as_json: one JSON document on
    stdout."""

    data: Path = Path("out/data")
    out: Path | None = None
    text: tuple[Path, ...] = ()
    wan: str = "relay"
    rtt_ms: str = "60"
    price: str | None = None
    as_json: bool = False


def run_demo(config: DemoConfig) -> int:
    """Run everything and print it; returns the exit status and raises nothing."""
    screen = Console(stderr=True)
    try:
        with interruptible():
            return _run(config, screen)
    except KeyboardInterrupt:
        screen.print("hubspoke demo: interrupted; all its processes are ended")
        return 130
    except HubSpokeError as e:
        print(f"hubspoke demo: {e}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    except OSError as e:
        print(f"hubspoke demo: {e}", file=sys.stderr)
        return 1


def wan_config(kind: str, rtt_ms: str) -> WanConfig:
    """What `--wan` and `--rtt-ms` say. Raises ConfigError naming the flag, also where that
    emulator cannot be built: before a data set is made for it."""
    for known in get_args(WanKind):
        if kind == known:
            require_wan(known)
            break
    else:
        raise ConfigError(f"--wan: {kind!r}: expected {' or '.join(get_args(WanKind))}")
    try:
        rtt = float(rtt_ms)
    except ValueError:
        rtt = math.nan
    if not 0 <= rtt <= RTT_MS_MAX:
        raise ConfigError(f"--rtt-ms: {rtt_ms!r}: expected 0 to {RTT_MS_MAX:g} milliseconds")
    return WanConfig(known, rtt)


def given_price(text: str | None) -> PriceOverride | None:
    """What `--price` says, None when it was not given. Raises ConfigError naming the flag."""
    try:
        return None if text is None else parse_price(text)
    except ConfigError as e:
        raise ConfigError(f"--price: {e}") from e


class Bars:
    """One progress bar for each thing that is under way, made when it begins."""

    def __init__(self, screen: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=screen,
            refresh_per_second=5,  # it shares two cores with what it shows
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, what: str, done: int, of: int) -> None:
        """Called for every step: cheap unless something visible changes."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=of)
        if done % 10 == 0 or done == of:
            self._progress.update(self._tasks[what], completed=done, total=of)


def _run(config: DemoConfig, screen: Console) -> int:
    require_matplotlib()
    wan, price = wan_config(config.wan, config.rtt_ms), given_price(config.price)
    begin = time.monotonic()
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    out = config.out or Path("out") / time.strftime("demo-%Y%m%d-%H%M%S")
    config.data.mkdir(parents=True, exist_ok=True)
    room_for(config.data, _ROOM_BYTES)
    with tempfile.TemporaryDirectory(prefix="hubspoke-demo-") as temporary, Bars(screen) as bars:
        work = Path(temporary)
        room_for(work, _ROOM_BYTES)
        logs = work / "logs"
        logs.mkdir()
        dataset = config.data.absolute() / BUCKET
        index = build_dataset(dataset, sources=config.text or None, progress=bars.update)
        with Stack(dataset.parent, work=work, logs=logs, wan=wan, price=config.price) as stack:
            results = _ways(stack, JobConfig("demo", dataset), work, price, bars)
            path = stack.wan.name
        out.mkdir(parents=True, exist_ok=True)
        shutil.copytree(logs, out / "logs", dirs_exist_ok=True)
    checks = evaluate(results)
    passed = all(check.passed for check in checks)
    document = {
        "schema": 1,
        "kind": "demo",
        "version": __version__,
        "started": started,
        "seconds": time.monotonic() - begin,
        "cores": os.cpu_count(),
        "wan": path,
        "dataset": msgspec.to_builtins(index),
        "ways": {name: result.to_json() for name, result in results.items()},
        "checks": [asdict(check) for check in checks],
        "passed": passed,
    }
    text = json.dumps(document, indent=1)
    (out / "results.json").write_text(text + "\n")
    picture(out / "run.png", f"Reference job, scaled down; WAN: {path}", results)
    if config.as_json:
        print(text)
    else:
        _print(out, index, path, results, checks, time.monotonic() - begin)
    return 0 if passed else 1


def _ways(
    stack: Stack, job: JobConfig, work: Path, price: PriceOverride | None, bars: Bars
) -> dict[str, WayResult]:
    runner = Runner(stack, job, caches=work, price=price, progress=bars.update)
    return runner.run(WAYS)


def _print(
    out: Path,
    index: DatasetIndex,
    path: str,
    results: dict[str, WayResult],
    checks: Any,
    took_s: float,
) -> None:
    console = Console()
    if console.width < _TEXT_COLUMNS_MIN and not console.is_terminal:
        console = Console(width=_TEXT_COLUMNS_MIN)
    console.print(
        f"\n{index.sequences:,} sequences of {index.sequence_tokens:,} {index.dtype} tokens in "
        f"{len(index.files)} files, from {index.source_documents:,} documents "
        f"({index.text_bytes >> 20} MiB of text); 4 ranks, 2 workers each, 20 ms compute a step"
    )
    console.print(f"WAN: {path}")
    console.print(whole(results, checks, "spoke-cold"))
    console.print(f"\n{took_s:.0f} s in all. Results: {out / 'results.json'}")
    console.print(f"Picture: {out / 'run.png'}, processes' logs: {out / 'logs'}", soft_wrap=True)
