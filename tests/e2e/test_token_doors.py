"""Samples of Megatron-LM and windows of nanoGPT, recognised from reads that come through a door.

The recipes are those that tests/golden holds against the real packages. Several ranks, each with
workers, read their parts; some reads come twice and some never. What the spoke then says must give
the whole order that is read.
"""

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hubspoke.core.inference.documents import index_of
from hubspoke.core.orders import megatron, nanogpt
from hubspoke.core.tokens.samples import samples_of
from tests.e2e.order_doors import BUCKET, Doors, Job, doors
from tests.golden.told import cases
from tests.golden.told import told as told_of
from tests.processes import get, get_json

STEP = 64  # reads between two looks
WAIT_S = 120.0
TOKEN_BYTES = 2
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Fragments:
    """Reads of one object, in order."""

    path: str
    offsets: Numbers
    lengths: Numbers

    def read(self, item: int) -> tuple[str, int, int]:
        """See Readable."""
        return self.path, int(self.offsets[item]), int(self.lengths[item])

    def check(self, item: int, body: bytes) -> None:
        """See Readable: all tokens are 0."""
        assert not any(body)


def told(spoke: Doors, path: str) -> dict[str, Any] | None:
    status, document = get_json(spoke.admin + "/v1/streams")
    assert status == 200
    found = [f for f in document["token_files"] if f"/{f['object']}" == path]
    return found[0] if found else None


def believed(spoke: Doors, reads: Fragments, *, workers: int, batch: int, most: int) -> str:
    """Read until an order is followed, and a while on; returns why it is believed."""
    says: list[str] = []
    with Job(spoke.data, reads, workers=workers) as job:
        for at in range(0, most, STEP):
            job.read(range(at, at + STEP), batch=batch)
            found = answered(spoke, reads.path)
            says.append(str(found and found["why"]))
            if found and found["source"] == "known_order":
                on = range(at + STEP, at + 5 * STEP)
                job.read(on, batch=batch)
                found = told(spoke, reads.path)
                assert found is not None and found["source"] == "known_order", (found, says)
                return str(found["why"])
    pytest.fail(f"not recognised: {says}")


def answered(spoke: Doors, path: str) -> dict[str, Any] | None:
    """What is said when nothing is searched for that is found at once."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = told(spoke, path)
        if found is None or not re.search("are tried|gone through", found["why"]):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


# -- Megatron-LM ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """passes: through the documents, and whether the last is shuffled by itself. split: of all
    documents. cached: whether the order's arrays are read from files before."""

    name: str
    sequence: int
    passes: tuple[int, bool] = (1, False)
    seed: int = megatron.SEED
    split: float = 1.0
    ranks: int = 2
    micro_batch: int = 4
    cached: bool = False
    documents: int = 20_000
    most: int = 640  # reads until it is known

    def lengths(self) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        rng = np.random.default_rng(5)
        drawn = rng.lognormal(5.5, 1.0, self.documents) - 5
        return np.maximum(0, drawn).astype(np.int32)

    def line(self) -> megatron.Line:
        epochs, separate = self.passes
        return megatron.line(
            self.lengths(),
            sequence=self.sequence,
            seed=self.seed,
            epochs=epochs,
            separate_last=separate,
            documents=range(round(self.split * self.documents)),
        )

    def write(self, store: Path) -> None:
        """See Writable."""
        folder = store / BUCKET / self.name
        folder.mkdir(parents=True)
        index, n = index_of(TOKEN_BYTES, self.lengths()), self.documents
        head = megatron.MAGIC + np.array([1], "<u8").tobytes() + b"\x08"
        head += np.array([n, n + 1], "<u8").tobytes()
        documents = np.arange(n + 1, dtype="<i8").tobytes()
        of = index.lengths.astype("<i4").tobytes() + index.pointers.astype("<i8").tobytes()
        (folder / "corpus.idx").write_bytes(head + of + documents)
        with (folder / "corpus.bin").open("wb") as file:
            file.truncate(int(index.lengths.sum(dtype=np.int64)) * TOKEN_BYTES)
        if self.cached:
            samples = samples_of(index, self.line())
            arrays = {
                "document": samples.documents,
                "sample": samples.starts,
                "shuffle": samples.order,
            }
            for name, array in arrays.items():
                np.save(folder / f"abc-GPTDataset-train-{name}_index.npy", array)

    def files(self) -> list[str]:
        """What a job reads as a whole before."""
        npys = [f"abc-GPTDataset-train-{n}_index.npy" for n in ("document", "sample", "shuffle")]
        names = ["corpus.idx", *(npys if self.cached else [])]
        return [f"/{BUCKET}/{self.name}/{name}" for name in names]

    def reads(self) -> Fragments:
        """Of all ranks, in lockstep: each sample of a rank's micro-batch, one rank after the
        other."""
        along = self.line()
        places = megatron.dealt(len(along.samples), ranks=self.ranks, batch=self.micro_batch)
        assert np.array_equal(places.ravel(), np.arange(places.size))
        found = megatron.reads(index_of(TOKEN_BYTES, self.lengths()), along, range(places.size))
        return Fragments(f"/{BUCKET}/{self.name}/corpus.bin", found.offset, found.length)


