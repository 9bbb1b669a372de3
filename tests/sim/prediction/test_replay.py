"""A trace read again in virtual time has the hits it had."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hubspoke.errors import ConfigError
from hubspoke.sim.prediction.compare import trace_of
from hubspoke.sim.prediction.disk import DiskConfig
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.path import PathConfig
from hubspoke.sim.prediction.peers import NAMES
from hubspoke.sim.prediction.recorder import CODES
from hubspoke.sim.prediction.replay import of_trace
from hubspoke.sim.prediction.run import Options, run_trace, run_workload
from hubspoke.sim.prediction.workload import MIB, Size, Workload
from hubspoke.sim.prediction.workloads import w4
from hubspoke.sim.prediction.world import World
from hubspoke.traces.format import write_trace
from hubspoke.traces.trace import Trace, TraceBuilder


def sequential() -> Workload:
    """Two ranks of two workers, 64 KiB reads, 40 MB/s."""

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        start = (step * 2 + rank) * MIB
        return [(0, at, 64 << 10) for at in range(start, start + MIB, 64 << 10)]

    job = JobSpec(2, 2, 0.05, [60, 60], reads)
    return Workload("T", "", ["b/k"], [120 * MIB], 60 * MIB, [job], job.clients)


def recorded(made: Workload) -> Trace:
    world = World(made)
    world.run()
    trace = trace_of(made.names, made.sizes, world.recorder.reads())
    trace.facts.update(
        capacity_bytes=made.capacity, rtt_s=made.path.rtt_s, rate=made.path.rate, prefetch=True
    )
    return trace


def at_random() -> Workload:
    """A few records, on a path and a drive that are those of no part."""
    return replace(w4.build(Size(1_024)), path=PathConfig(), disk=DiskConfig())


@pytest.mark.parametrize("made", [sequential(), at_random()], ids=["in order", "at random"])
def test_a_trace_has_the_counts_of_its_run(made: Workload, tmp_path: Path) -> None:
    trace = recorded(made)
    file = tmp_path / "run.hstrace"
    write_trace(file, trace)
    again = run_trace(file, Options(), None)
    assert again["reads"] == len(trace)
    for state, code in CODES.items():
        had = int(np.count_nonzero(trace.states == code))
        has = {"hit": again["hits"], "late": again["late"], "miss": again["misses"]}[state.value]
        assert abs(had - has) <= 0.01 * len(trace), (state, had, has)


def two_reads(length: int, gap_s: float) -> Trace:
    builder = TraceBuilder()
    for i in range(2):
        builder.add("b/k", 8 * MIB * i, length, at=i * gap_s, client=1, size=64 * MIB)
    return builder.build({"prefetch": False})


def test_a_client_asks_for_the_next_when_the_one_before_is_answered() -> None:
    """60 ms for each, and the trace has the second 1 ms after the first."""
    world = World(of_trace("t", two_reads(4_096, 0.001)), prefetch=False)
    world.run()
    assert world.recorder.reads().at[1] >= 0.06


def test_a_long_read_goes_block_by_block() -> None:
    document = run_workload(of_trace("t", two_reads(3 * MIB, 1.0)), Options(prefetch=False))
    assert (document["reads"], document["bytes"]) == (6, 6 * MIB)


def test_prefetch_is_as_in_the_run_if_nobody_says_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "off.hstrace"
    write_trace(file, two_reads(4_096, 1.0))
    assert run_trace(file, Options(), None)["prefetch"] is False
    assert run_trace(file, Options(prefetch=True), None)["prefetch"] is True


@pytest.mark.parametrize("policy", NAMES)
def test_another_cache_reads_all_of_a_trace(policy: str, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for i in range(6):
        builder.add("b/k", 0, 4_096, at=float(i), client=1, size=64 * MIB)
    file = tmp_path / "again.hstrace"
    write_trace(file, builder.build({}))
    document = run_trace(file, Options(policy=policy), None)
    hits = 0 if policy == "none" else 5
    assert (document["policy"], document["reads"], document["hits"]) == (policy, 6, hits)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ConfigError, match="without reads"):
        of_trace("t", TraceBuilder().build({}))
    with pytest.raises(ConfigError, match="at least one block"):
        of_trace("t", two_reads(4_096, 1.0), 4_096)
