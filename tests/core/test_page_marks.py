"""Page marks against a set of pages."""

import random

import pytest

from hubspoke.core.page_marks import PAGES_MAX, PAGES_MIN, PageMarks


@pytest.mark.parametrize("seed", range(6))
def test_what_is_known_is_what_was_read(seed: int) -> None:
    rng = random.Random(seed)
    pages = 40_000
    start = rng.randrange(pages // 2)
    marks, read, top, lost = PageMarks(start, pages), set[int](), start, 0
    for _ in range(600):
        match rng.randrange(40):
            case 0 if not marks.full_size:
                lost = max(lost, top - len(marks))
                marks.grow()
            case 1:
                top = max(top - rng.randrange(300), 1)
                marks.lower(top)
                read = {p for p in read if p < top}
            case _:
                first = max(0, min(top + rng.randrange(-600, 200), pages - 64))
                last = first + rng.choice((1, 1, 2, 40))
                marks.mark(first, last)
                floor = max(lost, max(top, last) - len(marks))
                top = max(top, last)
                read |= {p for p in range(first, last) if p >= floor}
        floor = max(lost, top - len(marks), 0)
        assert (marks.top, marks.floor) == (top, floor)
        read = {p for p in read if p >= floor}
        a = rng.randrange(max(0, floor - 50), top + 1)
        b = rng.randrange(a, top + 20)
        low = max(a, floor)
        known = sum(p in read for p in range(low, b))
        assert marks.share(a, b) == (known / (b - low) if low < b else 0.0)
        assert marks.all(a, b) == (a >= floor and b <= top and known == b - a)
        hole = next((p for p in range(low, top) if p not in read), max(low, top))
        assert marks.first_unread(a) == hole


def test_marks_begin_small_and_end_bounded() -> None:
    marks = PageMarks(0, 1 << 24)
    assert len(marks) == PAGES_MIN
    while not marks.full_size:
        marks.grow()
    assert len(marks) == PAGES_MAX
    assert len(PageMarks(0, 3)) == 3
