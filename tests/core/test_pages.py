"""The compact book of pages against the plain one: a byte a page."""

import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from hubspoke.core import page_codes as codes
from hubspoke.core.frames import Frames, StoredFrame
from hubspoke.core.page_forms import EMPTY, pack, repacked
from hubspoke.core.pages import PageMap

PAGES = 70_000  # in two groups of blocks
TABLES = [
    codes.TO_FLY,
    codes.TO_ARRIVE,
    codes.TO_FLY_PREFETCHED,
    codes.TO_ASK,
    codes.TO_DROP,
    codes.TO_QUEUE,
    codes.TO_FORGET_ASKED,
]
SETS = [
    codes.IS_ABSENT,
    codes.IS_PRESENT,
    codes.IS_ASKED,
    codes.IS_UNASKED,
    codes.IS_COMING,
    codes.IS_TO_COME,
]

starts = st.one_of(
    st.integers(0, 600), st.integers(65_000, 66_000), st.integers(PAGES - 300, PAGES - 1)
)
spans = st.tuples(starts, st.sampled_from([1, 2, 3, 17, 256, 600, 5_000]))


def plain_runs(plain: bytearray, first: int, last: int, members: bytes) -> list[tuple[int, int]]:
    pattern = re.compile(b"[" + re.escape(members) + b"]+")
    return [m.span() for m in pattern.finditer(plain, first, last)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(spans, st.sampled_from(TABLES)), max_size=25), st.lists(spans, max_size=8)
)
def test_every_question_has_the_answer_of_a_byte_a_page(
    changes: list[tuple[tuple[int, int], bytes]], asked: list[tuple[int, int]]
) -> None:
    pages, plain = PageMap(PAGES), bytearray(PAGES)
    for (first, n), table in changes:
        last = min(first + n, PAGES)
        pages.change(first, last, table)
        plain[first:last] = plain[first:last].translate(table)
    for first, n in [*asked, *(span for span, _ in changes)]:
        last = min(first + n, PAGES)
        assert pages[first] == plain[first] & codes.STATE
        for some in SETS:
            runs = plain_runs(plain, first, last, some.members)
            count = sum(b - a for a, b in runs)
            assert pages.runs(first, last, some) == runs
            assert pages.first_run(first, last, some) == (runs[0] if runs else None)
            assert pages.count(first, last, some) == count
            assert pages.any(first, last, some) == bool(runs)
            assert pages.all(first, last, some) == (count == last - first)
    pages.change_all(codes.TO_DROP)
    pages.change_all(codes.TO_FORGET_ASKED)
    assert all(not pages.any(a, min(a + n, PAGES), codes.IS_COMING) for a, n in asked)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([1, 2, 15, 16, 17, 256]),
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(1, 4), st.sampled_from(TABLES)), max_size=40
    ),
)
def test_a_few_pages_are_changed_in_the_short_form_as_in_the_full_one(
    n: int, changes: list[tuple[int, int, bytes]]
) -> None:
    short, plain, pages = b"", bytearray(256), PageMap(n)
    for at, count, table in changes:
        first, last = at % n, min(at % n + count, n)
        before, plain[first:last] = bytes(plain), plain[first:last].translate(table)
        changed = pages.change(first, last, table)
        assert changed == (plain != before)
        packed = pack(bytes(plain), n)
        if len(short) < 256:
            assert repacked(short, first, last, table, n) == (packed if changed else None)
        short = b"" if packed is EMPTY else packed
        for some in SETS:
            runs = plain_runs(plain, first, last, some.members)
            assert pages.runs(first, last, some) == runs
            assert pages.first_run(first, last, some) == (runs[0] if runs else None)
            assert pages.any(first, last, some) == bool(runs)
            assert not pages.any(first, first, some)


def test_an_object_of_any_size_costs_nothing_until_pages_come() -> None:
    pages = PageMap(1 << 40)
    assert list(pages.blocks()) == []
    assert pages.runs(0, 1 << 28, codes.IS_ABSENT) == [(0, 1 << 28)]
    assert pages.all(1 << 39, (1 << 39) + 1, codes.IS_ABSENT)
    pages.change(1 << 39, (1 << 39) + 2, codes.TO_FLY)
    assert list(pages.blocks()) == [1 << 31]
    pages.change(1 << 39, (1 << 39) + 2, codes.TO_DROP)
    assert list(pages.blocks()) == []


def test_a_mark_keeps_a_block_in_the_book_until_it_is_taken_away() -> None:
    pages = PageMap(2_000)
    pages.change(300, 301, codes.TO_FLY)
    pages.set_mark(1, 9)
    pages.change(300, 301, codes.TO_DROP)
    assert (list(pages.blocks()), pages.mark(1), pages.mark(2)) == ([1], 9, 0)
    pages.set_mark(1, 0)
    pages.set_mark(2, 0)
    assert list(pages.blocks()) == []


def test_frames_give_back_what_was_put_in() -> None:
    rng = random.Random(0)
    size = 10_000 * 4096 - 5
    frames = [StoredFrame(p * 4096, 8192, rng.getrandbits(64)) for p in range(0, 9_000, 3)]
    frames.append(StoredFrame(9_999 * 4096, 4091, 7))
    packed = Frames.of(size, rng.sample(frames, len(frames)))
    assert list(packed) == frames and len(packed.packed) == 13 * len(frames)
    assert packed.covering(0, 4) == frames[:2]
    assert packed.covering(2, 3) == []
    assert packed.covering(4, 5) == [frames[1]]
    assert packed.covering(9_500, 10_000) == [frames[-1]]
    assert Frames(size).covering(0, 10) == []


def test_a_later_frame_replaces_those_that_it_overlaps() -> None:
    old = [StoredFrame(0, 4096, 1), StoredFrame(4096, 8192, 2), StoredFrame(16384, 4096, 3)]
    new = [StoredFrame(8192, 8192, 4), StoredFrame(0, 4096, 5)]
    assert list(Frames.of(1 << 20, old + new)) == [new[1], new[0], old[2]]
    wide = StoredFrame(0, 32768, 6)
    assert list(Frames.of(1 << 20, [*old, wide])) == [wide]
    assert list(Frames.of(1 << 20, [wide, *old])) == old
