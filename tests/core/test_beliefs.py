"""What `/v1/streams` says of each way of reading: the belief, why, and who fetches."""

import json
import random
from typing import Any

import numpy as np

from hubspoke.core import beliefs
from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.ids import ObjectName
from tests.core.test_epoch_reads import RECORD, N, read_epoch, record, records, shuffled
from tests.core.virtual_wan import Lab, Names, Read

NAME = ObjectName("b", "set/k")
RECORD_64K = 64 << 10


def read_of(reads: list[Read], *, workers: int = 1) -> dict[str, Any]:
    """What is believed of the stream that was read last."""
    lab = Lab(Names({"set/k": 1 << 30}))
    read_epoch(lab, reads, workers=workers)
    return shown(lab)[0][0]


def shown(lab: Lab) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    prediction = lab.core.prediction
    both = beliefs.streams(prediction, 100), beliefs.data_sets(prediction)
    json.dumps(both, allow_nan=False)
    return both


def test_a_dense_stream_says_how_dense_and_how_far_ahead() -> None:
    s = read_of([(NAME, i * RECORD_64K, RECORD_64K) for i in range(600)], workers=4)
    assert s["pattern"] == "sequential" and s["source"] == "sequential"
    assert s["why"] == "100% of what lies behind the front was read"
    assert s["evidence"] > 100
    assert s["accuracy"] > 0.9 and s["probability"] > 0.9
    assert s["ahead_seconds"] > 0.1  # more than a round trip


def test_a_stride_says_how_often_it_was_confirmed() -> None:
    s = read_of([(NAME, i * (1 << 20), RECORD_64K) for i in range(200)])
    assert s["pattern"] == "strided" and s["source"] == "strided"
    assert s["why"].startswith("1 of 1 clients jump evenly: 65,536 bytes every 1,048,576, ")


def test_a_scan_downwards_says_that_it_goes_down() -> None:
    s = read_of([(NAME, (1 << 29) - i * RECORD_64K, RECORD_64K) for i in range(300)])
    assert s["pattern"] == "backward" and s["source"] == "backward"
    assert s["why"] == "100% of the last steps go down"
    assert s["ahead_seconds"] > 0.1


def test_random_reads_say_that_nothing_is_fetched_for_them() -> None:
    rng = random.Random(1)
    reads: list[Read] = [(NAME, rng.randrange(1 << 13) * 4096, 4096) for _ in range(300)]
    s = read_of(reads)
    assert s["pattern"] == "random" and s["ahead_seconds"] == 0
    assert "% of the bytes they span" in s["why"]


def test_streams_are_shown_latest_first_and_not_beyond_the_bound() -> None:
    lab = Lab(Names({f"{i}/k": 1 << 20 for i in range(9)}))
    read_epoch(lab, [(ObjectName("b", f"{i}/k"), 0, 4096) for i in range(9)], workers=1)
    latest = beliefs.streams(lab.core.prediction, 2)
    assert [s["object"] for s in latest] == ["b/8/k", "b/7/k"]
    assert latest[0]["why"] == "1 reads are too few, or do not agree"


def job_of(lab: Lab) -> tuple[dict[str, Any], dict[str, Any]]:
    _, (found,) = shown(lab)
    (job,) = found["jobs"]
    return found, job


def test_an_epoch_in_no_known_order_says_why_it_is_believed() -> None:
    lab = Lab(records(), capacity=N * RECORD // 2)
    read_epoch(lab, [record(n) for n in shuffled(0)[:700]])
    found, job = job_of(lab)
    assert (found["folder"], found["item"], found["item_bytes"]) == ("b/set/", "record", RECORD)
    assert found["items"] == N and found["source"] == "blind_fill"
    assert job["believed"] and job["order"] is None and job["read_items"] == 700
    assert job["why"].startswith("0 of 700 reads of this epoch are repeats: what is unread will")


def test_draws_with_replacement_say_why_no_epoch_is_believed() -> None:
    rng = random.Random(3)
    lab = Lab(records(), capacity=N * RECORD // 2)
    read_epoch(lab, [record(rng.randrange(N)) for _ in range(50)])
    assert "too few reads of 2,000 items" in job_of(lab)[1]["why"]
    read_epoch(lab, [record(rng.randrange(N)) for _ in range(500)])
    found, job = job_of(lab)
    assert found["source"] is None and not job["believed"]
    assert "draws with replacement" in job["why"]


def test_a_known_order_says_whose_it_is_and_where_the_job_is_in_it() -> None:
    lab = Lab(records(), capacity=N * RECORD // 2)
    read_epoch(lab, [record(n) for n in shuffled(0)[:200]])
    (data_set,) = lab.core.prediction.epochs.sets.values()
    order = KnownOrder(np.array(shuffled(0), np.int32), 40, "planted", "seed 7", lambda: None)
    data_set.adopt(data_set.jobs.all[0], order, lab.now)
    read_epoch(lab, [record(n) for n in shuffled(0)[200:600]])
    found, job = job_of(lab)
    assert found["source"] == "known_order"
    assert job["why"] == "reads follow the order of planted: seed 7"
    assert job["order"]["family"] == "planted" and job["order"]["length"] == N
    assert 590 <= job["order"]["position"] <= 600
    assert job["order"]["next_epoch_known"] is False
    assert job["ahead_seconds"] > 0
