"""The least that any cache of a given size must fetch for a trace, whatever it foresees.

MIN with bypass over units of equal size (4 KiB pages, or bytes): between two reads of a unit the
cache either keeps it or fetches it again, so a trace is a set of intervals of time, and a policy
without mistakes is a choice of intervals of which at most `capacity` overlap. To choose the most
of them, go through time and whenever too many overlap give up the one that ends last, the new one
included (that is the bypass).

Units that are always read together are one *atom* and have the same intervals. They stay separate
units of equal size: an atom may be kept in part, so the result is exact, and a read of 112 KB
costs three steps instead of 28. Each interval ends at a step of its own, so the order of giving up
is a set of integers of which the largest is asked for: a tree of bit words, 64 ways.

Sources: Belady, IBM Systems Journal 5(2), 1966; Mattson, Gecsei, Slutz, Traiger, IBM Systems
Journal 9(2), 1970; for intervals, Faigle and Nawijn, Discrete Applied Mathematics 58, 1995.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.sim.prediction.compiled import compiled
from hubspoke.traces.trace import Trace

Ints = npt.NDArray[np.int64]
STEPS_MAX = 2**31 - 1  # next uses are kept as int32


@dataclass(frozen=True, slots=True)
class Optimum:
    """hits, accesses: units (pages, or bytes). fetched: bytes by read of the trace."""

    egress_bytes: int
    hits: int
    accesses: int
    fetched: Ints


def belady(trace: Trace, capacity: int) -> Optimum:
    """The fewest page fetches with `capacity` bytes of whole pages. A page at an object's end
    counts as one page in the cache, and on the way as the bytes that it has."""
    return _optimum(atoms_of(trace, PAGE_BYTES), capacity // PAGE_BYTES, PAGE_BYTES)


def exact_bytes(trace: Trace, capacity: int) -> Optimum:
    """The same by single bytes: for a cache that stores and fetches exactly what is read."""
    return _optimum(atoms_of(trace, 1), capacity, 1)


class Atoms(NamedTuple):
    """Read i has the atoms first[i] .. last[i] - 1; atom j the units edges[j] .. edges[j + 1] - 1,
    where all objects' units are counted through."""

    first: Ints
    last: Ints
    edges: Ints
    weight: Ints  # units
    cut: Ints  # bytes that the atom's last unit lacks, at the end of an object


def bases_of(sizes: Ints, unit: int) -> Ints:
    """The number of each object's first unit when all objects' units are counted through."""
    return np.concatenate(([0], np.cumsum(-(-sizes // unit))))


def atoms_of(trace: Trace, unit: int) -> Atoms:
    """Cuts all objects where any read begins or ends."""
    bases = bases_of(trace.sizes, unit)
    base = bases[trace.objects]
    begins = base + trace.offsets // unit
    ends = base - (-(trace.offsets + trace.lengths) // unit)
    edges = np.unique(np.concatenate((bases, begins, ends)))
    cut = np.zeros(len(edges) - 1, np.int64)
    some = trace.sizes > 0
    cut[np.searchsorted(edges, bases[1:][some]) - 1] = -trace.sizes[some] % unit
    return Atoms(
        np.searchsorted(edges, begins),
        np.searchsorted(edges, ends),
        edges,
        np.diff(edges),
        cut,
    )


def _optimum(atoms: Atoms, capacity: int, unit: int) -> Optimum:
    if capacity < 0:
        raise ValueError(f"a capacity of {capacity} units; it must be at least 0")
    steps = int((atoms.last - atoms.first).sum())
    if steps > STEPS_MAX:
        raise ValueError(f"the trace has {steps} accesses after joining; at most {STEPS_MAX} fit")
    following = next_uses(atoms.first, atoms.last, len(atoms.weight), steps)
    fetched = np.zeros(len(atoms.first), np.int64)
    hits, accesses = _choose(
        atoms.first, atoms.last, atoms.weight, atoms.cut, following, capacity, unit, fetched
    )
    return Optimum(int(fetched.sum()), hits, accesses, fetched)


@compiled
def next_uses(first: Ints, last: Ints, atoms: int, steps: int) -> npt.NDArray[np.int32]:
    """By step (one per atom of each read, in order): the step at which its atom is read next."""
    seen = np.full(atoms, -1, np.int32)
    following = np.empty(steps, np.int32)
    step = steps
    for read in range(len(first) - 1, -1, -1):
        for atom in range(last[read] - 1, first[read] - 1, -1):
            step -= 1
            following[step] = seen[atom]
            seen[atom] = step
    return following


@compiled
def _choose(
    first: Ints,
    last: Ints,
    weight: Ints,
    cut: Ints,
    following: npt.NDArray[np.int32],
    capacity: int,
    unit: int,
    fetched: Ints,
) -> tuple[int, int]:
    """(hits, accesses) in units; adds each read's bytes to `fetched`."""
    kept = np.zeros(len(following), np.int64)  # units, by the step at which they will be read
    words = bits_for(len(following))
    live = hits = accesses = step = 0
    for read in range(len(first)):
        for atom in range(first[read], last[read]):
            found, size = kept[step], weight[atom]
            if found > 0:
                live -= found
                clear_bit(words, step)
            hits += found
            accesses += size
            if found < size:  # what is kept in part is its head, so the tail is what is missing
                fetched[read] += (size - found) * unit - cut[atom]
            coming = following[step]
            if coming >= 0 and capacity > 0:
                kept[coming] = size
                live += size
                set_bit(words, coming)
            while live > capacity:
                victim = largest(words)
                over = live - capacity
                if kept[victim] > over:
                    kept[victim] -= over
                    live = capacity
                else:
                    live -= kept[victim]
                    kept[victim] = 0
                    clear_bit(words, victim)
            step += 1
    return hits, accesses


# A set of integers below n: one bit each, and above it a tree of which each bit says that a word
# of the level below is not zero. `words[0]` is where the levels begin, the leaves first.
Words = tuple[Ints, npt.NDArray[np.uint64]]


@compiled
def bits_for(n: int) -> Words:
    """The empty set."""
    levels = [0]
    size = max(n, 1)
    total = 0
    while True:
        size = (size + 63) // 64
        total += size
        levels.append(total)
        if size == 1:
            break
    return np.array(levels, np.int64), np.zeros(total, np.uint64)


@compiled
def set_bit(words: Words, value: int) -> None:
    """Add the value. A word that was not zero is known above."""
    levels, bits = words
    for level in range(len(levels) - 1):
        at = levels[level] + (value >> 6)
        before = bits[at]
        bits[at] = before | (np.uint64(1) << np.uint64(value & 63))
        if before:
            break
        value >>= 6


@compiled
def clear_bit(words: Words, value: int) -> None:
    """Remove the value, and words that are zero now from the level above."""
    levels, bits = words
    for level in range(len(levels) - 1):
        at = levels[level] + (value >> 6)
        bits[at] &= ~(np.uint64(1) << np.uint64(value & 63))
        if bits[at]:
            break
        value >>= 6


@compiled
def largest(words: Words) -> int:
    """The largest in the set, which is not empty."""
    levels, bits = words
    value = 0
    for level in range(len(levels) - 2, -1, -1):
        word = bits[levels[level] + value]
        high = 0
        for shift in (32, 16, 8, 4, 2, 1):
            if word >> np.uint64(high + shift):
                high += shift
        value = (value << 6) + high
    return value
