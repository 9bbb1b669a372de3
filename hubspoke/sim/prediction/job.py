"""A training job: ranks in lockstep, each with workers that take whole batches in turn.

As PyTorch's DataLoader: workers x prefetch_factor batches are handed out when an epoch begins,
batch j to worker j mod workers, and one more for each batch that is taken; a worker reads its
batch in order, one read after the other. A step computes when every rank has its batch. At the
end of an epoch the loader is empty, and the next one starts it anew.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hubspoke.sim.prediction.engine import Engine

Read = tuple[int, int, int]  # object, offset, length
NO_BATCH = -1


class Reader(Protocol):
    """Whoever answers reads: a spoke, or a peer in its place."""

    def read(
        self,
        number: int,
        offset: int,
        length: int,
        client: int,
        batch: int,
        then: Callable[..., None],
        *args: object,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class JobSpec:
    """reads: what rank `rank` reads for step `step` of epoch `epoch`, in order."""

    ranks: int
    workers: int
    compute_s: float
    steps: Sequence[int]  # of each epoch
    reads: Callable[[int, int, int], Sequence[Read]]
    prefetch_factor: int = 2

    @property
    def clients(self) -> int:
        return self.ranks * self.workers


@dataclass(slots=True)
class EpochTimes:
    """began: the loader started. first_ended: the first step was computed. ended: the last."""

    steps: int
    began: float
    first_ended: float = 0.0
    ended: float = 0.0
    waits: list[float] = field(default_factory=list)  # of each step, seconds

    def utilisation(self, compute_s: float) -> float | None:
        """Computing over running time, the first step left out, as MLPerf counts it."""
        if self.steps < 2:
            return None
        return (self.steps - 1) * compute_s / (self.ended - self.first_ended)


class _Worker:
    __slots__ = ("at", "batches", "client", "rank", "reads", "step")

    def __init__(self, rank: int, client: int) -> None:
        self.rank, self.client = rank, client
        self.batches: deque[int] = deque()
        self.reads: Sequence[Read] | None = None
        self.at = self.step = 0


class Job:
    """Runs a JobSpec on an engine. client: number of its first worker."""

    def __init__(self, engine: Engine, reader: Reader, spec: JobSpec, client: int = 0) -> None:
        self.spec = spec
        self.client = client
        self.epochs: list[EpochTimes] = []
        self.on_step: list[Callable[[int], None]] = []  # called with the steps done so far
        self._engine, self._reader = engine, reader
        self._steps_before = 0

    def start(self) -> None:
        """Begin the next epoch now."""
        spec = self.spec
        steps = spec.steps[len(self.epochs)]
        self.epochs.append(EpochTimes(steps, self._engine.now))
        self._step, self._computing = 0, False
        self._ready_at = self._engine.now
        self._lacking = [spec.ranks] * steps
        self._handed = [0] * spec.ranks
        self._workers = [
            [_Worker(r, self.client + r * spec.workers + w) for w in range(spec.workers)]
            for r in range(spec.ranks)
        ]
        for _ in range(spec.workers * spec.prefetch_factor):
            for rank in range(spec.ranks):
                self._hand_out(rank)

    def _hand_out(self, rank: int) -> None:
        step = self._handed[rank]
        if step < len(self._lacking):
            self._handed[rank] += 1
            worker = self._workers[rank][step % self.spec.workers]
            worker.batches.append(step)
            if worker.reads is None:
                self._take(worker)

    def _take(self, worker: _Worker) -> None:
        worker.step = worker.batches.popleft()
        worker.reads = self.spec.reads(len(self.epochs) - 1, worker.rank, worker.step)
        worker.at = 0
        self._next(worker)

    def _next(self, worker: _Worker) -> None:
        reads, at = worker.reads, worker.at
        assert reads is not None
        if at < len(reads):
            worker.at = at + 1
            number, offset, length = reads[at]
            batch = self._steps_before + worker.step
            self._reader.read(number, offset, length, worker.client, batch, self._next, worker)
            return
        self._lacking[worker.step] -= 1
        worker.reads = None
        if worker.batches:
            self._take(worker)
        self._try_step()

    def _try_step(self) -> None:
        if self._computing or self._step >= len(self._lacking) or self._lacking[self._step]:
            return
        now = self._engine.now
        self._computing = True
        self.epochs[-1].waits.append(now - self._ready_at)
        for rank in range(self.spec.ranks):
            self._hand_out(rank)
        self._engine.at(now + self.spec.compute_s, self._computed)

    def _computed(self) -> None:
        epoch, now = self.epochs[-1], self._engine.now
        self._computing = False
        self._step += 1
        self._ready_at = epoch.ended = now
        if self._step == 1:
            epoch.first_ended = now
        for told in self.on_step:
            told(self._steps_before + self._step)
        if self._step < len(self._lacking):
            self._try_step()
            return
        self._steps_before += self._step
        if len(self.epochs) < len(self.spec.steps):
            self.start()


class Scan:
    """One client that reads what it is given one after the other, as fast as it gets it."""

    def __init__(self, engine: Engine, reader: Reader, client: int) -> None:
        self.running = False
        self._engine, self._reader, self._client = engine, reader, client
        self._reads: Sequence[Read] = ()
        self._at = 0

    def start(self, reads: Sequence[Read]) -> None:
        self.running, self._reads, self._at = True, reads, 0
        self._next()

    def _next(self) -> None:
        if self._at == len(self._reads):
            self.running = False
            return
        number, offset, length = self._reads[self._at]
        self._at += 1
        self._reader.read(number, offset, length, self._client, NO_BATCH, self._next)
