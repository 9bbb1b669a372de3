"""Finds real text on this machine and turns it into tokens.

Decides which files are documents (UTF-8, not empty, each content once, in a seeded order, up to a
cap) and how they become token ids: a byte-level byte-pair encoding trained on a part of them. The
same files at the same paths give the same tokens. It never reads outside the roots it was given
and follows no symbolic link below them.
"""

import hashlib
import os
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hubspoke.errors import ConfigError
from hubspoke.report.plots import INSTALL_LAB

Progress = Callable[[str, int, int], None]  # (what is being done, done so far, of how many)
Tokens = npt.NDArray[np.uint32]

SUFFIXES = (".md", ".py", ".rst", ".txt")
DOCUMENT_BYTES_MAX = 1 << 20  # larger ones are tables and generated code, which teach BPE noise
END_OF_TEXT = "<|endoftext|>"  # id 0, in front of every document
_ENCODE_BATCH = 256


@dataclass(frozen=True, slots=True)
class Corpus:
    """documents: texts in their seeded order. sha256: of all of them, in that order."""

    roots: tuple[str, ...]
    documents: tuple[str, ...]
    text_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Tokenized:
    """tokens: one array per document, END_OF_TEXT first. model: the tokenizer's own JSON."""

    tokens: tuple[Tokens, ...]
    model: str
    vocabulary: int
    trained_bytes: int


def python_roots() -> tuple[Path, ...]:
    """Where this Python keeps its sources and documents: standard library and packages."""
    paths = sysconfig.get_paths()
    return tuple(Path(p) for p in sorted({paths[k] for k in ("stdlib", "purelib", "platlib")}))


def _files(root: Path) -> Iterator[str]:
    if root.is_file():
        yield os.path.realpath(root)
        return
    for folder, _, names in os.walk(os.path.realpath(root)):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(SUFFIXES) and not os.path.islink(path):
                yield path


def _document(path: str) -> bytes | None:
    """The file's bytes if they are a document we use; unreadable files are left out."""
    try:
        if not 0 < os.path.getsize(path) <= DOCUMENT_BYTES_MAX:
            return None
        data = Path(path).read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return data


def read_corpus(
    roots: Sequence[Path], *, text_bytes_max: int, seed: int, progress: Progress
) -> Corpus:
    """Collect documents under `roots` (folders or files) until `text_bytes_max` bytes.

    Files are visited in an order shuffled by `seed`, so a cap takes a fair sample of all roots.
    Raises ConfigError when a root does not exist or no document is found.
    """
    for root in roots:
        if not root.exists():
            raise ConfigError(f"text source {root}: no such file or folder")
    paths = sorted({path for root in roots for path in _files(root)})
    random.Random(seed).shuffle(paths)
    total = hashlib.sha256()
    seen: set[bytes] = set()
    documents: list[str] = []
    size = 0
    for path in paths:
        data = _document(path)
        if data is None or (digest := hashlib.sha256(data).digest()) in seen:
            continue
        seen.add(digest)
        total.update(digest)
        documents.append(data.decode())
        size += len(data)
        progress("reading text", min(size, text_bytes_max), text_bytes_max)
        if size >= text_bytes_max:
            break
    if not documents:
        names = ", ".join(str(root) for root in roots)
        raise ConfigError(
            f"text source {names}: no UTF-8 document of 1 byte to 1 MiB ({', '.join(SUFFIXES)})"
        )
    return Corpus(tuple(str(r) for r in roots), tuple(documents), size, total.hexdigest())


def tokenize(
    corpus: Corpus, *, vocabulary: int, train_bytes_max: int, progress: Progress
) -> Tokenized:
    """Train a byte-pair encoder on the first `train_bytes_max` bytes and encode all documents.

    vocabulary: at most this many ids (a small corpus yields fewer).
    Raises ConfigError when the package `tokenizers` is missing.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as e:
        raise ConfigError(f"the dataset builder needs tokenizers: {INSTALL_LAB}") from e
    sample: list[str] = []
    trained = 0
    for text in corpus.documents:
        if trained >= train_bytes_max:
            break
        sample.append(text)
        trained += len(text.encode())
    progress("training the tokenizer", 0, 1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # sorted: stable ids
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample, trainer)
    progress("training the tokenizer", 1, 1)
    tokenizer.encode_special_tokens = True  # the text of a document never becomes a separator
    tokens: list[Tokens] = []
    count = len(corpus.documents)
    for first in range(0, count, _ENCODE_BATCH):
        batch = list(corpus.documents[first : first + _ENCODE_BATCH])
        for encoding in tokenizer.encode_batch_fast(batch):
            ids = encoding.ids
            array = np.zeros(len(ids) + 1, dtype=np.uint32)
            array[1:] = ids
            tokens.append(array)
        progress("tokenizing", min(first + _ENCODE_BATCH, count), count)
    return Tokenized(tuple(tokens), tokenizer.to_str(), tokenizer.get_vocab_size(), trained)
