"""W3, columns of Parquet files: 40 of 200 columns, row group by row group, 4 workers.

A file is opened by its last 64 KiB and the rest of its footer (100 bytes of it for each column
chunk); then every fifth column's chunk of each row group is read. Files in the order of
RandomState(123).shuffle, dealt to the workers in turn. A batch is 32 row groups of one file.
"""

from functools import cache

import numpy as np

from hubspoke.core.layouts.layout import Layout, Span
from hubspoke.core.layouts.probe import Look, Seen
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import MIB, Size, Workload, pieces

FILES, GROUPS, ROWS, COLUMNS, READ_COLUMNS = 64, 128, 6_144, 200, 40
ROW_BYTES, COLUMN_BYTES = 761, 4  # of all columns; of one that is read
WORKERS, DEMAND, GROUPS_PER_BATCH = 4, 200e6, 32
CAPACITY = 8_000_000_000
HEAD, TAIL = 4, 64 << 10
FOOTER = GROUPS * COLUMNS * 100 + 8

GROUP_BYTES, CHUNK = ROWS * ROW_BYTES, ROWS * COLUMN_BYTES
_STRIDE = GROUP_BYTES // READ_COLUMNS  # from one read column to the next
FILE_BYTES = HEAD + GROUPS * GROUP_BYTES + FOOTER


def build(size: Size) -> Workload:
    """The workload at this size."""
    files, groups = size.dealt(FILES, WORKERS), size.cut(GROUPS_PER_BATCH)
    order = np.arange(files)
    np.random.RandomState(123 + size.seed).shuffle(order)
    turns = GROUPS // groups  # batches of a file

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        turn, worker = divmod(step, WORKERS)
        file, part = divmod(turn, turns)
        number = int(order[file * WORKERS + worker])
        found: list[Read] = []
        if part == 0:
            found.append((number, FILE_BYTES - TAIL, TAIL))
            found += pieces(number, FILE_BYTES - FOOTER, FILE_BYTES - TAIL, MIB)
        for group in range(part * groups, (part + 1) * groups):
            start = HEAD + group * GROUP_BYTES
            found += [(number, start + c * _STRIDE, CHUNK) for c in range(READ_COLUMNS)]
        return found

    step_s = groups * READ_COLUMNS * CHUNK / (DEMAND / size.part)
    job = JobSpec(1, WORKERS, step_s, [files * turns], reads)
    return Workload(
        name="W3",
        title="Parquet, 40 of 200 columns",
        names=[f"data/table/part-{i:05}.parquet" for i in range(files)],
        sizes=[FILE_BYTES] * files,
        capacity=CAPACITY // size.part,
        jobs=[job],
        first_misses=job.clients,
        layouts=_see,
        path=size.path(),
    )


def _see(name: str, look: Look) -> Seen | None:
    """What the end of any of these files says: where its footer is, then the footer."""
    footer = Span(FILE_BYTES - FOOTER, FOOTER - 8)
    if look.format is None:
        return look.then(footer, "parquet") if look.span.offset else None
    return _layout(footer)


@cache
def _layout(footer: Span) -> Layout:
    """All columns' chunks; between two that are read the others share what is left."""
    chunks = COLUMNS // READ_COLUMNS
    other = (_STRIDE - CHUNK) // (chunks - 1)
    within = [0, *(CHUNK + i * other for i in range(chunks - 1))]
    starts = HEAD + np.arange(GROUPS)[:, None, None] * GROUP_BYTES
    starts = starts + np.arange(READ_COLUMNS)[:, None] * _STRIDE + np.array(within)
    lengths = np.broadcast_to(np.array([CHUNK] + [other] * (chunks - 1)), starts.shape)
    names = tuple(f"column {i}" for i in range(COLUMNS))
    shape = GROUPS, COLUMNS
    return Layout("parquet", names, starts.reshape(shape), lengths.reshape(shape), footer)
