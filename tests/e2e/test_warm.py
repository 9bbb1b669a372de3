"""`hubspoke warm` between real processes over the emulated WAN."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hubspoke.lab.stack import Service, Stack, WanConfig
from tests.processes import WAIT_S, get, put

OBJECTS = 50
BODIES = {f"train/shard-{i:02}.bin": random.Random(i).randbytes(200_000) for i in range(OBJECTS)}
TOTAL = sum(map(len, BODIES.values()))
LARGE = random.Random("large").randbytes(30 << 20)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    for key, body in {**BODIES, "large.bin": LARGE, "#odd [1] name": b"odd"}.items():
        path = store / "data" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return store


@pytest.fixture(scope="module")
def stack(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    work = tmp_path_factory.mktemp("work")
    with Stack(store, work=work, logs=work, wan=WanConfig(rtt_ms=30.0)) as stack:
        yield stack


@pytest.fixture
def spoke(stack: Stack, tmp_path: Path) -> Iterator[Service]:
    with stack.spoke("spoke", tmp_path / "cache", prefetch=False) as spoke:
        yield spoke


def warm(spoke: Service, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "hubspoke", "warm", "--url", f"http://{spoke.admin}"]
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        [*command, *arguments], input=stdin, capture_output=True, timeout=WAIT_S, env=environment,
        check=False,
    )  # fmt: skip


def warm_json(spoke: Service, *arguments: str, stdin: bytes = b"") -> tuple[int, Any]:
    result = warm(spoke, *arguments, "--json", stdin=stdin)
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)


def until(spoke: Service, job_id: str, *states: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while (job := spoke.ask(f"/v1/warm/{job_id}"))["state"] not in states:
        assert time.monotonic() < deadline, job
        time.sleep(0.02)
    return job


def test_warm_objects_are_hits_and_cross_the_wan_once(stack: Stack, spoke: Service) -> None:
    assert warm(spoke, "data/train", "--check").returncode == 1
    result = warm(spoke, "data/train/*.bin", "--wait")
    assert result.returncode == 0, result.stderr
    assert b"done, 50 objects, 9.54 MiB of 9.54 MiB cached (100.00 %)" in result.stdout
    before = spoke.ask("/v1/report")
    assert TOTAL <= before["wan"]["by_class"]["prefetch"] < TOTAL * 1.05
    received = stack.wan.counters().to_spoke_bytes
    for key, body in BODIES.items():
        status, found, headers = get(f"http://{spoke.data}/data/{key}")
        assert (status, found == body, headers["x-hubspoke-cache"]) == (200, True, "hit")
    report = spoke.ask("/v1/report")
    assert report["reads"]["hit_ratio"] == 1.0
    payload = report["wan"]["payload_bytes"] - before["wan"]["payload_bytes"]
    assert payload == 0
    # Heartbeats and leases go on.
    assert stack.wan.counters().to_spoke_bytes - received < 50_000
    assert warm(spoke, "data/train", "--check").returncode == 0
    again = warm_json(spoke, "data/train", "--wait")[1]
    assert (again["state"], again["fetched_bytes"]) == ("done", 0)


def test_check_and_evict_tell_the_truth(spoke: Service) -> None:
    lines = b"data/train/shard-0*\ndata/#odd [1] name\r\n\n"
    status, job = warm_json(spoke, "--from", "-", "--wait", stdin=lines)
    assert (status, job["objects"]) == (0, 11)
    status, job = warm_json(spoke, "data/train", "data/#odd [1] name", "--check")
    assert status == 1
    assert [p["cached_objects"] for p in job["paths"]] == [10, 1]
    assert job["cached_bytes"] == 10 * 200_000 + 3
    usage = spoke.ask("/v1/cache?prefix=data/")
    cached = {e["name"]: (e["objects"], e["cached_bytes"]) for e in usage["entries"]}
    assert cached["data/train/"] == (50, 2_000_000)
    assert cached["data/#odd [1] name"] == (1, 3)
    status, job = warm_json(spoke, "data/train/shard-00.bin", "--evict")
    assert (status, job["freed_bytes"], job["in_use_bytes"]) == (0, 49 * 4096, 0)
    assert spoke.ask("/v1/report")["cache"]["bytes"] == 9 * 49 * 4096 + 4096
    assert warm(spoke, "data/train/shard-00.bin", "--check").returncode == 1
    _, found, headers = get(f"http://{spoke.data}/data/train/shard-00.bin")
    assert (found == BODIES["train/shard-00.bin"], headers["x-hubspoke-cache"]) == (True, "miss")


def test_a_background_job_is_listed_and_cancelled(stack: Stack, spoke: Service) -> None:
    stack.wan.set(rate_mbit=20)
    try:
        status, job = warm_json(spoke, "data/large.bin")
        assert (status, job["state"]) == (0, "running")
        assert any(j["id"] == job["id"] for j in warm_json(spoke)[1]["jobs"])
        deadline = time.monotonic() + WAIT_S
        while spoke.ask(f"/v1/warm/{job['id']}")["fetched_bytes"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        status, job = warm_json(spoke, "--cancel", job["id"])
        assert (status, job["state"]) == (0, "cancelled")
        assert 0 < job["fetched_bytes"] < len(LARGE)
    finally:
        stack.wan.set(rate_mbit=0)
    assert warm(spoke, "data/large.bin", "--wait").returncode == 0
    _, found, headers = get(f"http://{spoke.data}/data/large.bin", {"Range": "bytes=0-999999"})
    assert (found == LARGE[:1_000_000], headers["x-hubspoke-cache"]) == (True, "hit")


def test_an_object_changed_while_it_is_warmed_is_warm_in_its_new_version(
    stack: Stack, spoke: Service
) -> None:
    for i in range(20):
        put(f"http://{stack.hub.data}/data/moving/{i:02}", random.Random(i).randbytes(1_000_000))
    stack.wan.set(rate_mbit=40)
    try:
        _, job = warm_json(spoke, "data/moving")
        new = {f"{i:02}": random.Random(-i - 1).randbytes(1_000_000) for i in (0, 10, 19)}
        for key, body in new.items():
            put(f"http://{stack.hub.data}/data/moving/{key}", body)
        assert spoke.ask(f"/v1/warm/{job['id']}")["state"] == "running"
    finally:
        stack.wan.set(rate_mbit=0)
    job = until(spoke, job["id"], "done", "failed")
    assert (job["state"], job["cached_objects"]) == ("done", 20)
    for key, body in new.items():
        _, found, headers = get(f"http://{spoke.data}/data/moving/{key}")
        assert (found == body, headers["x-hubspoke-cache"]) == (True, "hit")


def test_a_job_outlives_a_partition(stack: Stack, spoke: Service) -> None:
    stack.wan.set(rate_mbit=40)
    try:
        _, job = warm_json(spoke, "data/large.bin")
        stack.wan.partition()
        time.sleep(1.0)  # what was on the way has arrived
        before = spoke.ask(f"/v1/warm/{job['id']}")["fetched_bytes"]
        time.sleep(1.0)
        during = spoke.ask(f"/v1/warm/{job['id']}")
        assert (during["state"], during["fetched_bytes"]) == ("running", before)
        assert warm(spoke, "data/large.bin", "--check").returncode == 1, "names need no hub"
    finally:
        stack.wan.heal()
        stack.wan.set(rate_mbit=0)
    job = until(spoke, job["id"], "done", "failed")
    assert (job["state"], job["fetched_bytes"]) == ("done", len(LARGE))
    assert get(f"http://{spoke.data}/data/large.bin")[1] == LARGE


def test_a_killed_spoke_keeps_what_was_warmed_and_goes_on(stack: Stack, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    stack.wan.set(rate_mbit=80)
    try:
        with stack.spoke("first", cache, prefetch=False) as first:
            waiting = subprocess.Popen(
                [sys.executable, "-m", "hubspoke", "warm", "--url", f"http://{first.admin}",
                 "data/large.bin", "--wait"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            deadline = time.monotonic() + WAIT_S
            while first.ask("/v1/report")["cache"]["bytes"] < len(LARGE) // 3:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            time.sleep(0.3)  # residency reaches the index within 100 ms of arrival
            arrived = first.ask("/v1/warm/w1")["fetched_bytes"]
            first.kill()
            assert waiting.stderr is not None
            error = waiting.stderr.read()
            assert waiting.wait(WAIT_S) == 1
            assert b"cannot be reached" in error, error
            waiting.stderr.close()
    finally:
        stack.wan.set(rate_mbit=0)
    with stack.spoke("second", cache, prefetch=False) as second:
        job = until(second, "w1", "done", "failed")  # goes on by itself
        assert job["state"] == "done", job
        assert 0 < job["fetched_bytes"] <= len(LARGE) - arrived < len(LARGE)
        shown = second.ask("/v1/report")["warm"]
        assert [(j["id"], j["cached_bytes"]) for j in shown] == [("w1", len(LARGE))]
        assert get(f"http://{second.data}/data/large.bin")[1] == LARGE


def test_ctrl_c_leaves_the_job_at_the_spoke(stack: Stack, spoke: Service) -> None:
    stack.wan.set(rate_mbit=20)
    try:
        waiting = subprocess.Popen(
            [sys.executable, "-m", "hubspoke", "warm", "--url", f"http://{spoke.admin}",
             "data/large.bin", "--wait"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            # A shell leaves SIGINT ignored in what it starts in the background, this test too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        deadline = time.monotonic() + WAIT_S
        while not spoke.ask("/v1/warm")["jobs"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.5)
        waiting.send_signal(signal.SIGINT)
        assert waiting.stderr is not None
        error = waiting.stderr.read()
        waiting.stderr.close()
        assert waiting.wait(WAIT_S) == 130, error
        assert b"w1 goes on at the spoke" in error
        assert spoke.ask("/v1/warm/w1")["state"] == "running"
    finally:
        stack.wan.set(rate_mbit=0)
    assert until(spoke, "w1", "done", "failed")["state"] == "done"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("data/[a",), 2, "'data/[a': [ without its ]"),
        (("data", "--check", "--evict"), 2, "expected one of them"),
        (("--wait",), 2, "no path"),
        (("--from", "/absent/list"), 2, "--from: '/absent/list'"),
        (("data/nothing",), 1, "no object matches 'data/nothing'"),
        (("data/train", "data/nothing", "--wait"), 1, "matches nothing: data/nothing"),
        (("--cancel", "w99"), 1, "w99: no such job"),
        (("--cancel", "zz"), 2, "--cancel: 'zz': expected a job's id"),
    ],
)
def test_what_cannot_be_done_is_said(
    spoke: Service, arguments: tuple[str, ...], status: int, words: str
) -> None:
    result = warm(spoke, *arguments)
    assert result.returncode == status, result
    assert words in (result.stderr + result.stdout).decode()
    assert b"Traceback" not in result.stderr


def test_a_list_that_is_too_long_is_said(spoke: Service) -> None:
    lines = b"".join(b"data/train/%060d\n" % i for i in range(15_000))
    result = warm(spoke, "--from", "-", stdin=lines)
    assert result.returncode == 2
    assert b"15000 paths of 1125000 bytes: expected at most 1000000" in result.stderr


def test_a_spoke_that_is_not_there_is_said() -> None:
    command = [sys.executable, "-m", "hubspoke", "warm", "--url", "http://127.0.0.1:1", "data"]
    result = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert result.returncode == 1
    assert b"http://127.0.0.1:1/v1/warm: cannot be reached" in result.stderr
