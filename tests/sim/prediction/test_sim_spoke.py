"""The simulated spoke: the same core gives what tests/core expects of it."""

import pytest

from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.recorder import Reads
from hubspoke.sim.prediction.run import Options, run_workload
from hubspoke.sim.prediction.workload import Workload
from hubspoke.sim.prediction.world import World

SEQUENCE, RANKS, PER_RANK, FILES, STEPS = 8_192, 4, 6, 8, 200
PER_FILE = STEPS * RANKS * PER_RANK // FILES
MIB = 1 << 20


def sequential(epoch: int, rank: int, step: int) -> list[Read]:
    start = (step * RANKS + rank) * PER_RANK
    places = (divmod(n, PER_FILE) for n in range(start, start + PER_RANK))
    return [(file, at * SEQUENCE, SEQUENCE) for file, at in places]


def workload(job: JobSpec, sizes: list[int], capacity: int = 4 << 30) -> Workload:
    names = [f"b/tokens/{i:05}.bin" for i in range(len(sizes))]
    return Workload("T", "test", names, sizes, capacity, [job], job.clients)


def reference_job() -> Workload:
    job = JobSpec(RANKS, 2, 0.02, [STEPS], sequential, prefetch_factor=4)
    return workload(job, [PER_FILE * SEQUENCE] * FILES)


def test_the_reference_job_is_a_sequential_stream() -> None:
    """As tests/core/test_reference_order.py has it: at most 1 % of the 999 steps' reads wait."""
    document = run_workload(reference_job(), Options())
    assert document["reads"] == STEPS * RANKS * PER_RANK
    assert document["late"] + document["misses"] <= 239
    assert document["egress_bytes"] <= 1.05 * document["unique_bytes"]
    assert document["waste"] <= 0.05
    assert document["stale_reads"] == 0


def test_a_run_is_the_same_every_time() -> None:
    first, second = (run_workload(reference_job(), Options()) for _ in range(2))
    for document in (first, second):
        for timed in ("cpu_s", "cpu_us_per_read"):
            del document[timed]
    assert first == second


def test_without_prefetch_every_first_read_waits_a_round_trip() -> None:
    document = run_workload(reference_job(), Options(prefetch=False))
    assert document["hits"] == 0
    assert document["p50_ms"] >= 60
    assert document["egress_bytes"] == document["unique_bytes"]
    assert document["jobs"][0]["utilisation"] < 0.5


def epochs_of_one_file(capacity: int, epochs: int, blocks: int) -> tuple[World, Reads]:
    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        return [(0, step * MIB, MIB)]

    job = JobSpec(1, 1, 0.05, [blocks] * epochs, reads)
    world = World(workload(job, [blocks * MIB], capacity))
    world.run()
    return world, world.recorder.reads()


def test_what_was_read_once_and_fits_is_never_fetched_again() -> None:
    world, reads = epochs_of_one_file(capacity=64 * MIB, epochs=3, blocks=32)
    assert world.path.delivered == 32 * MIB
    assert (reads.states[32:] == 0).all()
    assert [e.steps for e in world.jobs[0].epochs] == [32, 32, 32]


def test_a_read_larger_than_the_cache_has_room_for_goes_past_it() -> None:
    world, reads = epochs_of_one_file(capacity=MIB, epochs=1, blocks=4)
    assert len(reads.at) == 4
    assert world.spoke.core.cache.used <= MIB


def test_utilisation_is_bounded_by_a_slow_path() -> None:
    """1 MiB every 0.5 ms is twice what the path carries."""

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        return [(0, step * MIB, MIB)]

    job = JobSpec(1, 4, 0.0005, [2_000], reads)
    document = run_workload(workload(job, [2_000 * MIB]), Options())
    (found,) = document["jobs"]
    assert found["bound"] == pytest.approx(0.0005 / (MIB / 1e9), rel=0.01)
    assert found["utilisation"] <= found["bound"] * 1.01


def test_an_outage_is_survived_and_a_change_of_version_served() -> None:
    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        return [(0, step * 4_096, 4_096), (1, step * MIB, 4_096)]

    job = JobSpec(1, 2, 0.05, [200], reads)
    made = workload(job, [200 * 4_096, 200 * MIB])

    def happen(world: World) -> None:
        world.engine.at(2.0, world.spoke.outage, 5.0)
        world.engine.at(8.0, world.spoke.changed, 0, "v2")

    made = Workload("T", "", made.names, made.sizes, made.capacity, made.jobs, 2, happenings=happen)
    world = World(made)
    world.run()
    found = world.recorder.reads()
    assert len(found.at) == 400
    assert 4.0 < found.latencies.max() < 5.2
    assert world.spoke.stale_reads == 0
    changed = (found.objects == 0) & (found.at > 8.0)
    assert (found.states[changed][:2] == 2).all()  # what was there was of the old version
    assert world.spoke.core.scheduler.idle
