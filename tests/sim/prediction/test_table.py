"""What the predictor reaches on small parts of the workloads: it may only get better.

The goals are those of the table; where a floor below is less, it is what is reached today.
"""

from typing import Any

import pytest

from hubspoke.sim.prediction.run import Options, run_all, run_one


# name, part, of the ceiling, egress over unique or least bytes, waste
@pytest.mark.parametrize(
    ("name", "part", "of_ceiling", "of_minimum", "waste"),
    [
        # .0300: the first files of each guess of the next epoch are brought, and one is right.
        ("W2", 256, 0.99, 1.08, 0.031),
        ("W3", 64, 0.99, 1.005, 0.001),
        # Of its random reads some lie as in a scan; nothing is brought for those.
        ("W4", 64, 0.99, 1.005, 0.002),
        ("W9", 256, 0.91, 1.01, 0.01),
        ("W10", 1_000, 0.99, 1.12, 0.05),
    ],
)
def test_floors(name: str, part: int, of_ceiling: float, of_minimum: float, waste: float) -> None:
    found = run_one(name, Options(part))
    shown: dict[str, Any] = {
        key: found[key] for key in ("of_ceiling", "of_minimum", "waste", "causes")
    }
    assert found["of_ceiling"] >= of_ceiling, shown
    assert found["of_minimum"] <= of_minimum, shown
    assert found["waste"] <= waste, shown


def test_an_outage_and_a_rename_leave_no_stale_read_and_no_job_hanging() -> None:
    found = run_one("W12", Options(1_000))
    assert found["stale_reads"] == 0
    for job in found["jobs"]:
        steps = job["steps"]
        assert steps == 400
        assert sum(epoch["reads"] for epoch in job["epochs"]) == 400
        # The first epoch has the outage in it, the second one has only its own waits.
        first, second = job["epochs"]
        assert first["seconds"] > second["seconds"] + 60


def test_runs_side_by_side_are_those_of_one_after_the_other() -> None:
    told: list[str] = []
    options = Options(1_000, prefetch=False)
    runs = [("W12", options), ("W9", options)]
    both = run_all(runs, lambda d: told.append(d["workload"]))
    assert [d["workload"] for d in both] == ["W12", "W9"]
    assert sorted(told) == ["W12", "W9"]
    alone = run_one("W9", options)
    timed = {"cpu_s", "cpu_us_per_read"}
    assert {k: v for k, v in alone.items() if k not in timed} == {
        k: v for k, v in both[1].items() if k not in timed
    }
