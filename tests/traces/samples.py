"""Traces for tests."""

import numpy as np
from hypothesis import strategies as st

from hubspoke.traces.format import TICKS
from hubspoke.traces.trace import Trace

COLUMNS = ("sizes", "at", "objects", "offsets", "lengths", "clients", "states")
LARGEST = (1 << 63) - 1


def same(a: Trace, b: Trace) -> bool:
    """But for facts."""
    return a.names == b.names and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS
    )


def trace(
    objects: list[tuple[str, int]],
    reads: list[tuple[int, int, int, int, int, int]],
    facts: dict[str, object] | None = None,
) -> Trace:
    """reads: (microseconds, object, offset, length, client, state)."""
    columns = list(zip(*reads, strict=True)) if reads else [()] * 6
    return Trace(
        names=[name for name, _ in objects],
        sizes=np.array([size for _, size in objects], np.int64),
        at=np.array(columns[0], np.int64) / TICKS,
        objects=np.array(columns[1], np.int32),
        offsets=np.array(columns[2], np.int64),
        lengths=np.array(columns[3], np.int64),
        clients=np.array(columns[4], np.int32),
        states=np.array(columns[5], np.uint8),
        facts=facts or {},
    )


SAMPLE = trace(
    [("bkt/a", 1 << 30), ("bkt/é", 10), ("bkt/never read", 0)],
    [
        (0, 0, 0, 4096, 0, 2),
        (1_000, 0, 4096, 4096, 0, 1),
        (1_000, 1, 0, 10, 7, 255),
        (2_500, 0, 1 << 29, 100, 7, 0),
        (5_000_000_000, 0, 8192, 4096, 0, 0),
    ],
    {"capacity_bytes": 1 << 40, "rtt_s": 0.06, "prefetch": True, "region": None},
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any trace, the largest numbers included."""
    names = draw(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5, unique=True))
    sizes = [draw(st.one_of(st.integers(1, 1 << 20), st.just(LARGEST))) for _ in names]
    reads = []
    at = 0
    for _ in range(draw(st.integers(0, 40))):
        at += draw(st.integers(0, 1 << draw(st.integers(0, 40))))
        number = draw(st.integers(0, len(names) - 1))
        offset = draw(st.integers(0, sizes[number] - 1))
        length = draw(st.integers(1, sizes[number] - offset))
        client = draw(st.one_of(st.integers(0, 3), st.just((1 << 31) - 1)))
        reads.append((at, number, offset, length, client, draw(st.sampled_from([0, 1, 2, 255]))))
    return trace(list(zip(names, sizes, strict=True)), reads)
