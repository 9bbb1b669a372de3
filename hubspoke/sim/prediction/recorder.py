"""What was read, and how it went: a column for each fact, a row for each read."""

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubspoke.core.ids import ReadState

CODES = {ReadState.HIT: 0, ReadState.LATE: 1, ReadState.MISS: 2}


@dataclass(frozen=True, slots=True)
class Reads:
    """The columns as arrays. latencies: seconds. batches: of the reader's job, from 0 over all
    epochs; -1 for reads that belong to none."""

    at: npt.NDArray[np.float64]
    objects: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    clients: npt.NDArray[np.int32]
    states: npt.NDArray[np.uint8]
    latencies: npt.NDArray[np.float64]
    batches: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What only the cache itself knows. causes: of misses. unused_bytes: fetched ahead in vain."""

    causes: dict[str, int]
    unused_bytes: int
    stale_reads: int


class Recorder:
    """Grows by one row for each read, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._at, self._latencies = array("d"), array("d")
        self._objects, self._clients, self._batches = array("i"), array("i"), array("i")
        self._offsets, self._lengths = array("q"), array("q")
        self._states = array("B")

    def __len__(self) -> int:
        return len(self._at)

    def asked(
        self,
        at: float,
        number: int,
        offset: int,
        length: int,
        client: int,
        batch: int,
        state: ReadState,
    ) -> int:
        """One more read; returns its row."""
        self._at.append(at)
        self._objects.append(number)
        self._offsets.append(offset)
        self._lengths.append(length)
        self._clients.append(client)
        self._batches.append(batch)
        self._states.append(CODES[state])
        self._latencies.append(0.0)
        return len(self._at) - 1

    def answered(self, row: int, now: float) -> float:
        """The read has its bytes; returns the seconds it took."""
        took = self._latencies[row] = now - self._at[row]
        return took

    def reads(self) -> Reads:
        return Reads(
            np.array(self._at),
            np.array(self._objects),
            np.array(self._offsets, dtype=np.int64),
            np.array(self._lengths, dtype=np.int64),
            np.array(self._clients),
            np.array(self._states),
            np.array(self._latencies),
            np.array(self._batches),
        )
