"""hubspoke.torch without torch: samplers are anything that can be gone through."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hubspoke.frontends.torch import admin_port
from hubspoke.frontends.torch import hinted as module
from hubspoke.torch import Meter, hinted


class Spoke:
    """Keeps what was posted to it; `answers`: statuses and documents to begin with."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: list[tuple[int, Any, dict[str, str]]] = []
        self.news = threading.Condition()
        spoke = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _take(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                with spoke.news:
                    spoke.asked.append((self.command, self.path, body))
                    spoke.news.notify_all()
                    answer = spoke.answers.pop(0) if spoke.answers else None
                status, document, headers = answer or (200, {"unknown_items": 0}, {})
                data = json.dumps(document).encode()
                self.send_response(status)
                for name, value in (headers | {"content-length": str(len(data))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_DELETE = _take  # names of the base class

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def until(self, done: Any) -> None:
        with self.news:
            assert self.news.wait_for(done, 20), self.asked

    def plan(self) -> list[Any]:
        return [r for method, _, body in self.asked if method == "POST" for r in body["plan"]]


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    admin_port.TOLD[:] = bytes(len(admin_port.TOLD))


@pytest.fixture
def spoke() -> Iterator[Spoke]:
    made = Spoke()
    yield made
    made.server.shutdown()
    made.server.server_close()


def place(index: int) -> str:
    return f"data/{index:05}"


class Sampler:
    """As torch's DistributedSampler: an order by seed and epoch."""

    def __init__(self, n: int) -> None:
        self.n, self.seed, self.epoch = n, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([(i * 7 + self.epoch) % self.n for i in range(self.n)])

    def __len__(self) -> int:
        return self.n


def test_the_order_is_the_samplers_and_is_sent_before_it_is_used(spoke: Spoke) -> None:
    sampler = hinted(range(5_000, 0, -1), place, spoke=spoke.url, job="t")
    order = iter(sampler)
    assert next(order) == 5_000
    spoke.until(lambda: len(spoke.plan()) >= 4_990)
    assert [5_000, *order] == list(range(5_000, 0, -1))
    assert len(sampler) == 5_000
    sent = spoke.plan()
    assert sent == [place(i) for i in range(5_000, 0, -1)][-len(sent) :]
    first, second = spoke.asked[0][2], spoke.asked[1][2]
    assert (first["job"], first["append"], second["append"]) == ("t-rank0", False, True)
    assert len(first["plan"]) <= module.FIRST_POST


def test_a_batch_samplers_batches_are_sent_in_order(spoke: Spoke) -> None:
    def ranges(index: int) -> tuple[str, int, int]:
        return "data/packed", index * 100, 100

    batches = [[3, 1], [2, 0]]
    order = iter(hinted(batches, ranges, spoke=spoke.url))
    assert next(order) == [3, 1]
    spoke.until(lambda: spoke.asked)
    assert list(order) == [[2, 0]]
    sent = [(r["object"], r["ranges"]) for r in spoke.plan()]
    assert sent[-2:] == [("data/packed", [[200, 100]]), ("data/packed", [[0, 100]])]


def test_the_next_epochs_first_part_is_sent_behind_this_one(spoke: Spoke) -> None:
    sampler = hinted(Sampler(50), place, spoke=spoke.url)
    order = iter(sampler)
    next(order)
    spoke.until(lambda: spoke.plan()[-50:] == [place((i * 7 + 1) % 50) for i in range(50)])
    assert len(list(order)) == 49
    sampler.set_epoch(1)
    assert next(iter(sampler)) == 1


def test_a_loop_that_is_left_drops_its_plan(spoke: Spoke) -> None:
    order = iter(hinted(range(100), place, spoke=spoke.url, job="left"))
    next(order)
    spoke.until(lambda: len(spoke.plan()) >= 90)
    order.close()  # type: ignore[attr-defined]  # a generator
    spoke.until(lambda: ("DELETE", "/v1/hints/left-rank0", None) in spoke.asked)


def test_an_endless_sampler_is_drawn_only_as_far_as_wanted(spoke: Spoke) -> None:
    drawn = 0

    def endless() -> Iterator[int]:
        nonlocal drawn
        while True:
            drawn += 1
            yield drawn

    order = iter(hinted(endless(), place, spoke=spoke.url, ahead=40))
    assert [next(order) for _ in range(100)] == list(range(1, 101))
    assert drawn <= 141
    spoke.until(lambda: place(101) in spoke.plan())
    order.close()  # type: ignore[attr-defined]  # a generator


def test_a_spoke_that_is_full_is_asked_again(spoke: Spoke) -> None:
    spoke.answers = [(429, {"detail": "full"}, {"retry-after": "0"})]
    order = iter(hinted(range(10), place, spoke=spoke.url))
    next(order)
    spoke.until(lambda: len(spoke.asked) >= 2)
    assert spoke.asked[0][2]["plan"] == spoke.asked[1][2]["plan"]


def wait_for(caplog: pytest.LogCaptureFixture, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in caplog.text:
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.01)


def test_a_loader_does_not_wait_for_a_spoke_that_hangs(spoke: Spoke) -> None:
    with spoke.news:  # no answer as long as this is held
        began = time.monotonic()
        assert list(hinted(range(100), place, spoke=spoke.url)) == list(range(100))
        assert time.monotonic() - began < 10 * module.BEGIN_S, "once, and not for each index"


def test_a_spoke_out_of_reach_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        order = iter(hinted(range(1_000), place, spoke="http://127.0.0.1:9"))
        first = next(order)
        wait_for(caplog, "does not answer")
        assert [first, *order] == list(range(1_000))
    assert len(caplog.records) == 1
    assert "loading goes on without it" in caplog.text


def until_sent() -> None:
    """Wait for the senders: what they have to say is said then."""
    for thread in threading.enumerate():
        if thread.name == "hubspoke hints":
            thread.join(20)
            assert not thread.is_alive()


def test_a_spoke_out_of_reach_is_one_warning_in_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of all epochs, of a second sampler and of the meter."""
    away = "http://127.0.0.1:9"
    with caplog.at_level(logging.WARNING):
        for sampler in (hinted(range(100), place, spoke=away), hinted([[1, 2]], place, spoke=away)):
            for _ in range(3):
                list(sampler)
                until_sent()
        assert list(Meter("llm", spoke=away)([[1], [2]])) == [[1], [2]]
    assert len(caplog.records) == 1
    with caplog.at_level(logging.WARNING):
        list(hinted(range(100), place, spoke="http://127.0.0.1:1"))
        until_sent()
    assert len(caplog.records) == 2, "another spoke is other news"


def test_forked_workers_say_no_more_than_their_parent_or_siblings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A loader's workers are new processes every epoch."""
    told = []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            if not (worker := os.fork()):
                try:
                    list(hinted(range(100), place, spoke="http://127.0.0.1:9"))
                    until_sent()
                finally:
                    os._exit(len(caplog.records))
            told.append(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    assert told == [1, 0, 0]


def test_another_port_is_told_with_what_would_be_right(caplog: pytest.LogCaptureFixture) -> None:
    """As the spoke's data port, which answers in XML."""

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b"<Error/>")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with caplog.at_level(logging.WARNING):
            order = iter(hinted(range(100), place, spoke=url))
            first = next(order)
            wait_for(caplog, f"{url} answers HTTP 400, not as a spoke's admin port; expected")
            assert [first, *order] == list(range(100))
        server.shutdown()


def test_what_is_refused_or_unknown_is_one_warning(
    spoke: Spoke, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = {"unknown_items": 2, "unknown": [{"object": "data/x"}]}
    spoke.answers = [(200, unknown, {}), (409, {"detail": "--prefetch off"}, {})]
    with caplog.at_level(logging.WARNING):
        order = iter(hinted(range(3_000), place, spoke=spoke.url))
        next(order)
        spoke.until(lambda: len(spoke.asked) == 2)
        wait_for(caplog, "data/x: unknown")
        assert len(list(order)) == 2_999
    assert len(caplog.records) == 1


def test_a_locate_that_fails_is_one_warning(spoke: Spoke, caplog: pytest.LogCaptureFixture) -> None:
    def wrong(index: int) -> str:
        raise KeyError(index)

    with caplog.at_level(logging.WARNING):
        order = iter(hinted(range(10), wrong, spoke=spoke.url))
        next(order)
        wait_for(caplog, "KeyError")
        assert len(list(order)) == 9


def test_what_makes_no_sense_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="spoke='localhost:8081'"):
        hinted(range(3), place, spoke="localhost:8081")
    with pytest.raises(ValueError, match="job='a/b'"):
        Meter("a/b")
    with pytest.raises(ValueError, match="ahead=0"):
        hinted(range(3), place, ahead=0)


def test_ranks_have_plans_of_their_own(spoke: Spoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    order = iter(hinted(range(3), place, spoke=spoke.url, job="j"))
    next(order)
    spoke.until(lambda: spoke.asked)
    assert spoke.asked[0][2]["job"] == "j-rank3"
    assert list(order) == [1, 2]


def test_a_meter_reports_what_a_loop_did(spoke: Spoke) -> None:
    meter = Meter("llm", spoke=spoke.url, every_s=60.0)
    assert list(meter([[1, 2, 3], [4, 5, 6], [7]])) == [[1, 2, 3], [4, 5, 6], [7]]
    posts = [body for _, path, body in spoke.asked if path == "/v1/jobs/llm"]
    assert posts[0] == {"samples": 0.0, "compute_seconds": 0.0, "wait_seconds": 0.0}
    assert sum(p["samples"] for p in posts) == 7
    assert all(p["compute_seconds"] >= 0 and p["wait_seconds"] >= 0 for p in posts)


def test_a_meter_without_a_spoke_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(Meter("llm", spoke="http://127.0.0.1:9")([[1], [2]])) == [[1], [2]]
    assert len(caplog.records) == 1


def test_nothing_but_pythons_own_library_is_imported() -> None:
    code = (
        "import sys, hubspoke.torch; print(sorted({m.split('.')[0] for m in sys.modules}"
        " - set(sys.stdlib_module_names) - {'hubspoke', '__main__'}))"
    )
    run = [sys.executable, "-S", "-c", code]
    found = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout, found.stderr) == ("[]\n", "")
