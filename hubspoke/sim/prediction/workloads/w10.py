"""W10, ResNet from TFRecord files: 8 sequential readers interleaved, files in a random order.

tf.data's interleave of 8 files, 50 records of each for a step; a reader that has come to the end
opens the next file of the order, which no log tells. Reads of 256 KiB, TFRecordDataset's buffer.
"""

import math
from functools import lru_cache

import numpy as np

from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size, Workload

FILES, RECORDS, RECORD = 1_024, 1_251, 114_660
READERS, PER_READER, STEP_S, EPOCHS = 8, 50, 0.224, 2
BUFFER = 256 << 10
FILE_BYTES = RECORDS * RECORD
FIRST_SEED = 10


def build(size: Size) -> Workload:
    """The workload at this size."""
    files = size.dealt(FILES, READERS)
    step_bytes = PER_READER * RECORD // size.part
    reads_each = -(-FILE_BYTES // BUFFER)

    @lru_cache(1)
    def order(epoch: int) -> list[int]:
        rng = np.random.default_rng([FIRST_SEED + size.seed, epoch])
        found: list[int] = rng.permutation(files).tolist()
        return found

    def first_read(start: int) -> int:
        """Number of the first read of a reader's stream at or after a byte of it."""
        file, at = divmod(start, FILE_BYTES)
        return file * reads_each + -(-at // BUFFER)

    def reads(epoch: int, reader: int, step: int) -> list[Read]:
        mine = order(epoch)[reader::READERS]
        total = len(mine) * reads_each
        found: list[Read] = []
        begin, end = first_read(step * step_bytes), first_read((step + 1) * step_bytes)
        for n in range(begin, min(end, total)):
            file, k = divmod(n, reads_each)
            found.append((mine[file], k * BUFFER, min(BUFFER, FILE_BYTES - k * BUFFER)))
        return found

    steps = math.ceil(files // READERS * FILE_BYTES / step_bytes)
    job = JobSpec(READERS, 1, STEP_S, [steps] * EPOCHS, reads)
    return Workload(
        name="W10",
        title="ResNet, interleaved TFRecord files",
        names=[f"data/tfrecord/train-{i:05}-of-{files:05}" for i in range(files)],
        sizes=[FILE_BYTES] * files,
        capacity=files * FILE_BYTES // 2,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
    )
