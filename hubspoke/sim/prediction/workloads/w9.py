"""W9, UNet3D as MLPerf Storage has it: one accelerator that wants three times what the WAN carries.

168 npz files, seven to a batch, by 4 workers; DLIO shuffles with seed 123, the same in every
epoch. A file is opened by its head and its zip directory and read to the end. A part has as many
files, but smaller ones, or there were no steps left.
"""

import numpy as np

from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size, Workload, pieces

FILES, BATCH, WORKERS, EPOCHS = 168, 7, 4, 5
MEAN, DEVIATION, LEAST = 146.6e6, 68.3e6, 1e6
STEP_S, CAPACITY = 0.323, 25_000_000_000
HEAD, TAIL = 16 << 10, 4 << 10


def build(size: Size) -> Workload:
    """The workload at this size."""
    drawn = np.random.default_rng(size.seed).normal(MEAN, DEVIATION, FILES)
    sizes = [max(int(n) // size.part, HEAD + TAIL) for n in np.maximum(drawn, LEAST)]
    order = np.arange(FILES)
    np.random.RandomState(123 + size.seed).shuffle(order)

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        found: list[Read] = []
        for number in order[step * BATCH : (step + 1) * BATCH].tolist():
            end = sizes[number]
            found += [(number, 0, HEAD), (number, end - TAIL, TAIL)]
            found += pieces(number, HEAD, end - TAIL)
        return found

    job = JobSpec(1, WORKERS, STEP_S, [FILES // BATCH] * EPOCHS, reads)
    return Workload(
        name="W9",
        title="UNet3D, MLPerf Storage",
        names=[f"data/case/{i:05}.npz" for i in range(FILES)],
        sizes=sizes,
        capacity=CAPACITY // size.part,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
    )
