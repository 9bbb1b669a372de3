"""Shuffled epochs over a real SpokeCore in virtual time: what comes, what goes, what it costs."""

import random

import numpy as np
import pytest

from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.ids import ObjectName, ReadState
from tests.core.virtual_wan import Job, Lab, Names, Read

RECORD = 30_000  # neighbours share a page
FILES, PER_FILE = 4, 500
N = FILES * PER_FILE


def records() -> Names:
    return Names({f"set/{i}.rec": PER_FILE * RECORD for i in range(FILES)})


def record(n: int) -> Read:
    return ObjectName("b", f"set/{n // PER_FILE}.rec"), n % PER_FILE * RECORD, RECORD


def files() -> Names:
    return Names({f"set/{i:05}.jpg": RECORD for i in range(N)})


def file(n: int) -> Read:
    return ObjectName("b", f"set/{n:05}.jpg"), 0, RECORD


def shuffled(seed: int) -> list[int]:
    order = list(range(N))
    random.Random(seed).shuffle(order)
    return order


def read_epoch(lab: Lab, reads: list[Read], *, workers: int = 4, batch: int = 5) -> float:
    """One epoch; returns its hit rate."""
    before = len(lab.states)
    batches = [[reads[i : i + batch]] for i in range(0, len(reads), batch)]
    j = Job(lab, batches, workers=workers, prefetch_factor=2, compute_s=0.01)
    lab.at(lab.now, j.start)
    lab.run()
    states = lab.states[before:]
    return sum(s is ReadState.HIT for s in states) / len(states)


@pytest.mark.parametrize("kind", ["records", "files"])
def test_half_a_data_set_in_the_cache_costs_the_other_half_an_epoch(kind: str) -> None:
    names, read = (records(), record) if kind == "records" else (files(), file)
    each = RECORD if kind == "records" else 8 * 4096
    lab = Lab(names, capacity=N * each // 2)
    for epoch in range(4):
        received = lab.received
        hits = read_epoch(lab, [read(n) for n in shuffled(epoch)])
        crossed = (lab.received - received) / (N * RECORD)
        assert crossed <= (1.08 if epoch == 0 else 0.56), epoch
        assert hits >= (0.6 if epoch == 0 else 0.75), epoch
    lab.core.dispatch(lab.now)
    assert lab.core.ledger.prefetch_wasted_bytes <= 0.01 * lab.received


def test_an_order_that_is_known_is_fetched_ahead_and_kept_by_next_use() -> None:
    orders = [shuffled(epoch) for epoch in range(3)]

    def known(epoch: int) -> KnownOrder | None:
        if epoch == len(orders):
            return None
        items = np.array(orders[epoch], np.int32)
        return KnownOrder(items, 40, "planted", "", lambda: known(epoch + 1))

    lab = Lab(records(), capacity=N * RECORD // 2)
    read_epoch(lab, [record(n) for n in orders[0][:200]])
    (found,) = lab.core.prediction.epochs.sets.values()
    (job,) = found.jobs.all
    order = known(0)
    assert order is not None
    found.adopt(job, order, lab.now)
    received = lab.received
    hits = [read_epoch(lab, [record(n) for n in orders[0][200:]])]
    hits += [read_epoch(lab, [record(n) for n in orders[e]]) for e in (1, 2)]
    assert min(hits) >= 0.97, hits
    crossed = (lab.received - received) / (N * RECORD)
    assert crossed <= 1.05 * (0.9 + 0.5 + 0.5)
    assert lab.core.ledger.prefetch_wasted_bytes <= 0.03 * lab.received


def test_an_order_that_was_wrong_is_dropped_and_noted() -> None:
    lab = Lab(records(), capacity=N * RECORD // 2)
    read_epoch(lab, [record(n) for n in shuffled(0)[:300]])
    (found,) = lab.core.prediction.epochs.sets.values()
    wrong = np.array(shuffled(1), np.int32)
    found.adopt(found.jobs.all[0], KnownOrder(wrong, 40, "planted", "", lambda: None), lab.now)
    read_epoch(lab, [record(n) for n in shuffled(0)[300:700]])
    assert found.jobs.all[0].follower is None
    (entry,) = lab.core.ledger.convergence.relearned_entries()
    assert entry.cause == "b/set/: reads left the order of planted"
