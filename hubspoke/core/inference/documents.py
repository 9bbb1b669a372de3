"""Which order of Megatron's samples do these reads follow, where its index files are not seen?

The documents' lengths are known from the .idx file; all else comes out of a seed, how often the
documents are passed through, which of them are of the training split, and a sample's length. All
of these are defaults or few. numpy shuffles from the end of an array, so each guess is built
whole: 0.3 s for 2 million documents passed through twice.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders.candidates import SEEDS
from hubspoke.core.orders.megatron import SEED, Index, line
from hubspoke.core.tokens.samples import Samples, locate, samples_of

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

SEQUENCES = (4_096, 2_048, 8_192, 1_024, 512, 16_384, 32_768)
# Passes through the documents, and whether the last one is shuffled by itself.
PASSES = ((1, False), (2, True), (2, False), (3, True), (3, False))
PASSES_MORE = tuple((n, last) for n in (4, 5, 6) for last in (True, False))
# Of all documents, from the first one on: 969,30,1 is the default.
SPLITS = (0.969, 1.0, 0.99, 0.98, 0.949, 0.95, 0.9)
SPLIT_OUTSIDE = 0.05  # of the reads may be of other documents: validation
DOCUMENTS_MAX = 2**24  # in order, all passes together


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Which order do these reads follow?

    lengths: of all documents, in tokens of `token_bytes`; they lie one behind the other. offsets,
    sizes: of the last reads, bytes. pages: of the file. thorough: more seeds and passes are tried.
    """

    number: int
    token_bytes: int
    lengths: Int32
    offsets: Int64
    sizes: Int64
    pages: int
    thorough: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FoundSamples:
    """As of `Samples`. why: the recipe, for people."""

    why: str
    documents: Int32
    starts: Int32
    order: Int32


class _Guess(NamedTuple):
    seed: int
    sequence: int
    passes: tuple[int, bool]
    split: float


def index_of(token_bytes: int, lengths: Int32) -> Index:
    """Of documents that lie one behind the other."""
    ends = np.cumsum(lengths, dtype=np.int64) * token_bytes
    return Index(token_bytes, lengths, ends - lengths.astype(np.int64) * token_bytes)


def search_documents(question: Documents) -> Generator[FoundSamples | None, None, None]:
    """Yields None after each piece of work, and at last what was found."""
    index = index_of(question.token_bytes, question.lengths)
    reads = list(zip(question.offsets.tolist(), question.sizes.tolist(), strict=True))
    last = np.searchsorted(index.pointers, question.offsets, side="right") / len(index.lengths)
    for guess in _guesses(thorough=question.thorough):
        if (last > guess.split).mean() > SPLIT_OUTSIDE:
            continue
        samples = _build(index, guess)
        yield None
        if samples is None:
            continue
        located = yield from locate(samples, reads, question.pages)
        if located is not None:
            seed, sequence, (passes, separate), split = guess
            why = f"seed {seed}, {sequence} tokens a sample, {passes} passes"
            why += f"{', the last by itself' if separate else ''}, split {split:g}"
            starts, order = samples.starts.astype(np.int32), samples.order.astype(np.int32)
            yield FoundSamples(why, samples.documents.astype(np.int32), starts, order)
            return


def _guesses(*, thorough: bool) -> Iterator[_Guess]:
    """The likeliest first; a thorough search has done the others before."""
    others = tuple(seed for seed in SEEDS if seed != SEED)
    if not thorough:
        for passes, split, sequence in product(PASSES, SPLITS, SEQUENCES):
            yield _Guess(SEED, sequence, passes, split)
        return
    for seed, passes, split, sequence in product(others, PASSES, SPLITS[:2], SEQUENCES[:4]):
        yield _Guess(seed, sequence, passes, split)
    for passes, split, sequence in product(PASSES_MORE, SPLITS, SEQUENCES):
        yield _Guess(SEED, sequence, passes, split)


def _build(index: Index, guess: _Guess) -> Samples | None:
    """None if there would be no sample, or too many documents."""
    count = round(guess.split * len(index.lengths))
    passes, separate = guess.passes
    tokens = int(index.lengths[:count].sum(dtype=np.int64))
    if count * passes > DOCUMENTS_MAX or tokens <= guess.sequence:
        return None
    along = line(
        index.lengths,
        sequence=guess.sequence,
        seed=guess.seed,
        epochs=passes,
        separate_last=separate,
        documents=range(count),
    )
    return samples_of(index, along)
