"""The search's kernel in numpy: slow, and a witness of the compiled one."""

import numpy as np
import numpy.typing as npt

from hubspoke.core.inference.question import Build, samples
from hubspoke.core.orders import torch_randperm
from hubspoke.core.orders.dealing import in_turns
from hubspoke.core.orders.webdataset import shard_orders

PROCESSES = 128  # seeds of processes that are looked at, as each takes 20 us


def words(first: int, count: int, last: int) -> list[npt.NDArray[np.uint32]]:
    """Words 0..last of the generators of `count` seeds."""
    w = np.arange(first, first + count, dtype=np.uint64).astype(np.uint32)
    found = [w]
    for i in range(1, last + 1):
        w = np.uint32(1812433253) * (w ^ (w >> np.uint32(30))) + np.uint32(i)
        found.append(w)
    return found


def output(w: list[npt.NDArray[np.uint32]], i: int) -> npt.NDArray[np.uint32]:
    y = (w[i] & np.uint32(0x80000000)) | (w[i + 1] & np.uint32(0x7FFFFFFF))
    v = w[i + 397] ^ (y >> np.uint32(1)) ^ (w[i + 1] & np.uint32(1)) * np.uint32(0x9908B0DF)
    v ^= v >> np.uint32(11)
    v ^= (v << np.uint32(7)) & np.uint32(0x9D2C5680)
    v ^= (v << np.uint32(15)) & np.uint32(0xEFC60000)
    tempered: npt.NDArray[np.uint32] = v ^ (v >> np.uint32(18))
    return tempered


class NumpyKernel:
    """hubspoke.core.inference.search.Kernel; `among` are the only seeds above 2^17 that exist."""

    def __init__(self, among: tuple[int, ...] = ()) -> None:
        self._among = among
        self._outputs: list[npt.NDArray[np.uint32]] = []

    def order(self, n: int, seed: int) -> npt.NDArray[np.int32]:
        return torch_randperm(n, seed).astype(np.int32)

    def shards(self, n: int, buffer: int, seed: int, world: int) -> npt.NDArray[np.int32]:
        parts = shard_orders(n, buffer=buffer, seed=seed, workers=world)
        return in_turns(parts).astype(np.int32)

    def samples(self, request: Build) -> npt.NDArray[np.int32]:
        return samples(request)

    def scan(
        self,
        first: int,
        count: int,
        n: int,
        seen: npt.NDArray[np.uint8],
        *,
        need: int,
        places: int,
        misses: int,
        skip: int = 0,
    ) -> list[int]:
        if first == 0:
            if not self._outputs:
                w = words(0, 2**17, 397 + 18)
                self._outputs = [output(w, i) for i in range(18)]
            outputs = self._outputs[skip : skip + min(places, 16)]
            marks = [seen[i + r % np.uint32(n - i)] for i, r in enumerate(outputs)]
            passed = ((marks[0] | marks[1]) & (sum(marks[:4]) >= need)).astype(bool)
            passed &= sum(marks) >= len(marks) - misses - 2  # places that were swapped before
            seeds = np.flatnonzero(passed).tolist()
        else:
            seeds = [s for s in self._among if first <= s < first + count]
        return [s for s in seeds if (seen[self._first(n, s, places, skip)] == 0).sum() <= misses]

    def processes(
        self, first: int, count: int, n: int, seen: npt.NDArray[np.uint8], places: int, misses: int
    ) -> list[int]:
        few = range(first, min(first + count, PROCESSES))
        return [
            seed
            for seed in few
            if (seen[self._first(n, outputs(seed, 4)[3], places)] == 0).sum() <= misses
        ]

    @staticmethod
    def _first(n: int, seed: int, places: int, skip: int = 0) -> list[int]:
        rng = np.random.RandomState(seed)
        draws = rng.randint(0, 2**32, size=skip + places, dtype=np.uint32)[skip:]
        at: dict[int, int] = {}
        found = []
        for i, r in enumerate(draws.tolist()):
            j = i + r % (n - i)
            found.append(at.get(j, j))
            at[j] = at.get(i, i)
        return found

    def streams(self, first: int, count: int, value: int) -> list[int]:
        return [s for s in self._among if first <= s < first + count and outputs(s, 4)[3] == value]


def outputs(seed: int, count: int) -> list[int]:
    """The first outputs of a fresh generator."""
    rng = np.random.RandomState(seed)
    found: list[int] = rng.randint(0, 2**32, size=count, dtype=np.uint32).tolist()
    return found
