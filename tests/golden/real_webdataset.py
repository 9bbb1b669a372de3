"""Orders in which webdataset reads its shards: the cases of webdataset.json. Run by make.py."""

import importlib.metadata
import io
import json
import os
import tarfile
import tempfile
import warnings
from pathlib import Path

import webdataset

from tests.golden.told import Case, told

SETTINGS = [  # shards, buffer, seed, epochs, deterministic, ranks, workers
    (50, 100, 42, 1, False, 1, 1),
    (50, 100, 42, 2, False, 1, 1),
    (50, 100, 42, 3, True, 1, 1),
    (250, 100, 0, 2, True, 1, 1),
    (999, 300, 1_000_000, 1, False, 1, 1),
    (250, 20, 7, 1, False, 2, 3),
    (301, 100, 1337, 2, True, 2, 1),
    (301, 1000, 123, 1, False, 4, 2),
    (40, 0, 5, 1, False, 4, 2),
    (600, 100, 42, 3, False, 1, 1),
    (1000, 1000, 7, 2, True, 1, 1),
    (1200, 100, 123, 2, True, 2, 2),
]


def tars(folder: Path, count: int) -> list[str]:
    """Shards of one sample each, whose key is the shard's number."""
    names = []
    for shard in range(count):
        with tarfile.open(folder / f"{shard:06}.tar", "w") as tar:
            member = tarfile.TarInfo(f"{shard:06}.txt")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
        names.append(str(folder / f"{shard:06}.tar"))
    return names


def read_by(urls: list[str], rank: int, worker: int, setting: tuple[int, ...]) -> list[list[int]]:
    """What one worker reads, epoch by epoch."""
    _, buffer, seed, epochs, deterministic, ranks, workers = setting
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(WORKER=str(worker), NUM_WORKERS=str(workers))
    data = webdataset.WebDataset(
        urls,
        shardshuffle=buffer,
        seed=seed,
        detshuffle=bool(deterministic),
        nodesplitter=webdataset.split_by_node,
    )
    return [[int(sample["__key__"]) for sample in data] for _ in range(epochs)]


def case(urls: list[str], setting: tuple[int, ...]) -> Case:
    shards, buffer, seed, epochs, deterministic, ranks, workers = setting
    by_worker = [
        read_by(urls[:shards], rank, worker, setting)
        for rank in range(ranks)
        for worker in range(workers)
    ]
    read = [orders[epoch] for epoch in range(epochs) for orders in by_worker]
    parameters = {"shards": shards, "buffer": buffer, "seed": seed, "epochs": epochs}
    parameters |= {"deterministic": bool(deterministic), "ranks": ranks, "workers": workers}
    return {"what": "shards", "with": parameters, "read": told(*read)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        urls = tars(Path(folder), max(setting[0] for setting in SETTINGS))
        cases = [case(urls, setting) for setting in SETTINGS]
    print(json.dumps({"webdataset": importlib.metadata.version("webdataset"), "cases": cases}))
