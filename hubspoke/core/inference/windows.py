"""Where in the stream of a torch generator nanoGPT's windows are drawn: seed and words before.

nanoGPT draws the places of a batch, `torch.randint(tokens - block, (batch,))`, from the process'
generator, of which the seed is a default (1337 and the rank) and from which the initialisation of
the model has drawn first, a word for each parameter or so. So the seed is guessed and the stream
is gone through: consecutive draws that all are places that were read are no chance. Ranks have
seeds of their own and about as many words before, so one that is found shows where the others are.

Places of one rank are read in the order of drawing, so that reads missed by the spoke are few.
"""

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.core.inference.evidence import FALSE_POSITIVE_MAX
from hubspoke.core.orders.candidates import SEEDS
from hubspoke.core.orders.mt19937 import TorchGenerator
from hubspoke.core.orders.nanogpt import SEED
from hubspoke.core.orders.torch_samplers import RANDINT_32BIT_MAX, randint

Int64 = npt.NDArray[np.int64]
Places = npt.NDArray[np.uint64]

SLICE_WORDS = 2**18  # 4 ms
EARLY_WORDS = 2**16  # a model of a few parameters, or one that is not initialised here
RANKS_EARLY = 16
# GPT-2 with 124 M parameters has drawn so many, and twice that where dropout and others draw.
WORDS_MAX, WORDS_THOROUGH = 2**28, 2**31
RANKS_MAX = 64
RANKS_LACKING = 2  # in a row, of which nothing was read: there are no more
# Nor are there if less is left of the reads than this part of what each rank has read.
LEFT_PART = 0.125
NEAR_WORDS = 2**22  # ranks are not farther apart: the first one estimates losses
GOING_ON_WORDS = 2**20  # losses were estimated meanwhile, or some steps passed unseen
RUN_MIN, RUN_MAX = 3, 24
TABLE_BITS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Which stream draws these?

    span: places are drawn below it. starts: distinct places, in tokens, that were read.
    thorough: longer streams and more seeds are gone through, which takes minutes. likely: where
    the ranks' streams have been not long ago. only_likely: nowhere else.
    """

    number: int
    span: int
    starts: Int64
    thorough: bool = False
    likely: "tuple[Stream, ...]" = ()
    only_likely: bool = False


class Stream(NamedTuple):
    """A generator about to draw the first of the windows that were read: `words` have been drawn.
    key, position: its state, as numpy has it."""

    seed: int
    words: int
    key: bytes
    position: int

    def generator(self) -> TorchGenerator:
        """In that state."""
        return TorchGenerator.of_state(self.key, self.position)


@dataclass(frozen=True, slots=True)
class FoundWindows:
    """Streams, one a rank. log_p: of such a run by chance, over all that was tried."""

    streams: tuple[Stream, ...]
    log_p: float


def run_length(span: int, starts: int, tried: float) -> int | None:
    """How many consecutive draws have to be among so many of `span` places, for a false positive
    to be too improbable after `tried` places in streams; None if these cannot tell."""
    p = starts / span
    if p >= 0.5:
        return None
    run = max(RUN_MIN, math.ceil((math.log(FALSE_POSITIVE_MAX) - math.log(tried)) / math.log(p)))
    return run if run <= min(RUN_MAX, starts) else None


class _Starts:
    """A set of places that is asked about 2^18 at a time."""

    def __init__(self, starts: Int64) -> None:
        self.sorted = np.unique(starts).astype(np.uint64)
        self._table = np.zeros(1 << TABLE_BITS, np.bool_)
        self._table[self._hash(self.sorted)] = True

    @staticmethod
    def _hash(places: Places) -> Int64:
        hashed = places * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - TABLE_BITS)
        return hashed.astype(np.int64)

    def among(self, places: Places) -> npt.NDArray[np.bool_]:
        found = self._table[self._hash(places)]
        some = np.flatnonzero(found)
        at = np.searchsorted(self.sorted, places[some])
        at[at == len(self.sorted)] = 0
        found[some] = self.sorted[at] == places[some]
        return found


def search_windows(question: Windows) -> Generator[FoundWindows | None, None, None]:
    """Yields None after each piece of work, and at last what was found."""
    tried = float(WORDS_THOROUGH) * len(SEEDS)
    run = run_length(question.span, len(question.starts), tried)
    if run is None:
        return
    scan = _Scan(question.span, _Starts(question.starts), run)
    log_p = run * math.log(len(question.starts) / question.span) + math.log(tried)
    again = []
    for stream in question.likely:
        found = yield from scan.going_on(stream)
        if found is not None:
            again.append(found)
    if again:
        yield FoundWindows(tuple(again), log_p)
    if again or question.only_likely:
        return
    for seed, first, stop in _plan(thorough=question.thorough):
        found = yield from scan.through(seed, first, stop)
        if found is not None:
            streams = [found]
            yield from _ranks(scan, found, streams)
            yield FoundWindows(tuple(sorted(streams)), log_p)
            return


def _plan(*, thorough: bool) -> Iterator[tuple[int, int, int]]:
    """Seeds and words to go through: (seed, first, stop)."""
    others = [s for s in SEEDS if s != SEED]
    if not thorough:
        for seed in (SEED, *others):
            for rank in range(RANKS_EARLY):
                yield seed + rank, 0, EARLY_WORDS
        yield SEED, EARLY_WORDS // 2, WORDS_MAX
        return
    for seed in (*range(SEED + 1, SEED + RANKS_EARLY), *others):
        yield seed, EARLY_WORDS // 2, WORDS_MAX
    yield SEED, WORDS_MAX - SLICE_WORDS, WORDS_THOROUGH


def _ranks(scan: "_Scan", found: Stream, streams: list[Stream]) -> Generator[None, None, None]:
    """Those of the ranks beside the one that was found, on both sides."""
    left = scan.not_drawn_by(found, scan.all)
    for step in (1, -1):
        lacking = 0
        for away in range(1, RANKS_MAX):
            if len(left) * len(streams) <= LEFT_PART * len(scan.all):
                return
            seed = found.seed + step * away
            if seed < 0 or lacking == RANKS_LACKING:
                break
            first = max(0, found.words - NEAR_WORDS)
            other = yield from scan.through(seed, first, found.words + NEAR_WORDS)
            lacking = lacking + 1 if other is None else 0
            if other is not None:
                streams.append(other)
                left = scan.not_drawn_by(other, left)


class _Scan:
    """Goes through streams. run: consecutive draws that have to be among the starts."""

    def __init__(self, span: int, starts: _Starts, run: int) -> None:
        self._span = np.uint64(span)
        self._starts = starts
        self._run = run
        self._step = 1 if span < RANDINT_32BIT_MAX else 2  # words a draw
        self.all = starts.sorted

    def not_drawn_by(self, stream: Stream, places: Places) -> Places:
        """Which of these places the stream does not draw next."""
        drawn = randint(int(self._span), 2 * len(self.all), stream.generator())
        return places[~np.isin(places, drawn.astype(np.uint64))]

    def through(self, seed: int, first: int, stop: int) -> Generator[None, None, Stream | None]:
        """Yields after each slice; returns where in words [first, stop) of the stream a run begins,
        if one does."""
        generator = TorchGenerator(seed)
        for at in range(0, first, SLICE_WORDS):
            generator.skip32(min(SLICE_WORDS, first - at))
            yield
        return (yield from self._along(seed, generator, first, stop))

    def going_on(self, stream: Stream) -> Generator[None, None, Stream | None]:
        """As `through`, not far behind where the stream has been."""
        first = stream.words
        found = yield from self._along(
            stream.seed, stream.generator(), first, first + GOING_ON_WORDS
        )
        return found

    def _along(
        self, seed: int, generator: TorchGenerator, first: int, stop: int
    ) -> Generator[None, None, Stream | None]:
        words, state = np.zeros(0, np.uint64), generator.state()  # state: before these words
        kept = (self._run - 1) * self._step + 1
        for at in range(first, stop, SLICE_WORDS):
            fresh = generator.draws32(min(SLICE_WORDS, stop - at)).astype(np.uint64)
            begin = at - len(words)
            words = np.concatenate((words, fresh))
            run = self._run_in(words)
            before = TorchGenerator.of_state(*state)
            if run is not None:
                before.skip32(run)
                return Stream(seed, begin + run, *before.state())
            before.skip32(max(0, len(words) - kept))
            state, words = before.state(), words[-kept:]
            yield
        return None

    def _run_in(self, words: Places) -> int | None:
        """Where in these words the first run begins."""
        drawn = words
        if self._step == 2:
            drawn = (words[:-1] << np.uint64(32)) | words[1:]
        hit = self._starts.among(drawn - drawn // self._span * self._span)
        reach = (self._run - 1) * self._step
        if np.count_nonzero(hit) < self._run or len(hit) <= reach:
            return None
        all_of = hit[: len(hit) - reach].copy()
        for i in range(1, self._run):
            all_of &= hit[i * self._step : len(hit) - reach + i * self._step]
        found = np.flatnonzero(all_of)
        return int(found[0]) if len(found) else None
