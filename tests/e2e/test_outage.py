"""A hub that is gone for a while under a job that reads, and a spoke that is stopped meanwhile."""

import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fleet import Fleet, running_fleet
from tests.processes import get, get_json, put

SOAK_SECONDS = float(os.environ.get("HUBSPOKE_SOAK_OUTAGE_SECONDS", "60"))
FILES = 40


def content(i: int, version: int) -> bytes:
    return b"%d.%d;" % (i, version) * 2000


@dataclass
class Job:
    """Reads all files again and again; keeps what was not as it should be."""

    url: str
    wrong: list[str] = field(default_factory=list)
    fresh: int = 0
    stale: list[tuple[float, float]] = field(default_factory=list)  # when, how old it said it was
    _end: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._end.is_set():
            for i in range(FILES):
                status, body, headers = get(f"{self.url}/bkt/f{i:03}")
                if status != 200 or body != content(i, 0):
                    self.wrong.append(f"f{i:03}: status {status}, {body[:80]!r}")
                age = headers.get("x-hubspoke-staleness")
                if (age is not None) != (headers.get("x-hubspoke-cache") == "stale"):
                    self.wrong.append(f"f{i:03}: {headers}")
                if age is None:
                    self.fresh += 1
                else:
                    self.stale.append((time.monotonic(), float(age)))

    def __enter__(self) -> "Job":
        self._thread = threading.Thread(target=self.run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(60)


def stored(fleet: Fleet) -> None:
    for i in range(FILES):
        assert put(f"{fleet.hub_url}/bkt/f{i:03}", content(i, 0)) == 200


def until(condition: object, what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize(
    "seconds", [4.0, pytest.param(SOAK_SECONDS, marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
def test_a_job_goes_on_reading_what_is_cached_while_its_hub_is_gone(
    tmp_path: Path, seconds: float
) -> None:
    with running_fleet(tmp_path, bucket="bkt", policies=["=bounded:3600"]) as fleet:
        spoke = fleet.spokes[0]
        stored(fleet)
        with Job(spoke.data) as job:
            until(lambda: job.fresh > 3 * FILES, "everything is cached")
            killed = time.monotonic()
            fleet.hub.kill()
            until(lambda: job.stale, "the loss is told")
            reads = len(job.stale)
            time.sleep(seconds)
            assert len(job.stale) > reads + 2 * FILES
            status, document = get_json(spoke.process.admin + "/readyz")
            assert status == 503
            reasons = "; ".join(document["reasons"])
            assert "unreachable since" in reasons and "answers may be" in reasons
            text = get(spoke.process.admin + "/metrics")[1].decode()
            told = re.search(r"^hubspoke_metadata_staleness_seconds\S* (\S+)$", text, re.MULTILINE)
            assert told is not None
            assert seconds - 3 < float(told[1]) < seconds + 30
            fleet.hub.restart()
            spoke.fresh()
            fresh = job.fresh
            until(lambda: job.fresh > fresh + FILES, "current again")
        assert job.wrong == []
        first, last = job.stale[0], job.stale[-1]
        # The age says since when: it grows with the clock, from the end of the last lease on.
        assert last[1] - first[1] == pytest.approx(last[0] - first[0], abs=0.5)
        assert spoke.process.log.count("snapshot started") == 1
        print(
            f"hub gone for {last[0] - killed:.1f} s: told stale {first[0] - killed:.2f} s after the"
            f" kill, {len(job.stale)} stale reads, {len(job.wrong)} failed"
        )


@pytest.mark.parametrize("stopped_s", [4.0, pytest.param(10.0, marks=pytest.mark.soak)])
def test_a_spoke_that_wakes_asks_its_hub_before_it_answers(
    tmp_path: Path, stopped_s: float
) -> None:
    """With the default policy: an old answer would be allowed, if it said how old. The hub can
    be asked, so there is none."""
    with running_fleet(tmp_path, bucket="bkt", policies=["=bounded:3600"]) as fleet:
        spoke = fleet.spokes[0]
        stored(fleet)
        for i in range(FILES):
            assert get(f"{spoke.data}/bkt/f{i:03}")[1] == content(i, 0)
        spoke.pause()
        stopped = time.monotonic()
        for i in range(4):  # the first waits for the lease to run out
            assert put(f"{fleet.hub_url}/bkt/f{i:03}", content(i, 1)) == 200
        answers: list[tuple[int, bytes, dict[str, str]]] = []
        waiting = threading.Thread(
            target=lambda: answers.extend(get(f"{spoke.data}/bkt/f{i:03}") for i in range(4))
        )
        waiting.start()  # reaches the spoke before it wakes
        time.sleep(max(0.0, stopped + stopped_s - time.monotonic()))
        os.killpg(spoke.process.pid, signal.SIGCONT)
        waiting.join(30)
        assert [body for _, body, _ in answers] == [content(i, 1) for i in range(4)]
        assert [h.get("x-hubspoke-staleness") for _, _, h in answers] == [None] * 4
