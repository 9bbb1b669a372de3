"""Loops over millions of reads, compiled by numba and kept between runs.

Numba keeps machine code beside the source (`__pycache__`), in NUMBA_CACHE_DIR or in the user's
cache folder. Where none can be written, as in a read-only image without a home, it refuses to
decorate; then the function is compiled anew in each process, which costs seconds, not the run.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function as machine code, made at its first call."""
    njit: Any = numba.njit  # without types, or with those of numba's own callables, by version
    try:
        made: Callable[P, R] = njit(cache=True)(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        made = njit(function)
    return made
