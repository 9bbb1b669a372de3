"""What the cache's book costs: microseconds a call, bytes a resident MiB and a resident page.

    python bench/cache_core.py

Times are medians of rounds, memory is what the process grew by (RssAnon) for pages that were
fetched, read and are resident. The targets: 0.5 us, 150 B a dense MiB, 40 B a sparse page.
"""

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from hubspoke.adapters.malloc import give_back
from hubspoke.core.cache import PAGES_PER_BLOCK, Cache, CachedObject
from hubspoke.core.ids import ObjectEntry, ObjectName, Version

GIB = 1 << 30


def anonymous() -> int:
    gc.collect()
    give_back()
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon"))


def opened(cache: Cache, size: int, key: str = "d/tokens.bin") -> CachedObject:
    return cache.open(ObjectName("b", key), ObjectEntry(Version("v1"), size, "e", 0))[0]


def bring(cache: Cache, obj: CachedObject, first: int, last: int) -> None:
    cache.asked(obj, first, last)
    cache.fly(obj, first, last)
    cache.arrived(obj, first, last)


def microseconds(call: Callable[[int], object], n: int = 20_000, rounds: int = 9) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for i in range(n):
            call(i)
        times.append((time.perf_counter() - began) / n * 1e6)
    return round(statistics.median(times), 3)


def speeds() -> dict[str, float]:
    cache = Cache(64 * GIB)
    dense = opened(cache, 8 * GIB, "d/dense")
    bring(cache, dense, 0, len(dense.pages))
    sparse = opened(cache, 8 * GIB, "d/sparse")
    rng = random.Random(0)
    pages = [rng.randrange(len(sparse.pages)) for _ in range(20_000)]
    for p in set(pages):
        bring(cache, sparse, p, p + 1)
    absent = opened(cache, 8 * GIB, "d/absent")
    at = [rng.randrange(len(dense.pages) - 2) for _ in range(20_000)]
    many = 16 * PAGES_PER_BLOCK
    return {
        "state_dense_2_pages": microseconds(lambda i: cache.state(dense, at[i], at[i] + 2)),
        "readable_dense_2_pages": microseconds(lambda i: cache.readable(dense, at[i], at[i] + 2)),
        "readable_sparse_1_page": microseconds(
            lambda i: cache.readable(sparse, pages[i], pages[i] + 1)
        ),
        "state_absent_1_page": microseconds(lambda i: cache.state(absent, at[i], at[i] + 1)),
        "asked_again_2_pages": microseconds(lambda i: cache.asked(dense, at[i], at[i] + 2)),
        "readable_dense_16_MiB": microseconds(lambda i: cache.readable(dense, 0, many), n=2_000),
    }


def churn() -> float:
    """One page read, fetched and evicted in a full cache: everything at once."""
    cache = Cache(GIB // 16)
    obj = opened(cache, 64 * GIB)
    rng = random.Random(0)

    def miss(_: int) -> None:
        p = rng.randrange(len(obj.pages))
        cache.asked(obj, p, p + 1)
        if not cache.readable(obj, p, p + 1):
            cache.make_room(4096)
            cache.fly(obj, p, p + 1)
            cache.arrived(obj, p, p + 1)

    return microseconds(miss, n=40_000, rounds=3)


def memory(size: int, objects: int, ranges: Callable[[random.Random, int], range]) -> float:
    """Bytes of growth for each page that is resident in the end."""
    cache = Cache(1 << 50)
    rng = random.Random(0)
    before = anonymous()
    for k in range(objects):
        obj = opened(cache, size, f"d/object-{k:08}")
        step = ranges(rng, len(obj.pages))
        for p in step:
            bring(cache, obj, p, min(p + step.step, len(obj.pages)))
    return (anonymous() - before) / (cache.used // 4096)


def random_pages(size: int, pages: int) -> float:
    cache = Cache(1 << 50)
    rng = random.Random(0)
    before = anonymous()
    obj = opened(cache, size)
    for _ in range(pages):
        p = rng.randrange(len(obj.pages))
        if not cache.readable(obj, p, p + 1):
            bring(cache, obj, p, p + 1)
    return (anonymous() - before) / (cache.used // 4096)


MEMORY: dict[str, Callable[[], float]] = {
    "dense": lambda: memory(64 * GIB, 1, lambda _, n: range(0, n, PAGES_PER_BLOCK)),
    "50_in_each_of_20_000_objects": lambda: memory(50 * 4096, 20_000, lambda _, n: range(0, n, 10)),
    "200_000_random_in_1_TB": lambda: random_pages(10**12, 200_000),
    "200_000_random_in_8_GiB": lambda: random_pages(8 * GIB, 200_000),
}


def apart(name: str) -> float:
    """Measured in a process of its own: what another one freed would hide what this one takes."""
    command = [sys.executable, __file__, "--memory", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", choices=list(MEMORY), help="only this figure")
    args = parser.parse_args()
    if args.memory:
        print(MEMORY[args.memory]())
        return
    bytes_a_page = {name: round(apart(name), 2) for name in MEMORY}
    found = {
        "microseconds": {**speeds(), "miss_and_evict_1_page": churn()},
        "bytes_a_dense_MiB": round(bytes_a_page.pop("dense") * 256, 1),
        "bytes_a_page": bytes_a_page,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
