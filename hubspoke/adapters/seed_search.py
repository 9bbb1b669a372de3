"""Seeds of torch's generator by what a permutation begins with: loops compiled by numba.

To be imported only where a second for numba is no harm. MT19937 is seeded by a recurrence of 624
words, but output i needs words i, i+1 and i+397 alone, so a candidate costs 400 steps, taken for
LANES seeds at a time in vector registers. A seed passes if one of its first two places was read
(one read may have been missed), then by its first four; what is left is drawn exactly, with a tiny
log of swaps, until it has missed too often. bench/seed_search.py measures it.

Each operation is cast to 32 bits: numba computes in 64 where two such numbers are multiplied, and
the compiler then takes the slower instruction on half as many lanes (16 against 43 M seeds/s).

Source: ORDERS C.1; aten/src/ATen/native/TensorFactories.cpp (randperm_cpu).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import numba
import numpy as np
import numpy.typing as npt

from hubspoke.core.inference.question import Build, samples
from hubspoke.core.orders.dealing import deal, in_turns
from hubspoke.core.orders.webdataset import INITIAL

LANES = 256
FOUND_MAX = 1_024  # of one call: more means that the test says nothing
WORDS_MIN = 512
PLACES_MAX = 64  # of an order that are looked at
SKIP_MAX = 8  # words drawn before
MULTIPLIER = np.uint32(1812433253)

P = ParamSpec("P")
R = TypeVar("R")
u32 = np.uint32


def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Machine code that lets other threads run, kept between runs where that is possible."""
    njit: Any = numba.njit
    try:
        made: Callable[P, R] = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        made = njit(nogil=True)(function)
    return made


@_compiled
def _output(low: int, high: int, middle: int) -> int:
    """Output i of a fresh generator from its words i, i + 1 and i + 397."""
    y = u32((low & u32(0x80000000)) | (high & u32(0x7FFFFFFF)))
    v = u32(middle ^ (y >> u32(1)))
    if high & u32(1):
        v = u32(v ^ u32(0x9908B0DF))
    v = u32(v ^ (v >> u32(11)))
    v = u32(v ^ ((v << u32(7)) & u32(0x9D2C5680)))
    v = u32(v ^ ((v << u32(15)) & u32(0xEFC60000)))
    return u32(v ^ (v >> u32(18)))  # type: ignore[return-value]  # an int to numba's callers


@_compiled
def _draw(
    low: npt.NDArray[np.uint32],
    high: npt.NDArray[np.uint32],
    middle: npt.NDArray[np.uint32],
    n: int,
    drawn: npt.NDArray[np.uint32],
) -> None:
    """`_output` mod n of all lanes, without a branch or a division so that it is compiled to vector
    instructions. n: below 2^30, so that a quotient that rounding left one off shows by its sign."""
    inverse = 1.0 / n
    for lane in range(LANES):
        y = u32((low[lane] & u32(0x80000000)) | (high[lane] & u32(0x7FFFFFFF)))
        v = u32(middle[lane] ^ (y >> u32(1)))
        v = u32(v ^ (u32(u32(0) - u32(high[lane] & u32(1))) & u32(0x9908B0DF)))
        v = u32(v ^ (v >> u32(11)))
        v = u32(v ^ (u32(v << u32(7)) & u32(0x9D2C5680)))
        v = u32(v ^ (u32(v << u32(15)) & u32(0xEFC60000)))
        v = u32(v ^ (v >> u32(18)))
        quotient = u32(np.float64(v) * inverse)
        rest = np.int32(u32(v - u32(quotient * u32(n))))
        if rest < 0:
            rest += np.int32(n)
        if rest >= np.int32(n):
            rest -= np.int32(n)
        drawn[lane] = u32(rest)


@_compiled
def _swap(order: npt.NDArray[np.int32], draws: npt.NDArray[np.uint32]) -> None:
    n = len(order)
    for i in range(n - 1):
        j = i + draws[i] % u32(n - i)
        order[i], order[j] = order[j], order[i]


