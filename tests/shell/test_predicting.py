"""When the predictor looks at what was read."""

import asyncio

import pytest

from hubspoke.adapters.clock import BootClock
from hubspoke.spoke.predicting import Predicting, until_next


async def test_reads_of_one_turn_are_looked_at_once() -> None:
    clock, looks, looked = BootClock(), list[float](), asyncio.Event()

    def predict(now: float) -> None:
        looks.append(now)
        looked.set()

    predicting = Predicting(predict, clock, 0.0)
    for _ in range(2):
        for _ in range(5):
            predicting.soon(clock.now())
        async with asyncio.timeout(10):
            await looked.wait()
        looked.clear()
    assert len(looks) == 2
    predicting.soon(clock.now())
    predicting.close()
    await asyncio.sleep(0)
    assert len(looks) == 2


def test_a_look_that_takes_long_is_followed_by_a_pause() -> None:
    """Not by none, and not by one in which a scan would run dry."""
    assert until_next(0.0, 0.002) == 0.002
    assert until_next(0.0002, 0.002) == pytest.approx(0.004)
    assert until_next(1.0, 0.002) == 0.010
