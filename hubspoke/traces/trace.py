"""What was read, by whom, when: the input of the simulator, of training and of a replay.

Times are seconds since the trace's start, with the file's resolution of a microsecond once a
trace has been stored. A read without bytes is no read. Sizes are those of the listing; where a
source does not tell them, the end of the furthest read.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hubspoke.core.ids import ReadState
from hubspoke.errors import FormatError

NOT_KNOWN = 255
SECONDS_MAX = 1e12
CODES = {ReadState.HIT: 0, ReadState.LATE: 1, ReadState.MISS: 2}
STATES = {code: state.value for state, code in CODES.items()}  # codes -> words

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Uint8 = npt.NDArray[np.uint8]
Float64 = npt.NDArray[np.float64]

_TYPES = {
    "at": np.float64,
    "objects": np.int32,
    "offsets": np.int64,
    "lengths": np.int64,
    "clients": np.int32,
    "states": np.uint8,
}


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Reads in order of time. Arrays have one element per read, but names and sizes: one per
    object. Raises FormatError when made of arrays that contradict this or each other."""

    names: list[str]  # "bucket/key", each once
    sizes: Int64  # bytes of each object
    at: Float64  # seconds since the trace's start
    objects: Int32  # index into names
    offsets: Int64
    lengths: Int64  # > 0
    clients: Int32  # connection or worker
    states: Uint8  # 0 hit, 1 late, 2 miss, 255 not known
    facts: dict[str, object]  # what is known of the run: capacity_bytes, rtt_s, prefetch ...

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            column = getattr(self, name)
            if column.dtype != kind or column.shape != self.at.shape or column.ndim != 1:
                raise FormatError(
                    f"{name}: {column.dtype} {column.shape}, expected {np.dtype(kind)} "
                    f"{self.at.shape}"
                )
        if self.sizes.dtype != np.int64 or self.sizes.shape != (len(self.names),):
            raise FormatError(
                f"sizes: {self.sizes.dtype} {self.sizes.shape}, expected int64 {len(self.names)}"
            )
        if len(set(self.names)) != len(self.names):
            raise FormatError("names: one stands there twice, expected each object once")
        if (self.sizes < 0).any():
            raise FormatError(f"sizes: {int(self.sizes.min())}, expected 0 or more")
        self._check_reads()

    def _check_reads(self) -> None:
        inside = (self.objects >= 0) & (self.objects < len(self.names))
        self._refuse(~inside, self.objects, "object", f"expected one of {len(self.names)}")
        self._refuse(self.lengths <= 0, self.lengths, "length", "expected more than 0")
        self._refuse(self.clients < 0, self.clients, "client", "expected 0 or more")
        known = (self.states <= CODES[ReadState.MISS]) | (self.states == NOT_KNOWN)
        self._refuse(~known, self.states, "state", "expected 0, 1, 2 or 255")
        # 30,000 years: their microseconds fit into 64 bits. NaN is not below it either.
        self._refuse(~(self.at < SECONDS_MAX), self.at, "time", f"expected at most {SECONDS_MAX}")
        late = np.diff(self.at, prepend=0.0) < 0
        self._refuse(late, self.at, "time", "expected no earlier time than that before it, or 0")
        sizes = self.sizes[self.objects]
        outside = (self.offsets < 0) | (self.lengths > sizes - self.offsets)
        self._refuse(outside, self.offsets, "offset", "expected a range inside its object")

    def _refuse(
        self, wrong: npt.NDArray[np.bool_], column: npt.NDArray[np.generic], what: str, right: str
    ) -> None:
        if wrong.any():
            first = int(wrong.argmax())
            raise FormatError(f"read {first}: {what} {column[first]}, {right}")

    def __len__(self) -> int:
        """Reads."""
        return len(self.at)

    @property
    def bytes(self) -> int:
        return int(self.lengths.sum())

    @property
    def seconds(self) -> float:
        """From the start of the trace to its last read."""
        return float(self.at[-1]) if len(self) else 0.0

    def part(self, first: int, end: int) -> "Trace":
        """Reads first to end - 1, at their times; objects keep their numbers."""
        columns = {name: getattr(self, name)[first:end] for name in _TYPES}
        return replace(self, **columns)


class TraceBuilder:
    """Collects reads in any order, in 37 bytes each."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._sizes = array("q")
        self._columns: dict[str, array[Any]] = {
            name: array(np.dtype(kind).char) for name, kind in _TYPES.items()
        }
        self._clients: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._columns["at"])

    def add(
        self,
        name: str,
        offset: int,
        length: int,
        *,
        at: float,
        client: object = 0,
        state: int = NOT_KNOWN,
        size: int = 0,
    ) -> None:
        """at: seconds on any clock. client: whatever tells it from others. size: of the object
        as far as it is known."""
        number = self._numbers.setdefault(name, len(self._numbers))
        size = max(size, offset + length)
        if number == len(self._sizes):
            self._sizes.append(size)
        elif size > self._sizes[number]:
            self._sizes[number] = size
        who = self._clients.setdefault(client, len(self._clients))
        read = (at, number, offset, length, who, state)
        for column, value in zip(self._columns.values(), read, strict=True):
            column.append(value)

    def build(self, facts: Mapping[str, object]) -> Trace:
        """The trace in order of time; its first read is at 0."""
        columns = {n: np.array(c, _TYPES[n]) for n, c in self._columns.items()}
        order = np.argsort(columns["at"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        if len(order):
            columns["at"] -= columns["at"][0]
        return Trace(
            list(self._numbers), np.array(self._sizes, np.int64), facts=dict(facts), **columns
        )
