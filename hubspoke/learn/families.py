"""Ways of reading with random parameters: what the model is trained on, and judged by.

A family builds one job in a folder of its own, so that the folder tells which way a candidate
belongs to. Each draws its parameters from the generator it is given; runs are small, some thousand
reads of some tens of MB, because what the model sees are logarithms and shares.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import MIB, pieces

KIB = 1024
READS = 2_000  # of one job, about

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Part:
    """A job and its objects; objects are numbered from 0, `job` reads from `first` on."""

    sizes: list[int]
    job: JobSpec
    suffix: str = "bin"


Family = Callable[[Rng, int, float], Part]  # generator, number of the first object, bytes a second


def _pick(rng: Rng, values: Sequence[int]) -> int:
    return int(values[int(rng.integers(len(values)))])


def _job(batches: list[list[Read]], workers: int, rate: float) -> JobSpec:
    """Batch after batch, each computed as long as its bytes take at `rate`."""
    bytes_ = sum(n for batch in batches for _, _, n in batch)
    step_s = bytes_ / rate / max(1, len(batches))
    return JobSpec(1, workers, step_s, [len(batches)], lambda epoch, rank, step: batches[step])


def _cut(reads: list[Read], size: int) -> list[list[Read]]:
    return [reads[i : i + size] for i in range(0, len(reads), size)]


def sequential(rng: Rng, first: int, rate: float) -> Part:
    """A large file from start to end: in batches dealt to workers, in slices, or with the reads
    of a small window shuffled."""
    step, files = _pick(rng, (16, 32, 64, 128, 256)) * KIB, _pick(rng, (1, 2, 4))
    size = min(READS * step // files, 64 * MIB) // step * step
    workers, style = _pick(rng, (1, 2, 4, 8)), _pick(rng, (0, 1, 2))
    reads = [r for f in range(files) for r in pieces(first + f, 0, size, step)]
    if style == 1:  # each worker a contiguous slice of its own
        lanes = np.array_split(np.arange(len(reads)), workers)
        order = [int(lane[i]) for i in range(len(lanes[0])) for lane in lanes if i < len(lane)]
        reads = [reads[i] for i in order]
    elif style == 2:
        window = max(2, 2 * MIB // step)
        keys = np.arange(len(reads)) // window + rng.random(len(reads))
        reads = [reads[i] for i in np.argsort(keys, kind="stable")]
    per_batch = 1 if style == 1 else _pick(rng, (4, 8, 16, 32))
    return Part([size] * files, _job(_cut(reads, per_batch), workers, rate))


def strided(rng: Rng, first: int, rate: float) -> Part:
    """Each worker jumps by the same distance; most of the file is never read."""
    length, gaps = _pick(rng, (4, 8, 16, 64)) * KIB, _pick(rng, (3, 5, 8, 13))
    workers = _pick(rng, (1, 2, 4))
    jump = length * gaps * workers
    count = min(READS // workers, 256 * MIB // jump)
    reads = [
        (first, i * jump + w * length * gaps, length) for i in range(count) for w in range(workers)
    ]
    return Part([count * jump + jump], _job(_cut(reads, 1), workers, rate))


def _records(rng: Rng) -> tuple[int, int, int]:
    """Length of a record, records in a file, files."""
    length = _pick(rng, (8, 24, 48, 96, 112)) * KIB
    files = _pick(rng, (1, 2, 4, 8))
    return length, max(8, READS // 2 // files), files


def _drawn(rng: Rng, first: int, rate: float, orders: Sequence[Sequence[int]]) -> Part:
    length, per_file, files = _records(rng)
    total = per_file * files
    reads = [
        (first + int(i) % total // per_file, int(i) % total % per_file * length, length)
        for order in orders
        for i in order[:total]
    ]
    batch, workers = _pick(rng, (8, 16, 32, 64)), _pick(rng, (2, 4, 8))
    return Part([per_file * length] * files, _job(_cut(reads, batch), workers, rate))


def shuffled(rng: Rng, first: int, rate: float) -> Part:
    """All records once an epoch, each epoch in another order."""
    state = rng.bit_generator.state
    total = int(np.prod(_records(rng)[1:]))
    rng.bit_generator.state = state  # `_drawn` draws the same records
    order = np.random.default_rng(int(state["state"]["state"]) % 2**32)
    return _drawn(rng, first, rate, [order.permutation(total).tolist() for _ in range(2)])


def replay(rng: Rng, first: int, rate: float) -> Part:
    """All records once an epoch, each epoch in the same order."""
    state = rng.bit_generator.state
    total = int(np.prod(_records(rng)[1:]))
    rng.bit_generator.state = state
    order = np.random.default_rng(int(state["state"]["state"]) % 2**32).permutation(total).tolist()
    return _drawn(rng, first, rate, [order] * 2)


def random(rng: Rng, first: int, rate: float) -> Part:
    """Ranges drawn with replacement, evenly or with favourites, from files of any size."""
    length, files = _pick(rng, (2, 4, 16, 64)) * KIB, _pick(rng, (1, 4, 32, 128))
    size = _pick(rng, (1, 4, 32, 128)) * MIB
    favourites = rng.random() < 0.5
    clients = _pick(rng, (1, 4, 8))
    draws = rng.zipf(1.3, READS) % (files * 64) if favourites else rng.integers(0, 1 << 40, READS)
    reads: list[Read] = []
    for n in draws.tolist():
        spread = np.random.default_rng(n)
        reads.append(
            (first + int(spread.integers(files)), int(spread.integers(0, size - length)), length)
        )
    return Part([size] * files, _job(_cut(reads, 8), clients, rate))


def columnar(rng: Rng, first: int, rate: float) -> Part:
    """Files with a footer; of each group some columns' chunks."""
    files, groups, columns = _pick(rng, (4, 8, 16)), _pick(rng, (8, 16, 32)), _pick(rng, (8, 24))
    chunk = _pick(rng, (8, 24, 60, 200)) * KIB
    wanted = sorted(rng.choice(columns, max(1, columns // _pick(rng, (2, 3, 5))), False).tolist())
    groups = max(2, min(groups, READS // (files * len(wanted))))
    size = 4 + groups * columns * chunk + 64 * KIB
    batches: list[list[Read]] = []
    for f in rng.permutation(files).tolist():
        for g in range(groups):
            batch = [(first + f, size - 64 * KIB, 64 * KIB)] if g == 0 else []
            at = 4 + g * columns * chunk
            batches.append(batch + [(first + f, at + c * chunk, chunk) for c in wanted])
    return Part([size] * files, _job(batches, _pick(rng, (1, 2, 4)), rate), "parquet")


def listing(rng: Rng, first: int, rate: float) -> Part:
    """Small files, each read whole, in the order of their names."""
    files = int(rng.integers(300, 1_200))
    sizes = np.maximum(4 * KIB, rng.lognormal(11.0, 0.7, files)).astype(int).tolist()
    reads = [r for i in range(files) for r in pieces(first + i, 0, sizes[i])]
    batch = _pick(rng, (4, 16, 32))
    return Part(sizes, _job(_cut(reads, batch), _pick(rng, (1, 4, 8)), rate), "jpg")


def small_files(rng: Rng, first: int, rate: float) -> Part:
    """Small files, each read whole, in a shuffled order, two epochs."""
    files = int(rng.integers(300, 900))
    sizes = np.maximum(4 * KIB, rng.lognormal(11.0, 0.7, files)).astype(int).tolist()
    order = [i for _ in range(2) for i in rng.permutation(files).tolist()]
    reads = [r for i in order for r in pieces(first + i, 0, sizes[i])]
    batch = _pick(rng, (4, 16, 32))
    return Part(sizes, _job(_cut(reads, batch), _pick(rng, (1, 4, 8)), rate), "jpg")


def heads(rng: Rng, first: int, rate: float) -> Part:
    """Only the beginning of each of many files, in any order, sometimes a little more."""
    files, size = int(rng.integers(200, 900)), _pick(rng, (1, 4, 16)) * MIB
    length, more = _pick(rng, (4, 16, 64)) * KIB, float(rng.random()) * 0.3
    reads: list[Read] = []
    for i in rng.permutation(files).tolist():
        reads.append((first + i, 0, length))
        if rng.random() < more:
            reads.append((first + i, length, length))
    return Part([size] * files, _job(_cut(reads, 8), _pick(rng, (1, 4, 8)), rate), "h5")


def lookups(rng: Rng, first: int, rate: float) -> Part:
    """Look-ups in archives: the directory at the end of a file, a node in the middle, then some
    members with their headers. Never trained on."""
    files, size = _pick(rng, (16, 48, 96)), _pick(rng, (4, 16)) * MIB
    member = _pick(rng, (12, 40, 100)) * KIB
    reads: list[Read] = []
    for _ in range(READS // 8):
        f = int(rng.integers(files))
        reads.append((first + f, size - 32 * KIB, 32 * KIB))
        reads.append((first + f, size // 2, 4 * KIB))
        for m in rng.integers(0, size // member - 2, 3).tolist():
            at = m * member
            reads += [(first + f, at, 4 * KIB), (first + f, at + 4 * KIB, member - 4 * KIB)]
    return Part([size] * files, _job(_cut(reads, 8), _pick(rng, (1, 4, 8)), rate), "zip")


# pattern -> families of it
PATTERNS: dict[str, tuple[Family, ...]] = {
    "sequential": (sequential,),
    "strided": (strided,),
    "shuffled": (shuffled, small_files),
    "replay": (replay,),
    "random": (random,),
    "columnar": (columnar,),
    "listing": (listing,),
    "heads": (heads,),
}
HELD_OUT: dict[str, tuple[Family, ...]] = {"lookups": (lookups,)}
