"""The report as people see it: what is not known is said so, and units are named."""

import io
from dataclasses import replace

from rich.console import Console

from hubspoke.core.ids import ReadState
from hubspoke.core.ledger import Ledger
from hubspoke.report.cost import prices_for
from hubspoke.report.facts import CacheFacts, MetadataFacts, SpokeFacts, WanFacts
from hubspoke.report.render import render_report
from hubspoke.report.report import build_report

FACTS = SpokeFacts(
    spoke="spoke-1",
    region="us-west-2",
    hub_region="us-east-2",
    model="rules: no model yet",
    wan=WanFacts(1100, 50, 7, 1000, {"demand": 300, "prefetch": 700}, 60.2, None, 800),
    cache=CacheFacts(1000, 2000, 1, 2, 3, 4, 5),
    metadata=MetadataFacts(5, 6, 4, 0.5, "valid", None),
    prefetch_in_flight_bytes=0,
    runway_seconds=None,
    full_copy_bytes=None,
)


def ledger(*states: ReadState) -> Ledger:
    made = Ledger(100.0, 1_700_000_000_000_000_000)
    for i, state in enumerate(states):
        missed = 0 if state is ReadState.HIT else 4096
        cause = None if state is ReadState.HIT else "cold_start"
        made.read(state, 4096, missed, cause, 0.001, 0.0, 101.0 + i / 1000)
    return made


def shown(made: Ledger, facts: SpokeFacts = FACTS) -> dict[str, str]:
    """Lines of the printed report by their label."""
    prices = prices_for(facts.hub_region, facts.region, None)
    document = build_report(made, facts, [], prices, 110.0, 1_700_000_010_000_000_000)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render_report(document))
    lines = [line.split("  ", 1) for line in console.export_text().splitlines()]
    return {line[0]: line[-1].strip() for line in lines}


def test_money_without_a_price_is_unknown() -> None:
    lines = shown(ledger(), replace(FACTS, region="moon-1"))
    for label in ("price, hub to spoke", "price, spoke to hub", "WAN traffic", "saved"):
        assert lines[label] == "unknown", label
    assert shown(ledger())["price, hub to spoke"].endswith("USD/GB")


def test_a_rate_that_is_not_known_has_no_unit() -> None:
    assert shown(ledger())["rate of the path"] == "-"


def test_warm_up_is_told_in_words() -> None:
    label = "hit ratio 94% and more"
    assert shown(ledger())[label] == "not yet"
    assert shown(ledger(*[ReadState.HIT] * 1000))[label] == "from the first read on"
    reads = [ReadState.MISS] * 1000 + [ReadState.HIT] * 1000
    assert shown(ledger(*reads))[label] == "after 1,000 reads, 1.00 s"


def test_a_changed_pattern_is_told_only_when_there_was_one() -> None:
    made = ledger(*[ReadState.HIT] * 1000)
    assert "learned again" not in shown(made)
    made.relearned(105.0, "new order")
    assert (
        shown(made)["learned again"] == "changes of pattern: 1; the last: new order, not warm yet"
    )


def test_compressed_bytes_are_named_so() -> None:
    assert shown(ledger())["compressed by"] == "a factor of 1.25"
    for payload, encoded in ((0, 0), (1000, 1000)):
        plain = replace(FACTS.wan, payload_bytes=payload, encoded_bytes=encoded)
        lines = shown(ledger(), replace(FACTS, wan=plain))
        assert "received" in lines and "received, compressed" not in lines
