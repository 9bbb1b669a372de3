"""What is recognised and what is left alone, in the simulator's virtual time."""

import numpy as np
import pytest

from hubspoke.core.ids import ReadState
from hubspoke.core.streams import Pattern
from hubspoke.sim.prediction.recorder import CODES
from hubspoke.sim.prediction.result import unique_pages
from hubspoke.sim.prediction.run import Options, run_workload
from hubspoke.sim.prediction.sim_spoke import SimSpoke
from hubspoke.sim.prediction.workload import Workload
from hubspoke.sim.prediction.world import World
from tests.sim.prediction.patterns import (
    Way,
    dealt_in_small_reads,
    in_pieces,
    partly_read,
    recognised,
    unpredictable,
)

WARM_UP_BATCHES = 10


@pytest.mark.parametrize("way", recognised(), ids=lambda way: way.workload.title)
def test_recognised_within_ten_batches_and_nothing_crosses_twice(way: Way) -> None:
    world = World(way.workload, search_s=None)
    world.run()
    reads = world.recorder.reads()
    later = reads.batches >= WARM_UP_BATCHES
    if way.cold:
        later &= reads.offsets > 0
    assert np.mean(reads.states[later] == 0) >= 0.95
    all_of_them = np.ones(len(reads.at), dtype=bool)
    assert world.path.delivered <= 1.05 * 4096 * unique_pages(reads, all_of_them)
    assert isinstance(world.reader, SimSpoke)
    patterns = [s.pattern for s in world.reader.core.prediction.streams if s.accesses >= 16]
    assert way.cold or patterns
    assert patterns.count(way.pattern) >= 0.9 * len(patterns)


def test_runs_of_many_clients_are_one_front_before_the_first_of_them_has_ended() -> None:
    """The last reads of 64 workers cover a fiftieth of what they span, until each jumps as far as
    before: by then they have waited for two batches, read by read."""
    world = World(dealt_in_small_reads(), search_s=None)
    world.run()
    reads = world.recorder.reads()
    waited = reads.states != CODES[ReadState.HIT]
    first = reads.batches < 8
    assert np.mean(waited[first]) <= 0.15
    assert not waited[reads.batches >= 9].any()


@pytest.mark.parametrize("way", partly_read(), ids=lambda way: way.workload.title)
def test_of_files_that_are_left_no_more_comes_than_is_read_of_them(way: Way) -> None:
    world = World(way.workload, search_s=None)
    world.run()
    reads = world.recorder.reads()
    unique = 4096 * unique_pages(reads, np.ones(len(reads.at), dtype=bool))
    assert world.path.delivered <= 1.10 * unique
    later = set(reads.objects[reads.batches >= 5].tolist())
    cached = world.spoke.core.cache.objects.values()
    names = {f"d/{number:06}" for number in later}
    brought = sum(4096 * obj.resident for obj in cached if obj.name.key in names)
    assert brought <= 1.05 * len(later) * unique / len(set(reads.objects.tolist()))
    if way.followed:
        assert np.mean(reads.states[reads.batches >= WARM_UP_BATCHES] == 0) >= 0.99


@pytest.mark.parametrize("workload", unpredictable(), ids=lambda w: w.title)
def test_random_reads_waste_little_and_wait_no_longer_than_without_prediction(
    workload: Workload,
) -> None:
    on, off = (run_workload(workload, Options(prefetch=p, search_s=None)) for p in (True, False))
    assert on["waste"] * on["egress_bytes"] <= 0.05 * off["egress_bytes"]
    assert on["egress_bytes"] <= 1.05 * off["egress_bytes"]
    assert on["p50_ms"] <= 1.02 * off["p50_ms"]
    assert on["p99_ms"] <= 1.02 * off["p99_ms"]


@pytest.mark.parametrize("clients", [8, 64])
def test_of_records_at_random_the_rest_is_brought_and_little_else(clients: int) -> None:
    """Each record looks like a scan that begins; where the last ones ended is where it ends."""
    world = World(in_pieces(clients), search_s=None)
    world.run()
    reads = world.recorder.reads()
    later = reads.batches >= world.workload.jobs[0].steps[0] // 4
    assert np.mean(reads.states[later] == CODES[ReadState.HIT]) >= 0.90, (
        "all but the first ones of 28"
    )
    unique = 4096 * unique_pages(reads, np.ones(len(reads.at), dtype=bool))
    assert world.path.delivered <= 1.40 * unique, "the first ones were taken for scans"


def test_random_reads_are_not_called_anything_else() -> None:
    for workload in unpredictable()[:4]:
        world = World(workload, search_s=None)
        world.run()
        assert isinstance(world.reader, SimSpoke)
        streams = list(world.reader.core.prediction.streams)
        assert all(s.pattern in (Pattern.UNKNOWN, Pattern.RANDOM) for s in streams)
