"""What other caches would do: published policies in the place of the spoke's core.

A peer is a store of 4 KiB pages (`page_stores`) and a rule that fetches ahead (`read_ahead`):

    none        no cache beyond the read itself
    lru         what was read longest ago goes
    s3fifo      S3-FIFO, Yang et al., SOSP 2023
    pinned      what came first stays
    belady      MIN with bypass, told the future, without fetching ahead
    readahead   LRU, and Linux's doubling window for each open file of each worker
    leap        LRU, and Leap's majority trend, Al Maruf and Chowdhury, USENIX ATC 2020
    stride      LRU, and a stride table for each worker and file, Chen and Baer, 1995

All fetch exactly the pages that they lack, and each page once while it is under way.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.sim.prediction.belady import atoms_of, bases_of
from hubspoke.sim.prediction.future_store import FutureStore
from hubspoke.sim.prediction.page_stores import (
    AHEAD,
    PAGES_MAX,
    LruStore,
    NoStore,
    PageStore,
    PinnedStore,
    S3FifoStore,
    claim,
    use,
)
from hubspoke.sim.prediction.read_ahead import Ahead, Leap, NoAhead, ReadAhead
from hubspoke.sim.prediction.stride_table import StrideTable
from hubspoke.traces.trace import Trace

# A stream of 100 MB/s reads 6 MB in a round trip of 60 ms; Linux's own 128 KiB would only show
# that it was made for local disks.
WINDOW_BYTES = 8 << 20

Range = tuple[int, int, int]  # object, offset, length


class Subject(Protocol):
    """Whoever decides what is fetched. Ranges are whole pages, the last of an object cut.
    fetched_ahead: bytes of whole pages; used_ahead: of those that were read afterwards."""

    fetched_ahead: int
    used_ahead: int

    def read(self, obj: int, offset: int, length: int, client: int, now: float) -> list[Range]:
        """A reader asks: what to fetch for it, neither here nor under way."""
        ...

    def ahead(self, now: float) -> list[Range]:
        """What to fetch ahead, decided since the last call."""
        ...

    def arrived(self, obj: int, offset: int, length: int, now: float) -> int:
        """Pages asked for are here, in pieces of any size; returns the bytes stored."""
        ...


class Peer:
    """A `Subject` made of a store and a rule. states: of its pages, see `page_stores`."""

    def __init__(self, store: PageStore, ahead: Ahead, sizes: Sequence[int]) -> None:
        self.fetched_ahead = self.used_ahead = 0
        self._store, self._rule = store, ahead
        self.states = store.states
        self._sizes = [int(size) for size in sizes]
        self._bases = [int(b) for b in bases_of(np.array(self._sizes, np.int64), PAGE_BYTES)]
        self._runs = np.empty(64, np.int64)
        self._ahead: list[Range] = []

    def read(self, obj: int, offset: int, length: int, client: int, now: float) -> list[Range]:
        base = self._bases[obj]
        first = base + offset // PAGE_BYTES
        end = base - -(offset + length) // PAGE_BYTES
        used = use(self.states, first, end)
        self.used_ahead += used * PAGE_BYTES
        missing = self._claim(obj, first, end, 0)
        self._store.touch(first, end)  # may drop what is not read again
        for a, b in self._rule.after(client, obj, first - base, end - base, used, bool(missing)):
            last = min(base + b, self._bases[obj + 1])
            for wanted in self._claim(obj, max(base + a, base), last, AHEAD):
                self.fetched_ahead -= -wanted[2] // PAGE_BYTES * PAGE_BYTES
                self._ahead.append(wanted)
        return missing

    def _claim(self, obj: int, first: int, end: int, mark: int) -> list[Range]:
        if len(self._runs) < end - first + 2:
            self._runs = np.empty(2 * (end - first + 2), np.int64)
        found = claim(self.states, first, end, mark, self._runs)
        if not found:
            return []
        base, size = self._bases[obj], self._sizes[obj]
        edges = self._runs[: 2 * found].tolist()
        return [
            (
                obj,
                (a - base) * PAGE_BYTES,
                min((b - base) * PAGE_BYTES, size) - (a - base) * PAGE_BYTES,
            )
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]

    def ahead(self, now: float) -> list[Range]:
        found, self._ahead = self._ahead, []
        return found

    def arrived(self, obj: int, offset: int, length: int, now: float) -> int:
        first = self._bases[obj] + offset // PAGE_BYTES
        return self._store.admit(first, first - -length // PAGE_BYTES) * PAGE_BYTES


def _future(capacity: int, pages: int, trace: Trace | None) -> PageStore:
    if trace is None:
        raise ValueError("belady: needs the trace whose future it knows")
    return FutureStore(capacity, pages, atoms_of(trace, PAGE_BYTES))


Store = Callable[[int, int, Trace | None], PageStore]
_STORES: dict[str, Store] = {
    "none": lambda capacity, pages, trace: NoStore(pages),
    "lru": lambda capacity, pages, trace: LruStore(capacity, pages),
    "s3fifo": lambda capacity, pages, trace: S3FifoStore(capacity, pages),
    "pinned": lambda capacity, pages, trace: PinnedStore(capacity, pages),
    "belady": _future,
    "readahead": lambda capacity, pages, trace: LruStore(capacity, pages),
    "leap": lambda capacity, pages, trace: LruStore(capacity, pages),
    "stride": lambda capacity, pages, trace: LruStore(capacity, pages),
}
_AHEAD: dict[str, Callable[[int], Ahead]] = {
    "readahead": ReadAhead,
    "leap": Leap,
    "stride": StrideTable,
}
NAMES = tuple(_STORES)


def make(
    name: str,
    capacity: int,
    sizes: Sequence[int],
    *,
    trace: Trace | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> Peer:
    """capacity: bytes. trace: for belady, of the objects with these sizes. window_bytes: most
    that readahead and leap have under way for one reader. Raises ValueError."""
    if name not in _STORES:
        raise ValueError(f"{name}: no such policy; one of {', '.join(NAMES)}")
    pages = int(bases_of(np.array(sizes, np.int64), PAGE_BYTES)[-1])
    if pages > PAGES_MAX:
        raise ValueError(f"{pages} pages of data; at most {PAGES_MAX} can be simulated")
    ahead = _AHEAD[name](window_bytes // PAGE_BYTES) if name in _AHEAD else NoAhead()
    # No more is ever stored than there is.
    store = _STORES[name](min(capacity // PAGE_BYTES, pages), pages, trace)
    return Peer(store, ahead, sizes)
