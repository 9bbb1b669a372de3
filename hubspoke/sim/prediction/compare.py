"""A run's traffic beside the least that any cache of that size could have had."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hubspoke.sim.prediction.belady import belady, exact_bytes
from hubspoke.sim.prediction.recorder import Reads
from hubspoke.traces.trace import Trace


def trace_of(names: Sequence[str], sizes: Sequence[int], reads: Reads) -> Trace:
    """What was read, in the order in which it was asked for."""
    return Trace(
        names=list(names),
        sizes=np.array(sizes, np.int64),
        at=reads.at,
        objects=reads.objects,
        offsets=reads.offsets,
        lengths=reads.lengths,
        clients=reads.clients,
        states=reads.states,
        facts={},
    )


def against_minimum(trace: Trace, capacity: int, egress_bytes: int) -> dict[str, Any]:
    """minimum_bytes: Belady's over 4 KiB pages; exact_minimum_bytes: by single bytes."""
    minimum = belady(trace, capacity).egress_bytes
    return {
        "minimum_bytes": minimum,
        "exact_minimum_bytes": exact_bytes(trace, capacity).egress_bytes,
        "of_minimum": egress_bytes / minimum,
    }