@_compiled
def _begins(
    seed: int,
    n: int,
    seen: npt.NDArray[np.uint8],
    places: int,
    misses: int,
    skip: int,
    words: npt.NDArray[np.uint32],
    log: npt.NDArray[np.int64],
) -> bool:
    """Whether all but `misses` of the first places of this seed's order were read."""
    words[0] = u32(seed)
    for i in range(1, 397 + skip + places):
        x = words[i - 1]
        words[i] = u32(u32(MULTIPLIER * u32(x ^ (x >> u32(30)))) + u32(i))
    missed = 0
    for i in range(places):
        k = i + skip
        j = i + _output(words[k], words[k + 1], words[k + 397]) % u32(n - i)
        # The value at a place is its number, unless a swap has put another one there.
        at_i, at_j = i, j
        for k in range(i - 1, -1, -1):
            if log[k, 0] == i:
                at_i = log[k, 1]
                break
        for k in range(i - 1, -1, -1):
            if log[k, 0] == j:
                at_j = log[k, 1]
                break
        log[i, 0], log[i, 1] = j, at_i
        if not seen[at_j]:
            missed += 1
            if missed > misses:
                return False
    return True


@_compiled
def _scan(
    first: int,
    count: int,
    n: int,
    seen: npt.NDArray[np.uint8],
    need: int,
    places: int,
    misses: int,
    skip: int,
    found: npt.NDArray[np.int64],
) -> int:
    """Seeds [first, first + count) whose order begins with what was seen; how many there are."""
    low = np.empty((5, LANES), np.uint32)
    high = np.empty((4, LANES), np.uint32)
    drawn = np.empty((2, LANES), np.uint32)
    w = np.empty(LANES, np.uint32)
    words = np.empty(397 + SKIP_MAX + PLACES_MAX, np.uint32)
    log = np.empty((PLACES_MAX, 2), np.int64)
    total = 0
    for base in range(first, first + count, LANES):
        for lane in range(LANES):
            w[lane] = u32(base + lane)
        for i in range(1, 5 + skip):
            if i > skip:
                low[i - 1 - skip, :] = w
            for lane in range(LANES):
                x = w[lane]
                w[lane] = u32(u32(MULTIPLIER * u32(x ^ (x >> u32(30)))) + u32(i))
        low[4, :] = w
        for i in range(5 + skip, 397 + skip):
            for lane in range(LANES):
                x = w[lane]
                w[lane] = u32(u32(MULTIPLIER * u32(x ^ (x >> u32(30)))) + u32(i))
        for i in range(4):
            for lane in range(LANES):
                x = w[lane]
                w[lane] = u32(u32(MULTIPLIER * u32(x ^ (x >> u32(30)))) + u32(397 + skip + i))
                high[i, lane] = w[lane]
        for i in range(2):
            _draw(low[i], low[i + 1], high[i], n - i, drawn[i])
        for lane in range(LANES):
            passed = seen[drawn[0, lane]] + seen[1 + drawn[1, lane]]
            if not passed:
                continue
            passed += seen[2 + _output(low[2, lane], low[3, lane], high[2, lane]) % u32(n - 2)]
            passed += seen[3 + _output(low[3, lane], low[4, lane], high[3, lane]) % u32(n - 3)]
            seed = base + lane
            if passed < need or seed >= first + count:
                continue
            if _begins(seed, n, seen, places, misses, skip, words, log):
                if total < len(found):
                    found[total] = seed
                total += 1
    return total


@_compiled
def _processes(
    first: int,
    count: int,
    n: int,
    seen: npt.NDArray[np.uint8],
    places: int,
    misses: int,
    found: npt.NDArray[np.int64],
) -> int:
    """Seeds whose fourth output is the seed of such an order; how many there are."""
    words = np.empty(397 + SKIP_MAX + PLACES_MAX, np.uint32)
    log = np.empty((PLACES_MAX, 2), np.int64)
    total = 0
    for seed in range(first, first + count):
        words[0] = u32(seed)
        for i in range(1, 401):
            x = words[i - 1]
            words[i] = u32(u32(MULTIPLIER * u32(x ^ (x >> u32(30)))) + u32(i))
        drawn = _output(words[3], words[4], words[400])
        if _begins(drawn, n, seen, places, misses, 0, words, log):
            if total < len(found):
                found[total] = seed
            total += 1
    return total


@_compiled
def _picks(
    items: npt.NDArray[np.int64], words: npt.NDArray[np.uint32], buffer: int, initial: int
) -> npt.NDArray[np.int64]:
    """`core.orders.webdataset.buffer_shuffle` by a generator's words; empty: they were too few."""
    order = np.empty(len(items), np.int64)
    held = np.empty(len(items) + 1, np.int64)
    coming = holds = done = at = 0
    while done < len(items):
        if coming < len(items):
            held[holds] = items[coming]
            coming, holds = coming + 1, holds + 1
            if holds < buffer and coming < len(items):
                held[holds] = items[coming]
                coming, holds = coming + 1, holds + 1
            if holds < initial:
                continue
        bits = 0
        while holds >> bits:
            bits += 1
        drawn = np.int64(holds)
        while drawn >= holds:
            if at == len(words):
                return order[:0]
            drawn = np.int64(words[at] >> u32(32 - bits))
            at += 1
        order[done] = held[drawn]
        held[drawn] = held[holds - 1]
        holds, done = holds - 1, done + 1
    return order


