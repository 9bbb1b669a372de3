"""Who is woken by what, of readers that wait for pages."""

import asyncio

import pytest

from hubspoke.core.ids import ObjectName
from hubspoke.errors import DeadlineExceeded
from hubspoke.spoke.waiters import Need, Waiters

NAME = ObjectName("b", "k")


async def waiting(waiters: Waiters, need: Need, timeout_s: float = 5.0) -> asyncio.Task[None]:
    waiters.add(need)
    task = asyncio.create_task(waiters.wait(need, timeout_s, NAME))
    await asyncio.sleep(0)
    return task


async def test_a_reader_looks_again_when_pages_it_counted_on_are_lost() -> None:
    waiters = Waiters()
    beside, apart = Need(1, 0, 4), Need(1, 4, 8)
    first, second = await waiting(waiters, beside), await waiting(waiters, apart)
    waiters.look_again(1, 0, 2)
    await first
    assert not second.done()
    second.cancel()


async def test_pages_that_arrive_wake_only_whom_they_satisfy() -> None:
    waiters = Waiters()
    need = Need(1, 0, 4)
    task = await waiting(waiters, need)
    waiters.wake(1, lambda _a, b: b <= 2)
    await asyncio.sleep(0)
    assert not task.done()
    waiters.wake(1, lambda _a, _b: True)
    await task


async def test_no_wait_is_without_a_deadline() -> None:
    waiters = Waiters()
    task = await waiting(waiters, Need(1, 0, 4), timeout_s=0.01)
    with pytest.raises(DeadlineExceeded, match=r"pages 0\.\.4"):
        await task
