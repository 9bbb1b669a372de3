"""Small traces for tests of caches."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.traces.trace import NOT_KNOWN, Trace

Read = tuple[int, int, int]  # object, offset, length


def trace_of(sizes: Sequence[int], reads: Sequence[Read]) -> Trace:
    """One read a second, of one client."""
    n = len(reads)
    columns = np.array(reads, np.int64).reshape(n, 3)
    return Trace(
        names=[f"data/{i:06}" for i in range(len(sizes))],
        sizes=np.array(sizes, np.int64),
        at=np.arange(n, dtype=np.float64),
        objects=columns[:, 0].astype(np.int32),
        offsets=columns[:, 1].copy(),
        lengths=columns[:, 2].copy(),
        clients=np.zeros(n, np.int32),
        states=np.full(n, NOT_KNOWN, np.uint8),
        facts={},
    )


def pages_read(order: npt.NDArray[np.int64], objects: int) -> Trace:
    """Objects of one page each, read as a whole in this order."""
    n = len(order)
    return Trace(
        names=[f"data/{i:06}" for i in range(objects)],
        sizes=np.full(objects, PAGE_BYTES, np.int64),
        at=np.arange(n, dtype=np.float64),
        objects=order.astype(np.int32),
        offsets=np.zeros(n, np.int64),
        lengths=np.full(n, PAGE_BYTES, np.int64),
        clients=np.zeros(n, np.int32),
        states=np.full(n, NOT_KNOWN, np.uint8),
        facts={},
    )


# The orders of WORKLOADS' table: N items, each epoch reads all of them (iid: as many as there are).
ITEMS = 20_000


def orders(name: str, seed: int, epochs: int = 12) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(seed)

    def permutations() -> npt.NDArray[np.int64]:
        return np.concatenate([rng.permutation(ITEMS) for _ in range(epochs)])

    match name:
        case "permutation":
            return permutations()
        case "cyclic":
            return np.tile(np.arange(ITEMS), epochs)
        case "iid":
            return rng.integers(0, ITEMS, ITEMS * epochs)
        case "two jobs":
            return np.stack([permutations(), permutations()], axis=1).ravel()
    raise AssertionError(name)
