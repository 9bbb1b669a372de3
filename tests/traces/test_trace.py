"""The class Trace: what it refuses, and how one is built."""

from dataclasses import replace

import numpy as np
import pytest

from hubspoke.errors import FormatError
from hubspoke.traces.trace import NOT_KNOWN, TraceBuilder

from .samples import SAMPLE


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("objects", 3, "read 2: object 3, expected one of 3"),
        ("objects", -1, "read 2: object -1"),
        ("lengths", 0, "read 2: length 0, expected more than 0"),
        ("clients", -1, "read 2: client -1"),
        ("states", 3, "read 2: state 3, expected 0, 1, 2 or 255"),
        ("at", -1.0, "read 2: time -1.0, expected no earlier time"),
        ("at", float("nan"), "read 2: time nan, expected at most"),
        ("at", float("inf"), "read 2: time inf, expected at most"),
        ("offsets", -1, "read 2: offset -1, expected a range inside its object"),
        ("offsets", 1, "read 2: offset 1, expected a range inside its object"),
        ("lengths", (1 << 63) - 1, "read 2: offset 0, expected a range inside its object"),
    ],
)
def test_reads_that_cannot_be_are_refused(column: str, value: float, what: str) -> None:
    values = getattr(SAMPLE, column).copy()
    values[2] = value
    with pytest.raises(FormatError, match=what):
        replace(SAMPLE, **{column: values})


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FormatError, match=r"lengths: int64 .4,., expected int64 .5,."):
        replace(SAMPLE, lengths=SAMPLE.lengths[1:])
    with pytest.raises(FormatError, match=r"offsets: int32 .5,., expected int64"):
        replace(SAMPLE, offsets=SAMPLE.offsets.astype(np.int32))
    with pytest.raises(FormatError, match=r"sizes: int64 .3,., expected int64 2"):
        replace(SAMPLE, names=SAMPLE.names[:2])
    with pytest.raises(FormatError, match="one stands there twice"):
        replace(SAMPLE, names=["a", "b", "a"])
    with pytest.raises(FormatError, match="sizes: -1, expected 0 or more"):
        replace(SAMPLE, sizes=np.array([1 << 30, 10, -1]))


def test_a_builder_orders_by_time_and_knows_clients_by_what_they_are_called() -> None:
    builder = TraceBuilder()
    builder.add("b/x", 100, 50, at=1000.5, client=("p", 1))
    builder.add("b/y", 0, 5, at=1000.25, client="c", state=0, size=7)
    builder.add("b/x", 0, 50, at=1000.5, client=("p", 1))
    trace = builder.build({"from": "here"})
    assert trace.names == ["b/x", "b/y"]
    assert trace.sizes.tolist() == [150, 7]
    assert trace.at.tolist() == [0.0, 0.25, 0.25]
    assert trace.objects.tolist() == [1, 0, 0]
    assert trace.offsets.tolist() == [0, 100, 0]
    assert trace.clients.tolist() == [1, 0, 0]
    assert trace.states.tolist() == [0, NOT_KNOWN, NOT_KNOWN]
    assert (trace.bytes, trace.seconds, len(trace)) == (105, 0.25, 3)
    assert TraceBuilder().build({}).seconds == 0.0
