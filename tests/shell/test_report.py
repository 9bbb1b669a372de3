"""The report has every key of the interface, honest nulls, and money that adds up."""

from dataclasses import replace
from typing import Any

import pytest

from hubspoke.core.ids import ReadState
from hubspoke.core.jobs import JobMeters
from hubspoke.core.ledger import Ledger
from hubspoke.report.cost import GB, PriceOverride, Prices, cost_section, price_table, prices_for
from hubspoke.report.facts import CacheFacts, MetadataFacts, SpokeFacts, WanFacts
from hubspoke.report.report import build_report

FACTS = SpokeFacts(
    spoke="spoke-1",
    region="us-west-2",
    hub_region="us-east-2",
    model="rules: no model yet",
    wan=WanFacts(
        received_bytes=1100,
        sent_bytes=50,
        retransmitted_bytes=7,
        payload_bytes=1000,
        received_by_class={"demand": 300, "prefetch": 700, "metadata": 100},
        rtt_ms=60.2,
        bandwidth_bytes_per_second=5e8,
        encoded_bytes=800,
    ),
    cache=CacheFacts(1000, 2000, 1, 2, 3, 4, 5),
    metadata=MetadataFacts(5, 6, 4, 0.5, "valid", None),
    prefetch_in_flight_bytes=100,
    runway_seconds=None,
    full_copy_bytes=10 * GB,
)

# INTERFACE, /v1/report. A key may be added, none may go.
KEYS = {
    "": "schema spoke region since seconds model reads kernel jobs prefetch misses_by_cause "
    "convergence wan cost cache metadata writeback",
    "reads": "requests bytes hit_requests late_requests miss_requests stale_requests hit_ratio "
    "byte_hit_ratio missed_bytes wait_seconds latency_ms",
    "reads.latency_ms": "hit late miss",
    "reads.latency_ms.hit": "p50 p90 p99 p999 max",
    "kernel": "passthrough_opens passthrough_bytes_opened cached_opens",
    "prefetch": "issued_bytes used_bytes wasted_bytes in_flight_bytes accuracy coverage "
    "runway_seconds",
    "misses_by_cause": "cold_start not_predicted late_bandwidth late_deadline evicted invalidated "
    "bypassed",
    "convergence": "threshold reads_to_threshold bytes_to_threshold seconds_to_threshold windows "
    "relearned",
    "wan": "received_bytes sent_bytes payload_bytes unique_bytes read_amplification "
    "compression_ratio rtt_ms bandwidth_bytes_per_second by_class",
    "wan.by_class": "demand prefetch metadata writeback",
    "cost": "currency usd price_per_gb_hub_to_spoke price_per_gb_spoke_to_hub price_source "
    "usd_remote_reads usd_full_copy saved_usd",
    "cache": "bytes capacity_bytes objects blocks evicted_bytes flash_written_bytes corrupt_blocks "
    "memory_bytes folders",
    "endurance": "written_bytes_per_day drive_writes_per_day dwpd_rated dwpd_share "
    "expected_life_years io_pressure drives",
    "metadata": "sequence hub_sequence entries lag_seconds lease staleness_seconds policy",
    "writeback": "staged_bytes pending_bytes replicated_bytes oldest_pending_seconds failed",
}


def report(ledger: Ledger, facts: SpokeFacts = FACTS, jobs: JobMeters | None = None) -> Any:
    prices = prices_for(facts.hub_region, facts.region, None)
    meters = (jobs or JobMeters()).jobs()
    return build_report(ledger, facts, meters, prices, 110.0, 1_700_000_010_000_000_000)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(100.0, 1_700_000_000_000_000_000)
    for i in range(1000):
        ledger.read(ReadState.HIT, 4096, 0, None, 0.001, 0.0, 101.0 + i / 1000)
    ledger.read(ReadState.LATE, 4096, 1024, "late_bandwidth", 0.02, 0.015, 103.0)
    ledger.read(ReadState.MISS, 4096, 4096, "cold_start", 0.07, 0.06, 104.0, stale=True)
    ledger.unique(500)
    ledger.prefetch_issued(1100)
    ledger.prefetch_used(600)
    ledger.prefetch_wasted(10)
    return ledger


@pytest.mark.parametrize("path", list(KEYS))
@pytest.mark.parametrize("empty", [True, False])
def test_every_key_is_always_there(ledger: Ledger, path: str, empty: bool) -> None:
    section = report(Ledger(100.0, 0) if empty else ledger)
    for key in filter(None, path.split(".")):
        section = section[key]
    assert set(KEYS[path].split()) <= set(section)


def test_reads_are_those_of_the_ledger(ledger: Ledger) -> None:
    reads = report(ledger)["reads"]
    assert (reads["requests"], reads["bytes"]) == (1002, 1002 * 4096)
    assert (reads["hit_requests"], reads["late_requests"], reads["miss_requests"]) == (1000, 1, 1)
    assert reads["hit_ratio"] == pytest.approx(1000 / 1002)
    assert reads["byte_hit_ratio"] == pytest.approx(1 - (1024 + 4096) / (1002 * 4096))
    assert reads["stale_requests"] == 1
    assert reads["wait_seconds"] == pytest.approx(0.075)
    assert reads["latency_ms"]["miss"]["max"] == pytest.approx(70.0)
    assert reads["latency_ms"]["hit"]["p99"] == pytest.approx(1.0, rel=0.01)


