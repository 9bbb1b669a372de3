"""`hubspoke trace` with real processes: a spoke that is read by boto3 is recorded."""

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from hubspoke.lab.dataset import DatasetConfig, build_dataset
from hubspoke.lab.job import JobConfig, run_job
from hubspoke.lab.measure import JobResult
from hubspoke.lab.stack import Service, Stack, WanConfig
from hubspoke.traces.format import read_trace, write_trace
from hubspoke.traces.trace import STATES, Trace
from tests.processes import WAIT_S, Running

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"train/a.bin": 3 * MIB, "train/b.bin": 300_000, "é x": 5}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    for key, size in SIZES.items():
        path = store / "data" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(key).randbytes(size))
    return store


@pytest.fixture(scope="module")
def stack(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    work = tmp_path_factory.mktemp("work")
    with Stack(store, work=work, logs=work, wan=WanConfig(rtt_ms=20.0)) as stack:
        yield stack


@pytest.fixture
def spoke(stack: Stack, tmp_path: Path) -> Iterator[Service]:
    with stack.spoke("spoke", tmp_path / "cache", prefetch=False) as spoke:
        yield spoke


class Job:
    """Reads by boto3, and what it was told of each."""

    def __init__(self, spoke: Service) -> None:
        self.reads: list[tuple[str, int, int, str]] = []
        self._s3 = boto3.client(
            "s3",
            endpoint_url=f"http://{spoke.data}",
            region_name="us-east-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
        )

    def read(self, key: str, offset: int, length: int) -> None:
        answer = self._s3.get_object(
            Bucket="data", Key=key, Range=f"bytes={offset}-{offset + length - 1}"
        )
        assert len(answer["Body"].read()) == length
        state = answer["ResponseMetadata"]["HTTPHeaders"]["x-hubspoke-cache"]
        self.reads.append((f"data/{key}", offset, length, state))

    def read_all(self, key: str) -> None:
        self.read(key, 0, SIZES[key])


def recording(spoke: Service, out: Path, *more: str) -> AbstractContextManager[Running]:
    return recorder("--spoke", f"http://{spoke.admin}", "--out", str(out), *more)


@contextmanager
def recorder(*arguments: str) -> Iterator[Running]:
    process = Running("trace", "record", *arguments)
    try:
        yield process
    finally:
        process.end()


def rows(trace: Trace) -> list[tuple[str, int, int, str | None]]:
    return [
        (trace.names[o], offset, length, STATES.get(state))
        for o, offset, length, state in zip(
            trace.objects.tolist(), trace.offsets.tolist(), trace.lengths.tolist(),
            trace.states.tolist(), strict=True,
        )
    ]  # fmt: skip


def begun(file: Path) -> None:
    """The recorder has the header: what is read from now on is in the trace."""
    wait_for(file, lambda: file.stat().st_size > 0)


def wait_for(file: Path, event: Callable[[], bool]) -> None:
    """Until it holds; looked at whenever the file has grown."""
    deadline = threading.Event()
    for _ in range(int(WAIT_S / 0.02)):
        if file.exists() and event():
            return
        deadline.wait(0.02)
    raise AssertionError(f"{file}: not in {WAIT_S} s")


def test_every_read_of_a_job_is_in_the_trace_as_the_job_saw_it(
    spoke: Service, tmp_path: Path
) -> None:
    out = tmp_path / "job.hstrace"
    job = Job(spoke)
    job.read("train/b.bin", 0, 10)  # before the recording
    with recording(spoke, out) as process:
        begun(out)
        job.reads.clear()
        job.read("é x", 1, 3)
        for i in range(30):
            job.read("train/b.bin", 9_000 * i, 9_000)
        job.read_all("train/a.bin")  # in pieces to its reader, one read in the trace
        job.read_all("train/a.bin")
        process.signal(signal.SIGINT)
        assert process.wait() == 0
    trace = read_trace(out)
    assert rows(trace) == job.reads
    assert {state for *_, state in job.reads} == {"hit", "miss"}
    assert dict(zip(trace.names, trace.sizes.tolist(), strict=True)) == {
        f"data/{key}": size for key, size in SIZES.items()
    }
    facts = trace.facts
    assert facts["complete"] and facts["ended"] == "stopped" and facts["dropped_reads"] == 0
    assert facts["prefetch"] is False and facts["capacity_bytes"] and facts["rtt_s"]
    assert 0 < trace.seconds <= float(str(facts["seconds"]))


def test_bounds_end_a_recording_and_a_file_is_not_written_over(
    spoke: Service, tmp_path: Path
) -> None:
    out = tmp_path / "five.hstrace"
    job = Job(spoke)
    with recording(spoke, out, "--reads", "5") as process:
        begun(out)
        for i in range(8):
            job.read("train/b.bin", 100 * i, 100)
        assert process.wait() == 0
    assert rows(read_trace(out)) == job.reads[:5]
    with recording(spoke, out, "--seconds", "1") as process:
        assert process.wait() == 1
        assert "five.hstrace: exists; expected a name that is free" in process.log
    short = tmp_path / "short.hstrace"
    with recording(spoke, short, "--seconds", "0.5") as process:
        assert process.wait() == 0
    assert read_trace(short).facts["seconds"] == 0.5


def test_a_killed_recorder_leaves_what_it_had_written(spoke: Service, tmp_path: Path) -> None:
    out = tmp_path / "killed.hstrace"
    job = Job(spoke)
    with recording(spoke, out) as process:
        begun(out)
        job.read_all("train/b.bin")
        wait_for(out, lambda: len(read_trace(out)) == 1)
        process.signal(signal.SIGKILL)
        process.wait()
    trace = read_trace(out)
    assert rows(trace) == job.reads
    assert trace.facts["complete"] is False
    job.read_all("train/b.bin")  # the spoke has noticed nothing


def test_two_recorders_see_the_same_and_a_fifth_is_refused(spoke: Service, tmp_path: Path) -> None:
    outs = [tmp_path / f"{i}.hstrace" for i in range(5)]
    job = Job(spoke)
    with (
        recording(spoke, outs[0]) as first,
        recording(spoke, outs[1]) as second,
        recording(spoke, outs[2]),
        recording(spoke, outs[3]),
    ):
        for out in outs[:4]:
            begun(out)
        with recording(spoke, outs[4]) as fifth:
            assert fifth.wait() == 1
            assert "answered 429" in fifth.log and "4 recorders are at work" in fifth.log
        job.read_all("train/b.bin")
        for process in (first, second):
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
    assert rows(read_trace(outs[0])) == rows(read_trace(outs[1])) == job.reads
    assert not outs[4].exists()


def test_a_recording_ends_with_its_spoke(stack: Stack, tmp_path: Path) -> None:
    out = tmp_path / "end.hstrace"
    with stack.spoke("ending", tmp_path / "cache", prefetch=False) as spoke:
        job = Job(spoke)
        with recording(spoke, out) as process:
            begun(out)
            job.read_all("train/b.bin")
            spoke.stop()
            assert process.wait() == 0
    trace = read_trace(out)
    assert rows(trace) == job.reads
    assert trace.facts["complete"] and trace.facts["ended"] == "the spoke stopped"


def test_a_trace_replayed_at_a_new_spoke_reads_the_same(
    stack: Stack, spoke: Service, tmp_path: Path
) -> None:
    out = tmp_path / "job.hstrace"
    with recording(spoke, out) as process:
        begun(out)
        job = Job(spoke)
        for _ in range(2):
            for i in range(10):
                job.read("train/b.bin", 30_000 * i, 30_000)
            job.read_all("é x")
        process.signal(signal.SIGINT)
        assert process.wait() == 0
    with stack.spoke("again", tmp_path / "again", prefetch=False) as other:
        first = replayed(out, other)
        assert first["reads"] == len(job.reads) == 22
        for word in ("hit", "late", "miss"):
            count = sum(state == word for *_, state in job.reads)
            assert first[f"{word}_requests"] == count, job.reads
        assert first["hit_ratio"] == first["recorded_hit_ratio"]
        assert replayed(out, other)["hit_ratio"] == 1.0
        again = tmp_path / "missing.hstrace"
        t = read_trace(out)
        write_trace(again, replace(t, names=[f"{name}?" for name in t.names]))
        missing = replayed(again, other, status=1)
        assert (missing["reads"], missing["missing_requests"]) == (0, 22)
        assert sorted(missing["missing"]) == ["data/train/b.bin?", "data/é x?"]


def replayed(file: Path, spoke: Service, status: int = 0) -> Any:
    command = [
        sys.executable, "-m", "hubspoke", "trace", "replay", str(file), "--json",
        "--endpoint", f"http://{spoke.data}", "--as-fast-as-possible",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == status, done.stderr.decode()
    return json.loads(done.stdout)


def test_show_tells_what_is_in_a_trace(tmp_path: Path) -> None:
    golden = Path(__file__).parent.parent / "traces" / "trace_v1.hstrace"

    def show(*more: str) -> str:
        command = [sys.executable, "-m", "hubspoke", "trace", "show", str(golden), *more]
        return subprocess.run(
            command, capture_output=True, timeout=WAIT_S, check=True, text=True
        ).stdout

    document = json.loads(show("--json"))
    assert (document["reads"], document["objects"], document["clients"]) == (5, 3, 2)
    assert (document["bytes"], document["seconds"]) == (3 * 4096 + 110, 5000.0)
    assert [document[f"{w}_requests"] for w in ("hit", "late", "miss", "unknown")] == [2, 1, 1, 1]
    assert document["hit_ratio"] == 0.5
    assert document["read_bytes_histogram"] == [
        {"up_to_bytes": 16, "reads": 1},
        {"up_to_bytes": 128, "reads": 1},
        {"up_to_bytes": 4096, "reads": 3},
    ]
    assert [(o["name"], o["reads"], o["hit_requests"]) for o in document["top_objects"]] == [
        ("bkt/a", 4, 2),
        ("bkt/é", 1, 0),
    ]
    lines = [json.loads(line) for line in show("--reads", "3").splitlines()]
    assert lines[2] == {
        "at": 0.001, "client": 7, "name": "bkt/é", "offset": 0, "length": 10, "state": None,
    }  # fmt: skip
    assert len(lines) == 3 and "bkt/never read" not in show() and "50.00 %" in show()


def test_a_trace_recorded_live_has_the_same_hits_in_the_simulator(tmp_path: Path) -> None:
    """Within 1 % of the reads: prediction, path and pace are what they were. In one run of three,
    as what a busy machine is late with is no part of the trace."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text(" ".join(f"word{i * 7919 % 9973}" for i in range(100_000)))
    data = tmp_path / "store" / "tokens"
    build_dataset(data, DatasetConfig(sequences=3_600, files=2, vocabulary=2_000), sources=[text])
    states = {"hit": "hits", "late": "late", "miss": "misses"}
    runs = []
    with Stack(data.parent, work=tmp_path, logs=tmp_path, wan=WanConfig(rtt_ms=60.0)) as stack:
        for turn in range(3):
            job, simulated = live_and_simulated(stack, tmp_path / f"live{turn}", data)
            apart = {s: abs(job.states[s] - simulated[of]) for s, of in states.items()}
            runs.append((job.states, simulated, apart))
            if max(apart.values()) <= 0.01 * job.reads:
                return
    raise AssertionError(runs)


def live_and_simulated(stack: Stack, work: Path, data: Path) -> tuple[JobResult, dict[str, Any]]:
    """The same reads through a new spoke and by its trace."""
    out = work.with_suffix(".hstrace")
    with (
        stack.spoke(work.name, work, prefetch=True) as spoke,
        recording(spoke, out) as process,
    ):
        begun(out)
        source = f"http://{spoke.data}/tokens"
        job = run_job(JobConfig("live", data, source=source, steps=150, read_bytes=4 * KIB))
        process.signal(signal.SIGINT)
        assert process.wait() == 0
    command = [sys.executable, "-m", "hubspoke", "simulate", "--trace", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=60.0, check=True)
    (simulated,) = json.loads(done.stdout)["workloads"]
    assert job.reads == simulated["reads"] == len(read_trace(out))
    return job, simulated
