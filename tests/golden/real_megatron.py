"""What GPTDataset reads: the cases of megatron.json. Run by make.py.

Each token of the data set is its own number, so what is read tells from where.
"""

import base64
import importlib.metadata
import json
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

from tests.golden.told import Case, told

SETTINGS = [  # documents, longest, sequence, samples, seed, first and last document
    (200, 100, 64, 100, 1234, None),
    (200, 100, 64, 170, 1234, None),
    (200, 100, 64, 400, 1234, None),
    (200, 100, 64, 460, 42, None),
    (50, 1000, 128, 1000, 1, None),
    (500, 30, 32, 600, 1234, (0, 475)),
    (500, 30, 32, 40, 7, (475, 500)),
]
INDEXES = [(5, np.uint16), (8, np.int32), (3, np.uint8), (4, np.int64), (2, np.uint16)]


class Tokenizer:
    eod, vocab_size = 0, 2**31

    @property
    def unique_identifiers(self) -> dict[str, str]:
        return {"class": "none"}


def lengths_of(documents: int, longest: int) -> list[int]:
    """Of many lengths, some of them 0."""
    return [(37 * i * i + 11 * i) % (longest + 1) for i in range(documents)]


def written(folder: str, lengths: list[int], dtype: Any) -> Path:
    builder = IndexedDatasetBuilder(f"{folder}/data.bin", dtype=dtype)
    at = 0
    for length in lengths:
        tokens = torch.arange(at, at + length) % np.iinfo(dtype).max
        builder.add_document(tokens, [length])
        at += length
    builder.finalize(f"{folder}/data.idx")
    return Path(folder) / "data"


def read_all(setting: tuple[Any, ...]) -> Case:
    documents, longest, sequence, samples, seed, part = setting
    with tempfile.TemporaryDirectory() as folder:
        lengths = lengths_of(documents, longest)
        data = IndexedDataset(str(written(folder, lengths, np.int32)))
        config = GPTDatasetConfig(
            random_seed=seed,
            sequence_length=sequence,
            tokenizer=Tokenizer(),
            split="1,0,0",
            path_to_cache=f"{folder}/cache",
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        )
        start, stop = part or (0, documents)
        indices = np.arange(start, stop, dtype=np.int32)
        dataset = GPTDataset(data, None, indices, samples, Split.train, config)
        read = [
            dataset._query_document_sample_shuffle_indices(i)[0].tolist()
            for i in range(len(dataset.shuffle_index))
        ]
    parameters = {"documents": documents, "longest": longest, "sequence": sequence}
    parameters |= {"samples": samples, "seed": seed, "part": [start, stop]}
    tokens = [token for sample in read for token in sample]
    return {"what": "tokens", "with": parameters, "read": told(tokens)}


def index_file(documents: int, dtype: Any) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        path = written(folder, lengths_of(documents, 30), dtype)
        data = IndexedDataset(str(path))
        pointers = [int(data.index[i][0]) for i in range(documents)]
        lengths = data.sequence_lengths.tolist()
        bytes_ = base64.b64encode(path.with_suffix(".idx").read_bytes()).decode()
    parameters = {"file": bytes_, "token_bytes": np.dtype(dtype).itemsize}
    return {"what": "index", "with": parameters, "read": told(lengths, pointers)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cases = [read_all(setting) for setting in SETTINGS] + [index_file(*one) for one in INDEXES]
    version = importlib.metadata.version("megatron-core")
    print(json.dumps({"megatron-core": version, "cases": cases}))
