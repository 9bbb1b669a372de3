"""Pieces that are read in a row: where they end, and what is left of one that has begun."""

import random

import pytest

from hubspoke.core.accesses import PieceOf
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.generators.runs import OBJECTS_MAX, Runs
from hubspoke.core.ids import ReadState
from hubspoke.core.streams import Access
from tests.core.test_streams import an_object

KIB = 1 << 10
OBJ = an_object(1 << 30)


def read(runs: Runs, start: int, length: int, step: int, client: str = "c") -> list[Candidate]:
    """One piece, read by read."""
    found = []
    for offset in range(start, start + length, step):
        found += runs.observe([Access(OBJ, offset, step, client, 0.0, ReadState.MISS)])
    return found


def test_of_pieces_that_are_alike_the_first_read_says_all() -> None:
    runs = Runs()
    for i in range(4):
        assert read(runs, (5 - i) << 24, 112 * KIB, 4 * KIB) == [], "too few to say"
    (rest,) = read(runs, 7 << 24, 112 * KIB, 4 * KIB)
    assert (rest.offset, rest.length) == ((7 << 24) + 4 * KIB, 108 * KIB)


def test_of_pieces_that_differ_as_much_as_half_of_the_longer_ones_went() -> None:
    runs = Runs()
    for i, length in enumerate((64, 64, 64, 256, 256, 256, 64)):
        read(runs, (40 - i) << 24, length * KIB, 4 * KIB)
    found = read(runs, 0, 256 * KIB, 4 * KIB)
    ends = [c.offset + c.length for c in found]
    assert ends == [64 * KIB], "three of seven go on, which is less than half"


@pytest.mark.parametrize("piece", [1, 2])
def test_single_reads_and_pairs_say_nothing(piece: int) -> None:
    runs, rng = Runs(), random.Random(1)
    for _ in range(50):
        at = rng.randrange(0, 1 << 30, 1 << 20)
        assert read(runs, at, piece * 4 * KIB, 4 * KIB) == []


def test_reads_of_nothing_and_of_what_is_gone_are_no_reads() -> None:
    runs = Runs()
    for i in range(20):
        at = (40 - i) << 24
        read(runs, at, 8 * KIB, 4 * KIB)
        for _ in range(3):
            runs.observe([Access(OBJ, at + 8 * KIB, 0, "c", 0.0, ReadState.HIT)])
    assert read(runs, 0, 4 * KIB, 4 * KIB) == []
    gone = an_object(1 << 30)
    gone.dead = True
    runs = Runs()
    for i in range(20):
        for offset in range(i << 20, (i << 20) + 32 * KIB, 4 * KIB):
            assert runs.observe([Access(gone, offset, 4 * KIB, "c", 0.0, ReadState.HIT)]) == []


def test_a_scan_has_no_end_to_be_known() -> None:
    runs = Runs()
    assert read(runs, 0, 8 << 20, 64 * KIB) == []


def test_pieces_of_a_long_read_are_no_run_of_reads() -> None:
    runs = Runs()
    for i in range(20):
        assert read(runs, (40 - i) << 24, 1 << 20, 256 * KIB, PieceOf("c")) == []


def test_clients_are_told_apart_and_objects_are_bounded() -> None:
    runs = Runs()
    ends: list[int] = []
    for i in range(40):
        ends = []
        for place in range(4):
            for client, half in (("a", 0), ("b", 8 << 20)):
                at = (i << 24) + place * 4 * KIB + half
                a = Access(OBJ, at, 4 * KIB, client, 0.0, ReadState.HIT)
                ends += [c.offset + c.length for c in runs.observe([a])]
    assert ends == [(39 << 24) + 16 * KIB, (39 << 24) + (8 << 20) + 16 * KIB]
    for number in range(2, 2 * OBJECTS_MAX):
        other = an_object(1 << 20, number)
        runs.observe([Access(other, 0, 4 * KIB, "a", 0.0, ReadState.HIT)])
    assert read(runs, 0, 4 * KIB, 4 * KIB) == [], "forgotten"
