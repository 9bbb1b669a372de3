"""Where the records of packed files lie, from reads of them.

Reads of one length at first, first + step, first + 2 step, ... of every object. The step is the
greatest common divisor of the offsets' differences; since some reads may be of something else, it
is the coarsest lattice of which it is no chance that so many offsets lie on it. Two thirds of all
triples of a lattice's points have no coarser one in common, so few of them are enough to see it.
What is read of each step may be a part of it: rows with a header or padding, one column of many.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.core.inference.evidence import log_tail

CHANCE_MAX = 1e-4  # of taking too coarse a lattice; further reads show it
ANCHORS = 4  # some reads may be of something else: so may not all of these
# numpy pads the head of a .npy file to this, unless its dtype or shape takes many characters.
NPY_HEAD_BYTES, NPY = 128, "npy"


class Records(NamedTuple):
    """Bytes. first: offset of each object's first record. step: from one to the next. length: what
    is read of each, less at the object's end. suffixes: of names of objects that have records, as
    of `suffix_of`; None: all have."""

    first: int
    step: int
    length: int
    suffixes: frozenset[str] | None = None

    def holds(self, offset: int, length: int, size: int) -> bool:
        """Whether that is what is read of a record, of an object of this size."""
        ahead = offset - self.first
        return ahead >= 0 and not ahead % self.step and length == min(self.length, size - offset)

    def count(self, size: int) -> int:
        """Records of an object of this size."""
        return max(0, -(-(size - self.first) // self.step))


def packed(length: int) -> Records:
    """One behind the other from the start of each object on."""
    return Records(0, length, length)


def suffix_of(key: str) -> str:
    """What is behind the last dot of a name, unless it is a number."""
    _, dot, suffix = key[key.rfind("/") + 1 :].rpartition(".")
    return suffix if dot and not suffix.isdigit() else ""


def lattice(offsets: Sequence[int], length: int, need: int) -> tuple[int, int] | None:
    """(first, step) of records of so many bytes; None if that is not clear. offsets: in the order
    of reading; need: at least so many of them lie on it."""
    all_ = np.array(offsets, np.int64)
    places = np.array(list(dict.fromkeys(offsets)), np.int64)
    found = []
    for step, phase in _lattices(places, length):
        if np.count_nonzero(all_ % step == phase) >= need:
            found.append((int(np.count_nonzero(places % step == phase)), step, phase))
    if not found:
        return None
    fits, step, phase = max(found)
    if not _clear(fits, len(places), 2):
        return None
    for fewer, coarser, its in sorted(found, key=lambda each: -each[1]):
        if coarser > step and coarser % step == 0 and _clear(fewer, fits, coarser // step):
            return its, coarser
    return phase, step


def _lattices(places: npt.NDArray[np.int64], length: int) -> set[tuple[int, int]]:
    """(step, phase) of all that some of the places suggest, which are in the order of reading."""
    found: set[tuple[int, int]] = set()
    for anchor in places[:ANCHORS].tolist():
        away = places[places != anchor] - anchor
        pairs = np.gcd(away[1:], away[:-1])
        for step in {*pairs.tolist(), *np.gcd(pairs[1:], pairs[:-1]).tolist()}:
            if step >= length:
                found.add((step, anchor % step))
    return found


def _clear(fits: int, of: int, times: int) -> bool:
    """Whether it is no chance that so many places of a lattice lie on one so many times as coarse;
    one of them lies there in any case."""
    return of > 1 and log_tail(fits - 1, of - 1, 1 / times) < math.log(CHANCE_MAX)


def records_of(reads: Sequence[tuple[str, int]], length: int, need: int) -> Records | None:
    """From reads (key, offset) of so many bytes, some of which may be of something else."""
    found = lattice([offset for _, offset in reads], length, need)
    if found is None:  # few records, or nothing of the kind
        if sum(not offset % length for _, offset in reads) < need:
            return None
        found = 0, length
    first, step = found
    mine = [(key, offset) for key, offset in reads if offset % step == first]
    suffixes = frozenset(suffix_of(key) for key, _ in mine)
    behind = min(offset for _, offset in mine) >= NPY_HEAD_BYTES
    if suffixes == {NPY} and behind and NPY_HEAD_BYTES % step == first:
        first = NPY_HEAD_BYTES
    return Records(first, step, length, suffixes)
