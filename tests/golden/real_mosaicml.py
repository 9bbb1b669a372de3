"""Orders that StreamingDataset gives: the cases of mosaicml.json. Run by make.py.

The package imports transformers and torchvision, of which it uses nothing here: stand-ins.
"""

import importlib.metadata
import json
import logging
import sys
import tempfile
import warnings
from types import ModuleType
from typing import Any

import numpy as np

from tests.golden.told import Case, told


class StandIn(ModuleType):
    """A module that has whatever class is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":
            return []
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


STAND_INS = {
    "transformers": (
        *("feature_extraction_utils", "tokenization_utils_base"),
        *("models", "models.auto", "models.auto.tokenization_auto"),
    ),
    "torchvision": ("transforms", "transforms.functional", "datasets"),
}
for package, modules in STAND_INS.items():
    names = [package, *(f"{package}.{module}" for module in modules)]
    sys.modules |= {name: StandIn(name) for name in names}

from streaming import MDSWriter, StreamingDataset  # noqa: E402
from streaming.base.batching import generate_work  # noqa: E402
from streaming.base.partition import get_partitions  # noqa: E402
from streaming.base.shuffle import get_shuffle  # noqa: E402
from streaming.base.world import World  # noqa: E402

LAYOUTS = [  # shard sizes, times, canonical nodes, block
    ([500], 40, 2, 4000),
    ([100, 700, 350, 1, 999, 64], 5, 4, 1500),
    ([5000, 300, 4000], 1, 1, 1000),
    ([123], 70, 8, 700),
    ([3000], 200, 2, None),
]
EPOCHS = [(9176, 0), (9176, 1), (42, 3)]
PARTITIONS = [  # n, canonical nodes, nodes, ranks, workers, batch
    (1024, 2, 2, 4, 2, 8),
    (1000, 2, 2, 4, 3, 7),
    (1001, 4, 2, 8, 2, 16),
    (1003, 3, 6, 2, 1, 5),
    (997, 1, 4, 3, 2, 4),
    (70_001, 64, 1, 8, 8, 32),
]
WHOLE = [  # samples, canonical nodes (None: default), nodes, ranks, workers, batch, algorithm
    (1000, None, 1, 1, 2, 8, "py1e"),
    (1000, None, 2, 4, 2, 8, "py1e"),
    (1001, 4, 2, 2, 3, 5, "py1br"),
    (1001, None, 2, 2, 1, 5, "py1s"),
    (1000, 8, 4, 2, 2, 4, "py1e"),
    (1200, None, 1, 1, 4, 8, "py1br"),
    (1500, 2, 2, 2, 2, 4, "py1br"),
    (1280, None, 1, 4, 2, 8, "py1s"),
    (1600, None, 2, 4, 1, 8, "py1s"),
]


def shuffled() -> list[Case]:
    found = []
    for sizes, times, canonical, block in LAYOUTS:
        drawn = block or max(4_000_000 // canonical, 1 << 18)
        for algorithm in ("py1e", "py1br", "py1s"):
            for seed, epoch in EPOCHS:
                order = get_shuffle(
                    algorithm, np.array(sizes * times), canonical, seed, epoch, drawn
                )
                parameters = {"shard_sizes": sizes, "times": times, "canonical_nodes": canonical}
                parameters |= {"algorithm": algorithm, "seed": seed, "epoch": epoch}
                parameters |= {"block": block}
                found.append({"what": "shuffle", "with": parameters, "read": told(order)})
    return found


def partitioned() -> list[Case]:
    found = []
    for n, canonical, nodes, ranks, workers, batch in PARTITIONS:
        places = get_partitions("orig", n, canonical, nodes, ranks, workers, batch)
        parameters = {"n": n, "canonical_nodes": canonical, "nodes": nodes, "ranks": ranks}
        parameters |= {"workers": workers, "batch": batch}
        found.append({"what": "partition", "with": parameters, "read": told(places.flatten())})
    return found


def whole(
    n: int, canonical: int | None, nodes: int, ranks: int, workers: int, batch: int, algorithm: str
) -> Case:
    """A data set on disk, shards of 4 KiB, and what each worker is told to read in epoch 1."""
    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(out=folder, columns={"at": "int"}, size_limit=4096) as out:
            for at in range(n):
                out.write({"at": at})
        if canonical is None:
            canonical = nodes * (64 if algorithm == "py1s" else 1)
        data = StreamingDataset(
            local=folder,
            shuffle=True,
            shuffle_algo=algorithm,
            batch_size=batch,
            num_canonical_nodes=canonical,
        )
        assert all(int(data[at]["at"]) == at for at in range(n))
        data._set_shuffle_block_size(World(nodes, ranks, workers, 0))
        work = generate_work(data.batching_method, data, World(nodes, ranks, workers, 0), 1, 0)
        sizes = data.samples_per_shard.tolist()
    parameters = {"shard_sizes": sizes, "canonical_nodes": canonical, "nodes": nodes}
    parameters |= {"ranks": ranks, "workers": workers, "batch": batch, "algorithm": algorithm}
    return {"what": "work", "with": parameters | {"epoch": 1}, "read": told(work.flatten())}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cases = shuffled() + partitioned() + [whole(*setting) for setting in WHOLE]
    version = importlib.metadata.version("mosaicml-streaming")
    print(json.dumps({"mosaicml-streaming": version, "numpy": np.__version__, "cases": cases}))
