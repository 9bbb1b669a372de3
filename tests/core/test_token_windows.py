"""nanoGPT's streams are found by the windows that they draw, and nothing else is."""

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.inference import windows
from hubspoke.core.inference.windows import FoundWindows, Windows, run_length, search_windows
from hubspoke.core.orders import nanogpt
from hubspoke.core.tokens.course import window_course
from tests.core.loader_reads import through_workers

Int64 = npt.NDArray[np.int64]
BLOCK = 1_024
LARGE, SMALL = 9_035_582_198, 40_000_000  # places by two words, and by one


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing ends."""
    monkeypatch.setattr(windows, "WORDS_MAX", 2**21)
    monkeypatch.setattr(windows, "WORDS_THOROUGH", 2**22)


def drawn(
    tokens: int, *, ranks: int = 4, count: int = 16, seed: int = 1337, words: int = 100_001
) -> Int64:
    """Places of the first windows of each rank: [rank, window]."""
    return np.stack(
        [
            nanogpt.windows(
                tokens, block=BLOCK, count=count, rank=rank, seed=seed, words_before=words + rank
            )
            // 2
            for rank in range(ranks)
        ]
    )


def found_for(starts: Int64, tokens: int, *, thorough: bool = False) -> FoundWindows | None:
    question = Windows(1, tokens - BLOCK, starts.ravel(), thorough)
    answers = [a for a in search_windows(question) if a is not None]
    assert len(answers) <= 1
    return answers[0] if answers else None


@pytest.mark.parametrize("tokens", [LARGE, SMALL])
def test_all_ranks_are_found_wherever_they_are_in_their_streams(tokens: int) -> None:
    found = found_for(drawn(tokens), tokens)
    assert found is not None and found.log_p < np.log(1e-6)
    assert [(s.seed, s.words) for s in found.streams] == [(1337 + r, 100_001 + r) for r in range(4)]


@pytest.mark.parametrize(
    ("tokens", "ranks", "seed", "words"),
    [
        (LARGE, 1, 1337, 0),
        (LARGE, 8, 1337, 777),
        (SMALL, 4, 1337, 1_000_000),
        (300_000_000, 2, 1337, 50_000),
        (LARGE, 2, 123, 60_000),
    ],
)
def test_ranks_are_found_by_reads_of_several_workers(
    tokens: int, ranks: int, seed: int, words: int
) -> None:
    """Some of which are missing, and some are there twice."""
    starts = drawn(tokens, ranks=ranks, count=48, seed=seed, words=words).T.ravel()
    rng = np.random.default_rng(words)
    seen = through_workers(range(len(starts)), workers=4, batch=4, rng=rng)
    found = found_for(starts[list(dict.fromkeys(seen))], tokens)
    assert found is not None and found.log_p < np.log(1e-6)
    assert {s.seed for s in found.streams} == {seed + rank for rank in range(ranks)}


def test_reads_in_any_order_some_missing_some_of_others() -> None:
    rng = np.random.default_rng(1)
    starts = drawn(LARGE, count=32).ravel()
    kept = rng.permutation(starts)[: int(0.9 * len(starts))]
    others = rng.integers(0, LARGE - BLOCK, 20)
    found = found_for(np.concatenate((kept, others)), LARGE)
    assert found is not None and {s.seed for s in found.streams} == {1337, 1338, 1339, 1340}


def test_a_seed_that_people_type_is_found_at_the_start_of_its_stream() -> None:
    found = found_for(drawn(LARGE, seed=42, words=17), LARGE)
    assert found is not None and {s.seed for s in found.streams} == {42, 43, 44, 45}


def test_later_ranks_alone_are_found_by_a_thorough_search() -> None:
    starts = drawn(LARGE)[2:]
    assert found_for(starts, LARGE) is None
    found = found_for(starts, LARGE, thorough=True)
    assert found is not None and {s.seed for s in found.streams} == {1339, 1340}


@pytest.mark.parametrize("tokens", [LARGE, SMALL])
def test_near_misses_are_none(tokens: int) -> None:
    """Places beside those of the stream, a file of another size, another block, other seeds."""
    rng = np.random.default_rng(2)
    starts = drawn(tokens)
    assert found_for(starts + 1, tokens) is None
    assert found_for(starts[:, ::9], tokens) is None  # never two draws in a row
    assert found_for(drawn(tokens + 2), tokens) is None
    assert found_for(drawn(tokens, seed=5_000_000), tokens, thorough=True) is None
    assert found_for(rng.integers(0, tokens - BLOCK, 64), tokens, thorough=True) is None


def test_how_many_draws_in_a_row_are_no_chance() -> None:
    """By the union over all that is tried; of a small file more are needed, or it cannot tell."""
    for span, starts in ((9 * 10**9, 64), (10**6, 64), (10**5, 1_024)):
        run = run_length(span, starts, 1e11)
        assert run is not None
        assert 1e11 * (starts / span) ** run < 1e-6
        assert run == windows.RUN_MIN or 1e11 * (starts / span) ** (run - 1) >= 1e-6
    assert run_length(2_000, 1_024, 1e11) is None
    assert run_length(100_000, 3, 1e11) is None  # fewer reads than are needed in a row


def test_the_course_goes_on_behind_what_was_read_during_the_search() -> None:
    early, more = drawn(LARGE, count=16), drawn(LARGE, count=220)
    found = found_for(early, LARGE)
    assert found is not None
    reads = (more[:, :200].T.ravel() * 2).tolist()
    course = window_course(found, LARGE - BLOCK, reads, len(reads), 2_050)
    assert course is not None
    offsets, lengths = course.take(80)
    assert offsets.tolist() == (more[:, 200:].T.ravel() * 2).tolist()
    assert set(lengths.tolist()) == {2_050}


def test_reads_that_the_streams_do_not_explain_have_no_course() -> None:
    found = found_for(drawn(LARGE, count=16), LARGE)
    assert found is not None
    rng = np.random.default_rng(3)
    reads = [*(drawn(LARGE, count=16).ravel() * 2).tolist(), *(rng.integers(0, 9**9, 200) * 2)]
    assert window_course(found, LARGE - BLOCK, reads, len(reads), 2_050) is None


def test_streams_that_were_followed_are_found_again_after_a_gap() -> None:
    """The first rank estimates losses: it draws what nobody sees, the others go on."""
    first = found_for(drawn(LARGE), LARGE)
    assert first is not None
    starts = np.concatenate(
        [
            nanogpt.windows(
                LARGE,
                block=BLOCK,
                count=16,
                rank=rank,
                words_before=100_001 + rank + 2_000 + (9_600 if rank == 0 else 0),
            )
            // 2
            for rank in range(4)
        ]
    )
    question = Windows(1, LARGE - BLOCK, starts, likely=first.streams)
    steps = list(search_windows(question))
    found = steps[-1]
    assert found is not None and len(steps) < 20
    words = [s.words for s in found.streams]
    assert words == [111_601, 102_002, 102_003, 102_004]


@pytest.mark.parametrize("tokens", [LARGE, SMALL])
def test_a_stream_goes_on_from_its_first_word(tokens: int) -> None:
    """And of one rank nobody looks for others, which takes 64 times as long."""
    starts = drawn(tokens, ranks=1, count=96, words=0)[0]
    steps = list(search_windows(Windows(1, tokens - BLOCK, starts[:64])))
    assert len(steps) == 1 and isinstance(steps[0], FoundWindows)
    (stream,) = steps[0].streams
    assert (stream.seed, stream.words) == (1337, 0)
    course = window_course(steps[0], tokens - BLOCK, (2 * starts[:64]).tolist(), 64, 2_050)
    assert course is not None
    assert course.take(32)[0].tolist() == (2 * starts[64:]).tolist()
