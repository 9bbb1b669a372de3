"""What the reference job must show, as checks on its results.

Pure: results in, verdicts out, each with the figure and the bound it was held against. A check
whose way was not run is not made up; a figure that is missing fails.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hubspoke.lab.measure import ratio
from hubspoke.lab.stack import HUB_REGION, SPOKE_REGION
from hubspoke.lab.ways import WayResult
from hubspoke.report.cost import PriceOverride, cost_section, prices_for

HIT_RATIO_MIN = 0.99
STALL_SECONDS_MAX = 1.0
WARM_UTILISATION = 0.94
WARM_UP_STEPS_MAX = 10
AMPLIFICATION_MAX = 1.05
UNPREDICTED_UTILISATION_MAX = 0.7
SHUFFLED_LAST_STEPS = 500
SHUFFLED_UTILISATION = 0.95
WARM_OF_LOCAL_MIN = 0.99
WARM_WAN_MAX = 0.01
AGREEMENT = 0.01


@dataclass(frozen=True, slots=True)
class Check:
    """name: what must be so. figure: what was found, in words. bound: what was asked."""

    name: str
    passed: bool
    figure: str
    bound: str


def evaluate(results: Mapping[str, WayResult]) -> tuple[Check, ...]:
    """All checks that the ways in `results` allow."""
    return tuple(_all(results))


def _all(results: Mapping[str, WayResult]) -> Iterator[Check]:
    cold, warm = results.get("spoke-cold"), results.get("spoke-warm")
    local, unpredicted = results.get("hub-local"), results.get("spoke-cold-no-prefetch")
    if cold:
        yield from _cold(cold)
    if unpredicted:
        u = unpredicted.job.utilisation
        bound = f"≤ {UNPREDICTED_UTILISATION_MAX:.0%}, or the test is too easy"
        passed = u <= UNPREDICTED_UTILISATION_MAX
        yield Check("cold, prefetch off: utilisation", passed, f"{u:.2%}", bound)
    if warm and local:
        yield from _warm(warm, local)
    if shuffled := results.get("shuffled-cold"):
        yield from _shuffled(shuffled)
    wrong = sum(r.job.wrong_bytes for r in results.values())
    reads = sum(r.job.reads for r in results.values())
    figure = f"{wrong} in {reads:,} reads"
    yield Check("all ways: wrong bytes", wrong == 0, figure, "none")
    for result in results.values():
        if result.report is not None:
            yield from _report(result, result.report)


def _cold(cold: WayResult) -> Iterator[Check]:
    job = cold.job
    hits = job.hit_ratio
    name = f"spoke cold: hit ratio over {job.steps} steps"
    figure = "unknown" if hits is None else f"{hits:.3%}"
    yield Check(name, (hits or 0) >= HIT_RATIO_MIN, figure, f"≥ {HIT_RATIO_MIN:.0%} of requests")
    passed = job.wait_seconds <= STALL_SECONDS_MAX
    figure = f"{job.wait_seconds:.3f} s"
    yield Check("spoke cold: total stall", passed, figure, f"≤ {STALL_SECONDS_MAX:g} s")
    first = job.first_window_at(WARM_UTILISATION)
    name = f"spoke cold: first window with utilisation ≥ {WARM_UTILISATION:.0%}"
    passed = first is not None and first <= WARM_UP_STEPS_MAX
    figure = "none" if first is None else f"starts at step {first}"
    yield Check(name, passed, figure, f"starts at step ≤ {WARM_UP_STEPS_MAX}")
    yield _wan_share("spoke cold: WAN bytes (compressed) of unique", cold, AMPLIFICATION_MAX)
    yield _payload_share("spoke cold: bytes before compression of unique", cold)


def _shuffled(cold: WayResult) -> Iterator[Check]:
    """The order is not known at first; it must be in the job's second half."""
    job = cold.job
    begin = max(job.steps - SHUFFLED_LAST_STEPS, job.steps // 2)
    last = [window for window in job.windows if window.first_step >= begin]
    compute = sum(window.compute_seconds for window in last)
    u = ratio(compute, compute + sum(window.wait_seconds for window in last))
    name = f"shuffled cold: utilisation, last {job.steps - begin} of {job.steps} steps"
    yield Check(name, u >= SHUFFLED_UTILISATION, f"{u:.2%}", f"≥ {SHUFFLED_UTILISATION:.0%}")
    yield _payload_share("shuffled cold: bytes before compression of unique", cold)


def _payload_share(name: str, result: WayResult) -> Check:
    """Compression would hide bytes that were brought and never read."""
    if result.report is None:
        return Check(name, False, "not reported", f"≤ {AMPLIFICATION_MAX:g}")
    share = result.report["wan"]["payload_bytes"] / result.job.unique_bytes
    return Check(name, share <= AMPLIFICATION_MAX, f"{share:.4f}", f"≤ {AMPLIFICATION_MAX:g}")


def _wan_share(name: str, result: WayResult, most: float) -> Check:
    """WAN bytes in both directions, as the emulator counted them."""
    if result.wan is None:
        return Check(name, False, "not counted", f"≤ {most:g}")
    share = result.wan.both / result.job.unique_bytes
    return Check(name, share <= most, f"{share:.4f}", f"≤ {most:g}")


def _warm(warm: WayResult, local: WayResult) -> Iterator[Check]:
    bound = f"≥ {WARM_OF_LOCAL_MIN:.0%} of hub-local"
    pairs = [("all steps", warm.job.utilisation, local.job.utilisation)]
    first, first_local = warm.job.phases[0], local.job.phases[0]
    steps = f"steps {first.first_step}-{first.end_step}"
    pairs.append((steps, first.utilisation, first_local.utilisation))
    for what, ours, theirs in pairs:
        passed = ours >= WARM_OF_LOCAL_MIN * theirs
        figure = f"{ours:.2%} ({ours / theirs:.2%} of {theirs:.2%})"
        yield Check(f"spoke warm: utilisation, {what}", passed, figure, bound)
    yield _wan_share("spoke warm: WAN bytes of unique", warm, WARM_WAN_MAX)


def _report(result: WayResult, report: Mapping[str, Any]) -> Iterator[Check]:
    name, wan = result.way.name, result.wan
    least = result.wan_before_report
    requests = report["reads"]["requests"]
    figure = f"{requests:,} of {result.job.reads:,}"
    passed = requests == result.job.reads
    yield Check(f"{name}: report's reads and the job's", passed, figure, "equal")
    if wan is not None and least is not None:
        for direction, low, high in (
            ("received", least.to_spoke_bytes, wan.to_spoke_bytes),
            ("sent", least.to_hub_bytes, wan.to_hub_bytes),
        ):
            said = report["wan"][f"{direction}_bytes"]
            yield _agreement(f"{name}: report's {direction} bytes", said, low, high)
    yield _money(f"{name}: money follows the price", report)


def _agreement(name: str, said: int, low: int, high: int) -> Check:
    """`said` against what was counted before and after it was said."""
    off = max(low - said, said - high, 0) / max(high, 1)
    counted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    figure = f"{said:,}, counted {counted} ({off:.2%} off)"
    return Check(name, off <= AGREEMENT, figure, f"within {AGREEMENT:.0%}")


def _money(name: str, report: Mapping[str, Any]) -> Check:
    """The report's amount from its own bytes, and twice of it at twice the price."""
    cost, wan = report["cost"], report["wan"]
    down, up = cost["price_per_gb_hub_to_spoke"], cost["price_per_gb_spoke_to_hub"]
    usd = cost["usd"]
    if None in (down, up):
        return Check(name, usd is None, f"price unknown, {usd} USD", "unknown is null")

    def at(factor: float) -> float:
        prices = prices_for(HUB_REGION, SPOKE_REGION, PriceOverride(factor * down, factor * up))
        amount = cost_section(
            prices,
            received_bytes=wan["received_bytes"],
            sent_bytes=wan["sent_bytes"] + (wan["retransmitted_bytes"] or 0),
            read_bytes=report["reads"]["bytes"],
            full_copy_bytes=None,
        )["usd"]
        assert isinstance(amount, float)
        return amount

    if usd is None:
        return Check(name, False, "no amount although the price is known", "bytes times price")
    passed = _near(usd, at(1)) and _near(2 * usd, at(2))
    figure = f"{usd:.6f} USD, {at(2):.6f} at twice the price"
    return Check(name, passed, figure, "bytes times price")


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))
