"""Megatron's samples as bytes of the .bin file, and where in their order a job is.

Three arrays say all: the order of the documents, where in it each sample begins, and the order of
the samples. Megatron caches them as files; from a seed they are computed (`core.orders.megatron`).

Reads are looked for in stretches of the order: all of a job's last reads lie in one, whatever
their order, and by chance only as many as the stretch has of the file's pages.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.inference.evidence import FALSE_POSITIVE_MAX, OUTSIDE_MAX, log_tail
from hubspoke.core.orders.megatron import Index, Line

Int64 = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int64] | npt.NDArray[np.int32]

SPAN_MAX = 65_536  # documents of one sample
FRAGMENTS = 8  # of a sample, about
DENSEST_PART = 0.75
STRETCH_SAMPLES, STRETCH_PART, STRETCH_MIN = 2_048, 32, 32
TRIED = 1e5  # orders that may be tried on one file


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """index: of the .bin file. documents: in order. starts: [sample, (place in `documents`,
    token of it)], one more than there are samples. order: place -> sample."""

    index: Index
    documents: Ints
    starts: Ints
    order: Ints

    @property
    def count(self) -> int:
        """Places in the order."""
        return len(self.order)

    def valid(self, size: int) -> bool:
        """Whether all of it lies inside a .bin file of `size` bytes."""
        lengths, pointers = self.index.lengths, self.index.pointers
        if not (self.count and len(lengths) and len(self.documents)):
            return False
        if self.starts.ndim != 2 or self.order.ndim != 1 or self.documents.ndim != 1:
            return False
        of_starts = self.starts[:, 0]
        return bool(
            int((pointers + self.index.token_bytes * lengths.astype(np.int64)).max()) <= size
            and 0 <= self.documents.min() <= self.documents.max() < len(lengths)
            and 0 <= of_starts.min() <= of_starts.max() < len(self.documents)
            and (np.diff(of_starts) >= 0).all()
            and int(np.diff(of_starts).max(initial=0)) <= SPAN_MAX
            and self.starts[:, 1].min() >= 0
            and 0 <= self.order.min() <= self.order.max() < len(self.starts) - 1
        )

    def reads(self, first: int, last: int) -> tuple[Int64, Int64, Int64]:
        """Fragments of the samples at places [first, last): place, offset, length in bytes.

        Source: megatron/core/datasets/gpt_dataset.py (_query_document_sample_shuffle_indices).
        """
        sample = self.order[first:last].astype(np.int64)
        begin, end = self.starts[sample], self.starts[sample + 1]
        slot0 = begin[:, 0].astype(np.int64)
        counts = end[:, 0] - slot0 + 1
        whose = np.repeat(np.arange(len(sample)), counts)
        ahead = np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)
        document = self.documents[slot0[whose] + ahead]
        low = np.where(ahead == 0, begin[whose, 1], 0)
        high = np.where(
            ahead == counts[whose] - 1,
            end[whose, 1] + 1,
            self.index.lengths[document],
        )
        offset = self.index.pointers[document] + self.index.token_bytes * low
        length = self.index.token_bytes * (high - low)
        some = length > 0
        place = (whose + first)[some]
        return place, offset[some].astype(np.int64), length[some].astype(np.int64)


def samples_of(index: Index, line: Line) -> Samples:
    """What Megatron would have cached of an order that was computed."""
    tokens = np.arange(len(line.samples) + 1, dtype=np.int64) * line.sequence
    slot = np.searchsorted(line.ends, tokens, side="right")
    slot = np.minimum(slot, len(line.ends) - 1)  # the end of all
    begins = line.ends[slot] - index.lengths[line.documents[slot]]
    starts = np.stack((slot, tokens - begins), axis=1).astype(np.int32)
    return Samples(index, line.documents, starts, line.samples.astype(np.int32))


class SampleCourse:
    """See `future.Course`: fragments of one sample after the other, from a place on."""

    def __init__(self, samples: Samples, place: int) -> None:
        self._samples = samples
        self._place = place

    def take(self, most: int) -> tuple[Int64, Int64]:
        """See `future.Course`."""
        last = min(self._place + max(1, most // FRAGMENTS), self._samples.count)
        _, offsets, lengths = self._samples.reads(self._place, last)
        self._place = last
        return offsets, lengths

    def mark(self) -> tuple[()]:
        """It comes from no stream."""
        return ()


class Located(NamedTuple):
    """place: before which nearly nothing was read. log_p: of such a fit by chance, over all
    stretches and TRIED orders."""

    place: int
    log_p: float


class _Keys:
    """Reads and fragments by where they begin: their offsets, or, where a mount asks for pages,
    their pages, of which a stretch has many times as large a part."""

    def __init__(self, samples: Samples, reads: Sequence[tuple[int, int]], pages: int) -> None:
        offsets = np.array([offset for offset, _ in reads], np.int64)
        self._exact = bool((offsets % PAGE_BYTES != 0).mean() > 0.5)
        self._pages = pages
        self._begins = np.zeros(0, np.int64)
        if self._exact:
            self._begins = np.sort(samples.index.pointers[samples.index.lengths > 0])
        self.asked = np.unique(self.of(offsets))

    def of(self, offsets: Int64) -> Int64:
        return offsets if self._exact else offsets // PAGE_BYTES

    def part(self, here: Int64, share: float) -> float:
        """With which probability a read of another order begins at one of these keys. Any order
        reads beginnings of documents, but hardly cuts a document where this one does. share: of
        this order: one that has the same cuts has them elsewhere."""
        if not self._exact:
            return min(1.0, len(here) / self._pages)
        begin = int(np.count_nonzero(_among(self._begins, here)))
        return min(1.0, max(share, begin / len(self._begins)))


def _among(keys: Int64, wanted: Int64) -> npt.NDArray[np.bool_]:
    """Which of the wanted ones are among the keys, which are in order."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[at] == wanted)


