"""What nanoGPT reads: windows of tokens at random places of one file, with replacement."""

import numpy as np
import numpy.typing as npt

from hubspoke.core.orders.mt19937 import TorchGenerator
from hubspoke.core.orders.torch_samplers import randint

SEED = 1337  # plus the rank
TOKEN_BYTES = 2


def windows(
    tokens: int,
    *,
    block: int,
    count: int,
    rank: int = 0,
    seed: int = SEED,
    words_before: int = 0,
) -> npt.NDArray[np.int64]:
    """Offsets in bytes of the next `count` samples, each read as TOKEN_BYTES * (block + 1) bytes.

    tokens: of the file; block: of a sample. words_before: 32-bit words drawn from the global
    generator before: by the model's initialisation, and two for each sample before, or one where
    tokens - block < 2^28. Losses are estimated on other samples of the same stream.
    Raises ConfigError for a file of no more than `block` tokens.
    Source: karpathy/nanoGPT train.py (get_batch; seed_offset).
    """
    generator = TorchGenerator(seed + rank)
    generator.draws32(words_before)
    return randint(tokens - block, count, generator) * TOKEN_BYTES
