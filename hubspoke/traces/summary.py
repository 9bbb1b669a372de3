"""What `hubspoke trace show` tells of a trace."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hubspoke.traces.trace import NOT_KNOWN, STATES, Trace

TOP = 20


def summary(trace: Trace, top: int = TOP) -> dict[str, Any]:
    """The document of --json. hit_ratio: of the reads whose state is known, None without any."""
    states = np.bincount(trace.states, minlength=NOT_KNOWN + 1)
    known = int(sum(states[code] for code in STATES))
    return {
        "objects": len(trace.names),
        "object_bytes": int(trace.sizes.sum()),
        "reads": len(trace),
        "bytes": trace.bytes,
        "clients": len(np.unique(trace.clients)),
        "seconds": trace.seconds,
        **{f"{word}_requests": int(states[code]) for code, word in STATES.items()},
        "unknown_requests": int(states[NOT_KNOWN]),
        "hit_ratio": int(states[0]) / known if known else None,
        "read_bytes_histogram": _histogram(trace),
        "top_objects": _top(trace, top),
        "facts": trace.facts,
    }


def _histogram(trace: Trace) -> list[dict[str, int]]:
    """Reads by size, in classes up to each power of two."""
    if not len(trace):
        return []
    # The exponent of the smallest power that is not below; exact, as lengths are below 2^53.
    classes = np.ceil(np.log2(trace.lengths)).astype(np.int64)
    counts = np.bincount(classes)
    return [{"up_to_bytes": 1 << i, "reads": int(n)} for i, n in enumerate(counts) if n]


def _top(trace: Trace, most: int) -> list[dict[str, Any]]:
    """Objects by bytes read."""
    count = len(trace.names)
    reads = np.bincount(trace.objects, minlength=count)
    bytes_ = np.zeros(count, np.int64)
    np.add.at(bytes_, trace.objects, trace.lengths)
    hits = np.bincount(trace.objects[trace.states == 0], minlength=count)
    order = np.lexsort((np.arange(count), -bytes_))[:most]
    return [
        {
            "name": trace.names[i],
            "size": int(trace.sizes[i]),
            "reads": int(reads[i]),
            "bytes": int(bytes_[i]),
            "hit_requests": int(hits[i]),
        }
        for i in order.tolist()
        if reads[i]
    ]


def rows(trace: Trace, most: int) -> Iterator[dict[str, Any]]:
    """The first reads, one document each."""
    for i in range(min(most, len(trace))):
        yield {
            "at": float(trace.at[i]),
            "client": int(trace.clients[i]),
            "name": trace.names[trace.objects[i]],
            "offset": int(trace.offsets[i]),
            "length": int(trace.lengths[i]),
            "state": STATES.get(int(trace.states[i])),
        }
