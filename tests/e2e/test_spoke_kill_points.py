"""kill -9 at every step of filling, evicting, scrubbing and compacting; no byte is ever wrong.

Ten cycles in `make test`; `make soak` does 200, half of them at random moments.
"""

import random
import subprocess
import sys
import time
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.processes import get, hub, running, spoke

FILLING = ["create:file", "create:done", "write:start", "write:data", "write:done"]
EVICTING = ["punch:start", "punch:record", "punch:done"]
UPKEEP = ["scrub:read", "compact:parsed", "compact:written"]
POINTS = FILLING + EVICTING + UPKEEP
SIZES = {"a": 7_000_123, "b": 3_000_001, "c": 70_000}
CYCLE_S = 20.0


class Cycle:
    """One life of a spoke."""

    def __init__(self, hub_url: str, cache: Path, proof: Path, point: str, passes: int) -> None:
        arguments = spoke(hub_url, cache, "--cache-size", "5MiB")
        command = [sys.executable, "-m", "tests.killed_spoke", str(proof), point, str(passes)]
        self.process = subprocess.Popen(
            [*command, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.data = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if " ready data=" in line:
                self.data = line.split(" ready data=")[1].split()[0]
                break

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


def read_until_dead(data: str, bodies: dict[str, bytes], rng: random.Random, for_s: float) -> None:
    """Compare every answer; ends when the spoke does, or after a time."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        key = rng.choice(list(bodies))
        body = bodies[key]
        begin = rng.randrange(len(body))
        end = min(begin + rng.choice([100, 8192, 1_500_000]), len(body)) - 1
        try:
            status, found, _ = get(f"{data}/data/{key}", {"Range": f"bytes={begin}-{end}"})
        except (OSError, HTTPException):
            return
        if status == 503:
            time.sleep(0.02)  # not ready yet
            continue
        assert status == 206, (key, status, found[:200])
        assert found == body[begin : end + 1], (key, begin, end)


def cycles(tmp_path: Path, plan: list[str]) -> None:
    """An empty point: killed at a random moment."""
    bodies = {k: random.Random(k).randbytes(n) for k, n in SIZES.items()}
    (tmp_path / "store" / "data").mkdir(parents=True)
    for key, body in bodies.items():
        (tmp_path / "store" / "data" / key).write_bytes(body)
    cache, proof = tmp_path / "cache", tmp_path / "proof"
    with running(*hub(tmp_path / "store", tmp_path / "state")) as a_hub:
        a_hub.ready()
        for number, point in enumerate(plan):
            rng = random.Random(number)
            proof.unlink(missing_ok=True)
            if point.startswith("create"):
                for file in (cache / "data").glob("*"):
                    file.unlink()
            # Filling ends with the objects, so its points are to be passed soon.
            passes = 1 if point.startswith(("create", "compact")) else rng.randint(1, 4)
            cycle = Cycle(a_hub.data, cache, proof, point, passes)
            try:
                if cycle.data:
                    for_s = CYCLE_S if point else rng.uniform(0.05, 2.0)
                    read_until_dead(cycle.data, bodies, rng, for_s)
            finally:
                cycle.end()
            if point:
                assert proof.exists() and proof.read_text() == point, (number, point)
        last = Cycle(a_hub.data, cache, proof, "", 1)
        try:
            for key, body in bodies.items():
                for _ in range(2):
                    deadline = time.monotonic() + 20
                    while (answer := get(f"{last.data}/data/{key}"))[0] == 503:
                        assert time.monotonic() < deadline
                        time.sleep(0.02)
                    assert answer[:2] == (200, body), key
        finally:
            last.end()


@pytest.mark.timeout(240)
def test_a_spoke_killed_at_every_step_never_gives_a_wrong_byte(tmp_path: Path) -> None:
    cycles(tmp_path, ["create:file", *POINTS[2:]])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_kills_never_give_a_wrong_byte(tmp_path: Path) -> None:
    plan = POINTS * 9
    plan += [""] * (200 - len(plan))
    random.Random(0).shuffle(plan)
    cycles(tmp_path, plan)
