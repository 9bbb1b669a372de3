"""The ledger counts what happened, exactly, and its latencies within their stated error."""

import random

import pytest

from hubspoke.core.ids import ReadState, TrafficClass
from hubspoke.core.jobs import JOBS_MAX, JobMeters
from hubspoke.core.ledger import CAUSES, LatencyHistogram, Ledger
from hubspoke.errors import Overloaded


def test_reads_are_counted_by_state_and_cause() -> None:
    ledger = Ledger(10.0, 0)
    ledger.read(ReadState.HIT, 100, 0, None, 0.001, 0.0, 11.0)
    ledger.read(ReadState.LATE, 200, 50, "late_bandwidth", 0.02, 0.015, 12.0)
    ledger.read(ReadState.MISS, 300, 300, "cold_start", 0.07, 0.06, 13.0, stale=True)
    assert ledger.requests == {ReadState.HIT: 1, ReadState.LATE: 1, ReadState.MISS: 1}
    assert ledger.requests_total == 3
    assert ledger.read_bytes == 600
    assert ledger.missed_bytes == 350
    assert ledger.wait_s == pytest.approx(0.075)
    assert ledger.stale_requests == 1
    assert {c: n for c, n in ledger.misses_by_cause.items() if n} == {
        "late_bandwidth": 1,
        "cold_start": 1,
    }
    assert set(ledger.misses_by_cause) == set(CAUSES)


def test_a_stale_hit_has_no_cause() -> None:
    ledger = Ledger(0.0, 0)
    ledger.read(ReadState.HIT, 1, 0, None, 0.001, 0.0, 1.0, stale=True)
    assert ledger.stale_requests == 1
    assert sum(ledger.misses_by_cause.values()) == 0


def test_a_miss_without_a_cause_and_a_hit_with_one_are_programmer_errors() -> None:
    ledger = Ledger(0.0, 0)
    with pytest.raises(AssertionError):
        ledger.read(ReadState.MISS, 1, 1, None, 0.1, 0.1, 1.0)
    with pytest.raises(AssertionError):
        ledger.read(ReadState.HIT, 1, 0, "cold_start", 0.1, 0.1, 1.0)
    with pytest.raises(KeyError):
        ledger.read(ReadState.MISS, 1, 1, "bad luck", 0.1, 0.1, 1.0)


def test_bytes_are_counted_by_use_and_class() -> None:
    ledger = Ledger(0.0, 0)
    ledger.unique(4096)
    ledger.prefetch_issued(1000)
    ledger.prefetch_used(600)
    ledger.prefetch_wasted(300)
    ledger.payload(TrafficClass.DEMAND, 7)
    ledger.payload(TrafficClass.DEMAND, 8)
    ledger.corrupt()
    assert (ledger.unique_bytes, ledger.corrupt_frames) == (4096, 1)
    assert ledger.prefetch_issued_bytes == 1000
    assert (ledger.prefetch_used_bytes, ledger.prefetch_wasted_bytes) == (600, 300)
    assert ledger.payload_bytes[TrafficClass.DEMAND] == 15
    assert ledger.payload_bytes[TrafficClass.PREFETCH] == 0


def test_reset_starts_from_zero_at_the_given_moment() -> None:
    ledger = Ledger(0.0, 0)
    ledger.read(ReadState.MISS, 300, 300, "cold_start", 0.07, 0.06, 13.0)
    ledger.relearned(14.0, "new order")
    ledger.reset(20.0, 5)
    assert (ledger.since, ledger.since_unix_ns) == (20.0, 5)
    assert ledger.requests_total == 0
    assert ledger.latency[ReadState.MISS].count == 0
    assert ledger.convergence.relearned_entries() == []


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99, 0.999])
def test_quantiles_are_within_one_percent_of_the_sorted_latencies(q: float) -> None:
    rng = random.Random(7)
    latencies = [rng.lognormvariate(-6, 2) for _ in range(20_000)]
    histogram = LatencyHistogram()
    for latency in latencies:
        histogram.add(latency)
    exact = sorted(latencies)[max(0, -(-round(q * 20_000) // 1) - 1)]
    assert histogram.quantile(q) == pytest.approx(exact, rel=0.01)
    assert histogram.max_s == max(latencies)


def test_a_histogram_without_latencies_has_no_quantile() -> None:
    assert LatencyHistogram().quantile(0.5) is None


def test_one_latency_is_every_quantile() -> None:
    histogram = LatencyHistogram()
    histogram.add(0.060)
    for q in (0.0, 0.5, 1.0):
        assert histogram.quantile(q) == pytest.approx(0.060, rel=0.01)


@pytest.mark.parametrize("latency", [0.0, -1e-9, 1e-12, 1e9])
def test_latencies_outside_the_buckets_are_counted_at_the_edge(latency: float) -> None:
    histogram = LatencyHistogram()
    histogram.add(latency)
    assert histogram.count == 1
    quantile = histogram.quantile(0.5)
    assert quantile is not None and quantile <= max(latency, 0.0)


def test_cumulative_counts_grow_to_all_latencies() -> None:
    histogram = LatencyHistogram()
    for latency in (0.0001, 0.003, 0.003, 0.2):
        histogram.add(latency)
    assert list(histogram.cumulative((0.001, 0.01, 1.0))) == [(0.001, 1), (0.01, 3), (1.0, 4)]


def test_a_job_has_the_rates_of_its_posts() -> None:
    jobs = JobMeters()
    jobs.post("llm", samples=100, compute_s=0.9, wait_s=0.1, now=50.0, reads=(5, 10))
    jobs.post("llm", samples=100, compute_s=1.0, wait_s=0.0, now=51.0, reads=(14, 20))
    (job,) = jobs.jobs()
    assert job.utilisation() == pytest.approx(0.95)
    assert job.samples_per_second() == pytest.approx(100.0)
    assert job.hit_ratio() == pytest.approx(0.9)


def test_a_job_that_has_reported_nothing_has_no_rates() -> None:
    jobs = JobMeters()
    jobs.post("llm", samples=0, compute_s=0, wait_s=0, now=50.0, reads=(0, 0))
    (job,) = jobs.jobs()
    assert (job.utilisation(), job.samples_per_second(), job.hit_ratio()) == (None, None, None)
    jobs.reset()
    assert jobs.jobs() == []


def test_the_number_of_jobs_is_bounded() -> None:
    jobs = JobMeters()

    def post(name: str, now: float) -> None:
        jobs.post(name, samples=1, compute_s=1, wait_s=0, now=now, reads=(0, 0), idle_max_s=100)

    for i in range(JOBS_MAX):
        post(f"job-{i:03}", now=float(i) / JOBS_MAX)
    with pytest.raises(Overloaded, match="256 jobs"):
        post("one-more", now=2.0)
    post("job-000", now=3.0)  # a known one may always post
    post("one-more", now=200.0)  # job-001 has been silent for longest
    names = [job.name for job in jobs.jobs()]
    assert len(names) == JOBS_MAX
    assert "job-001" not in names and "job-000" in names and "one-more" in names
