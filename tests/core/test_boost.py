"""A stream that waited is fetched farther ahead, for as long as it has to be."""

from hubspoke.core.boost import PATIENCE_S, STEP, Boost

HIDE_S, MOST = 0.3, 8.0


def test_it_rises_with_waiting_once_a_round_trip_and_not_beyond_its_bound() -> None:
    boost = Boost()
    for i in range(10):
        boost.waited(i * HIDE_S / 10, HIDE_S, MOST)
    assert boost.factor == STEP
    for i in range(100):
        boost.waited(100 + i, HIDE_S, MOST)
    assert boost.factor == MOST


def test_it_falls_when_nothing_waits_and_later_if_it_had_to_rise_again() -> None:
    boost = Boost()
    boost.waited(0.0, HIDE_S, MOST)
    boost.calm(PATIENCE_S)
    assert boost.factor == STEP
    boost.calm(PATIENCE_S + 1)
    assert boost.factor == 1.0
    again = PATIENCE_S + 2
    boost.waited(again, HIDE_S, MOST)
    boost.calm(again + 2 * PATIENCE_S)
    assert boost.factor == STEP
    boost.calm(again + 2 * PATIENCE_S + 1)
    assert boost.factor == 1.0
