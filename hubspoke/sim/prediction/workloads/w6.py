"""W6, Megatron-LM: samples across packed documents, mapped into memory, 16 data-parallel ranks.

The .bin file is read a fragment of a document at a time, as the kernel's page faults do once it has
learned that they are random: whole pages, nothing around them. When the job starts its ranks read
the index of the documents, and the order of documents and samples that Megatron has cached: in the
same bucket (W6), or where nobody sees it (W6H). A part has fewer documents and samples, and
micro-batches of fewer.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.inference.documents import index_of
from hubspoke.core.layouts.numbers import Numbers
from hubspoke.core.layouts.probe import Look, Seen
from hubspoke.core.orders import megatron
from hubspoke.core.tokens.indexes import NPYS
from hubspoke.core.tokens.samples import Samples, samples_of
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size, Workload, pieces

DOCUMENTS, SAMPLES, SEQUENCE = 2_000_000, 410_000, 4_096
RANKS, BATCH, STEP_S = 16, 24, 1.11
TOKEN_BYTES = 2
CAPACITY = 1_400_000_000
STEM = "data/corpus_text_document"
CACHE = f"{STEM}/cache/GPTDataset_indices/3f9c1b-GPTDataset-train-"
HEADER_BYTES = 128  # of an .npy


class _Corpus:
    """Made when it is first read: 0.5 s at full size."""

    def __init__(self, size: Size) -> None:
        self._documents = size.of(DOCUMENTS)
        self.samples = size.of(SAMPLES)
        self._seed = size.seed

    @cached_property
    def index(self) -> megatron.Index:
        rng = np.random.default_rng(self._seed)
        lengths = np.maximum(1, rng.lognormal(6.0, 1.05, self._documents)).astype(np.int32)
        return index_of(TOKEN_BYTES, lengths)

    @cached_property
    def tokens(self) -> int:
        return int(self.index.lengths.sum(dtype=np.int64))

    @cached_property
    def order(self) -> Samples:
        lengths = self.index.lengths
        epochs, separate = megatron.epochs_for(self.tokens, sequence=SEQUENCE, samples=self.samples)
        line = megatron.line(lengths, sequence=SEQUENCE, epochs=epochs, separate_last=separate)
        return samples_of(self.index, line)

    def files(self) -> list[tuple[str, int, Numbers]]:
        """Index files: name, bytes and what they say."""
        order = self.order
        arrays = dict(zip(NPYS, (order.documents, order.starts, order.order), strict=True))
        head = megatron.HEAD_BYTES + 12 * self._documents + 8 * (self._documents + 1)
        found = [(f"{STEM}.idx", head, Numbers(documents=self.index))]
        for name, array in arrays.items():
            said = Numbers(array=array)
            found.append((CACHE + name, HEADER_BYTES + array.nbytes, said))
        return found


def build(size: Size) -> Workload:
    """The cached index is in the bucket."""
    return _build(size, "W6", "Megatron samples, index visible", visible=True)


def build_hidden(size: Size) -> Workload:
    """It is elsewhere: only the order's seed, a default, says what is read."""
    return _build(size, "W6H", "Megatron samples, index hidden", visible=False)


def _build(size: Size, name: str, title: str, *, visible: bool) -> Workload:
    corpus = _Corpus(size)
    batch = size.of(BATCH)
    steps = corpus.samples // (RANKS * batch)
    files = corpus.files() if visible else corpus.files()[:1]
    said = {file: numbers for file, _, numbers in files}
    sizes = [corpus.tokens * TOKEN_BYTES, *(length for _, length, _ in files)]
    of_index = [r for i, end in enumerate(sizes[1:], 1) for r in pieces(i, 0, end)]

    def reads(epoch: int, rank: int, step: int) -> Sequence[Read]:
        first = (step * RANKS + rank) * batch
        _, offset, length = corpus.order.reads(first, first + batch)
        start = offset // PAGE_BYTES * PAGE_BYTES
        end = np.minimum(-(-(offset + length) // PAGE_BYTES) * PAGE_BYTES, sizes[0])
        found = [(0, a, b - a) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
        return [*of_index[rank::RANKS], *found] if step == 0 else found

    step_s = STEP_S * batch * size.part / BATCH
    job = JobSpec(RANKS, 1, step_s, [steps], reads)
    return Workload(
        name=name,
        title=title,
        names=[f"{STEM}.bin", *said],
        sizes=sizes,
        capacity=CAPACITY // size.part,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
        layouts=_looked_at(said),
    )


def _looked_at(said: dict[str, Numbers]) -> Callable[[str, Look], Seen | None]:
    return lambda name, look: said.get(name) if look.format is not None else None
