"""Builds the token files a training job reads, out of real text found on the machine.

A dataset is a folder of token files (raw little-endian uint16 or uint32, as Megatron and nanoGPT
keep them), `index.json` and the tokenizer. Documents are shuffled with a seed and tiled, each
round in a new order, until the asked size is reached; every file holds a whole number of
sequences. The folder appears under its name by one rename when it is finished, so it is never
seen half-built, and a finished one with the same parameters and the same text is used again. It
never removes a folder that it did not build.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from hubspoke.errors import ConfigError, FolderInUse, FormatError
from hubspoke.lab.corpus import Corpus, Progress, Tokenized, python_roots, read_corpus, tokenize

FORMAT = 1
INDEX_NAME = "index.json"
TOKENIZER_NAME = "tokenizer.json"
UINT16_VOCABULARY_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class DatasetConfig:
    """What to build. Defaults are the demo's: 999 steps of 24 sequences, 196 MB in 8 files.

    text_bytes_max: text that is tokenized; 32 MiB take some 6 s on two cores, and tiling makes
    the rest. train_bytes_max: text the encoder is trained on; 8 MiB take 2 s, more changes the
    vocabulary little.
    """

    sequences: int = 999 * 24
    sequence_tokens: int = 4096
    files: int = 8
    dtype: Literal["uint16", "uint32"] = "uint16"
    vocabulary: int = 32_768
    seed: int = 0
    text_bytes_max: int = 32 << 20
    train_bytes_max: int = 8 << 20

    def __post_init__(self) -> None:
        for name in ("sequences", "sequence_tokens", "files", "text_bytes_max", "train_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"dataset {name} {getattr(self, name)}: must be at least 1")
        if self.files > self.sequences:
            raise ConfigError(
                f"dataset files {self.files}: more than its {self.sequences} sequences"
            )
        if self.vocabulary < 257:
            raise ConfigError(f"dataset vocabulary {self.vocabulary}: 256 bytes and one separator")
        if self.dtype == "uint16" and self.vocabulary > UINT16_VOCABULARY_MAX:
            raise ConfigError(
                f"dataset vocabulary {self.vocabulary}: uint16 holds {UINT16_VOCABULARY_MAX}, "
                "choose uint32"
            )


class DatasetFile(msgspec.Struct, frozen=True):
    """documents: how many begin in this file."""

    name: str
    sequences: int
    tokens: int
    bytes: int
    documents: int
    sha256: str


class DatasetIndex(msgspec.Struct, frozen=True):
    """What `index.json` says; `parameters` and `text_sha256` decide whether it is used again."""

    format: int
    parameters: dict[str, int | str]
    dtype: str
    sequence_tokens: int
    sequence_bytes: int
    sequences: int
    tokens: int
    seed: int
    vocabulary: int
    tokenizer_sha256: str
    trained_bytes: int
    sources: list[str]
    source_documents: int
    text_bytes: int
    text_sha256: str
    files: list[DatasetFile]


def load_index(folder: Path) -> DatasetIndex:
    """The index of a finished dataset, with the sizes of its files checked.

    Raises FormatError (naming the file) when the folder is no dataset or a file is missing or cut.
    """
    path = folder / INDEX_NAME
    try:
        index = msgspec.json.decode(path.read_bytes(), type=DatasetIndex)
    except (OSError, msgspec.MsgspecError) as e:
        raise FormatError(f"dataset index {path}: {e}") from e
    if index.format != FORMAT:
        raise FormatError(f"dataset index {path}: format {index.format}, {FORMAT} expected")
    for file in index.files:
        try:
            size = (folder / file.name).stat().st_size
        except OSError as e:
            raise FormatError(f"dataset file {folder / file.name}: {e}") from e
        if size != file.bytes:
            raise FormatError(f"dataset file {folder / file.name}: {size} bytes, not {file.bytes}")
    return index


def build_dataset(
    folder: Path,
    config: DatasetConfig | None = None,
    *,
    sources: Sequence[Path] | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> DatasetIndex:
    """Make `folder` hold the dataset `config` describes, or find that it does already.

    sources: files and folders to take text from; None is this Python's own.
    Raises ConfigError (no text, `folder` holds something else, tokenizers missing) and FolderInUse
    when another process is building the same folder.
    """
    config = config or DatasetConfig()
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    corpus = read_corpus(
        sources if sources is not None else python_roots(),
        text_bytes_max=config.text_bytes_max,
        seed=config.seed,
        progress=progress,
    )
    with _building(folder) as partial:
        ready = _reusable(folder, config, corpus)
        if ready is not None:
            return ready
        text = tokenize(
            corpus,
            vocabulary=config.vocabulary,
            train_bytes_max=config.train_bytes_max,
            progress=progress,
        )
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        index = _write(partial, config, corpus, text, progress)
        _replace(folder, partial)
        return index


@contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """The place to build in: hidden, so no hub that serves the parent shows it as a bucket.

    The lock is on the parent folder itself, which leaves no lock file behind.
    """
    partial = folder.parent / f".{folder.name}.partial"
    parent = os.open(folder.parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(parent, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise FolderInUse(f"dataset {folder}: another process is building it") from e
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    finally:
        os.close(parent)


def _reusable(folder: Path, config: DatasetConfig, corpus: Corpus) -> DatasetIndex | None:
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ConfigError(f"dataset folder {folder}: is a file")
    if not (folder / INDEX_NAME).exists() and any(folder.iterdir()):
        raise ConfigError(f"dataset folder {folder}: not empty, and not a dataset of ours")
    try:
        index = load_index(folder)
    except FormatError:
        return None
    same = index.parameters == asdict(config) and index.text_sha256 == corpus.sha256
    return index if same else None


def _replace(folder: Path, partial: Path) -> None:
    """Swap the finished dataset in; `folder` is missing, empty or an older dataset of ours."""
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(partial, folder)


class _Tiling:
    """The endless stream of tokens: all documents in a new seeded order, round after round."""

    def __init__(self, text: Tokenized, dtype: str, seed: int) -> None:
        self._documents = [tokens.astype(dtype) for tokens in text.tokens]
        self._rng = np.random.default_rng(seed)
        self._order: list[int] = []
        self._rest = np.empty(0, dtype)

    def take(self, count: int) -> tuple[list[np.ndarray[tuple[int], np.dtype[np.generic]]], int]:
        """The next `count` tokens as pieces, and how many documents begin in them."""
        pieces = []
        begun = 0
        while count > 0:
            if not len(self._rest):
                if not self._order:
                    self._order = self._rng.permutation(len(self._documents)).tolist()
                self._rest = self._documents[self._order.pop()]
                begun += 1
            pieces.append(self._rest[:count])
            self._rest = self._rest[count:]
            count -= len(pieces[-1])
        return pieces, begun


def _write(
    folder: Path, config: DatasetConfig, corpus: Corpus, text: Tokenized, progress: Progress
) -> DatasetIndex:
    dtype = "<u2" if config.dtype == "uint16" else "<u4"
    tiling = _Tiling(text, dtype, config.seed)
    sequence_bytes = config.sequence_tokens * int(config.dtype[4:]) // 8
    files: list[DatasetFile] = []
    written = 0
    for i in range(config.files):
        name = f"tokens-{i:05d}-of-{config.files:05d}.bin"
        sequences = config.sequences // config.files + (i < config.sequences % config.files)
        digest = hashlib.sha256()
        documents = 0
        with (folder / name).open("wb") as out:
            # A thousand sequences at a time: 8 MB in memory, and the progress moves.
            for first in range(0, sequences, 1000):
                count = min(1000, sequences - first)
                pieces, begun = tiling.take(count * config.sequence_tokens)
                data = np.concatenate(pieces).tobytes()
                out.write(data)
                digest.update(data)
                documents += begun
                written += count
                progress("writing token files", written, config.sequences)
        files.append(
            DatasetFile(
                name=name,
                sequences=sequences,
                tokens=sequences * config.sequence_tokens,
                bytes=sequences * sequence_bytes,
                documents=documents,
                sha256=digest.hexdigest(),
            )
        )
    model = text.model.encode()
    (folder / TOKENIZER_NAME).write_bytes(model)
    index = DatasetIndex(
        format=FORMAT,
        parameters=asdict(config),
        dtype=config.dtype,
        sequence_tokens=config.sequence_tokens,
        sequence_bytes=sequence_bytes,
        sequences=config.sequences,
        tokens=config.sequences * config.sequence_tokens,
        seed=config.seed,
        vocabulary=text.vocabulary,
        tokenizer_sha256=hashlib.sha256(model).hexdigest(),
        trained_bytes=text.trained_bytes,
        sources=list(corpus.roots),
        source_documents=len(corpus.documents),
        text_bytes=corpus.text_bytes,
        text_sha256=corpus.sha256,
        files=files,
    )
    (folder / INDEX_NAME).write_text(json.dumps(msgspec.to_builtins(index), indent=1) + "\n")
    return index
