"""Records that do not lie one behind the other from the start of a file, read through a door."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hubspoke.core.orders.torch_samplers import torch_randperm
from tests.e2e.order_doors import Doors, Items, Job, doors
from tests.processes import get

STEP = 64  # reads between two looks
ROWS = Items("rows", 20_000, (20_000,), "{}.npy", head=128, step=1_500, length=1_500)
PADDED = Items("padded", 1_200, (1_200,), "{}.rec", step=20_480)
SHARDS = Items("shards", 4_000, (1_000,) * 4, "{}.rec", index="index.json", head=512, step=5_000)


def fetched(spoke: Doors) -> int:
    """Bytes of objects that came from the hub."""
    metrics = get(spoke.admin + "/metrics")[1].decode()
    of = r'hubspoke_wan_received_bytes_total\{class="(?:demand|prefetch)"\} (\S+)'
    return int(sum(float(each) for each in re.findall(of, metrics)))


@pytest.mark.timeout(120)
def test_orders_of_rows_behind_a_head_are_found(tmp_path: Path) -> None:
    """The default seed of torch's DistributedSampler, of what numpy saved; and shards of which the
    index, which the first reader reads, is no data."""
    with doors(tmp_path, [ROWS, SHARDS]) as spoke:
        for items in (ROWS, SHARDS):
            found = recognised(spoke, items, torch_randperm(items.count, 0))
            assert found["order"]["why"].startswith("torch shuffle, seed 0;")


def recognised(spoke: Doors, items: Items, order: Any) -> dict[str, Any]:
    with Job(spoke.data, items) as job:
        for at in range(0, items.count // 4, STEP):
            job.read(order[at : at + STEP])
            jobs = spoke.answered(items)
            if jobs and jobs[0]["order"]:
                return jobs[0]
    pytest.fail(f"not recognised: {jobs}")


@pytest.mark.timeout(120)
def test_what_lies_between_records_is_not_brought(tmp_path: Path) -> None:
    """Reads of 4 KiB in every 20 KiB of 24 MiB, in an order that no seed gives: all that is
    brought for them is of what they read."""
    order = np.random.default_rng(10**9).permutation(PADDED.count)
    with doors(tmp_path, [PADDED]) as spoke:
        before = fetched(spoke)
        with Job(spoke.data, PADDED) as job:
            job.read(order[:1_000], faults=False)
            (found,) = spoke.answered(PADDED)
            read = job.read(order[1_000:], faults=False)
        came = fetched(spoke) - before
    assert found["read_items"] == 1_000
    assert came <= 1.02 * PADDED.count * PADDED.length, (came, found)
    assert read.count("hit") >= 0.9 * len(read), "what was left of them was brought"
