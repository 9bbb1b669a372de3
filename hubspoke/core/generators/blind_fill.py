"""Blind fill: a shuffled epoch reads every item once, so any item not read yet will be.

Assumes: items drawn without replacement, which `core.epochs` believes when draws with replacement
are excluded, or after an epoch that was complete. Fetches in listing order at what the path
carries, after everything that has a nearer use. Costs no byte more than reading would, because it
only takes the room of what was read in this epoch. Neighbours come together, in whole frames.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import BLOCK_BYTES, ObjectEntry, ObjectName

OUTSTANDING_BYTES_MIN = 8 << 20
USE_IN_S = 60.0  # nobody knows; behind all that is known to be needed sooner

Known = Callable[[ObjectName], bool]  # whether the cache has the object's entry already


def fill(
    items: ListedItems, numbers: npt.NDArray[np.int32], evidence: int, known: Known
) -> list[Candidate]:
    """These items, in order, neighbours joined up to a block."""
    found: list[Candidate] = []
    runs: list[tuple[int, int, int]] = []
    for number, offset, length in items.ranges(numbers):
        if runs:
            last, start, n = runs[-1]
            if last == number and start + n == offset and n + length <= BLOCK_BYTES:
                runs[-1] = last, start, n + length
                continue
        runs.append((number, offset, length))
    for number, offset, length in runs:
        placed = place(items, number, known)
        if placed is not None:
            found.append(Candidate("blind_fill", 0, *placed, offset, length, USE_IN_S, evidence))
    return found


def place(
    items: ListedItems, number: int, known: Known
) -> tuple[ObjectName, ObjectEntry | None] | None:
    """Name of an object and, unless it is open already, its entry; None if it is gone."""
    name = items.object_name(number)
    if known(name):
        return name, None
    entry = items.entry(number)
    return None if entry is None else (name, entry)
