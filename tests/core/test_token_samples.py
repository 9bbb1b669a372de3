"""Megatron's samples: bytes by the cached arrays and by the recipe, and where a job is in them."""

from collections.abc import Generator
from dataclasses import replace
from functools import cache
from typing import TypeVar

import numpy as np
import pytest

from hubspoke.core.inference import documents
from hubspoke.core.inference.documents import Documents, FoundSamples, index_of, search_documents
from hubspoke.core.orders import megatron
from hubspoke.core.tokens.samples import Located, SampleCourse, Samples, locate, samples_of
from tests.core.loader_reads import through_workers

T = TypeVar("T")
DOCUMENTS, SEQUENCE = 6_000, 512
PASSES = [(1, False), (2, True), (2, False)]


@cache
def index() -> megatron.Index:
    rng = np.random.default_rng(3)
    lengths = np.maximum(0, rng.lognormal(5.0, 1.0, DOCUMENTS) - 5).astype(np.int32)
    assert (lengths == 0).any()
    return index_of(2, lengths)


@cache
def order(
    passes: int = 1, separate: bool = False, seed: int = 1234, sequence: int = SEQUENCE
) -> tuple[megatron.Line, Samples]:
    line = megatron.line(
        index().lengths, sequence=sequence, seed=seed, epochs=passes, separate_last=separate
    )
    return line, samples_of(index(), line)


PAGES = -(-int(index().lengths.sum()) * 2 // 4_096)


def reads_of(samples: Samples, first: int, last: int) -> list[tuple[int, int]]:
    _, offsets, lengths = samples.reads(first, last)
    return list(zip(offsets.tolist(), lengths.tolist(), strict=True))


def ended(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


@pytest.mark.parametrize(("passes", "separate"), PASSES)
def test_the_arrays_say_what_the_recipe_says(passes: int, separate: bool) -> None:
    line, samples = order(passes, separate)
    assert samples.valid(PAGES * 4_096)
    for one, other in zip(
        megatron.reads(index(), line, range(samples.count)),
        samples.reads(0, samples.count),
        strict=True,
    ):
        assert np.array_equal(one, other)


def test_arrays_that_leave_the_file_are_refused() -> None:
    _, samples = order()
    size = PAGES * 4_096
    documents, starts, shuffled = samples.documents, samples.starts, samples.order
    assert not samples.valid(1_000)
    assert not replace(samples, documents=documents + DOCUMENTS).valid(size)
    assert not replace(samples, documents=documents - DOCUMENTS).valid(size)
    assert not replace(samples, starts=starts[::-1]).valid(size)
    assert not replace(samples, starts=starts[:, 0]).valid(size)
    assert not replace(samples, order=shuffled + 1).valid(size)
    assert not replace(samples, order=shuffled[:0]).valid(size)
    assert not replace(samples, index=megatron.Index(8, *index()[1:])).valid(size)


@pytest.mark.parametrize("place", [0, 700, 1_500])
@pytest.mark.parametrize("paged", [False, True])
def test_reads_are_located_in_whatever_order_they_come(place: int, paged: bool) -> None:
    _, samples = order()
    reads = reads_of(samples, place, place + 48)
    np.random.default_rng(1).shuffle(reads)
    if paged:
        reads = [(o // 4_096 * 4_096, 4_096) for o, _ in reads]
    found = ended(locate(samples, reads[:256], PAGES))
    assert found is not None and found.log_p < np.log(1e-6)
    assert place - 48 <= found.place <= place + 8


def not_located(samples: Samples, reads: list[tuple[int, int]]) -> bool:
    found: Located | None = ended(locate(samples, reads, PAGES))
    return found is None


def test_near_misses_are_not_located() -> None:
    _, samples = order()
    rng = np.random.default_rng(2)
    for other in (order(seed=1235)[1], order(2, True)[1], order(sequence=500)[1]):
        reads = reads_of(other, 300, 348)
        rng.shuffle(reads)
        assert not_located(samples, reads[:256])
    # Half of the reads are its own, half are somewhere.
    half = [*reads_of(samples, 300, 348)[:128], *((int(o), 8) for o in rng.integers(0, 10**6, 128))]
    assert not_located(samples, half)
    # The right samples from all over the order.
    everywhere = [reads_of(samples, int(n), int(n) + 1)[0] for n in rng.integers(0, 1_600, 128)]
    assert not_located(samples, everywhere)


def test_a_course_goes_through_all_places_once_and_ends() -> None:
    _, samples = order()
    course, found = SampleCourse(samples, 1_000), list[tuple[int, int]]()
    while True:
        offsets, lengths = course.take(4_096)
        if not len(offsets):
            break
        found += zip(offsets.tolist(), lengths.tolist(), strict=True)
    assert found == reads_of(samples, 1_000, samples.count)
    assert course.mark() == ()


def asked(
    samples: Samples, *, thorough: bool = False, reads: list[tuple[int, int]] | None = None
) -> FoundSamples | None:
    rows = np.array((reads or reads_of(samples, 40, 80))[:256], np.int64)
    question = Documents(1, 2, index().lengths, rows[:, 0], rows[:, 1], PAGES, thorough)
    answers = [a for a in search_documents(question) if a is not None]
    assert len(answers) <= 1
    return answers[0] if answers else None


@pytest.mark.parametrize(("passes", "separate"), PASSES)
def test_hidden_arrays_come_out_of_the_default_seed(passes: int, separate: bool) -> None:
    _, samples = order(passes, separate)
    found = asked(samples)
    assert found is not None
    assert found.why.startswith(f"seed 1234, {SEQUENCE} tokens a sample, {passes} passes")
    assert np.array_equal(found.documents, samples.documents)
    assert np.array_equal(found.starts, samples.starts)
    assert np.array_equal(found.order, samples.order)


@pytest.mark.parametrize(
    ("seed", "sequence", "passes", "separate", "workers"),
    [
        (1234, 512, 1, False, 8),
        (1234, 1_024, 2, True, 4),
        (1234, 512, 2, False, 4),
        (42, 1_024, 1, False, 4),
        (1, 2_048, 1, False, 2),
        # Of so many tokens a stretch of samples has most pages of the file, but not most cuts.
        (1234, 4_096, 1, False, 8),
        (1234, 2_048, 2, False, 8),
    ],
)
def test_hidden_arrays_are_found_by_reads_of_several_workers(
    seed: int, sequence: int, passes: int, separate: bool, workers: int
) -> None:
    """Some of which are missing, and some are there twice."""
    _, samples = order(passes, separate, seed, sequence)
    rows = reads_of(samples, 40, 140)
    seen = through_workers(
        range(len(rows)), workers=workers, batch=8, rng=np.random.default_rng(seed)
    )
    found = asked(samples, reads=[rows[i] for i in seen], thorough=seed != 1234)
    assert found is not None and found.why.startswith(f"seed {seed}, {sequence} tokens a sample")
    assert np.array_equal(found.order, samples.order)


def test_a_training_split_is_found() -> None:
    count = round(0.969 * DOCUMENTS)
    line = megatron.line(index().lengths, sequence=1_024, documents=range(count))
    found = asked(samples_of(index(), line))
    assert found is not None and "1024 tokens" in found.why and "split 0.969" in found.why


def test_a_seed_that_nobody_types_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "SEEDS", (1234, 42))
    assert asked(order(seed=77_777)[1]) is None
    assert asked(order(seed=77_777)[1], thorough=True) is None
    found = asked(order(seed=42, sequence=1_024)[1], thorough=True)
    assert found is not None and found.why.startswith("seed 42,")
