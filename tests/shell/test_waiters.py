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
    waiters.wake(1, [(0, 2)], lambda _a, b: b <= 2, 0.0)
    await asyncio.sleep(0)
    assert not task.done()
    waiters.wake(1, [(2, 4)], lambda _a, _b: True, 0.0)
    await task


async def test_no_wait_is_without_a_deadline() -> None:
    waiters = Waiters()
    task = await waiting(waiters, Need(1, 0, 4), timeout_s=0.01)
    with pytest.raises(DeadlineExceeded, match=r"pages 0\.\.4"):
        await task


async def test_a_reader_of_several_blocks_is_found_by_pages_of_each() -> None:
    waiters = Waiters()
    need = Need(1, 250, 520)  # of three blocks
    for first, last in ((250, 251), (300, 301), (519, 520)):
        task = await waiting(waiters, need)
        assert waiters.needed(1, first, last) and waiters.hurried(1, first, last)
        assert not waiters.needed(2, first, last)
        waiters.wake(1, [(first, last)], lambda _a, _b: True, 0.0)
        await task
        waiters.remove(need)
        assert not waiters.needed(1, first, last)


async def test_pages_beside_it_in_its_block_do_not_concern_a_reader() -> None:
    waiters = Waiters()
    need = Need(1, 10, 12)
    task = await waiting(waiters, need)
    waiters.fail(1, 12, 256, DeadlineExceeded("others"))
    waiters.look_again(1, 0, 10)
    waiters.wake(1, [(0, 10)], lambda _a, _b: True, 0.0)
    waiters.hand(1, 12 * 4096, b"x" * 4096)
    assert not task.done() and not waiters.needed(1, 12, 256) and need.held == []
    waiters.fail(1, 11, 12, DeadlineExceeded("its own"))
    with pytest.raises(DeadlineExceeded, match="its own"):
        await task
