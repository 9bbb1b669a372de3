"""What comes and what goes of a token file, against lists that are searched through."""

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.inference.windows import Stream
from hubspoke.core.tokens.future import NEVER, Future

PAGE = 4_096
Int64 = npt.NDArray[np.int64]


class Told:
    """A course of these reads: (offset, length)."""

    def __init__(self, reads: list[tuple[int, int]]) -> None:
        self.reads = reads
        self.at = 0

    def take(self, most: int) -> tuple[Int64, Int64]:
        part = self.reads[self.at : self.at + most]
        self.at += len(part)
        both = np.array(part, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def mark(self) -> tuple[Stream, ...]:
        return ()


def reads_at_random(rng: np.random.Generator, count: int, pages: int) -> list[tuple[int, int]]:
    offsets = rng.integers(0, (pages - 3) * PAGE, count)
    lengths = rng.integers(1, 3 * PAGE, count)
    return list(zip(offsets.tolist(), lengths.tolist(), strict=True))


def pages_of(reads: list[tuple[int, int]]) -> list[int]:
    return [p for o, n in reads for p in range(o // PAGE, -(-(o + n) // PAGE))]


@pytest.mark.parametrize("seed", range(5))
def test_every_page_knows_when_it_is_read_next(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reads = reads_at_random(rng, 2_000, 300)
    order = pages_of(reads)
    future = Future(Told(reads), 300, 10_000)
    while future.extend():
        pass
    assert future.over and future.end == len(order)
    at = 0
    for offset, length in reads:
        for page in range(offset // PAGE, -(-(offset + length) // PAGE)):
            assert future.due[page] == at
            assert future.read(page, page + 1, 0)
            later = order.index(page, at + 1) if page in order[at + 1 :] else NEVER
            assert future.due[page] == later
            at += 1
        future.advance(0)
        assert future.base == future.front == at
    assert len(future.unneeded) == len(set(order))


def test_readers_may_overtake_each_other_within_the_slack() -> None:
    rng = np.random.default_rng(7)
    reads = [(int(n) * PAGE, PAGE) for n in rng.permutation(4_000)]
    future = Future(Told(reads), 4_000, 10_000)
    while future.extend():
        pass
    order = list(range(1_000))
    for i in range(0, 1_000, 50):
        order[i : i + 50] = rng.permutation(order[i : i + 50]).tolist()
    for i in order:
        page = reads[i][0] // PAGE
        assert future.read(page, page + 1, 60)
        future.advance(200)
    assert future.front == 1_000 and 0 < future.lag < 50
    far = reads[2_000][0] // PAGE
    assert not future.read(far, far + 1, 60)
    assert future.front == 1_000


def test_what_is_not_read_for_long_is_passed_by() -> None:
    reads = [(n * PAGE, PAGE) for n in range(100)]
    future = Future(Told(reads), 100, 10_000)
    future.extend()
    for page in range(1, 100):
        assert future.read(page, page + 1, 10)
        future.advance(20)
    assert future.base >= 79 and future.due[0] == NEVER


def test_no_more_is_known_than_the_cache_holds() -> None:
    rng = np.random.default_rng(1)
    reads = [(int(n) * PAGE, PAGE) for n in rng.permutation(100_000)]
    future = Future(Told(reads), 100_000, 10_000)
    while future.extend():
        pass
    assert not future.over
    assert 10_000 <= future.end <= 10_000 + 4_096
    before = future.end
    for i in range(5_000):
        future.read(reads[i][0] // PAGE, reads[i][0] // PAGE + 1, 0)
        future.advance(0)
        future.extend()
    assert future.end >= before + 4_000
