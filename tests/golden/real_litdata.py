"""Orders that LitData gives: the cases of litdata.json. Run by make.py."""

import importlib.metadata
import json
import logging
import tempfile
import warnings
from typing import Any

import numpy as np
from litdata import StreamingDataset
from litdata.streaming import Cache
from litdata.streaming.item_loader import Interval
from litdata.streaming.shuffle import FullShuffle, WindowShuffle
from litdata.utilities.env import _DistributedEnv

from tests.golden.told import Case, told

SIZES = [1000, 700, 1, 300, 1024, 256, 513, 90]
WORLDS = [  # times the sizes, nodes, ranks, workers, batch, drop_last, seed, epoch
    (1, 1, 1, 1, 1, False, 42, 1),
    (4, 1, 4, 2, 8, False, 42, 1),
    (4, 1, 4, 3, 8, True, 42, 2),
    (4, 2, 4, 2, 4, False, 42, 1),
    (4, 2, 4, 2, 4, True, 42, 3),
    (8, 4, 8, 1, 16, False, 1337, 2),
]
# As `optimize` writes them: all but the last of each writer are full.
FULL = [*[64] * 24, 40]
MANY = [  # the same: enough chunks to be recognised by
    (8, 1, 1, 1, 1, False, 42, 1),
    (8, 1, 1, 4, 8, False, 42, 2),
    (12, 1, 2, 2, 4, False, 7, 1),
    (8, 1, 4, 2, 8, True, 1234, 1),
    (16, 1, 1, 8, 4, False, 0, 3),
]
SMALL = 10**6  # bytes of a cache that no node's chunks fit in
WHOLE = [(2000, 42, 1), (2000, 42, 2), (999, 7, 3), (301, 0, 1), (1500, 1234, 5)]


class Chunks:
    """What a shuffle asks of the cache: sizes of chunks in items and bytes."""

    def __init__(self, sizes: list[int], cache_bytes: int) -> None:
        self._chunks = [{"chunk_bytes": size * 1000} for size in sizes]
        ends = np.cumsum(sizes).tolist()
        self._intervals = [
            Interval(end - size, end - size, end, end)
            for size, end in zip(sizes, ends, strict=True)
        ]
        self._reader, self._config, self._max_cache_size = self, self, cache_bytes

    def get_chunk_intervals(self) -> Any:
        return self._intervals


def read_by(shuffle: Any, chunks: Chunks, setting: tuple[int, ...]) -> list[list[int]]:
    """What each worker reads, as the data set puts it together."""
    _, nodes, ranks, workers, batch, _, _, epoch = setting
    numbers, intervals = shuffle.get_chunks_and_intervals_per_workers(
        _DistributedEnv(ranks, 0, nodes), workers, batch, epoch
    )
    count = len(chunks.get_chunk_intervals())
    read: list[list[int]] = []
    for mine, parts in zip(numbers, intervals, strict=True):
        items: list[int] = []
        for chunk, part in zip(mine, parts, strict=True):
            items += shuffle(np.arange(part[1], part[2]), count, epoch, int(chunk))
        read.append(items)
    return read


def shared(
    setting: tuple[int, ...],
    what: str,
    cache_bytes: int,
    block: int | None,
    sizes: list[int] = SIZES,
) -> Case:
    times, nodes, ranks, workers, batch, drop_last, seed, epoch = setting
    chunks = Chunks(sizes * times, cache_bytes)
    kind: Any = FullShuffle if what == "full" else WindowShuffle
    shuffle = kind(chunks, seed, bool(drop_last), item_window=256 if block is None else block)
    parameters = {"sizes": sizes, "times": times, "nodes": nodes, "ranks": ranks}
    parameters |= {"workers": workers, "batch": batch, "drop_last": bool(drop_last)}
    parameters |= {"seed": seed, "epoch": epoch}
    if block is not None:
        parameters["item_block"] = block
    if what == "full":
        parameters["node_fits"] = not cache_bytes
    return {"what": what, "with": parameters, "read": told(*read_by(shuffle, chunks, setting))}


def whole(items: int, seed: int, epoch: int) -> Case:
    """A data set on disk, and what is read from it."""
    with tempfile.TemporaryDirectory() as folder:
        cache: Any = Cache(input_dir=folder, chunk_size=300)
        for item in range(items):
            cache[item] = item
        cache.done()
        cache.merge()
        data = StreamingDataset(folder, shuffle=True, seed=seed)
        data.set_epoch(epoch)
        read = [int(item) for item in data]
        kind = type(data.shuffler).__name__
        sizes = [part[3] - part[0] for part in data.cache.get_chunk_intervals()]
    parameters = {"sizes": sizes, "seed": seed, "epoch": epoch, "shuffle": kind}
    return {"what": "data set", "with": parameters, "read": told(read)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cases = [shared(setting, "full", 0, None) for setting in WORLDS]
    cases += [shared(WORLDS[4], "full", SMALL, None), shared(WORLDS[1], "full", 0, 0)]
    cases += [shared(setting, "full", 0, None, FULL) for setting in MANY]
    cases += [shared(setting, "window", 0, None) for setting in WORLDS]
    cases += [whole(*setting) for setting in WHOLE]
    print(json.dumps({"litdata": importlib.metadata.version("litdata"), "cases": cases}))
