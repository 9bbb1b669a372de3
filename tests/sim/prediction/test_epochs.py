"""W4 and W12 at a small part: what is had without their orders, and with them."""

import numpy as np

from hubspoke.core.ids import ReadState
from hubspoke.core.orders import distributed_sampler
from hubspoke.sim.prediction.job import JobSpec, Read, Scan
from hubspoke.sim.prediction.recorder import CODES
from hubspoke.sim.prediction.run import Options, run_one
from hubspoke.sim.prediction.workload import Workload
from hubspoke.sim.prediction.world import World


def test_records_at_random_without_their_order() -> None:
    found = run_one("W4", Options(part=256, search_s=None))
    first, second, third = (e["hit_ratio"] for e in found["jobs"][0]["epochs"])
    assert first >= 0.40, "the formula of blind fill at 1.25 of the demand"
    assert min(second, third) >= 0.75, "half of it is here, and what is read makes room"
    assert found["of_minimum"] <= 1.05
    assert found["waste"] <= 0.03


def test_records_at_random_once_their_order_is_found() -> None:
    found = run_one("W4", Options(part=256))
    first, second, third = (e["hit_ratio"] for e in found["jobs"][0]["epochs"])
    assert first >= 0.90, "100 of 5,008 reads are what the seed was found by"
    assert min(second, third) >= 0.99
    assert found["of_minimum"] <= 1.05
    assert found["waste"] <= 0.03


def test_two_jobs_and_a_scan_of_one_data_set() -> None:
    found = run_one("W12", Options(part=256, search_s=None))
    assert found["hit_ratio"] >= 0.36, "a quarter is here; the pinned set had 0.25"
    assert found["of_minimum"] <= 1.35
    assert found["waste"] <= 0.03
    assert found["stale_reads"] == 0


def test_a_scan_among_hundreds_of_reads_a_second_in_a_known_order() -> None:
    """A client that meets a wait of 60 ms at each file opens one while the job opens 24. W12 at
    full size is so, and its parts are not: there a scan is as fast as the jobs from the start."""
    files, file_bytes, scanned = 8_000, 100_000, 1_000
    (order,) = distributed_sampler(files, ranks=1, seed=42)

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        return [(int(n), 0, file_bytes) for n in order[step * 50 : (step + 1) * 50]]

    def happen(world: World) -> None:
        scan = Scan(world.engine, world.spoke, world.clients)
        world.engine.at(10.0, scan.start, [(n, 0, file_bytes) for n in range(scanned)])

    world = World(
        Workload(
            name="scan",
            title="",
            names=[f"b/images/{n:04}" for n in range(files)],
            sizes=[file_bytes] * files,
            capacity=files * file_bytes // 4,
            jobs=[JobSpec(1, 4, 0.125, [files // 50], reads)],
            first_misses=4,
            happenings=happen,
        )
    )
    world.run()
    found = world.recorder.reads()
    of_scan = found.batches < 0
    assert np.count_nonzero(of_scan) == scanned
    assert np.count_nonzero(found.states[of_scan] == CODES[ReadState.MISS]) <= 20
    last = found.at[of_scan].max()
    assert last < 14.0, "each file by itself would take a minute"
    later = ~of_scan & (found.at > last)
    assert (found.states[later] != CODES[ReadState.MISS]).all(), "the order is still known"
