"""How many seeds a second the search of all of them tries: `python bench/seed_search.py`.

In this process with one and two threads, and as spokes run it, beside whatever else runs: a planted
seed in the middle of the space of 2^32 is searched for from 128 reads of a million files.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hubspoke.adapters.seed_search import SeedSearch
from hubspoke.core.inference.question import Question
from hubspoke.core.inference.search import SLICE_SEEDS, search

N, READS, SLICES = 1_000_000, 128, 16
SEED = 2**31 + 12_345


def slices(threads: int) -> None:
    """Seeds a second of wall clock and of processor time."""
    seen = np.zeros(N, np.uint8)
    seen[np.random.default_rng(10**9).permutation(N)[:READS]] = 1
    with ThreadPoolExecutor(threads) as pool:
        kernel = SeedSearch(pool, threads)
        kernel.scan(0, 2**16, N, seen, need=1, places=6, misses=1)  # compiles
        began, cpu = time.monotonic(), time.process_time()
        for i in range(SLICES):
            kernel.scan(i * SLICE_SEEDS, SLICE_SEEDS, N, seen, need=1, places=6, misses=1)
        wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
    seeds = SLICES * SLICE_SEEDS / 1e6
    print(f"{threads} threads: {seeds / wall_s:.0f} M/s, {seeds / cpu_s:.0f} M/s of CPU time")


def whole() -> None:
    """Until the planted seed is found."""
    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        kernel = SeedSearch(pool, threads)
        reads = kernel.order(N, SEED)[:READS]
        began = time.monotonic()
        found = [a for a in search(Question(1, N, reads, thorough=True), kernel) if a is not None]
        print(f"seed 2^31 + 12,345 after {time.monotonic() - began:.1f} s: {len(found) == 1}")


if __name__ == "__main__":
    print(f"load {os.getloadavg()[0]:.1f}")
    slices(1)
    slices(2)
    if "--whole" in sys.argv:
        whole()