@_compiled
def _streams(first: int, count: int, value: int, found: npt.NDArray[np.int64]) -> int:
    """Seeds [first, first + count) whose fourth output is `value`; how many there are."""
    w = np.empty(LANES, np.uint32)
    w3 = np.empty(LANES, np.uint32)
    w4 = np.empty(LANES, np.uint32)
    total = 0
    for base in range(first, first + count, LANES):
        for lane in range(LANES):
            w[lane] = u32(base + lane)
        for i in range(1, 5):
            for lane in range(LANES):
                x = w[lane]
                w3[lane] = x
                w[lane] = u32(u32(MULTIPLIER * u32(x ^ (x >> u32(30)))) + u32(i))
        for lane in range(LANES):
            w4[lane] = w[lane]
        for i in range(5, 401):
            for lane in range(LANES):
                x = w[lane]
                w[lane] = u32(u32(MULTIPLIER * u32(x ^ (x >> u32(30)))) + u32(i))
        for lane in range(LANES):
            if _output(w3[lane], w4[lane], w[lane]) == u32(value) and base + lane < first + count:
                if total < len(found):
                    found[total] = base + lane
                total += 1
    return total


class SeedSearch:
    """core.inference.search.Kernel. pool: what threads to use; None: the caller's."""

    def __init__(self, pool: ThreadPoolExecutor | None = None, threads: int = 1) -> None:
        self._pool = pool
        self._threads = threads

    def order(self, n: int, seed: int) -> npt.NDArray[np.int32]:
        """See Kernel."""
        order = np.arange(n, dtype=np.int32)
        rng = np.random.RandomState(seed % 2**32)
        _swap(order, rng.randint(0, 2**32, size=max(n - 1, 0), dtype=np.uint32))
        return order

    def shards(self, n: int, buffer: int, seed: int, world: int) -> npt.NDArray[np.int32]:
        """See Kernel."""
        parts = deal(np.arange(n, dtype=np.int64), workers=world)
        count, dealt = WORDS_MIN, [np.empty(0, np.int64)]
        while sum(map(len, dealt)) < n:  # draws that were too large are drawn again
            count *= 4
            words = np.random.RandomState([seed]).randint(0, 2**32, size=count, dtype=np.uint32)
            dealt = [_picks(part, words, buffer, min(INITIAL, buffer)) for part in parts]
        return in_turns(dealt).astype(np.int32)

    def samples(self, request: Build) -> npt.NDArray[np.int32]:
        """See Kernel."""
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
        """See Kernel."""
        assert 4 <= places <= min(PLACES_MAX, n - 1) and len(seen) == n < 2**30, (places, n)
        assert 0 <= skip <= SKIP_MAX, skip

        def part(begin: int, size: int, found: npt.NDArray[np.int64]) -> int:
            return _scan(begin, size, n, seen, need, places, misses, skip, found)

        return self._parts(part, first, count)

    def processes(
        self, first: int, count: int, n: int, seen: npt.NDArray[np.uint8], places: int, misses: int
    ) -> list[int]:
        """See Kernel."""

        def part(begin: int, size: int, found: npt.NDArray[np.int64]) -> int:
            return _processes(begin, size, n, seen, places, misses, found)

        return self._parts(part, first, count)

    def streams(self, first: int, count: int, value: int) -> list[int]:
        """See Kernel."""

        def part(begin: int, size: int, found: npt.NDArray[np.int64]) -> int:
            return _streams(begin, size, value, found)

        return self._parts(part, first, count)

    def _parts(
        self,
        part: Callable[[int, int, npt.NDArray[np.int64]], int],
        first: int,
        count: int,
    ) -> list[int]:
        threads = self._threads if self._pool is not None and count >= LANES * 64 else 1
        each = -(-count // threads)

        def one(begin: int) -> Sequence[int]:
            found = np.empty(FOUND_MAX, np.int64)
            total = part(begin, min(each, first + count - begin), found)
            result: list[int] = found[: min(total, FOUND_MAX)].tolist()
            return result

        begins = range(first, first + count, each)
        map_ = map if self._pool is None or threads == 1 else self._pool.map
        return [seed for found in map_(one, begins) for seed in found]
