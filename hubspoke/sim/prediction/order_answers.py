"""Who searches for orders in the simulation: the very search, in virtual time.

What is likely is really searched for. All 2^32 seeds are not gone through for each run: beyond the
likely ones only those of `planted` exist, which are the seeds that the workload drew. A search
takes the share of `search_s` that it has got through when it comes upon its seed.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hubspoke.adapters.seed_search import SeedSearch
from hubspoke.core.inference.question import Answer, Build, Request
from hubspoke.core.inference.search import (
    ALL_SEEDS,
    LIKELY_SEEDS,
    SAMPLE_COST,
    SLICE_SEEDS,
    search,
)
from hubspoke.core.inference.windows import SLICE_WORDS, Windows
from hubspoke.sim.prediction.engine import Engine

# All 2^32 seeds, two threads at nice 19 on two processors beside hub, path, spoke and job: of these
# 141 s were two thirds (bench/live_workloads.py W5; with nothing beside it, 48 s).
SEARCH_S = 210.0
ASKED_S = 0.02  # there and back, and what is likely
WORD_S = 30e-9  # of a stream that windows are looked for in, half as fast as alone
ITEM_S = 30e-9  # to build an item of an order and to hand it over

Answered = Callable[[int, Answer, float], None]


class PlantedSeeds:
    """core.inference.search.Kernel, over the likely seeds and some others."""

    def __init__(self, planted: Sequence[int]) -> None:
        self._planted = [seed for seed in planted if seed >= LIKELY_SEEDS]
        self._real = SeedSearch()
        self.searched = 0  # seeds of a search of all
        self.built = 0  # items

    def order(self, n: int, seed: int) -> npt.NDArray[np.int32]:
        self.built += n
        return self._real.order(n, seed)

    def shards(self, n: int, buffer: int, seed: int, world: int) -> npt.NDArray[np.int32]:
        self.built += n
        return self._real.shards(n, buffer, seed, world)

    def samples(self, request: Build) -> npt.NDArray[np.int32]:
        self.built += SAMPLE_COST * request.count
        return self._real.samples(request)

    def scan(
        self,
        first: int,
        count: int,
        n: int,
        seen: npt.NDArray[np.uint8],
        *,
        need: int,
        places: int,
        misses: int,
        skip: int = 0,
    ) -> list[int]:
        parts = [(seed, 1) for seed in self._planted if first <= seed < first + count]
        if first == 0:
            parts.insert(0, (0, LIKELY_SEEDS))
        if count == SLICE_SEEDS and not skip:
            self.searched += count
        return [
            seed
            for begin, size in parts
            for seed in self._real.scan(
                begin, size, n, seen, need=need, places=places, misses=misses, skip=skip
            )
        ]

    def streams(self, first: int, count: int, value: int) -> list[int]:
        """No workload draws its seeds from a process' stream."""
        self.searched += count
        return []

    def processes(
        self, first: int, count: int, n: int, seen: npt.NDArray[np.uint8], places: int, misses: int
    ) -> list[int]:
        return self._real.processes(first, count, n, seen, places, misses)


class OrderAnswers:
    """Answers requests on an engine, one search of all seeds at a time."""

    def __init__(
        self, engine: Engine, planted: Sequence[int], search_s: float, answered: Answered
    ) -> None:
        self._engine = engine
        self._planted = planted
        self._search_s = search_s
        self._answered = answered
        self._free_at = 0.0  # the thorough one
        self._last = 0, 0.0  # its number, and when it began

    def ask(self, requests: Sequence[Request]) -> None:
        for request in requests:
            kernel = PlantedSeeds(self._planted)
            answer: Answer = None
            steps = 0
            for step in search(request, kernel):
                answer, steps = step or answer, steps + 1
            now = self._engine.now
            done = now + ASKED_S + kernel.built * ITEM_S
            if isinstance(request, Windows) or kernel.searched:
                self._last = request.number, max(done, self._free_at)
            if isinstance(request, Windows):
                began = max(done, self._free_at)
                done = self._free_at = began + steps * SLICE_WORDS * WORD_S
            if kernel.searched:
                began = max(done, self._free_at)
                done = self._free_at = began + self._search_s * kernel.searched / ALL_SEEDS
            self._engine.at(done, self._tell, request.number, answer)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Nobody waits for these: the last one ends now, whoever answers it later."""
        number, began = self._last
        if number in numbers:
            self._free_at = min(self._free_at, max(began, self._engine.now))

    def _tell(self, number: int, answer: Answer) -> None:
        self._answered(number, answer, self._engine.now)
