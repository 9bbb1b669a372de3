"""The simulator's LRU and S3-FIFO beside those of libCacheSim, on the same reads."""

import json
import subprocess

import numpy as np
import pytest

from hubspoke.core.ids import PAGE_BYTES
from hubspoke.sim.prediction.peers import make
from tests.clients.environments import environment

pytestmark = pytest.mark.timeout(1_300)  # what makes the environment, once, and the run

COUNT = """
import json, sys
import libcachesim

order, capacity = json.load(sys.stdin)
misses = {}
for name, kind in (("lru", libcachesim.LRU), ("s3fifo", libcachesim.S3FIFO)):
    cache = kind(cache_size=capacity)
    misses[name] = 0
    for time, page in enumerate(order):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = page + 1, 1, time
        misses[name] += not cache.get(request)
print(json.dumps(misses))
"""


def ours(name: str, order: list[int], capacity: int) -> int:
    peer = make(name, capacity * PAGE_BYTES, [PAGE_BYTES] * (max(order) + 1))
    misses = 0
    for page in order:
        for wanted in peer.read(page, 0, PAGE_BYTES, 0, 0.0):
            misses += 1
            peer.arrived(*wanted, 0.0)
    return misses


@pytest.mark.parametrize("capacity", [100, 1_000, 3_000])
def test_misses_are_those_of_libcachesim(capacity: int) -> None:
    rng = np.random.default_rng(0)
    n = 100_000
    scan = 5_000 + np.arange(n) % 60_000
    order = np.where(rng.random(n) < 0.5, rng.zipf(1.1, n) % 5_000, scan).tolist()
    python = environment("libcachesim", "libcachesim==0.3.5") / "python"
    done = subprocess.run(
        [python, "-c", COUNT],
        input=json.dumps([order, capacity]),
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    theirs = json.loads(done.stdout)
    assert ours("lru", order, capacity) == theirs["lru"]
    # They count a promotion's room and the small queue's share a little differently.
    assert ours("s3fifo", order, capacity) == pytest.approx(theirs["s3fifo"], rel=0.02)