def test_times_say_when_and_how_long(ledger: Ledger) -> None:
    document = report(ledger)
    assert document["since"] == "2023-11-14T22:13:20.000Z"
    assert document["seconds"] == 10.0


def test_prefetch_ratios(ledger: Ledger) -> None:
    prefetch = report(ledger)["prefetch"]
    assert prefetch["accuracy"] == pytest.approx(600 / (1100 - 100))
    assert prefetch["coverage"] == pytest.approx(600 / (600 + 5120))


def test_wan_ratios(ledger: Ledger) -> None:
    wan = report(ledger)["wan"]
    assert wan["read_amplification"] == pytest.approx(1000 / 500)  # metadata is not for reads
    assert wan["compression_ratio"] == pytest.approx(1000 / 800)
    assert wan["by_class"] == {
        "demand": 300,
        "prefetch": 700,
        "metadata": 100,
        "writeback": None,
    }


def test_convergence_is_shown(ledger: Ledger) -> None:
    ledger.relearned(105.0, "new order")
    convergence = report(ledger)["convergence"]
    assert (convergence["threshold"], convergence["reads_to_threshold"]) == (0.94, 0)
    assert convergence["seconds_to_threshold"] == 0.0
    (window,) = convergence["windows"]
    assert (window["reads"], window["hit_ratio"]) == (1000, 1.0)
    assert convergence["relearned"] == [
        {"at": "2023-11-14T22:13:25.000Z", "cause": "new order", "reads_to_threshold": None}
    ]


def test_what_nothing_is_known_of_is_null() -> None:
    document = report(Ledger(100.0, 0), replace(FACTS, region="", prefetch_in_flight_bytes=0))
    assert document["region"] is None
    assert document["reads"]["hit_ratio"] is None
    assert document["reads"]["latency_ms"]["hit"]["p50"] is None
    assert document["prefetch"]["accuracy"] is None
    assert document["wan"]["read_amplification"] is None
    assert document["convergence"]["reads_to_threshold"] is None
    assert set(document["kernel"].values()) == {None}
    assert set(document["writeback"].values()) == {None}
    assert document["cost"]["usd"] is None  # no region, no price


def cost(prices: Prices, full_copy: int | None = 10 * GB) -> dict[str, Any]:
    return cost_section(
        prices,
        received_bytes=2 * GB,
        sent_bytes=GB // 2,
        read_bytes=100 * GB,
        full_copy_bytes=full_copy,
    )


def test_money_is_billed_at_the_sending_region() -> None:
    section = cost(Prices(0.02, 0.08, 0.023, "test"))
    assert section["usd"] == pytest.approx(2 * 0.02 + 0.5 * 0.08)
    assert section["usd_remote_reads"] == pytest.approx(100 * 0.02)
    assert section["usd_full_copy"] == pytest.approx(10 * (0.02 + 0.023))
    assert section["saved_usd"] == pytest.approx(2.0 - 0.08)


def test_a_doubled_price_doubles_the_money() -> None:
    once, twice = (cost(Prices(p, p, 0.0, "test")) for p in (0.02, 0.04))
    for key in ("usd", "usd_remote_reads", "usd_full_copy", "saved_usd"):
        assert twice[key] == pytest.approx(2 * once[key])


@pytest.mark.parametrize(
    ("prices", "unknown"),
    [
        (Prices(None, 0.02, 0.02, "t"), {"usd", "usd_remote_reads", "usd_full_copy", "saved_usd"}),
        (Prices(0.02, None, 0.02, "t"), {"usd", "saved_usd"}),
        (Prices(0.02, 0.02, None, "t"), {"usd_full_copy"}),
    ],
)
def test_an_unknown_price_makes_what_depends_on_it_null(prices: Prices, unknown: set[str]) -> None:
    section = cost(prices)
    money = ("usd", "usd_remote_reads", "usd_full_copy", "saved_usd")
    assert {key for key in money if section[key] is None} == unknown


def test_an_unknown_size_makes_only_the_copy_null() -> None:
    section = cost(Prices(0.02, 0.02, 0.02, "t"), full_copy=None)
    assert section["usd_full_copy"] is None
    assert section["usd"] is not None


def test_retransmitted_bytes_are_paid_for(ledger: Ledger) -> None:
    price = prices_for("a", "b", PriceOverride(0.0, 1.0))
    document = build_report(ledger, FACTS, [], price, 110.0, 0)
    assert document["cost"]["usd"] == pytest.approx((50 + 7) / GB)


def test_the_table_is_dated_sourced_and_directed() -> None:
    table = price_table()
    assert table["retrieved"] and table["source"]
    prices = prices_for("us-east-2", "us-west-2", None)
    assert (prices.hub_to_spoke, prices.spoke_to_hub, prices.storage_month) == (0.02, 0.02, 0.023)
    assert prices.source is not None and table["retrieved"] in prices.source
    assert prices_for("us-east-1", "us-east-2", None).hub_to_spoke == 0.01


def test_a_pair_that_is_not_in_the_table_has_no_price_and_no_source() -> None:
    assert prices_for("mars-1", "moon-1", None) == Prices(None, None, None, None)


def test_the_override_replaces_both_directions() -> None:
    prices = prices_for("us-east-2", "us-west-2", PriceOverride(0.5, 0.25))
    assert (prices.hub_to_spoke, prices.spoke_to_hub) == (0.5, 0.25)
    assert prices.source is not None and prices.source.startswith("--price")
    assert prices_for("mars-1", "moon-1", PriceOverride(1, 1)).source == "--price"
