"""Courses: what a job reads next of a token file, of all its ranks together.

nanoGPT: every rank draws windows from its own stream, and all draw as many a step, so in the order
of reading the ranks take turns.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hubspoke.core.inference.windows import FoundWindows, Stream
from hubspoke.core.orders.nanogpt import TOKEN_BYTES
from hubspoke.core.orders.torch_samplers import RANDINT_32BIT_MAX, randint

Int64 = npt.NDArray[np.int64]

CAUGHT_UP_MAX = 2**17  # windows of one rank that were read while it was searched for
EXPLAINED_MIN = 0.75  # of the last reads, by all streams that were found
LOOKED_BACK = 256


class Rank:
    """One stream of windows: the places below `span` that it draws, in tokens."""

    def __init__(self, stream: Stream, span: int) -> None:
        self._began = stream
        self._seed, self._words = stream.seed, stream.words
        self._generator = stream.generator()
        self._span = span
        self._each = 1 if span < RANDINT_32BIT_MAX else 2  # words
        self._drawn = np.zeros(0, np.int64)

    def draw(self, count: int) -> Int64:
        """The next places."""
        lacking = count - len(self._drawn)
        if lacking > 0:
            fresh = randint(self._span, lacking, self._generator)
            self._words += self._each * lacking
            self._drawn = np.concatenate((self._drawn, fresh))
        found, self._drawn = self._drawn[:count], self._drawn[count:]
        return found

    def mark(self) -> Stream:
        """Where the stream is, or was when it was found, as long as more is drawn than taken."""
        if len(self._drawn):
            return self._began
        return Stream(self._seed, self._words, *self._generator.state())

    def catch_up(self, read: Int64, most: int) -> Int64:
        """Go on behind the last of the next `most` places that was read; returns those up to it.
        read: places, in order of size."""
        ahead = self.draw(most)
        at = np.minimum(np.searchsorted(read, ahead), len(read) - 1)
        hit = np.flatnonzero(read[at] == ahead)
        done = int(hit[-1]) + 1 if len(hit) else 0
        self._drawn = np.concatenate((ahead[done:], self._drawn))
        return ahead[:done]


class WindowCourse:
    """See `future.Course`. length: bytes of a window."""

    def __init__(self, ranks: Sequence[Rank], length: int) -> None:
        self._ranks = ranks
        self._length = length

    def take(self, most: int) -> tuple[Int64, Int64]:
        """See `future.Course`: never over."""
        each = max(1, most // len(self._ranks))
        drawn = np.stack([rank.draw(each) for rank in self._ranks])
        offsets = drawn.T.ravel() * TOKEN_BYTES
        return offsets, np.full(len(offsets), self._length, np.int64)

    def mark(self) -> tuple[Stream, ...]:
        """Where the streams are."""
        return tuple(rank.mark() for rank in self._ranks)


def window_course(
    found: FoundWindows, span: int, reads: Sequence[int], count: int, length: int
) -> WindowCourse | None:
    """What comes after these reads; None if the streams do not explain the last of them.

    span: of the question. reads: offsets in bytes of the last ones, the first of the question's
    among them or `count` reads ago. length: of each, bytes.
    """
    places = np.array(reads, np.int64) // TOKEN_BYTES
    inorder = np.unique(places)
    most = min(2 * count // len(found.streams) + 4_096, CAUGHT_UP_MAX)
    ranks = [Rank(stream, span) for stream in found.streams]
    explained = np.concatenate([rank.catch_up(inorder, most) for rank in ranks])
    if np.isin(places[-LOOKED_BACK:], explained).mean() < EXPLAINED_MIN:
        return None
    return WindowCourse(ranks, length)
