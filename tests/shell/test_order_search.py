"""The compiled search and the process that runs it."""

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hubspoke.adapters.order_messages import (
    LENGTH,
    Cancel,
    pack_answer,
    pack_cancel,
    pack_request,
    unpack_answer,
    unpack_request,
)
from hubspoke.adapters.seed_search import SeedSearch
from hubspoke.core.inference.documents import Documents, FoundSamples
from hubspoke.core.inference.question import (
    Answer,
    Build,
    Follow,
    Followers,
    Found,
    Question,
    Recipe,
    Request,
)
from hubspoke.core.inference.search import prefix, rank
from hubspoke.core.inference.windows import FoundWindows, Stream, Windows
from hubspoke.core.orders import nanogpt, torch_randperm
from hubspoke.spoke.order_search import OrderSearch
from tests.core.loader_reads import through_workers
from tests.core.seed_kernel import NumpyKernel, output, outputs, words

FOUR = np.arange(4, dtype=np.int32)
REQUESTS: tuple[Request, ...] = (
    Question(1, 1_000, np.arange(20, dtype=np.int32), (Recipe("DLIO", 2**32 - 1, 3, 4),), True),
    Build(2, 1_000, Recipe("torch shuffle", 7)),
    Build(4, 1_000, Recipe("MosaicML py1s", 9176, 0, 64), (400, 400, 200)),
    Follow(3, 2**32 - 1, 7),
    Documents(5, 2, np.array([7, 9], np.int32), np.array([2**40, 1]), np.array([3, 4]), 99, True),
    Windows(4, 9_035_581_174, np.array([7, 2**33]), True, (Stream(1337, 9, b"key", 624),)),
)


@pytest.mark.parametrize("n", [2, 3, 624, 1_000, 70_000])
def test_compiled_order_is_torch_randperm(n: int) -> None:
    for seed in (0, 42, 2**32 - 1, 2**32 + 5):
        assert np.array_equal(SeedSearch().order(n, seed), torch_randperm(n, seed))


@pytest.mark.parametrize("n", [16, 50, 301, 1_999])
def test_compiled_buffer_shuffle_is_webdataset_s(n: int) -> None:
    for buffer, seed, world in ((100, 42, 1), (1_000, 1_000_000, 4), (20, 7, 2)):
        found = SeedSearch().shards(n, buffer, seed, world)
        assert np.array_equal(found, NumpyKernel().shards(n, buffer, seed, world))


@pytest.mark.parametrize(("n", "seed"), [(1_000, 3), (20_000, 77_777), (1_000_000, 131_071)])
def test_compiled_scan_finds_what_numpy_finds(n: int, seed: int) -> None:
    rng = np.random.default_rng(1)
    reads = through_workers(torch_randperm(n, seed)[:400].tolist(), workers=4, batch=8, rng=rng)[
        :96
    ]
    seen = np.zeros(n, np.uint8)
    seen[reads] = 1
    test = prefix(n, len(set(reads)), 2.0**17)
    assert test is not None
    found, numpy_found = (
        kernel.scan(0, 2**17, n, seen, need=test.need, places=test.places, misses=test.misses)
        for kernel in (SeedSearch(), NumpyKernel())
    )
    assert seed in found
    assert sorted(found) == sorted(numpy_found)


def test_slices_end_where_they_are_told_to() -> None:
    seen = np.ones(100, np.uint8)
    found = SeedSearch().scan(5, 300, 100, seen, need=3, places=4, misses=0)
    assert found == list(range(5, 305))


def test_stream_is_found_by_its_fourth_output() -> None:
    value = int(output(words(123_456, 1, 400), 3)[0])
    assert SeedSearch().streams(2**16, 2**17, value) == [123_456]
    assert outputs(123_456, 4)[3] == value


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_survive_the_pipe(request_: Request) -> None:
    packed = pack_request(request_)
    again = unpack_request(packed[LENGTH.size :])
    assert LENGTH.unpack(packed[: LENGTH.size]) == (len(packed) - LENGTH.size,)
    assert repr(again) == repr(request_)


def test_a_cancellation_survives_the_pipe() -> None:
    assert unpack_request(pack_cancel(7)[LENGTH.size :]) == Cancel(7)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Followers((1, 2**32 - 1)),
        FoundSamples("seed 1234", FOUR, np.stack((FOUR, FOUR), axis=1), FOUR),
        FoundWindows((Stream(1337, 2**31, b"key" * 832, 3), Stream(1338, 0, b"", 0)), -31.5),
        Followers(()),
        Found(
            Recipe("DLIO", 3, 1, 2),
            np.arange(4, dtype=np.int32),
            np.arange(4, dtype=np.int32),
            0,
            3,
            -50.0,
        ),
    ],
)
def test_answers_survive_the_pipe(answer: Answer) -> None:
    number, again = unpack_answer(pack_answer(7, answer)[LENGTH.size :])
    assert number == 7 and repr(again) == repr(answer)


