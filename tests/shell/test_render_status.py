"""`hubspoke status`: a line for each stream and each job on a data set, bounded."""

import io
from typing import Any

from rich.console import Console

from hubspoke.report.render_status import render_status

NOW: dict[str, Any] = {
    "spoke": "spoke-1",
    "ready": True,
    "reasons": [],
    "hit_ratio": 0.99,
    "requests_per_second": 10.0,
    "received_bytes_per_second": None,
    "sent_bytes_per_second": 0.0,
    "rtt_ms": 60.0,
    "prefetch_in_flight_bytes": 0,
    "cache_bytes": 1 << 30,
    "cache_capacity_bytes": 2 << 30,
    "lease": "valid",
    "lag_seconds": 0.0,
    "jobs": [],
    "warm": [],
    "streams": [],
    "data_sets": [],
}
STREAM: dict[str, Any] = {
    "object": "b/[set]/tokens.bin",
    "pattern": "sequential",
    "layout": None,
    "position": 3 << 20,
    "bytes_per_second": 2 << 20,
    "ahead_seconds": 1.5,
    "source": "sequential",
    "accuracy": 0.987,
    "why": "100% of what lies behind the front was read",
}
JOB: dict[str, Any] = {
    "epoch": 2,
    "read_items": 250,
    "believed": True,
    "ahead_seconds": None,
    "order": None,
    "why": "0 of 250 reads of this epoch are repeats",
}
SET: dict[str, Any] = {
    "folder": "b/set/",
    "items": 1000,
    "source": "blind_fill",
    "jobs": [JOB],
}


def lines(width: int = 160, **changed: object) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render_status(NOW | changed, streams_max=3))
    return console.export_text().splitlines()


def with_word(word: str, found: list[str]) -> list[str]:
    return [line for line in found if word in line]


def test_a_stream_is_one_line_with_belief_and_reason() -> None:
    (line,) = with_word("b/[set]", lines(streams=[STREAM]))
    for part in ("sequential", "3.00 MiB", "2.00 MiB/s", "1.50 s", "98.70 %", "100% of what"):
        assert part in line, part


def test_a_layout_goes_before_the_pattern() -> None:
    (line,) = with_word("b/[set]", lines(streams=[STREAM | {"layout": "Parquet: 3 columns"}]))
    assert " layout " in line


def test_a_job_on_a_data_set_is_one_line() -> None:
    (line,) = with_word("b/set/", lines(data_sets=[SET]))
    for part in (" 3 ", "25.00 %", "in any order", "blind_fill", "0 of 250 reads"):
        assert part in line, part
    order = {"family": "torch DistributedSampler"}
    (line,) = with_word("b/set/", lines(data_sets=[SET | {"jobs": [JOB | {"order": order}]}]))
    assert "torch DistributedSampler" in line
    (line,) = with_word("b/set/", lines(data_sets=[SET | {"jobs": [JOB | {"believed": False}]}]))
    assert "in any order" not in line


def test_lines_are_bounded_in_number_and_width() -> None:
    many = [STREAM | {"object": "b/" + "x" * 300}] * 9
    found = lines(width=80, streams=many, data_sets=[SET] * 9)
    assert with_word("Streams (9, the first 3)", found)
    assert len(with_word("b/set/", found)) <= 3
    assert max(map(len, found)) <= 80
    assert len(found) < 30


def test_what_is_not_there_has_no_table() -> None:
    assert not with_word("Streams", lines()) and not with_word("Data sets", lines())
