"""A peer in the place of a spoke: reads, a simulated path and drive, and a policy that decides.

What a peer asks for goes out at once, on the lane with the least to do; it has no classes and no
deadlines. Everything else is as in `sim_spoke`, and as charitable: bytes are handed over as they
arrive, before they are stored.
"""

from typing import Any

from hubspoke.core.ids import FRAME_BYTES_MAX, ReadState, page_span
from hubspoke.core.pacing import PacingConfig
from hubspoke.sim.prediction.disk import Disk
from hubspoke.sim.prediction.engine import Engine
from hubspoke.sim.prediction.path import Path
from hubspoke.sim.prediction.peers import Range, Subject
from hubspoke.sim.prediction.recorder import Outcome, Recorder
from hubspoke.sim.prediction.sim_spoke import HANDED_S, Then

LANES = PacingConfig().lanes  # as many as the spoke has


class _Flight:
    """A range under way; pages from `at` on are not here yet."""

    __slots__ = ("at", "end", "lane", "number")

    def __init__(self, number: int, first: int, end: int, lane: int) -> None:
        self.number, self.at, self.end, self.lane = number, first, end, lane


class _Need:
    """Pages a reader lacks, a bit for each from `first` on."""

    __slots__ = ("args", "first", "lacking", "row", "then")

    def __init__(self, first: int, lacking: int, row: int, then: Then, args: Any) -> None:
        self.first, self.lacking, self.row = first, lacking, row
        self.then, self.args = then, args


class PeerSpoke:
    """Reads by object number, as `SimSpoke` does."""

    def __init__(
        self, engine: Engine, subject: Subject, path: Path, disk: Disk, recorder: Recorder
    ) -> None:
        self._engine, self._subject = engine, subject
        self._path, self._disk, self._recorder = path, disk, recorder
        self._flights: dict[int, list[_Flight]] = {}
        self._needs: dict[int, list[_Need]] = {}
        self._queued = [0] * LANES

    def read(
        self,
        number: int,
        offset: int,
        length: int,
        client: int,
        batch: int,
        then: Then,
        *args: Any,
    ) -> None:
        now = self._engine.now
        missing = self._subject.read(number, offset, length, client, now)
        for wanted in missing:
            self._fetch(wanted)
        for wanted in self._subject.ahead(now):
            self._fetch(wanted)
        first, end = page_span(offset, length)
        lacking = 0
        for flight in self._flights.get(number, ()):
            a, b = max(first, flight.at), min(end, flight.end)
            if a < b:
                lacking |= (1 << b - a) - 1 << a - first
        state = ReadState.MISS if missing else ReadState.LATE if lacking else ReadState.HIT
        row = self._recorder.asked(now, number, offset, length, client, batch, state)
        if lacking:
            self._needs.setdefault(number, []).append(_Need(first, lacking, row, then, args))
        else:
            self._engine.at(self._disk.read(length, now), self._answered, row, then, args)

    def outcome(self, now: float) -> Outcome:
        unused = self._subject.fetched_ahead - self._subject.used_ahead
        return Outcome(causes={}, unused_bytes=unused, stale_reads=0)

    def _answered(self, row: int, then: Then, args: Any) -> None:
        self._recorder.answered(row, self._engine.now)
        then(*args)

    def _fetch(self, wanted: Range) -> None:
        number, offset, length = wanted
        lane = min(range(LANES), key=self._queued.__getitem__)
        self._queued[lane] += length
        flight = _Flight(number, *page_span(offset, length), lane)
        self._flights.setdefault(number, []).append(flight)
        units: list[tuple[int, tuple[Any, ...]]] = []
        at, end = offset, offset + length
        while at < end:
            cut = min(end, (at // FRAME_BYTES_MAX + 1) * FRAME_BYTES_MAX)
            units.append((cut - at, (flight, at, cut - at)))
            at = cut
        self._path.ask(lane, units, self._frame)

    def _frame(self, flight: _Flight, offset: int, length: int) -> None:
        now, number = self._engine.now, flight.number
        self._queued[flight.lane] -= length
        first, end = page_span(offset, length)
        flight.at = end
        if flight.at == flight.end:
            self._flights[number].remove(flight)
        stored = self._subject.arrived(number, offset, length, now)
        if stored:
            self._disk.write(stored, now)
        needs = self._needs.get(number)
        if needs:
            self._needs[number] = [need for need in needs if not self._serve(need, first, end)]

    def _serve(self, need: _Need, first: int, end: int) -> bool:
        """Pages are here; whether the reader has all of its own now."""
        first = max(first, need.first)
        if first < end:
            need.lacking &= ~((1 << end - first) - 1 << first - need.first)
        if need.lacking:
            return False
        soon = self._engine.now + HANDED_S
        self._engine.at(soon, self._answered, need.row, need.then, need.args)
        return True
