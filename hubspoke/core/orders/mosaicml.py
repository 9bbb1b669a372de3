"""Orders of MosaicML's StreamingDataset (mosaicml-streaming 0.13), one stream of shards.

A *span* is a part of a shard, [start, end) in sample numbers. Canonical nodes are the groups that
samples are shuffled within; physical nodes, ranks and workers share them out afterwards, so that
the order does not depend on how many there are.
"""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.errors import ConfigError

Order = npt.NDArray[np.int64]
Algorithm = Literal["py1e", "py1br", "py1s"]
SEED = 9176


class _Span(NamedTuple):
    start: int
    end: int


def default_block(canonical_nodes: int) -> int:
    """Samples of a shuffle block where the user names none. Source: streaming/base/dataset.py."""
    return max(4_000_000 // canonical_nodes, 1 << 18)


def shuffled_samples(
    shard_sizes: list[int],
    *,
    canonical_nodes: int,
    algorithm: Algorithm = "py1e",
    seed: int = SEED,
    epoch: int = 0,
    block: int | None = None,
) -> Order:
    """Sample numbers by place in the global order; shard s has its `shard_sizes[s]` samples.

    canonical_nodes: of py1e and py1br the physical nodes by default, of py1s 64 times as many.
    block: in samples, None is the default. Raises ConfigError if a canonical node has none.
    Source: streaming/base/shuffle/py1s.py, py1e.py, py1br.py.
    """
    n = sum(shard_sizes)
    if not 1 <= canonical_nodes <= n:
        raise ConfigError(f"{n} samples for {canonical_nodes} canonical nodes: at least 1 each")
    size = default_block(canonical_nodes) if block is None else block
    ends = np.cumsum(shard_sizes).tolist()
    spans = [_Span(end - count, end) for count, end in zip(shard_sizes, ends, strict=True)]
    # Lists are shuffled, not arrays: numpy draws the same numbers, and so does the package.
    np.random.default_rng(seed).shuffle(spans)
    nodes = _cut(spans, [n * (k + 1) // canonical_nodes for k in range(canonical_nodes)])
    rng = np.random.default_rng(seed + epoch)
    for node in nodes:
        rng.shuffle(node)
    if algorithm == "py1br":
        return _in_blocks(nodes, rng, size)
    parts = [_spread(node, rng, size if algorithm == "py1e" else None) for node in nodes]
    return np.concatenate(parts)


def _cut(spans: list[_Span], ends: list[int]) -> list[list[_Span]]:
    """The spans of each node: those up to each of `ends`, counted in samples; cut what crosses."""
    nodes: list[list[_Span]] = []
    rest = iter(spans)
    span = next(rest, None)
    taken = 0
    for end in ends:
        node: list[_Span] = []
        while span is not None and taken < end:
            part = _Span(span.start, min(span.end, span.start + end - taken))
            node.append(part)
            taken += part.end - part.start
            span = next(rest, None) if part.end == span.end else _Span(part.end, span.end)
        nodes.append(node)
    return nodes


def _spread(node: list[_Span], rng: np.random.Generator, block: int | None) -> Order:
    """py1e: shuffle each span, then move each sample at random by up to half of what a block of
    random size is longer than the span. Without a block (py1s) leave them."""
    samples = []
    for span in node:
        part = np.arange(span.start, span.end)
        rng.shuffle(part)
        samples.append(part)
    ids = np.concatenate(samples)
    if block is None:
        return ids
    places = np.arange(len(ids), dtype=np.float64)
    at = 0
    for span in node:
        size = span.end - span.start
        drawn = rng.integers(int(0.75 * block), int(1.25 * block))
        reach = max((drawn - size) / 2, 0)
        low, high = max(-reach, -at), min(reach, len(ids) - at - size)
        places[at : at + size] += rng.uniform(low, high, size)
        at += size
    return ids[np.argsort(places)]


def _in_blocks(nodes: list[list[_Span]], rng: np.random.Generator, block: int) -> Order:
    """py1br: shuffle within blocks of random size, which begin staggered by node."""
    stagger = rng.integers(0, int(0.75 * block), len(nodes))
    ids = []
    for node, early in zip(nodes, stagger.tolist(), strict=True):
        part = np.concatenate([np.arange(span.start, span.end) for span in node])
        ranges, end = [], 0
        while end < len(part):
            drawn = int(rng.integers(int(0.75 * block), int(1.25 * block)))
            one = slice(max(end - early, 0), min(end + drawn - early, len(part)))
            ranges.append(one)
            end += one.stop - one.start
        for one in ranges:
            rng.shuffle(part[one])
        ids.append(part)
    return np.concatenate(ids)


def merged_samples(
    shard_sizes: list[int],
    *,
    canonical_nodes: int,
    algorithm: Algorithm = "py1e",
    seed: int = SEED,
    epoch: int = 0,
) -> Order:
    """What all workers of all nodes read in one epoch, if they are as fast: `partition`'s places
    without padding at its end, whatever it deals them to. Arguments as of `shuffled_samples`."""
    order = shuffled_samples(
        shard_sizes, canonical_nodes=canonical_nodes, algorithm=algorithm, seed=seed, epoch=epoch
    )
    return order[_by_canonical_node(len(order), canonical_nodes).T.ravel()]


def _by_canonical_node(n: int, canonical_nodes: int) -> Order:
    """[canonical node, place in it]: shorter ones repeat their last."""
    starts = np.arange(canonical_nodes)[:, None] * n // canonical_nodes
    stops = (np.arange(canonical_nodes)[:, None] + 1) * n // canonical_nodes
    each = -(-n // canonical_nodes)
    return np.asarray(np.minimum(starts + np.arange(each), stops - 1))


def partition(
    n: int, *, canonical_nodes: int, nodes: int, ranks: int, workers: int, batch: int
) -> Order:
    """Places in the global order: [node, rank of the node, worker, batch of the worker, sample].

    -1 is padding of a worker's last batches; ranks and nodes are padded by repeating samples near
    the end. ranks: of a node; workers: of a rank; a rank takes batches from its workers in turn.
    Raises ConfigError unless one of canonical_nodes and nodes divides the other, and for fewer
    samples than twice the canonical nodes, or the ranks (there the package repeats samples in
    other ways). Source: streaming/base/partition/orig.py (without drop_first).
    """
    if canonical_nodes % nodes and nodes % canonical_nodes:
        raise ConfigError(f"{canonical_nodes} canonical nodes on {nodes}: one divides the other")
    if n < 2 * max(canonical_nodes, nodes * ranks):
        raise ConfigError(f"{n} samples for {canonical_nodes} canonical nodes, {nodes} x {ranks}")
    places = _by_canonical_node(n, canonical_nodes)
    each = places.shape[1]
    ratio = max(nodes // canonical_nodes, 1)
    if missing := -each % ratio:
        until = each - ratio + 1
        places = np.concatenate([places, places[:, until - missing : until]], axis=1)
    by_node = places.T.reshape(-1, nodes).T
    if missing := -by_node.shape[1] % ranks:
        until = by_node.shape[1] - ranks + 1
        by_node = np.concatenate([by_node, by_node[:, until - missing : until]], axis=1)
    by_rank = by_node.reshape(nodes, -1, ranks)
    missing = -by_rank.shape[1] % (workers * batch)
    by_rank = np.pad(by_rank, ((0, 0), (0, missing), (0, 0)), constant_values=-1)
    batches = by_rank.transpose(0, 2, 1).reshape(nodes, ranks, -1, workers, batch)
    return batches.transpose(0, 1, 3, 2, 4)