class Asked:
    """An `OrderSearch` and what it answered."""

    def __init__(self, module: str = "hubspoke.adapters.order_process") -> None:
        self.search = OrderSearch(module)
        self.answers: dict[int, Answer] = {}
        self._came = asyncio.Event()
        self.search.start(self._answered)

    def _answered(self, number: int, answer: Answer) -> None:
        self.answers[number] = answer
        self._came.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(100):
            while len(self.answers) < count:
                self._came.clear()
                await self._came.wait()


async def test_process_answers_quick_requests_while_it_tries_all_seeds() -> None:
    asked = Asked()
    order = torch_randperm(20_000, 43).astype(np.int32)
    nothing = np.random.default_rng(10**9).permutation(20_000)[:200].astype(np.int32)
    try:
        asked.search.ask([Question(1, 20_000, nothing, (), True)])
        asked.search.ask(
            [Question(2, 20_000, order[:64]), Build(3, 20_000, Recipe("torch shuffle", 44))]
        )
        await asked.until(2)
        assert set(asked.answers) == {2, 3}
        found, built = asked.answers[2], asked.answers[3]
        assert isinstance(found, Found) and found.recipe.seed == 43
        assert np.array_equal(found.items, order)
        assert isinstance(built, Found)
        assert np.array_equal(built.items, torch_randperm(20_000, 44))
    finally:
        await asked.search.close()


async def test_cheap_searches_go_first_and_needless_ones_end() -> None:
    """A stream of nanoGPT's, which is found at once, before all seeds of a question; and what is
    cancelled holds nobody up."""
    asked = Asked()
    nothing = np.random.default_rng(10**9).permutation(20_000)[:200].astype(np.int32)
    starts = np.unique(nanogpt.windows(10**9, block=1_024, count=64) // nanogpt.TOKEN_BYTES)
    seed = 200_000  # nobody's default
    order = torch_randperm(20_000, seed).astype(np.int32)
    try:
        asked.search.ask(
            [Question(1, 20_000, nothing, (), True), Windows(2, 10**9 - 1_024, starts)]
        )
        await asked.until(1)
        assert isinstance(asked.answers[2], FoundWindows)
        asked.search.cancel([1, 2])
        asked.search.ask([Question(3, 20_000, order[:128], (), True)])
        await asked.until(2)
        found = asked.answers[3]
        assert set(asked.answers) == {2, 3}
        assert isinstance(found, Found) and found.recipe.seed == seed
    finally:
        await asked.search.close()


def test_searches_are_ranked_by_what_they_cost() -> None:
    ranks = {type(r).__name__: rank(r) for r in REQUESTS}
    assert ranks == {"Question": 3, "Build": 0, "Follow": 2, "Documents": 3, "Windows": 3}
    assert rank(Windows(1, 9, FOUR.astype(np.int64))) == 1
    assert rank(Question(1, 1_000, FOUR, (), False)) == 0


async def test_process_that_dies_has_found_nothing() -> None:
    asked = Asked()
    nothing = np.random.default_rng(10**9).permutation(20_000)[:200].astype(np.int32)
    try:
        asked.search.ask([Question(1, 20_000, nothing, (), True)])
        asked.search.ask([Build(2, 100, Recipe("torch shuffle", 44))])
        await asked.until(1)
        process = asked.search._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await asked.until(2)
        assert asked.answers[1] is None
        asked.search.ask([Build(3, 100, Recipe("torch shuffle", 44))])  # not started again at once
        await asked.until(3)
        assert asked.answers[3] is None
    finally:
        await asked.search.close()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def _told(told: Path, word: str, *, busy_s: float) -> None:
    """Wait for a word; the loop is held up for `busy_s` again and again."""
    for _ in range(6_000):
        if word in _text(told):
            return
        await asyncio.sleep(0.01)
        until = asyncio.get_running_loop().time() + busy_s
        while asyncio.get_running_loop().time() < until:
            pass
    pytest.fail(f"not told {word!r}")


async def test_search_is_paused_while_the_loop_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that writes down what it is told.
    told = tmp_path / "told"
    (tmp_path / "listening.py").write_text(
        textwrap.dedent(
            f"""
            import sys
            from hubspoke.adapters.order_messages import LENGTH, unpack_request
            while head := sys.stdin.buffer.read(4):
                message = unpack_request(sys.stdin.buffer.read(*LENGTH.unpack(head)))
                with open({str(told)!r}, "a") as file:
                    print(message if isinstance(message, str) else "request", file=file)
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = Asked("listening")
    try:
        asked.search.ask([Question(1, 20_000, np.arange(200, dtype=np.int32), (), True)])
        await _told(told, "request", busy_s=0.0)
        await _told(told, "pause", busy_s=0.03)
        await _told(told, "go on", busy_s=0.0)
    finally:
        await asked.search.close()


async def test_process_ends_with_its_input() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hubspoke.adapters.order_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    nothing = np.random.default_rng(10**9).permutation(20_000)[:200].astype(np.int32)
    process.stdin.write(pack_request(Question(1, 20_000, nothing, (), True)))
    await process.stdin.drain()
    process.stdin.close()
    async with asyncio.timeout(60):
        assert await process.wait() == 0
