"""kill -9 again and again under load: nothing acknowledged is lost, no byte is wrong.

`make soak`; HUBSPOKE_SOAK_ROUNDS says how often (20 if not set). The seed of a round is its
number, so that a failed round can be run again.
"""

import os
import random
import signal
import threading
import time
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.processes import get, get_json, hub, put, running, spoke

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("HUBSPOKE_SOAK_ROUNDS", "20"))


def kill_after(pid: int, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    return timer


def content(key: int, version: int) -> bytes:
    rng = random.Random(f"{key} {version}")
    return rng.randbytes(rng.randrange(1, 300_000))


def test_a_hub_killed_under_writes_has_what_it_acknowledged(tmp_path: Path) -> None:
    (tmp_path / "store" / "data").mkdir(parents=True)
    acknowledged: dict[int, int] = {}  # key -> version
    tried: dict[int, int] = {}
    for round_ in range(ROUNDS):
        rng = random.Random(round_)
        with running(*hub(tmp_path / "store", tmp_path / "state")) as a_hub:
            a_hub.ready()
            for key, version in acknowledged.items():
                status, body, _ = get(f"{a_hub.data}/data/{key}")
                # A write that was cut short may have happened or not, but never in part.
                allowed = [content(key, v) for v in {version, tried[key]}]
                assert status == 200 and body in allowed, (round_, key, version, status)
                acknowledged[key] = version if body == content(key, version) else tried[key]
            timer = kill_after(a_hub.pid, rng.uniform(0.05, 1.0))
            try:
                while True:
                    key = rng.randrange(10)
                    tried[key] = tried.get(key, 0) + 1
                    put(f"{a_hub.data}/data/{key}", content(key, tried[key]))
                    acknowledged[key] = tried[key]
            except (OSError, HTTPException):
                pass
            timer.join()
            a_hub.wait()


def test_a_spoke_killed_under_reads_never_gives_a_wrong_byte(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(40_000_000)
    (tmp_path / "store" / "data").mkdir(parents=True)
    (tmp_path / "store" / "data" / "tokens").write_bytes(data)
    with running(*hub(tmp_path / "store", tmp_path / "state")) as a_hub:
        a_hub.ready()
        for round_ in range(ROUNDS):
            rng = random.Random(round_)
            arguments = spoke(a_hub.data, tmp_path / "cache", "--cache-size", "24MiB")
            with running(*arguments) as a_spoke:
                a_spoke.ready()
                deadline = time.monotonic() + 30
                while get_json(a_spoke.admin + "/readyz")[0] != 200:
                    assert time.monotonic() < deadline, a_spoke.log
                    time.sleep(0.02)
                timer = kill_after(a_spoke.pid, rng.uniform(0.05, 2.0))
                try:
                    while True:
                        begin = rng.randrange(len(data))
                        end = min(begin + rng.choice([100, 8192, 1_000_000]), len(data)) - 1
                        headers = {"Range": f"bytes={begin}-{end}"}
                        status, body, _ = get(a_spoke.data + "/data/tokens", headers)
                        assert status == 206, (round_, status, body[:200])
                        assert body == data[begin : end + 1], (round_, begin, end)
                except (OSError, HTTPException):
                    pass
                timer.join()
                a_spoke.wait()
