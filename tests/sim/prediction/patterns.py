"""Ways of reading that have to be recognised, or left alone, as workloads of the simulator.

A step is 4 MiB in 0.1 s, read by eight workers (ranks of one worker) at once, so that ten batches
are a second. Random reads are of a set ten times the cache.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hubspoke.core.streams import Pattern
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Workload

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
READ, WORKERS, EACH = 64 * KIB, 8, 8
STEP_READS = WORKERS * EACH
STEP_S = 0.1
Reads = Callable[[int, int, int], Sequence[Read]]


@dataclass(frozen=True)
class Way:
    """pattern: what its streams are to be called. cold: reads that no rule can foresee, the
    first of each object. followed: which file is next can be foreseen."""

    workload: Workload
    pattern: Pattern
    cold: int = 0
    followed: bool = True


def workload(
    title: str, sizes: list[int], job: JobSpec, *, capacity: int = 4 * GIB, folder: str = "d"
) -> Workload:
    names = [f"b/{folder}/{i:06}" for i in range(len(sizes))]
    return Workload("P", title, names, sizes, capacity, [job], job.clients)


def one_file(
    title: str,
    size: int,
    place: Callable[[int, int, int], int],
    pattern: Pattern = Pattern.SEQUENTIAL,
) -> Way:
    """place: number of the record that worker `rank` reads as its i-th of a step."""

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        return [(0, place(step, rank, i) * READ, READ) for i in range(EACH)]

    job = JobSpec(WORKERS, 1, STEP_S, [size // READ // STEP_READS], reads)
    return Way(workload(title, [size], job), pattern)


def shuffled_inside(width: int, size: int) -> Way:
    order = list(range(size // READ))
    for i in range(0, len(order), width // READ):
        part = order[i : i + width // READ]
        random.Random(i).shuffle(part)
        order[i : i + width // READ] = part
    return one_file(
        f"shuffled inside {width >> 20} MiB",
        size,
        lambda step, rank, i: order[(step * WORKERS + rank) * EACH + i],
    )


def readahead(size: int) -> Way:
    """One reader whose kernel has four requests under way that overtake each other."""
    order = list(range(size // READ))
    for i in range(0, len(order), 4):
        part = order[i : i + 4]
        random.Random(i).shuffle(part)
        order[i : i + 4] = part

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        at = step * STEP_READS
        return [(0, order[at + 4 * i + rank] * READ, READ) for i in range(STEP_READS // 4)]

    job = JobSpec(4, 1, STEP_S, [len(order) // STEP_READS], reads)
    return Way(workload("read-ahead that overtakes", [size], job), Pattern.SEQUENTIAL)


def parallel_ranges(files: int, size: int) -> Way:
    """Parts of 8 MiB, each as eight ranges at once, as transfer managers download."""
    steps = size // (8 * MIB)

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        file, part = divmod(step, steps)
        order = list(range(WORKERS))
        random.Random(step).shuffle(order)
        return [(file, part * 8 * MIB + order[rank] * MIB, MIB)]

    job = JobSpec(WORKERS, 1, 2 * STEP_S, [files * steps], reads, prefetch_factor=1)
    return Way(workload("8 ranges of each part", [size] * files, job), Pattern.SEQUENTIAL)


def many_objects(count: int, size: int) -> Way:
    """All of them at once by 64 workers, each in order, none after another."""
    length, workers = 32 * KIB, 64
    rounds = size // length
    each = count // workers // 4

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        turn, part = divmod(step, 4)
        order = random.Random(turn).sample(range(count), count)
        mine = order[(part * workers + rank) * each : (part * workers + rank + 1) * each]
        return [(number, turn * length, length) for number in mine]

    job = JobSpec(workers, 1, 5 * STEP_S, [4 * rounds], reads)
    made = workload(f"{count} objects at once", [size] * count, job)
    return Way(made, Pattern.SEQUENTIAL, cold=count)


def parts(
    title: str, start: int, length: int, *, shuffled: bool = False, size: int = 8 * MIB
) -> Way:
    """Of each of 256 files one part, by four workers, each a file at a time; `start` below 0 is
    counted from the end."""
    files, workers = 256, 4
    order, at = list(range(files)), start % size
    if shuffled:
        random.Random(5).shuffle(order)

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        number = order[step * workers + rank]
        return [(number, offset, READ) for offset in range(at, at + length, READ)]

    job = JobSpec(workers, 1, STEP_S, [files // workers], reads)
    made = workload(title, [size] * files, job)
    return Way(made, Pattern.SEQUENTIAL, followed=not shuffled)


def partly_read() -> list[Way]:
    """Files that are left before their end, or begun behind their start."""
    return [
        parts("heads of files in order", 0, MIB),
        parts("heads of files shuffled", 0, MIB, shuffled=True),
        parts("short heads shuffled", 0, 4 * READ, shuffled=True),
        parts("tails of files in order", -MIB, MIB),
        parts("tails of files shuffled", -MIB, MIB, shuffled=True),
        parts("middles of files in order", 3 * MIB, MIB),
        parts("middles of files shuffled", 3 * MIB, MIB, shuffled=True),
    ]


def recognised() -> list[Way]:
    size = 256 * MIB
    last = size // READ - 1
    return [
        shuffled_inside(2 * MIB, size),
        one_file("stride of 8 workers", size, lambda s, r, i: (s * EACH + i) * WORKERS + r),
        one_file(
            "a slice for each of 8 workers",
            size,
            lambda s, r, i: r * (size // READ // WORKERS) + s * EACH + i,
        ),
        one_file("batches dealt to 8 workers", size, lambda s, r, i: (s * WORKERS + r) * EACH + i),
        one_file(
            "backward, by 8 workers",
            size,
            lambda s, r, i: last - ((s * EACH + i) * WORKERS + r),
            Pattern.BACKWARD,
        ),
        readahead(size),
        parallel_ranges(2, 256 * MIB),
        many_objects(4_096, 256 * KIB),
    ]


def at_random(length: int, files: int, *, reads: int = 3_000, total: int = GIB) -> Workload:
    """Uniformly at random over a set ten times the cache."""
    size, rng, each = total // files, random.Random(7), 4
    places = [(rng.randrange(files), rng.randrange(size // length) * length) for _ in range(reads)]

    def of(epoch: int, rank: int, step: int) -> list[Read]:
        at = (step * WORKERS + rank) * each
        return [(file, offset, length) for file, offset in places[at : at + each]]

    job = JobSpec(WORKERS, 1, 0.02 + each * WORKERS * length / 100e6, [reads // each // 8], of)
    title = f"random, {length >> 10} KiB, {files} file" + "s" * (files > 1)
    return workload(title, [size] * files, job, capacity=total // 10)


def in_pieces(clients: int, *, records: int = 1_024, total: int = GIB) -> Workload:
    """Records of 112 KiB uniformly at random, each read in a row by 28 reads of 4 KiB."""
    length, rng = 112 * KIB, random.Random(11)
    places = [rng.randrange(total // length) * length for _ in range(records)]

    def of(epoch: int, rank: int, step: int) -> list[Read]:
        at = places[step * clients + rank]
        return [(0, offset, 4 * KIB) for offset in range(at, at + length, 4 * KIB)]

    job = JobSpec(clients, 1, 0.05, [records // clients], of)
    title = f"random, 112 KiB in 28 reads, {clients} clients"
    return workload(title, [total], job, capacity=total // 10)


def unpredictable() -> list[Workload]:
    return [at_random(length, n) for length in (4 * KIB, 128 * KIB, MIB) for n in (1, 32, 512)]


def dealt_in_small_reads() -> Workload:
    """W1 but for its length: 64 workers with a run of 192 KiB of each step, 4 KiB at a time, one
    read after the other."""
    ranks, run, read = 16, 192 * KIB, 4 * KIB

    def of(epoch: int, rank: int, step: int) -> list[Read]:
        at = (step * ranks + rank) * run
        return [(0, offset, read) for offset in range(at, at + run, read)]

    job = JobSpec(ranks, 4, 1.11, [16], of)
    return workload("dealt in small reads", [4 * GIB], job)
