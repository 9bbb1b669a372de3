"""Orders that DLIO gives: the cases of dlio.json. Run by make.py.

DLIO is imported with two stand-ins: its tracer (dftracer), which only watches, and the part of MPI
that says who one is, which its settings hold as well.
"""

import importlib.metadata
import json
import sys
from types import ModuleType
from typing import Any

from tests.golden.told import Case, told


class Watch:
    """A tracer that lets every call through."""

    def __init__(self, *_: object) -> None: ...

    def __getattr__(self, _: str) -> Any:
        return lambda called=None, **_: called


tracer: Any = ModuleType("dftracer.logger")
tracer.dftracer, tracer.dft_fn, tracer.DFTRACER_ENABLE = Watch, Watch, False
sys.modules |= {"dftracer": ModuleType("dftracer"), "dftracer.logger": tracer}
mpi: Any = ModuleType("mpi4py")
mpi.MPI = ModuleType("mpi4py.MPI")
sys.modules |= {"mpi4py": mpi, "mpi4py.MPI": mpi.MPI}

from dlio_benchmark.common.enumerations import DataLoaderSampler, Shuffle  # noqa: E402
from dlio_benchmark.data_loader.torch_data_loader import dlio_sampler  # noqa: E402
from dlio_benchmark.utils.config import ConfigArguments  # noqa: E402
from dlio_benchmark.utils.utility import DLIOMPI  # noqa: E402

SAMPLERS = [(1000, 1, 123), (1000, 4, 123), (999, 3, 42), (64, 8, 0), (70_000, 2, 1234)]
SAMPLERS += [(1024, 8, 123), (2000, 2, 42)]
EPOCHS = 4
FILES = [  # files, samples per file, ranks, seed, file_shuffle, sample_shuffle, seed_change_epoch
    (40, 1, 4, 123, True, False, True),
    (40, 1, 4, 123, True, False, False),
    (60, 10, 4, 123, True, True, True),
    (60, 10, 1, 7, False, True, True),
    (60, 10, 3, 7, False, True, False),
    (16, 100, 2, 0, True, True, True),
]


def sampled(n: int, ranks: int, seed: int) -> Case:
    """One sampler for all epochs, as DLIO's loader has."""
    samplers = [dlio_sampler(r, ranks, n, Shuffle.SEED, EPOCHS, seed) for r in range(ranks)]
    read = [list(sampler) for _ in range(EPOCHS) for sampler in samplers]
    parameters = {"n": n, "ranks": ranks, "seed": seed, "epochs": EPOCHS}
    return {"what": "torch", "with": parameters, "read": told(*read)}


def mapped(
    files: int, per_file: int, ranks: int, seed: int, by_file: bool, by_sample: bool, change: bool
) -> Case:
    """The maps that DLIO makes for its epochs: files and samples of each rank."""
    read = []
    for rank in range(ranks):
        DLIOMPI.reset()
        DLIOMPI.get_instance().set_parent_values(rank, ranks)
        ConfigArguments.reset()
        arguments = ConfigArguments.get_instance()
        arguments.my_rank, arguments.comm_size, arguments.read_threads = rank, ranks, 1
        arguments.num_samples_per_file, arguments.seed = per_file, seed
        arguments.file_shuffle = Shuffle.SEED if by_file else Shuffle.OFF
        arguments.sample_shuffle = Shuffle.SEED if by_sample else Shuffle.OFF
        arguments.seed_change_epoch = change
        arguments.data_loader_sampler = DataLoaderSampler.ITERATIVE
        arguments.derive_configurations([f"/{i}" for i in range(files)], [])
        for epoch in range(1, EPOCHS + 1):
            arguments.reconfigure(epoch)
            entries = arguments.train_file_map[0]
            read.append([int(path[1:]) for _, path, _ in entries])
            read.append([int(sample) for _, _, sample in entries])
    parameters = {"files": files, "samples_per_file": per_file, "ranks": ranks, "seed": seed}
    parameters |= {"file_shuffle": by_file, "sample_shuffle": by_sample}
    parameters |= {"seed_change_epoch": change, "epochs": EPOCHS}
    return {"what": "iterative", "with": parameters, "read": told(*read)}


if __name__ == "__main__":
    cases = [sampled(*setting) for setting in SAMPLERS] + [mapped(*setting) for setting in FILES]
    print(json.dumps({"dlio": importlib.metadata.version("dlio_benchmark"), "cases": cases}))
