"""W4 and W12 at a small part: what is had without their orders, and with them."""

from hubspoke.sim.prediction.run import Options, run_one


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