CORPORA = [
    Corpus("one-pass", 512),
    Corpus("long-samples", 2_048, ranks=4, micro_batch=2),
    Corpus("last-pass-by-itself", 1_024, (2, True), ranks=4),
    Corpus("two-passes-as-one", 1_024, (2, False), ranks=1, micro_batch=8),
    Corpus("training-split", 4_096, split=0.969, ranks=2, micro_batch=1),
    Corpus("another-seed", 1_024, seed=42, most=1_600),
    Corpus("cached-order", 1_024, seed=987_654_321, cached=True, ranks=4),
]
# Both kinds of several passes, and one, are what the real package was asked for.
assert {w["seed"] for w, _ in cases("megatron", "tokens")} >= {42, megatron.SEED}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "corpus",
    [
        pytest.param(c, id=c.name, marks=[] if c.name == "long-samples" else pytest.mark.soak)
        for c in CORPORA
    ],
)
def test_order_of_megatrons_samples_is_recognised(tmp_path: Path, corpus: Corpus) -> None:
    with doors(tmp_path, [corpus]) as spoke:
        for file in corpus.files():
            assert get(spoke.data + file)[0] == 200
        why = believed(spoke, corpus.reads(), workers=8, batch=12, most=corpus.most)
    if corpus.cached:
        assert "abc-GPTDataset-train;" in why
        return
    (epochs, separate), by_itself = corpus.passes, ", the last by itself"
    says = f"seed {corpus.seed}, {corpus.sequence} tokens a sample, {epochs} passes"
    assert f"{says}{by_itself if separate else ''}, split {corpus.split:g};" in why


# -- nanoGPT ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """words: drawn of each rank's generator before. twice: whether the targets are read by
    themselves, a token behind the inputs, as nanoGPT does."""

    name: str
    tokens: int
    block: int
    ranks: int = 1
    batch: int = 12
    words: int = 0
    seed: int = nanogpt.SEED
    twice: bool = False
    steps: int = 40

    def write(self, store: Path) -> None:
        """See Writable."""
        folder = store / BUCKET / self.name
        folder.mkdir(parents=True)
        with (folder / "train.bin").open("wb") as file:
            file.truncate(self.tokens * TOKEN_BYTES)

    def drawn(self, count: int) -> Numbers:
        """[rank, window]: offsets."""
        given = {"block": self.block, "seed": self.seed, "words_before": self.words}
        ranks = range(self.ranks)
        return np.stack([nanogpt.windows(self.tokens, count=count, rank=r, **given) for r in ranks])

    def reads(self) -> Fragments:
        """Of all ranks, a batch of each in turn."""
        drawn = self.drawn(self.steps * self.batch).reshape(self.ranks, self.steps, self.batch)
        offsets = drawn.transpose(1, 0, 2).ravel()
        length = TOKEN_BYTES * (self.block + (not self.twice))
        if self.twice:
            offsets = np.stack((offsets, offsets + TOKEN_BYTES), axis=1).ravel()
        path = f"/{BUCKET}/{self.name}/train.bin"
        return Fragments(path, offsets, np.full(len(offsets), length))


def windows_cases() -> list[Windows]:
    """Files, blocks, ranks and words before as of the cases that torch was asked for."""
    found = []
    for number, (w, read) in enumerate(cases("nanogpt", "offsets")):
        one = Windows(f"golden-{number}", w["tokens"], w["block"], words=w["words_before"])
        ranks = w["rank"] + 1
        one = replace(one, seed=w["seed"], ranks=ranks, batch=48 // ranks)
        assert told_of(one.drawn(w["count"])[-1]) == read
        found.append(one)
    more = replace(found[0], name="as-nanogpt-reads", twice=True, ranks=2, steps=80)
    return [*found, more, replace(more, name="of-a-model", words=3_000_000)]


WINDOWS = windows_cases()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "windows",
    [
        pytest.param(w, id=w.name, marks=[] if w.name == "as-nanogpt-reads" else pytest.mark.soak)
        for w in WINDOWS
    ],
)
def test_streams_of_nanogpts_windows_are_recognised(tmp_path: Path, windows: Windows) -> None:
    with doors(tmp_path, [windows]) as spoke:
        reads = windows.reads()
        most = min(1_088, len(reads.offsets) - 5 * STEP)
        why = believed(spoke, reads, workers=windows.ranks, batch=windows.batch, most=most)
    seeds = ", ".join(str(windows.seed + rank) for rank in range(windows.ranks))
    assert why.startswith(f"reads follow the order of nanoGPT: seeds {seeds};")
