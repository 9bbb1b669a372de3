"""Does one thing for many items, a bounded number at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def each(
    items: Iterable[T | None], work: Callable[[T], Awaitable[None]], together: int
) -> None:
    """Await `work` for each item, `together` at most. The items are taken as there is room; None
    among them is a turn for the rest of the loop. The first error ends it, with all work."""
    running: set[asyncio.Task[None]] = set()
    try:
        for item in items:
            if item is None:
                await asyncio.sleep(0)
                continue
            running.add(asyncio.create_task(_do(work, item)))
            if len(running) >= together:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        if running:
            await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def _do(work: Callable[[T], Awaitable[None]], item: T) -> None:
    await work(item)