def locate(
    samples: Samples, reads: Sequence[tuple[int, int]], pages: int
) -> Generator[None, None, Located | None]:
    """Where in the order the reads (offset, length) of a file of so many pages are, if nearly all
    are within one stretch and no other explains them. Yields after each stretch (2 ms)."""
    keys = _Keys(samples, reads, pages)
    asked = keys.asked
    most = len(asked) - int(OUTSIDE_MAX * len(asked))
    step = max(STRETCH_MIN, min(STRETCH_SAMPLES, samples.count // STRETCH_PART))
    stretches = -(-samples.count // step)
    before, part_before = np.zeros(len(asked), np.bool_), 0.0
    for begin in range(0, samples.count, step):
        _, offset, _ = samples.reads(begin, min(begin + step, samples.count))
        here = np.unique(keys.of(offset))
        hit = _among(here, asked)
        both = hit | before
        part = keys.part(here, step / samples.count)
        if both.sum() >= most:
            p = min(1.0, part + part_before)
            log_p = log_tail(int(both.sum()), len(asked), p) + math.log(stretches * TRIED)
            if log_p < math.log(FALSE_POSITIVE_MAX):
                return Located(_place(samples, keys, begin - step, begin + 2 * step), log_p)
        before, part_before = hit, part
        yield
    return None


def _place(samples: Samples, keys: _Keys, begin: int, end: int) -> int:
    """Where the reads' keys are in a part of the order: from just before the densest piece of it
    that has most of them. Some of them are read elsewhere, too."""
    begin = max(0, begin)
    place, offset, _ = samples.reads(begin, min(end, samples.count))
    found = np.sort(place[_among(keys.asked, keys.of(offset))])
    most = max(1, min(len(found), int(DENSEST_PART * len(keys.asked))))
    widths = found[most - 1 :] - found[: len(found) - most + 1]
    densest = int(np.argmin(widths))
    return max(begin, int(found[densest]) - int(widths[densest]) // 2)
