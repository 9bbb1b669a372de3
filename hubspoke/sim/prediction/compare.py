"""A run's traffic beside the least that any cache of that size could have had."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from hubspoke.sim.prediction.belady import belady, exact_bytes
from hubspoke.sim.prediction.job import JobSpec
from hubspoke.sim.prediction.recorder import Reads
from hubspoke.sim.prediction.workload import Workload
from hubspoke.traces.trace import NOT_KNOWN, Trace


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


def planned(workload: Workload) -> Trace:
    """What was recorded, or what the jobs will read: step by step, a step's ranks and the jobs one
    after the other. In a run workers overtake each other, and one job another."""
    if workload.recorded is not None:
        return workload.recorded
    objects, offsets, lengths = array("i"), array("q"), array("q")

    def steps(spec: JobSpec) -> Iterator[tuple[int, int]]:
        return ((epoch, step) for epoch, n in enumerate(spec.steps) for step in range(n))

    for of_jobs in zip_longest(*(steps(spec) for spec in workload.jobs)):
        for spec, now in zip(workload.jobs, of_jobs, strict=True):
            if now is None:
                continue
            for rank in range(spec.ranks):
                for number, offset, length in spec.reads(now[0], rank, now[1]):
                    objects.append(number)
                    offsets.append(offset)
                    lengths.append(length)
    n = len(objects)
    return Trace(
        names=list(workload.names),
        sizes=np.array(workload.sizes, np.int64),
        at=np.zeros(n, np.float64),
        objects=np.array(objects, np.int32),
        offsets=np.array(offsets, np.int64),
        lengths=np.array(lengths, np.int64),
        clients=np.zeros(n, np.int32),
        states=np.full(n, NOT_KNOWN, np.uint8),
        facts={},
    )
