"""When the predictor looks at what was read."""

import asyncio

from hubspoke.adapters.clock import BootClock
from hubspoke.spoke.predicting import Predicting


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
