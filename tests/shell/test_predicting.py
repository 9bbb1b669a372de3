"""When the predictor looks at what was read."""

import asyncio

from hubspoke.adapters.clock import BootClock
from hubspoke.spoke.predicting import Predicting


async def test_reads_that_are_begun_together_are_looked_at_once() -> None:
    clock, looks, looked = BootClock(), list[float](), asyncio.Event()

    def predict(now: float) -> None:
        looks.append(now)
        looked.set()

    predicting = Predicting(predict, clock, 0.0)
    predicting.soon(clock.now())  # of a read before
    with predicting.together():
        for _ in range(5):
            predicting.soon(clock.now())
            await asyncio.sleep(0)
        assert not looks
        with predicting.together():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not looks, "another batch has ended, and this one not"
    async with asyncio.timeout(10):
        await looked.wait()
    assert len(looks) == 1
    looked.clear()
    predicting.soon(clock.now())
    async with asyncio.timeout(10):
        await looked.wait()
    predicting.soon(clock.now())
    predicting.close()
    await asyncio.sleep(0)
    assert len(looks) == 2


async def test_a_batch_that_takes_long_to_begin_holds_nobody_up() -> None:
    """Its names may have to be asked of a hub that does not answer."""
    clock, looked = BootClock(), asyncio.Event()
    predicting = Predicting(lambda _: looked.set(), clock, 0.0)
    predicting.soon(clock.now())
    with predicting.together():
        predicting.soon(clock.now())
        async with asyncio.timeout(10):
            await looked.wait()
        looked.clear()
        predicting.soon(clock.now())
        async with asyncio.timeout(10):
            await looked.wait()
    predicting.close()
