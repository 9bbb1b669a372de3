"""The path to the hub: a round trip, one bottleneck, and connections that start slowly.

    request -- RTT/2 --> queue of the lane -- window, turn at the bottleneck -- RTT/2 --> spoke
                               ^---------------- acknowledged, RTT/2 ----------------------+

The bottleneck serves the lanes that may send in turn, a quantum each, and so is never idle while
one of them may, and holds no queue: as paced senders share it. A lane may have its congestion
window under way: ten segments at first, growing by what is acknowledged while it is used, up to
the kernel's buffer, and ten again after it was idle (RFC 5681, RFC 6928, RFC 7661). Nothing is
lost, but everything under way is when the path goes down.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hubspoke.core.pacing import INITIAL_WINDOW_BYTES
from hubspoke.sim.prediction.engine import Engine

SEGMENT_BYTES = 1_460
RTO_VARIANCE_S = 0.2  # of Linux: a lane is idle after a round trip and this


@dataclass(frozen=True, slots=True)
class PathConfig:
    """rate: bytes per second of the bottleneck."""

    rtt_s: float = 0.06
    rate: float = 1e9
    window_bytes_max: int = 4 << 20  # Linux's default tcp_wmem
    quantum_s: float = 0.002
    quantum_bytes_min: int = 64 << 10  # finer costs time and changes nothing that is measured
    quantum_bytes_max: int = 256 << 10


@dataclass(slots=True, eq=False)
class _Unit:
    """Bytes that are of use together; `call` is made when the last of them is there."""

    left: int
    call: Callable[..., None]
    args: tuple[Any, ...]


class _Lane:
    def __init__(self) -> None:
        self.units: deque[_Unit] = deque()
        self.window: float = INITIAL_WINDOW_BYTES
        self.under_way = 0
        self.sent_at = float("-inf")
        self.in_turn = False


class Path:
    """Answers of a hub to requests on lanes."""

    def __init__(self, engine: Engine, config: PathConfig) -> None:
        self.config = config
        self.up = True
        self.delivered = 0
        self._engine = engine
        self._lanes: dict[int, _Lane] = {}
        self._turns: deque[_Lane] = deque()
        self._busy = False
        self._life = 0  # everything under way belongs to one life of the path
        quantum = max(int(config.rate * config.quantum_s), config.quantum_bytes_min)
        self._quantum = min(quantum, config.quantum_bytes_max)

    def ask(
        self, lane: int, units: list[tuple[int, tuple[Any, ...]]], call: Callable[..., None]
    ) -> None:
        """A request goes out; `call(*args)` for each (bytes, args) when its bytes are there."""
        if self.up:
            later = self._engine.now + self.config.rtt_s / 2
            asked = [_Unit(n, call, args) for n, args in units]
            self._engine.at(later, self._reached, self._life, lane, asked)

    def down(self) -> None:
        """Everything under way is lost, and whatever is asked for until `restore`."""
        self.up = False
        self._life += 1
        self._lanes.clear()
        self._turns.clear()
        self._busy = False

    def restore(self) -> None:
        self.up = True

    def _reached(self, life: int, lane: int, units: list[_Unit]) -> None:
        if life != self._life:
            return
        found = self._lanes.setdefault(lane, _Lane())
        idle_s = self._engine.now - found.sent_at
        idle = not found.units and not found.under_way
        if idle and idle_s > self.config.rtt_s + RTO_VARIANCE_S:
            found.window = INITIAL_WINDOW_BYTES
        found.units.extend(units)
        self._line_up(found)

    def _line_up(self, lane: _Lane) -> None:
        if lane.in_turn or not lane.units or lane.window - lane.under_way < SEGMENT_BYTES:
            return
        lane.in_turn = True
        self._turns.append(lane)
        if not self._busy:
            self._serve()

    def _serve(self) -> None:
        """The bottleneck sends a quantum of the lane whose turn it is."""
        lane = self._turns.popleft()
        unit = lane.units[0]
        n = min(unit.left, self._quantum, int(lane.window) - lane.under_way)
        unit.left -= n
        lane.under_way += n
        lane.in_turn = False
        whole = None if unit.left else lane.units.popleft()
        self._busy = True
        leaves = lane.sent_at = self._engine.now + n / self.config.rate
        self._engine.at(leaves, self._left, self._life, lane)
        there = leaves + self.config.rtt_s / 2
        self._engine.at(there, self._there, self._life, lane, n, whole)

    def _left(self, life: int, lane: _Lane) -> None:
        if life != self._life:
            return
        self._busy = False
        self._line_up(lane)
        if self._turns and not self._busy:
            self._serve()

    def _there(self, life: int, lane: _Lane, n: int, whole: _Unit | None) -> None:
        if life != self._life:
            return
        self.delivered += n
        self._engine.at(self._engine.now + self.config.rtt_s / 2, self._acknowledged, life, lane, n)
        if whole is not None:
            whole.call(*whole.args)

    def _acknowledged(self, life: int, lane: _Lane, n: int) -> None:
        if life != self._life:
            return
        if 2 * lane.under_way >= lane.window:
            lane.window = min(lane.window + n, self.config.window_bytes_max)
        lane.under_way -= n
        self._line_up(lane)
