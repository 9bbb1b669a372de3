"""W8, nanoGPT: windows of tokens at random places of one file, with replacement, 8 ranks.

Every rank draws from a stream of its own (seed 1337 and the rank), from which the model's
initialisation has drawn first. A part has a file of fewer tokens and fewer windows a step; from a
64th on the places are below 2^28, which torch draws in another way.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders.nanogpt import SEED, TOKEN_BYTES, windows
from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size, Workload

TOKENS, BLOCK = 9_035_582_198, 1_024
RANKS, WINDOWS, STEPS, STEP_S = 8, 12 * 5, 10_000, 0.25
# What GPT-2 with 124 M parameters draws before its first batch (ORDERS, nanoGPT).
WORDS_BEFORE = 32_362_368
LENGTH = TOKEN_BYTES * (BLOCK + 1)


def build(size: Size) -> Workload:
    """The workload at this size."""
    tokens, each = size.of(TOKENS), size.of(WINDOWS)

    def drawn(rank: int) -> npt.NDArray[np.int64]:
        return windows(
            tokens,
            block=BLOCK,
            count=each * STEPS,
            rank=rank,
            seed=SEED + size.seed,
            words_before=size.of(WORDS_BEFORE),
        )

    offsets: list[npt.NDArray[np.int64]] = []

    def reads(epoch: int, rank: int, step: int) -> Sequence[Read]:
        while len(offsets) < RANKS:
            offsets.append(drawn(len(offsets)))
        mine = offsets[rank][step * each : (step + 1) * each].tolist()
        return [(0, at, LENGTH) for at in mine]

    step_s = STEP_S * each * size.part / WINDOWS
    job = JobSpec(RANKS, 1, step_s, [STEPS], reads, prefetch_factor=1)
    return Workload(
        name="W8",
        title="nanoGPT, windows at random",
        names=["data/openwebtext/train.bin"],
        sizes=[tokens * TOKEN_BYTES],
        capacity=9_000_000_000 // size.part,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
    )
