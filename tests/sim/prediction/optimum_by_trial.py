"""The optimum by trying everything: what `hubspoke.sim.prediction.belady` is checked against."""

from collections.abc import Iterator

from hubspoke.traces.trace import Trace


def units(trace: Trace, unit: int) -> Iterator[tuple[int, int]]:
    """(object, unit) of each access, in the order of the trace and of the bytes."""
    for obj, offset, length in zip(trace.objects, trace.offsets, trace.lengths, strict=True):
        for index in range(int(offset) // unit, -(-int(offset + length) // unit)):
            yield int(obj), index


def most_hits(trace: Trace, capacity_units: int, unit: int) -> tuple[int, int]:
    """(hits, accesses). Every content that any policy can have after each access is followed:
    with the unit just read or without it, less anything."""
    best: dict[frozenset[tuple[int, int]], int] = {frozenset(): 0}
    accesses = 0
    for key in units(trace, unit):
        accesses += 1
        after: dict[frozenset[tuple[int, int]], int] = {}
        for content, hits in best.items():
            hits += key in content
            kept = content - {key}
            choices = [kept]  # read, and not kept
            if capacity_units:
                full = len(kept) == capacity_units
                choices += [(kept - {v}) | {key} for v in kept] if full else [kept | {key}]
            for choice in choices:
                after[choice] = max(after.get(choice, 0), hits)
        best = after
    return max(best.values()), accesses
