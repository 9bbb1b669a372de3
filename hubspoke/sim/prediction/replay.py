"""A recorded trace, read again in virtual time.

A client asks for its next read when the trace has it, or when the one before is answered if that
is later: whoever had to wait then may not have to now, and the other way round. Reads of more than
a block are read as a door does, a block at a time.
"""

from collections import deque
from collections.abc import Callable

from hubspoke.core.ids import BLOCK_BYTES
from hubspoke.errors import ConfigError
from hubspoke.sim.prediction.engine import Engine
from hubspoke.sim.prediction.job import NO_BATCH, Read, Reader
from hubspoke.sim.prediction.path import PathConfig
from hubspoke.sim.prediction.workload import Workload, pieces
from hubspoke.sim.prediction.world import World
from hubspoke.traces.trace import Trace


class _Client:
    __slots__ = ("busy", "number", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.busy = False
        self.waiting: deque[Read] = deque()


class Replay:
    """Reads of a trace on an engine."""

    def __init__(self, engine: Engine, reader: Reader, trace: Trace) -> None:
        self._engine, self._reader = engine, reader
        self._columns = tuple(
            column.tolist()
            for column in (trace.at, trace.objects, trace.offsets, trace.lengths, trace.clients)
        )
        self._clients: dict[int, _Client] = {}
        self._row = 0

    def start(self) -> None:
        """Ask for what is due now, and for the next reads at their time."""
        at = self._columns[0]
        while self._row < len(at) and at[self._row] <= self._engine.now:
            self._due()
        if self._row < len(at):
            self._engine.at(at[self._row], self.start)

    def _due(self) -> None:
        _, number, offset, length, who = (column[self._row] for column in self._columns)
        self._row += 1
        client = self._clients.setdefault(who, _Client(who))
        if length <= BLOCK_BYTES:
            client.waiting.append((number, offset, length))
        else:
            client.waiting.extend(pieces(number, offset, offset + length, BLOCK_BYTES))
        if not client.busy:
            self._next(client)

    def _next(self, client: _Client) -> None:
        client.busy = bool(client.waiting)
        if client.busy:
            number, offset, length = client.waiting.popleft()
            self._reader.read(number, offset, length, client.number, NO_BATCH, self._next, client)


def of_trace(name: str, trace: Trace, capacity: int | None = None) -> Workload:
    """A trace as a workload. capacity: None is that of its run, or all of its bytes where that is
    not known; round trip and rate are those of its run, or the table's. Raises ConfigError."""
    if not len(trace):
        raise ConfigError(f"{name}: a trace without reads, nothing to simulate")
    told = _number(trace, "capacity_bytes")
    size = capacity or int(told or max(BLOCK_BYTES, trace.sizes.sum()))
    if size < BLOCK_BYTES:
        raise ConfigError(f"cache of {size} bytes: at least one block of {BLOCK_BYTES}")
    usual = PathConfig()
    path = PathConfig(
        rtt_s=_number(trace, "rtt_s") or usual.rtt_s, rate=_number(trace, "rate") or usual.rate
    )
    return Workload(
        name=name,
        title="a recorded trace",
        names=trace.names,
        sizes=trace.sizes.tolist(),
        capacity=size,
        jobs=(),
        first_misses=len(set(trace.clients.tolist())),
        path=path,
        happenings=_starts(trace),
        recorded=trace,
    )


def _number(trace: Trace, fact: str) -> float | None:
    value = trace.facts.get(fact)
    return value if isinstance(value, int | float) and value > 0 else None


def _starts(trace: Trace) -> Callable[[World], None]:
    return lambda world: Replay(world.engine, world.reader, trace).start()
