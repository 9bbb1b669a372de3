"""What Megatron-LM's GPTDataset reads (megatron-core 0.16.1): samples across packed documents.

    documents, shuffled   | d3     | d0 | d7            | d1 ...      one long line of tokens
    samples               |--- 0 ---|--- 1 ---|--- 2 ---|             each one token longer
    order of samples      2, 0, 1                                     shuffled again

A *document* here is what the .idx file calls a sequence. numpy's RandomState shuffles from the end
of an array, so no part of an order is known before all of it is made.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.errors import ConfigError, FormatError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
SEED = 1234
MAGIC = b"MMIDIDX\x00\x00"
HEAD_BYTES = 34
# Code of the tokens' type -> bytes a token (indexed_dataset.py: DType).
_TOKEN_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}


class Index(NamedTuple):
    """An .idx file: where in the .bin file each document is."""

    token_bytes: int
    lengths: Int32  # in tokens
    pointers: Int64  # in bytes


def parse_index(data: bytes) -> Index:
    """The .idx file `data`, whole or longer; raises FormatError for anything else.

    Source: megatron/core/datasets/indexed_dataset.py (_IndexReader).
    """
    if len(data) < HEAD_BYTES or data[:9] != MAGIC:
        raise FormatError(f"index of {len(data)} bytes: does not begin with {MAGIC!r}")
    version = int.from_bytes(data[9:17], "little")
    token_bytes = _TOKEN_BYTES.get(data[17])
    if version != 1 or token_bytes is None:
        raise FormatError(f"index of version {version} with tokens of type {data[17]}: not known")
    count = int.from_bytes(data[18:26], "little")
    if len(data) < HEAD_BYTES + 12 * count:
        raise FormatError(f"index of {len(data)} bytes: too short for {count} documents")
    lengths = np.frombuffer(data, "<i4", count, HEAD_BYTES).astype(np.int32)
    pointers = np.frombuffer(data, "<i8", count, HEAD_BYTES + 4 * count).astype(np.int64)
    return Index(token_bytes, lengths, pointers)


class Line(NamedTuple):
    """The documents one behind the other, and the order of the samples on them."""

    documents: Int32
    ends: Int64  # in tokens from the start of the line
    samples: Int64  # place in the order -> sample
    sequence: int  # in tokens


def epochs_for(tokens: int, *, sequence: int, samples: int) -> tuple[int, bool]:
    """How often `tokens` are passed through for `samples`, and if the last pass stays separate.

    Source: megatron/core/datasets/gpt_dataset.py (_get_num_epochs,
    _build_document_sample_shuffle_indices).
    """
    if tokens < 1 or sequence < 1 or samples < 1:
        raise ConfigError(f"{samples} samples of {sequence} from {tokens} tokens: all at least 1")
    epochs = max(1, -(-(samples * sequence + 1) // tokens))
    before_last = ((epochs - 1) * tokens - 1) // sequence
    each = (tokens - 1) // sequence
    return epochs, epochs > 1 and samples - before_last < int(0.8 * each)


def line(
    lengths: Int32,
    *,
    sequence: int,
    seed: int = SEED,
    epochs: int = 1,
    separate_last: bool = False,
    documents: range | None = None,
) -> Line:
    """Order of documents and of samples for `epochs` passes through the data.

    lengths: of all documents, in tokens. sequence: of a sample, in tokens. documents: those of
    this split (training has the first ones), None is all. Raises ConfigError without a sample.
    Source: megatron/core/datasets/gpt_dataset.py (_build_document_index, _build_shuffle_index);
    the index of samples, a loop in helpers.cpp, is a search in the sums of the lengths.
    """
    rng = np.random.RandomState(seed)
    chosen = np.arange(len(lengths), dtype=np.int32)
    if documents is not None:
        chosen = chosen[documents.start : documents.stop]
    together = epochs - 1 if separate_last else epochs
    order = np.tile(chosen, together)
    rng.shuffle(order)
    if separate_last:
        last = chosen.copy()
        rng.shuffle(last)
        order = np.concatenate([order, last])
    ends = np.cumsum(lengths[order], dtype=np.int64)
    tokens = int(ends[-1]) if len(ends) else 0
    count = (tokens - 1) // sequence
    if count < 1:
        raise ConfigError(f"{tokens} tokens: less than one sample of {sequence} and one more")
    first = (tokens // epochs * together - 1) // sequence if separate_last else count
    samples = np.arange(count)
    rng.shuffle(samples[:first])
    if first < count:
        rng.shuffle(samples[first:])
    return Line(order, ends, samples, sequence)


class Reads(NamedTuple):
    """Fragments of the .bin file in the order of reading: bytes, and whose they are."""

    place: Int64  # in the order of samples
    offset: Int64
    length: Int64


def reads(index: Index, along: Line, places: range) -> Reads:
    """What the samples at `places` of the order read: a fragment for each document they touch.

    Neighbours on the line share a token. Source: gpt_dataset.py
    (_query_document_sample_shuffle_indices), indexed_dataset.py (IndexedDataset.get).
    """
    start = along.samples[places.start : places.stop : places.step] * along.sequence
    end = start + along.sequence + 1
    first = np.searchsorted(along.ends, start, side="right")
    last = np.searchsorted(along.ends, end - 1, side="right")
    counts = last - first + 1
    whose = np.repeat(np.arange(len(start)), counts)
    slot = np.arange(len(whose)) + np.repeat(first - np.cumsum(counts) + counts, counts)
    document = along.documents[slot]
    begins = along.ends[slot] - index.lengths[document]
    low = np.maximum(start[whose], begins)
    high = np.minimum(end[whose], along.ends[slot])
    offset = index.pointers[document] + index.token_bytes * (low - begins)
    length = index.token_bytes * (high - low)
    some = length > 0  # a document may be empty
    return Reads(np.array(places)[whose][some], offset[some], length[some])


def dealt(samples: int, *, ranks: int, batch: int) -> Int64:
    """Places in the order of samples, [step, data-parallel rank, place in its micro-batch].

    The last incomplete step is dropped. Raises ConfigError for ranks or batch < 1.
    Source: megatron/training/datasets/data_samplers.py (MegatronPretrainingSampler), the default
    `--dataloader-type single`; it is not in the megatron-core package.
    """
    if ranks < 1 or batch < 1:
        raise ConfigError(f"{ranks} ranks in batches of {batch}: both at least 1")
    steps = samples // (ranks * batch)
    return np.arange(steps * ranks * batch).reshape(steps, ranks, batch)
