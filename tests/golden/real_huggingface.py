"""Orders that accelerate and datasets give: the cases of huggingface.json. Run by make.py."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import accelerate
import datasets
from accelerate.data_loader import prepare_data_loader
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, get_worker_info

from tests.golden.told import Case, told

TRAINERS = [  # n, ranks, batch, seed, epoch, drop_last, even_batches
    (1000, 4, 8, 42, 0, False, True),
    (1000, 4, 8, 42, 3, False, True),
    (1001, 3, 7, 1234, 1, False, True),
    (1001, 3, 7, 1234, 1, True, True),
    (1001, 3, 7, 1234, 1, False, False),
    (5, 4, 8, 0, 0, False, True),
    (70_000, 8, 32, 42, 2, False, True),
]
SHUFFLES = [(10, 42), (1000, 0), (1000, 42), (12_345, 1337), (70_000, 123), (2000, 7)]
SPLITS = [(10, 2, 42), (1000, 100, 0), (1000, 1, 42), (12_345, 5000, 1337), (7000, 700, 123)]
STREAMS = [  # shards, seed, epoch, ranks, workers, interleaved
    (64, 42, 0, 1, 1, 10),
    (64, 42, 0, 1, 1, 1),
    (64, 42, 2, 4, 2, 10),
    (100, 0, 1, 4, 3, 10),
    (10, 7, 3, 4, 2, 1),
    (24, None, 0, 2, 2, 10),
    (24, None, 1, 2, 2, 10),
    (400, 42, 0, 1, 1, 10),
    (512, 1234, 1, 4, 2, 10),
    (1000, 0, 0, 1, 4, 10),
    (256, 7, 0, 1, 2, 10),
    (800, 123, 1, 2, 2, 10),
]
ROWS = 4  # as many as ranks: one that gets each fourth row sees every shard


def trained(n: int, ranks: int, batch: int, seed: int, epoch: int, drop: bool, even: bool) -> Case:
    read = []
    for rank in range(ranks):
        loader: Any = DataLoader(range(n), batch, shuffle=True, drop_last=drop)
        prepared = prepare_data_loader(
            loader,
            num_processes=ranks,
            process_index=rank,
            put_on_device=False,
            even_batches=even,
            use_seedable_sampler=True,
            data_seed=seed,
        )
        prepared.set_epoch(epoch)
        read.append([int(i) for one in prepared for i in one])
    parameters = {"n": n, "ranks": ranks, "batch": batch, "seed": seed, "epoch": epoch}
    parameters |= {"drop_last": drop, "even_batches": even}
    return {"what": "trainer", "with": parameters, "read": told(*read)}


def rows(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        worker = get_worker_info()
        for _ in range(ROWS):
            yield {"shard": shard, "worker": worker.id if worker else 0}


def streamed(
    shards: int, seed: int | None, epoch: int, ranks: int, workers: int, interleaved: int
) -> Case:
    """A buffer of one row does not shuffle; and shards are opened by threads, in no fixed order."""
    read = []
    for rank in range(ranks):
        arguments = {"shards": list(range(shards))}
        stream = datasets.IterableDataset.from_generator(rows, gen_kwargs=arguments)
        if seed is not None:
            stream = stream.shuffle(seed=seed, buffer_size=1, max_buffer_input_shards=interleaved)
        if ranks > 1:
            stream = split_dataset_by_node(stream, rank, ranks)
        stream.set_epoch(epoch)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        first = dict.fromkeys((row["worker"], row["shard"]) for row in loader)
        read += [[shard for at, shard in first if at == worker] for worker in range(workers)]
    parameters = {"shards": shards, "seed": seed, "epoch": epoch, "ranks": ranks}
    parameters |= {"workers": workers, "interleaved": interleaved}
    return {"what": "streaming", "with": parameters, "read": told(*read)}


def mapped() -> list[Case]:
    found = []
    for n, seed in SHUFFLES:
        table = datasets.Dataset.from_dict({"row": range(n)}).shuffle(seed=seed)
        read = told(table["row"])
        found.append({"what": "shuffle", "with": {"n": n, "seed": seed}, "read": read})
    for n, test, seed in SPLITS:
        table = datasets.Dataset.from_dict({"row": range(n)})
        parts = table.train_test_split(test_size=test, seed=seed)
        read = told(parts["train"]["row"], parts["test"]["row"])
        parameters = {"n": n, "test": test, "seed": seed}
        found.append({"what": "train_test_split", "with": parameters, "read": read})
    return found


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    cases = [trained(*setting) for setting in TRAINERS] + mapped()
    cases += [streamed(*setting) for setting in STREAMS]
    versions = {"accelerate": accelerate.__version__, "datasets": datasets.__version__}
    print(json.dumps({**versions, "cases": cases}))
