"""Orders of LitData's StreamingDataset (litdata 0.2.76).

Items are numbered through all chunks in the order of the index. A chunk is a file; what a worker
reads of a chunk is one range of items, and a chunk may be shared by two workers.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.errors import ConfigError

Order = npt.NDArray[np.int64]
SEED = 42
ITEM_BLOCK = 256
POSIX_WINDOW = 16


class Part(NamedTuple):
    """Items [first, end) of a chunk."""

    chunk: int
    first: int
    end: int


class World(NamedTuple):
    """ranks: of all nodes together; workers: of a rank; batch: of a worker."""

    nodes: int = 1
    ranks: int = 1
    workers: int = 1
    batch: int = 1
    drop_last: bool = False  # the data set's own default is True for several ranks


def chunk_order(chunks: int, *, seed: int = SEED, epoch: int = 1) -> Order:
    """Chunks in the order of `full_shuffle`, before workers cut it by their items; of one node."""
    return np.random.RandomState([seed, epoch]).permutation(chunks)


def full_shuffle(
    chunk_sizes: list[int],
    world: World,
    *,
    seed: int = SEED,
    epoch: int = 1,
    item_block: int = ITEM_BLOCK,
    node_fits: bool = True,
) -> list[Order]:
    """Items of each worker in the order of reading, rank by rank and in it worker by worker.

    chunk_sizes: in items. epoch: 1 is the first. node_fits: the chunks that a node has in epoch 1
    fit in its `max_cache_size`, so that later epochs of several nodes stay with them.
    Raises ConfigError for ranks that do not divide among nodes, or any size < 1.
    Source: litdata/streaming/shuffle.py (FullShuffle), utilities/shuffle.py.
    """
    _check(world)
    parts = _whole_chunks(chunk_sizes)
    first = epoch if world.nodes == 1 else 1
    dealt = _deal([parts[i] for i in chunk_order(len(parts), seed=seed, epoch=first)], world)
    if world.nodes > 1 and epoch > 1:
        if node_fits:
            dealt = _within_nodes(dealt, parts, world, seed, epoch)
        else:
            dealt = _deal(
                [parts[i] for i in chunk_order(len(parts), seed=seed, epoch=epoch)], world
            )
    return [_items(worker, len(parts), seed, epoch, item_block) for worker in dealt]


def window_shuffle(
    chunk_sizes: list[int],
    world: World,
    *,
    seed: int = SEED,
    epoch: int = 1,
    item_block: int = ITEM_BLOCK,
    window: int = POSIX_WINDOW,
) -> list[Order]:
    """The same on a parallel file system: stripes of whole chunks, moved within a window.

    Source: litdata/streaming/shuffle.py (WindowShuffle), utilities/shuffle.py.
    """
    _check(world)
    parts = _whole_chunks(chunk_sizes)
    orders = []
    for number, worker in enumerate(_stripes(parts, world)):
        rng = np.random.RandomState([seed, epoch, number])
        moved = list(worker)
        for i in range(len(moved) - 1 if window > 1 else 0):
            j = int(rng.randint(i, min(i + window, len(moved))))
            moved[i], moved[j] = moved[j], moved[i]
        orders.append(_items(moved, len(parts), seed, epoch, item_block))
    return orders


def _check(world: World) -> None:
    if min(world[:4]) < 1 or world.ranks % world.nodes:
        raise ConfigError(f"{world.ranks} ranks on {world.nodes} nodes, {world.workers} workers")


def _whole_chunks(sizes: list[int]) -> list[Part]:
    ends = [0, *np.cumsum(sizes).tolist()]
    return [Part(chunk, first, end) for chunk, (first, end) in enumerate(pairwise(ends))]


def _budgets(items: int, world: World) -> list[int]:
    """Items of each worker: whole batches, and what is left to one worker of the last rank."""
    each, more = divmod(items // world.batch // world.ranks, world.workers)
    rank = [(each + (worker < more)) * world.batch for worker in range(world.workers)]
    budgets = rank * world.ranks
    if not world.drop_last:
        budgets[(world.ranks - 1) * world.workers + more] += items - sum(budgets)
    return budgets


def _deal(parts: list[Part], world: World) -> list[list[Part]]:
    """Cut the chunks, one behind the other, by the workers' budgets."""
    dealt: list[list[Part]] = []
    rest = iter(parts)
    part = next(rest, None)
    for budget in _budgets(sum(p.end - p.first for p in parts), world):
        mine: list[Part] = []
        while part is not None and budget:
            taken = Part(part.chunk, part.first, min(part.end, part.first + budget))
            budget -= taken.end - taken.first
            mine.append(taken)
            part = next(rest, None) if taken.end == part.end else part._replace(first=taken.end)
        dealt.append(mine)
    return dealt


def _within_nodes(
    dealt: list[list[Part]], parts: list[Part], world: World, seed: int, epoch: int
) -> list[list[Part]]:
    """Each node permutes the chunks it had in epoch 1 and deals them to its own ranks."""
    of_node = len(dealt) // world.nodes
    local = world._replace(nodes=1, ranks=world.ranks // world.nodes)
    again: list[list[Part]] = []
    for node in range(world.nodes):
        had = dealt[node * of_node : (node + 1) * of_node]
        chunks = list(dict.fromkeys(part.chunk for worker in had for part in worker))
        order = np.random.RandomState([seed, epoch, node]).permutation(len(chunks))
        again += _deal([parts[chunks[i]] for i in order], local)
    return again


def _stripes(parts: list[Part], world: World) -> list[list[Part]]:
    """Whole chunks in order: a chunk goes on to the next worker if its middle lies there."""
    count = world.ranks * world.workers
    total = sum(part.end - part.first for part in parts)
    workers: list[list[Part]] = [[] for _ in range(count)]
    at, before = 0, 0
    for part in parts:
        size = part.end - part.first
        while at < count - 1 and workers[at] and before + size / 2 > (at + 1) * total / count:
            at += 1
        workers[at].append(part)
        before += size
    return (
        [_trimmed(worker, workers, world.batch) for worker in workers]
        if world.drop_last
        else workers
    )


def _trimmed(worker: list[Part], workers: list[list[Part]], batch: int) -> list[Part]:
    """As many items as the least of those that have some, in whole batches."""
    counts = [sum(part.end - part.first for part in one) for one in workers]
    left = min(count for count in counts if count) // batch * batch
    kept: list[Part] = []
    for part in worker:
        if left > 0:
            kept.append(part._replace(end=min(part.end, part.first + left)))
            left -= part.end - part.first
    return kept


def _items(parts: list[Part], chunks: int, seed: int, epoch: int, block: int) -> Order:
    """Within a part: blocks of items are shuffled, then the blocks; block <= 1: all items."""
    orders = [np.empty(0, dtype=np.int64)]
    for part in parts:
        rng = np.random.RandomState([seed, chunks, epoch, part.chunk])
        items = np.arange(part.first, part.end)
        if block <= 1:
            orders.append(rng.permutation(items) if len(items) > 1 else items)
            continue
        blocks = [items[at : at + block] for at in range(0, len(items), block)]
        if len(items) > 1:
            for one in blocks:
                rng.shuffle(one)
        which = list(range(len(blocks)))
        if len(blocks) > 1:
            rng.shuffle(which)
        orders += [blocks[i] for i in which]
    return np.concatenate(orders)
