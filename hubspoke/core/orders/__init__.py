"""The orders in which data loaders read, exact and computed with numpy alone.

What a loader shuffles is decided by a seed, so whoever knows the seed knows every read to come.
One module a family; each function names the source it follows. tests/golden holds what the real
packages read.
"""

from hubspoke.core.orders import (
    candidates,
    dlio,
    huggingface,
    litdata,
    megatron,
    mosaicml,
    nanogpt,
    webdataset,
)
from hubspoke.core.orders.torch_samplers import (
    RANDPERM_32BIT_MAX,
    distributed_sampler,
    torch_randperm,
)

__all__ = [
    "RANDPERM_32BIT_MAX",
    "candidates",
    "distributed_sampler",
    "dlio",
    "huggingface",
    "litdata",
    "megatron",
    "mosaicml",
    "nanogpt",
    "torch_randperm",
    "webdataset",
]
