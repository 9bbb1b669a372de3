"""Reports of extreme ledgers and jobs are JSON all the same."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from hubspoke.core.ids import ReadState
from hubspoke.core.jobs import AMOUNT_MAX, JobMeters
from hubspoke.core.ledger import CAUSES, Ledger
from hubspoke.report.cost import USD_PER_GB_MAX, Prices
from hubspoke.report.facts import CacheFacts, MetadataFacts, SpokeFacts, WanFacts
from hubspoke.report.metrics import spoke_metrics
from hubspoke.report.report import build_report, finite

BYTES = st.integers(0, 1 << 63)
SECONDS = st.floats(0, 1e12)
AMOUNTS = st.floats(0, AMOUNT_MAX)
PRICES = st.one_of(st.none(), st.floats(0, USD_PER_GB_MAX))

reads = st.lists(st.tuples(st.sampled_from(ReadState), BYTES, SECONDS, SECONDS), max_size=20)
posts = st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, SECONDS), max_size=20)


def facts(received: int, sent: int, rtt_ms: float | None, runway: float | None) -> SpokeFacts:
    return SpokeFacts(
        spoke="s",
        region="",
        hub_region="",
        model="rules",
        wan=WanFacts(received, sent, sent, received, {"demand": received}, rtt_ms, rtt_ms, 0),
        cache=CacheFacts(1000, 2000, 1, 2, 3, 4, 5),
        metadata=MetadataFacts(5, 6, 4, 0.5, "valid", None),
        prefetch_in_flight_bytes=sent,
        runway_seconds=runway,
        full_copy_bytes=received,
    )


@given(reads, posts, BYTES, BYTES, st.one_of(st.none(), SECONDS), PRICES, st.floats(0, 1e12))
def test_a_report_of_extremes_has_only_finite_numbers(
    read: list[tuple[ReadState, int, float, float]],
    posted: list[tuple[float, float, float, float]],
    received: int,
    sent: int,
    seconds: float | None,
    price: float | None,
    now: float,
) -> None:
    ledger = Ledger(0.0, 0)
    for state, length, latency, wait in read:
        cause = None if state is ReadState.HIT else CAUSES[0]
        ledger.read(state, length, length, cause, latency, wait, now)
    jobs = JobMeters()
    for i, (samples, compute, waited, at) in enumerate(sorted(posted, key=lambda p: p[3])):
        jobs.post("j", samples=samples, compute_s=compute, wait_s=waited, now=at, reads=(i, 2 * i))
    report = build_report(
        ledger, facts(received, sent, seconds, seconds), jobs.jobs(),
        Prices(price, price, price, None), now, 0,
    )  # fmt: skip
    json.dumps(report, allow_nan=False)
    assert b"Inf\n" not in spoke_metrics(report, ledger.latency, True)


def test_sums_of_a_jobs_posts_stay_finite() -> None:
    jobs = JobMeters()
    for _ in range(5000):
        job = jobs.post(
            "j", samples=AMOUNT_MAX, compute_s=5e-324, wait_s=AMOUNT_MAX, now=0.0, reads=(0, 0)
        )
    assert math.isfinite(job.samples)
    assert math.isfinite(job.wait_s)
    assert job.utilisation() == 0.0


def test_a_rate_over_hardly_any_time_is_none() -> None:
    jobs = JobMeters()
    post = jobs.post("j", samples=1e12, compute_s=1e-9, wait_s=0.0, now=5.0, reads=(0, 0))
    assert post.samples_per_second() is None


def test_a_number_that_json_does_not_have_becomes_null() -> None:
    document = {"a": [1.0, math.inf, {"b": -math.inf, "c": math.nan}], "d": "x"}
    assert finite(document) == {"a": [1.0, None, {"b": None, "c": None}], "d": "x"}
