"""Runs workloads: one by one, or several on all cores."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hubspoke.errors import ConfigError
from hubspoke.sim.prediction.order_answers import SEARCH_S
from hubspoke.sim.prediction.peers import NAMES
from hubspoke.sim.prediction.replay import of_trace
from hubspoke.sim.prediction.result import result
from hubspoke.sim.prediction.workload import Size, Workload
from hubspoke.sim.prediction.workloads import BY_NAME
from hubspoke.sim.prediction.world import World
from hubspoke.traces.format import read_trace

PARTS_MAX = 1_024
# The longest first, or it would run alone at the end.
LONGEST_FIRST = ("W7", "W8", "W4", "W5", "W6", "W6H", "W12", "W10", "W9", "W3", "W2", "W1")
OURS = "hubspoke"


@dataclass(frozen=True, slots=True)
class Options:
    """prefetch: None is on, and for a trace as it was in its run. policy: a peer's in the spoke's
    place, or our own. search_s: what our own takes to try all seeds, None: it infers no
    orders."""

    part: int = 1
    prefetch: bool | None = None
    seed: int = 0
    policy: str = OURS
    search_s: float | None = SEARCH_S
    runway_s: float = 0.0


def policies(names: Sequence[str]) -> list[str]:
    """Names of policies, our own if none is given. Raises ConfigError."""
    known = (OURS, *NAMES)
    for name in names:
        if name not in known:
            raise ConfigError(f"--policy {name}: no such policy; one of {', '.join(known)}")
    return list(dict.fromkeys(names)) or [OURS]


def chosen(names: Sequence[str]) -> list[str]:
    """Names of workloads, all if none is given. Raises ConfigError."""
    wanted = [n.upper() for n in names] or list(BY_NAME)
    for name, given in zip(wanted, names or wanted, strict=True):
        if name not in BY_NAME:
            raise ConfigError(f"{given}: no such workload; one of {', '.join(BY_NAME)}")
    return list(dict.fromkeys(wanted))


def check(options: Options) -> None:
    """Raises ConfigError."""
    if options.policy != OURS and options.prefetch is not None:
        raise ConfigError(f"--prefetch: of the spoke; the policy {options.policy} is as it is")
    if not 1 <= options.part <= PARTS_MAX:
        raise ConfigError(f"--scale {options.part}: 1 (full size) to {PARTS_MAX}, a part of it")
    if not 0 <= (options.search_s or 0.0) <= 86_400:
        raise ConfigError(f"--search-seconds {options.search_s}: 0 to a day")
    if not 0 <= options.runway_s <= 86_400:
        raise ConfigError(f"--runway {options.runway_s}: 0 to a day, in seconds")
    if not 0 <= options.seed < 2**31:
        raise ConfigError(f"--seed {options.seed}: 0 to {2**31 - 1}")


def check_run(name: str, options: Options) -> None:
    """Raises ConfigError where a workload asks of a spoke what a peer cannot do."""
    if options.policy == OURS:
        return
    if BY_NAME[name](Size(options.part, options.seed)).happenings is not None:
        raise ConfigError(f"--policy {options.policy}: not for {name}, where the hub fails")


def run_one(name: str, options: Options) -> dict[str, Any]:
    """The document of one workload."""
    return run_workload(BY_NAME[name](Size(options.part, options.seed)), options)


def run_trace(path: Path, options: Options, capacity: int | None) -> dict[str, Any]:
    """The document of a recorded trace; capacity: of the cache, None: see `of_trace`. Raises
    ConfigError, FormatError, OSError."""
    trace = read_trace(path)
    return run_workload(
        of_trace(path.name, trace, capacity), options, prefetch=trace.facts.get("prefetch", True)
    )


def run_workload(
    workload: Workload, options: Options, *, prefetch: object = True
) -> dict[str, Any]:
    """prefetch: if the options do not say."""
    began = time.process_time()
    on = bool(prefetch if options.prefetch is None else options.prefetch)
    world = World(
        workload,
        prefetch=on,
        search_s=options.search_s,
        runway_s=options.runway_s,
        policy=None if options.policy == OURS else options.policy,
    )
    world.run()
    document = result(world, time.process_time() - began)
    document |= {"scale": options.part, "prefetch": on, "seed": options.seed}
    document["policy"] = options.policy
    if options.policy == OURS:
        document["infer_order"] = options.search_s is not None
        document["search_s"] = options.search_s
        document["runway_s"] = options.runway_s
    return document


def run_all(
    runs: Sequence[tuple[str, Options]], done: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """The documents of these workloads, in this order; `done` is told each when it is there."""
    processes = min(len(runs), os.cpu_count() or 1)
    if processes == 1:
        found = []
        for run in runs:
            found.append(run_one(*run))
            done(found[-1])
        return found
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        order = sorted(enumerate(runs), key=lambda item: LONGEST_FIRST.index(item[1][0]))
        futures = {pool.submit(run_one, *run): place for place, run in order}
        by_place = {}
        for future in as_completed(futures):
            by_place[futures[future]] = future.result()
            done(future.result())
    return [by_place[place] for place in range(len(runs))]
