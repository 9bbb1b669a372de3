"""The reference job's checks: what passes, and that each of them can fail."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hubspoke.lab.checks import Check, evaluate
from hubspoke.lab.measure import RECORD_DTYPE, JobResult, WrongRead, phases, windows
from hubspoke.lab.readers import STATE_NAMES
from hubspoke.lab.show import compare, picture, whole
from hubspoke.lab.ways import WAYS, WanBytes, WayResult

STEPS = 200
UNIQUE = STEPS * 24 * 8192
WAY = {way.name: way for way in WAYS}
PRICE = 0.02


def job(name: str, *, state: str, first_wait: float = 0.0, wait: float = 0.0) -> JobResult:
    """All reads in one state; waits of the first step and of each other one."""
    records = np.zeros((STEPS, 4, 6), RECORD_DTYPE)
    records["state"] = STATE_NAMES.index(state)
    records["latency"] = 0.001
    waits = np.full(STEPS, wait)
    waits[0] = first_wait
    total = float(waits.sum())
    reads = records.size
    states = {s: reads * (s == state) for s in STATE_NAMES[1:]}
    by_phase = phases(records, waits, 0.02, 24)
    return JobResult(
        name=name, source="", order=WAY[name].order, client="raw", ranks=4, workers=2,
        prefetch_factor=4, steps=STEPS, steps_planned=STEPS, samples=STEPS * 24, reads=reads,
        bytes=UNIQUE, unique_bytes=UNIQUE, seconds=STEPS * 0.02 + total,
        compute_seconds=STEPS * 0.02, wait_seconds=total, lag_seconds=0.0,
        first_wait_seconds=first_wait, utilisation=STEPS * 0.02 / (STEPS * 0.02 + total),
        samples_per_second=1200.0, states=states, hit_ratio=None if state == "none" else
        float(state == "hit"), latency_ms=by_phase[0].latency_ms, wrong_bytes=0, wrong=(),
        retries=0, reader_cpu_seconds=1.0, phases=by_phase,
        windows=windows(records, waits, 0.02, 24),
    )  # fmt: skip


def report(reads: int, wan: WanBytes, payload: int) -> dict[str, Any]:
    usd = wan.both / 2**30 * PRICE
    return {
        "reads": {"requests": reads, "bytes": UNIQUE},
        "wan": {
            "received_bytes": wan.to_spoke_bytes,
            "sent_bytes": wan.to_hub_bytes,
            "retransmitted_bytes": 0,
            "payload_bytes": payload,
        },
        "cost": {
            "usd": usd,
            "price_per_gb_hub_to_spoke": PRICE,
            "price_per_gb_spoke_to_hub": PRICE,
        },
    }


def result(name: str, job_result: JobResult, wan: WanBytes | None) -> WayResult:
    told = report(job_result.reads, wan, UNIQUE) if wan else None
    return WayResult(WAY[name], job_result, wan, None, told, wan)


@pytest.fixture
def results() -> dict[str, WayResult]:
    brought = WanBytes(UNIQUE, UNIQUE // 100)
    little = WanBytes(6000, 7000)
    return {
        "hub-local": result("hub-local", job("hub-local", state="none"), None),
        "spoke-cold": result("spoke-cold", job("spoke-cold", state="hit", first_wait=0.2), brought),
        "spoke-warm": result("spoke-warm", job("spoke-warm", state="hit"), little),
        "spoke-cold-no-prefetch": result(
            "spoke-cold-no-prefetch",
            job("spoke-cold-no-prefetch", state="miss", wait=0.1),
            brought,
        ),
        "shuffled-cold": result(
            "shuffled-cold", job("shuffled-cold", state="hit", first_wait=5.0), brought
        ),
    }


def failures(results: dict[str, WayResult]) -> list[str]:
    return [check.name for check in evaluate(results) if not check.passed]


def test_good_results_pass_every_check(results: dict[str, WayResult]) -> None:
    checks = evaluate(results)
    assert failures(results) == []
    assert len(checks) == 28


def _job(results: dict[str, WayResult], name: str, **changes: Any) -> None:
    results[name] = replace(results[name], job=replace(results[name].job, **changes))


def _wan(results: dict[str, WayResult], name: str, wan: WanBytes) -> None:
    results[name] = replace(results[name], wan=wan)


def _report(
    results: dict[str, WayResult], part: str, way: str = "spoke-cold", **changes: Any
) -> None:
    told = results[way].report
    assert told is not None
    told[part].update(changes)


@pytest.mark.parametrize(
    ("spoil", "failed"),
    [
        (lambda r: _job(r, "spoke-cold", hit_ratio=0.989), "spoke cold: hit ratio"),
        (lambda r: _job(r, "spoke-cold", hit_ratio=None), "spoke cold: hit ratio"),
        (lambda r: _job(r, "spoke-cold", wait_seconds=1.01), "spoke cold: total stall"),
        (
            lambda r: _job(r, "spoke-cold", windows=r["spoke-cold"].job.windows[:1]),
            "spoke cold: first window",
        ),
        (
            lambda r: _job(r, "spoke-cold", windows=r["spoke-cold"].job.windows[2:]),
            "spoke cold: first window",
        ),
        (
            lambda r: _job(r, "spoke-cold-no-prefetch", utilisation=0.71),
            "cold, prefetch off: utilisation",
        ),
        (lambda r: _job(r, "spoke-warm", utilisation=0.98), "spoke warm: utilisation, all steps"),
        (
            lambda r: _job(
                r, "shuffled-cold", windows=job("shuffled-cold", state="miss", wait=0.01).windows
            ),
            "shuffled cold: utilisation, last 100 of 200 steps",
        ),
        (
            lambda r: _report(r, "wan", "shuffled-cold", payload_bytes=int(1.06 * UNIQUE)),
            "shuffled cold: bytes before",
        ),
        (
            lambda r: _job(
                r, "spoke-warm", phases=job("spoke-warm", state="hit", first_wait=0.05).phases
            ),
            "spoke warm: utilisation, steps 0-100",
        ),
        (
            lambda r: _job(
                r, "spoke-warm", wrong_bytes=3, wrong=(WrongRead("tokens-0.bin", 7, 3),)
            ),
            "all ways: wrong bytes",
        ),
        (lambda r: _report(r, "wan", payload_bytes=int(1.06 * UNIQUE)), "spoke cold: bytes before"),
        (lambda r: _report(r, "reads", requests=4799), "spoke-cold: report's reads"),
        (
            lambda r: _report(r, "wan", received_bytes=int(0.98 * UNIQUE)),
            "spoke-cold: report's rec",
        ),
        (lambda r: _report(r, "wan", sent_bytes=int(0.0102 * UNIQUE)), "spoke-cold: report's sent"),
        (lambda r: _report(r, "cost", usd=0.001), "spoke-cold: money"),
        (lambda r: _report(r, "cost", usd=None), "spoke-cold: money"),
    ],
)
def test_each_check_can_fail(
    results: dict[str, WayResult], spoil: Callable[[dict[str, WayResult]], None], failed: str
) -> None:
    spoil(results)
    names = failures(results)
    assert names and all(name.startswith((failed, "spoke-cold: money")) for name in names), names
    assert any(name.startswith(failed) for name in names)


def test_too_many_wan_bytes_fail_cold_and_warm(results: dict[str, WayResult]) -> None:
    _wan(results, "spoke-cold", WanBytes(UNIQUE, UNIQUE // 19))
    _wan(results, "spoke-warm", WanBytes(UNIQUE // 100, 1))
    assert {
        "spoke cold: WAN bytes (compressed) of unique",
        "spoke warm: WAN bytes of unique",
    } <= set(failures(results))


def test_a_report_between_two_counts_agrees(results: dict[str, WayResult]) -> None:
    """A lease renewal went out while the report was read: neither count is the right one."""
    counted = WanBytes(14_000, 2_403)
    warm = replace(results["spoke-warm"], wan_before_report=counted)

    def failed(sent: int, last: int) -> list[str]:
        assert warm.report is not None
        warm.report["wan"].update(received_bytes=14_000, sent_bytes=sent)
        results["spoke-warm"] = replace(warm, wan=WanBytes(14_000, last))
        return [n for n in failures(results) if n == "spoke-warm: report's sent bytes"]

    assert failed(2_537, 2_537) == failed(2_537, 2_671) == failed(2_403, 2_403) == []
    assert failed(2_537, 2_403) and failed(2_300, 2_537) and failed(2_800, 2_537)
    check = next(c for c in evaluate(results) if c.name == "spoke-warm: report's sent bytes")
    assert check.figure == "2,800, counted 2,403 to 2,537 (10.37% off)"


def test_unknown_price_must_give_no_money(results: dict[str, WayResult]) -> None:
    _report(results, "cost", price_per_gb_hub_to_spoke=None)
    assert failures(results) == ["spoke-cold: money follows the price"]
    _report(results, "cost", usd=None)
    assert failures(results) == []


def test_ways_that_were_not_run_are_not_judged(results: dict[str, WayResult]) -> None:
    only = {"hub-local": results["hub-local"]}
    assert [check.name for check in evaluate(only)] == ["all ways: wrong bytes"]


def test_results_are_shown_side_by_side_with_failed_checks(
    results: dict[str, WayResult], tmp_path: Path
) -> None:
    short = results["spoke-cold-no-prefetch"]
    results["spoke-cold-no-prefetch"] = replace(short, steps_whole=999)
    failed = Check("something: must be", False, "is not", "must be")
    text = _shown([whole(results, [*evaluate(results), failed], None)], tmp_path)
    for words in (
        *("hub-local", "spoke, cold", "prefetch off", "at client", "  steps 150-", "FAIL"),
        "only the first 200 of 999 steps, since all of them would take 2.0 minutes",
        "Single shuffled reads cannot be foretold",
        "Checks: 28 passed, 1 failed",
    ):
        assert words in text


def test_five_ways_fit_100_columns(results: dict[str, WayResult], tmp_path: Path) -> None:
    large = replace(results["spoke-cold"].job.latency_ms, p50=999.4, p99=12_345.6)
    ways = []
    for one in results.values():
        wide = replace(one.job, latency_ms=large, unique_bytes=1023 << 20, order="sequential")
        ways.append(replace(one, job=wide, usd=12.3456, wan=WanBytes(1023 << 20, 1023 << 10)))
    lines = _shown([compare(ways)], tmp_path).splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.count("999 / 12346") == 5 for line in lines)
    assert any(line.count("1023.00 MiB") == 5 for line in lines)
    assert any(line.count("12.3456 USD") == 5 for line in lines)


def test_money_without_a_price_is_unknown(results: dict[str, WayResult], tmp_path: Path) -> None:
    text = _shown([compare([results["hub-local"], results["spoke-cold"]])], tmp_path)
    (line,) = [line for line in text.splitlines() if "WAN money" in line]
    assert line.split() == ["│WAN", "money", "│", "-", "│", "unknown│"]


def _shown(parts: Sequence[Any], tmp_path: Path) -> str:
    with (tmp_path / "out").open("w") as file:
        console = Console(width=100, record=True, file=file)
        console.print(*parts)
    return console.export_text()


def test_picture_is_a_png_with_every_way(results: dict[str, WayResult], tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    picture(path, "a title", results)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n") and len(data) > 10_000
