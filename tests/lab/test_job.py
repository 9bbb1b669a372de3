"""The emulated training job, with real worker processes against files and a small S3 server."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from hubspoke.errors import ConfigError, FormatError
from hubspoke.lab import job_cli
from hubspoke.lab.crew import JobFailed
from hubspoke.lab.dataset import DatasetConfig, build_dataset, load_index
from hubspoke.lab.guard import guard
from hubspoke.lab.job import JobConfig, run_job
from hubspoke.lab.measure import RECORD_DTYPE, unique_bytes
from hubspoke.lab.worker import RECORD

DATA = DatasetConfig(sequences=96, sequence_tokens=4096, files=3, vocabulary=300)
SMALL = {"ranks": 2, "per_rank": 3, "workers": 2, "prefetch_factor": 2, "compute_s": 0.002}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    text = folder / "text.md"
    text.write_text("\n".join(f"Line {i * i} of a long text." for i in range(3000)))
    build_dataset(folder / "tokens", DATA, sources=[text])
    return folder / "tokens"


def config(dataset: Path, **changes: object) -> JobConfig:
    return replace(JobConfig(name="test", dataset=dataset), **{**SMALL, **changes})  # type: ignore[arg-type]  # keyword table


@dataclass
class TinyS3:
    """GET with a range, from a folder. answer: (number of the request, path, first byte) to a
    status other than 206, 0 for a broken connection, or None for a plain answer."""

    folder: Path
    url: str = ""
    answer: Callable[[int, str, int], int | None] = lambda _n, _p, _o: None
    state: str = "hit"
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    posts: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    connections: int = 0


def _handler(s3: TinyS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            s3.connections += 1
            super().setup()

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            first, last = map(int, re.findall(r"\d+", self.headers["range"]))
            path = self.path.rpartition("/")[2]
            status = s3.answer(len(s3.ranges), path, first)
            if status == 0:
                self.close_connection = True
                return
            if status is not None:
                self.send_response(status)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"busy")
                return
            s3.ranges.append((path, first, last))
            with (s3.folder / path).open("rb") as file:
                file.seek(first)
                body = file.read(last - first + 1)
            self.send_response(206)
            self.send_header("X-HubSpoke-Cache", s3.state)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            s3.posts.append((self.path, json.loads(body)))
            self.send_response(204)
            self.end_headers()

    return Handler


@pytest.fixture
def s3(dataset: Path) -> Iterator[TinyS3]:
    tiny = TinyS3(dataset)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(tiny))
    server.daemon_threads = True
    tiny.url = f"http://127.0.0.1:{server.server_port}/tokens"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield tiny
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.mark.parametrize("order", ["sequential", "strided", "distributed"])
def test_path_job_reads_every_sequence_once_and_right(dataset: Path, order: str) -> None:
    result = run_job(config(dataset, order=order))
    assert (result.steps, result.samples, result.reads) == (16, 96, 96)
    assert result.wrong_bytes == 0 and result.retries == 0
    assert result.bytes == result.unique_bytes == 96 * 8192
    assert result.states == {"hit": 0, "late": 0, "miss": 0, "stale": 0, "none": 96}
    assert result.hit_ratio is None
    assert result.compute_seconds == pytest.approx(16 * 0.002)
    assert result.seconds >= result.compute_seconds + result.wait_seconds - 1e-3
    assert 0 < result.utilisation <= 1
    assert [(w.first_step, w.end_step) for w in result.windows] == [(0, 10), (10, 16)]
    assert [(p.first_step, p.end_step) for p in result.phases] == [(0, 16)]
    assert json.loads(json.dumps(result.to_json()))["reads"] == 96


def test_s3_job_asks_exactly_the_ranges_of_the_order(dataset: Path, s3: TinyS3) -> None:
    result = run_job(config(dataset, source=s3.url, steps=5))
    index = load_index(dataset)
    wanted = [(index.files[n // 32].name, n % 32 * 8192, n % 32 * 8192 + 8191) for n in range(30)]
    assert sorted(s3.ranges) == sorted(wanted)
    assert result.reads == 30 and result.wrong_bytes == 0
    assert result.states["hit"] == 30 and result.hit_ratio == 1.0
    assert s3.connections == 4, "one kept connection per worker"


def test_a_sequence_can_be_read_in_pieces(dataset: Path, s3: TinyS3) -> None:
    s3.state = "late"
    result = run_job(config(dataset, source=s3.url, steps=2, read_bytes=4096))
    assert result.reads == 24 and result.bytes == result.unique_bytes == 12 * 8192
    assert result.states["late"] == 24 and result.hit_ratio == 0.0


def test_wrong_bytes_are_counted_and_located(dataset: Path, s3: TinyS3, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in dataset.glob("*.bin"):
        (copy / file.name).write_bytes(file.read_bytes())
    name = load_index(dataset).files[0].name
    data = bytearray((copy / name).read_bytes())
    data[3 * 8192 + 77] ^= 1
    data[3 * 8192 + 99] ^= 255
    (copy / name).write_bytes(data)
    s3.folder = copy
    for source in (s3.url, str(copy)):
        result = run_job(config(dataset, source=source, steps=2))
        assert result.wrong_bytes == 2
        (wrong,) = result.wrong
        assert (wrong.object, wrong.offset, wrong.bytes) == (name, 3 * 8192 + 77, 2)


def test_busy_server_and_lost_connections_are_tried_again(dataset: Path, s3: TinyS3) -> None:
    seen: set[tuple[str, int]] = set()

    def once(_number: int, path: str, first: int) -> int | None:
        if (path, first) in seen or first % (3 * 8192):
            return None
        seen.add((path, first))
        return 0 if first % (2 * 8192) else 503

    s3.answer = once
    result = run_job(config(dataset, source=s3.url))
    assert result.reads == 96 and result.wrong_bytes == 0
    assert result.retries == len(seen) == 33


def test_lost_server_ends_the_job_after_the_retry_budget(dataset: Path, s3: TinyS3) -> None:
    s3.answer = lambda number, _p, _o: 503 if number >= 6 else None
    with pytest.raises(JobFailed, match=r"tokens-.*gave up after 0.2 s: status 503: busy"):
        run_job(config(dataset, source=s3.url, retry_s=0.2))


def test_missing_object_fails_at_once_and_says_what_came_back(dataset: Path, s3: TinyS3) -> None:
    s3.answer = lambda _n, _p, _o: 404
    with pytest.raises(JobFailed, match=r"GET /tokens/tokens-.*status 404"):
        run_job(config(dataset, source=s3.url))


def test_unreachable_server_is_told_before_the_clock_starts(dataset: Path) -> None:
    with pytest.raises(JobFailed, match=r"connect to 127\.0\.0\.1:9: gave up"):
        run_job(config(dataset, source="http://127.0.0.1:9/tokens", retry_s=0.05))


def test_batches_arrive_in_order_although_one_worker_is_slow(dataset: Path, s3: TinyS3) -> None:
    order: list[int] = []
    slow = load_index(dataset).files[0].name

    def delay(_number: int, path: str, first: int) -> int | None:
        if path == slow and first == 0:  # batch 0 of rank 0: its other worker runs ahead
            deadline = time.monotonic() + 10
            while len(s3.ranges) < 9 and time.monotonic() < deadline:
                time.sleep(0.002)
        return None

    s3.answer = delay
    run_job(config(dataset, source=s3.url, steps=8), progress=lambda step, _of: order.append(step))
    assert order == list(range(1, 9))
    assert (slow, 0, 8191) not in s3.ranges[:9], "the slow read was overtaken"


def test_loader_queues_no_more_than_prefetch_factor_batches(dataset: Path, s3: TinyS3) -> None:
    peak = 0
    taken = 0

    def watch(_number: int, _path: str, _first: int) -> int | None:
        nonlocal peak
        peak = max(peak, len(s3.ranges) + 1 - taken * 6)
        return None

    def step(done: int, _of: int) -> None:
        nonlocal taken
        taken = done

    s3.answer = watch
    run_job(config(dataset, source=s3.url, compute_s=0.02, steps=10), progress=step)
    # Per rank 2 x 2 batches of 3 reads are out, plus the batch being taken.
    assert peak <= 2 * (2 * 2 + 1) * 3


def test_time_limit_ends_the_job_and_counts_what_was_read(dataset: Path, s3: TinyS3) -> None:
    result = run_job(config(dataset, source=s3.url, compute_s=0.05, seconds_max=0.22))
    assert result.steps_planned == 16 and 4 <= result.steps <= 6
    assert result.compute_seconds == pytest.approx(result.steps * 0.05)
    assert result.reads == len(s3.ranges) == sum(result.states.values())
    assert result.steps * 6 < result.reads <= (result.steps + 4) * 6, "queued batches were read too"
    assert result.unique_bytes == len(set(s3.ranges)) * 8192
    assert result.windows[-1].end_step == result.steps


def test_waits_are_what_the_data_takes_longer_than_compute(dataset: Path, s3: TinyS3) -> None:
    def slow(_number: int, _path: str, _first: int) -> int | None:
        time.sleep(0.03)
        return None

    s3.answer = slow
    result = run_job(
        config(
            dataset, source=s3.url, workers=1, prefetch_factor=1, ranks=1, steps=6, compute_s=0.05
        )
    )
    # A batch of three reads takes 90 ms and is asked for when the one before is taken.
    assert result.first_wait_seconds >= 0.09
    assert 0.09 + 5 * 0.04 <= result.wait_seconds < 0.6
    assert result.utilisation == pytest.approx(0.3 / (0.3 + result.wait_seconds))
    assert result.latency_ms.p50 >= 30
    assert result.seconds == pytest.approx(0.3 + result.wait_seconds, abs=0.05)


def test_job_sends_its_meter_and_all_of_it(dataset: Path, s3: TinyS3) -> None:
    admin = s3.url.removesuffix("/tokens")
    result = run_job(config(dataset, admin=admin, compute_s=0.08, name="my job"))
    assert {path for path, _ in s3.posts} == {"/v1/jobs/my%20job"}
    assert len(s3.posts) >= 3, "at the start, about once a second, and the rest at the end"
    bodies = [body for _, body in s3.posts]
    assert sum(b["samples"] for b in bodies) == 96
    assert sum(b["compute_seconds"] for b in bodies) == pytest.approx(result.compute_seconds)
    assert sum(b["wait_seconds"] for b in bodies) == pytest.approx(result.wait_seconds)


def test_job_tells_its_meter_before_it_reads(dataset: Path, s3: TinyS3) -> None:
    posts: list[int] = []
    s3.answer = lambda _n, _p, _o: posts.append(len(s3.posts))
    run_job(config(dataset, source=s3.url, admin=s3.url.removesuffix("/tokens"), steps=2))
    assert posts and min(posts) >= 1, "the hit ratio covers every read"
    path, first = s3.posts[0]
    assert path == "/v1/jobs/test"
    assert first == {"samples": 0, "compute_seconds": 0.0, "wait_seconds": 0.0}


def test_absent_admin_port_does_not_disturb_the_job(dataset: Path) -> None:
    assert run_job(config(dataset, admin="http://127.0.0.1:9", steps=3)).steps == 3


def test_boto3_reads_the_same(dataset: Path, s3: TinyS3) -> None:
    result = run_job(config(dataset, source=s3.url, client="boto3", steps=2, ranks=1, workers=1))
    assert result.reads == 6 and result.wrong_bytes == 0 and result.states["hit"] == 6


def test_a_worker_that_dies_fails_the_job_and_leaves_no_process(dataset: Path, s3: TinyS3) -> None:
    def kill(done: int, _of: int) -> None:
        if done == 2:
            os.kill(_children()[0], signal.SIGKILL)

    with pytest.raises(JobFailed, match="the process ended"):
        run_job(config(dataset, source=s3.url, compute_s=0.05), progress=kill)
    assert _children() == []


def test_interrupted_job_leaves_no_process(dataset: Path) -> None:
    def interrupt(_done: int, _of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(config(dataset), progress=interrupt)
    assert _children() == []


# `make test &` in a script starts everything with SIGINT ignored.
IGNORE_SIGINT = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


@pytest.mark.parametrize("shell", [(), IGNORE_SIGINT], ids=["plain", "background"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_job_process(
    dataset: Path, s3: TinyS3, how: signal.Signals, shell: tuple[str, ...]
) -> None:
    arguments = [str(dataset), "--source", s3.url, "--compute-ms", "200", "--steps", "4"]
    job = subprocess.Popen([*shell, sys.executable, "-m", "hubspoke.lab.job", *arguments])
    try:
        _wait_for(lambda: len(s3.ranges) > 4)
        workers = _children(job.pid)
        assert len(workers) == 8
        job.send_signal(how)
        assert job.wait(10) == (130 if how == signal.SIGINT else -how)
        _wait_for(lambda: not any(_alive(pid) for pid in workers))
    finally:
        job.kill()
        job.wait()


def test_command_line_prints_one_json_document(
    dataset: Path, s3: TinyS3, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(dataset), "--source", s3.url, "--compute-ms", "1", "--steps", "2", "--json"]
    assert job_cli.main(arguments) == 0
    out = json.loads(capfd.readouterr().out)
    assert out["reads"] == 48 and out["states"]["hit"] == 48
    assert job_cli.main([*arguments[:-1], "--order", "strided"]) == 0
    assert "hit ratio 1.0000" in capfd.readouterr().out


def test_command_line_names_what_is_wrong(dataset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert job_cli.main([str(dataset), "--steps", "5000"]) == 2
    assert "steps 5000: 96 sequences make 1 to 4 steps" in capfd.readouterr().err
    assert job_cli.main([str(dataset / "missing")]) == 1
    assert "missing/index.json" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 0}, "ranks 0: must be at least 1"),
        ({"compute_s": -1.0}, "must not be negative"),
        ({"client": "curl"}, "must be one of raw, boto3"),
        ({"read_bytes": 5000}, "must divide a sequence of 8192 bytes"),
        ({"steps": 17}, "make 1 to 16 steps of 6"),
        ({"admin": "localhost"}, "must be http://HOST:PORT"),
    ],
)
def test_wrong_settings_say_what_would_be_right(
    dataset: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_job(replace(config(dataset), **changes))  # type: ignore[arg-type]  # keyword table


def test_folder_without_a_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"index\.json"):
        run_job(config(tmp_path))


@pytest.mark.parametrize(
    ("offsets", "length", "pages"),
    [
        ([0, 8192, 8192], 8192, 4),
        ([0, 4096], 8192, 3),
        ([100, 4000], 50, 1),
        ([0, 10_000], 1, 2),
        ([4090], 10, 2),
    ],
)
def test_unique_bytes_are_the_union_of_pages(offsets: list[int], length: int, pages: int) -> None:
    zeros = np.zeros(len(offsets), np.int64)
    assert unique_bytes(np.array(offsets), zeros, length) == pages * 4096
    two = np.concatenate((zeros, zeros + 1))
    assert unique_bytes(np.array(offsets * 2), two, length) == 2 * pages * 4096


def test_worker_and_result_agree_on_the_record() -> None:
    raw = RECORD.pack(1.5, 0.25, 3, 1, 7)
    record = np.frombuffer(raw, RECORD_DTYPE)[0]
    assert RECORD.size == RECORD_DTYPE.itemsize == 16
    assert record.tolist() == (1.5, 0.25, 3, 1, 7)


def _children(pid: int | None = None) -> list[int]:
    """Of a process, or of this one without its guard and what other tests have left to it."""
    of = pid or os.getpid()
    children = [int(c) for c in Path(f"/proc/{of}/task/{of}/children").read_text().split()]
    return children if pid else [c for c in children if c not in _BEFORE]


_BEFORE: set[int] = set()


@pytest.fixture(autouse=True)
def _before() -> None:
    guard()
    _BEFORE.clear()
    _BEFORE.update(_children())


def _alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s"
        time.sleep(0.01)
