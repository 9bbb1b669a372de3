"""Waiting for a share of the memory budget, each with a deadline.

In the order of asking, but who is over its own share is passed over: a slow reader waits for
itself, not the others for it.
"""

import asyncio

from hubspoke.core.budget import FairBudget
from hubspoke.errors import Overloaded


class Memory:
    """core.budget.FairBudget with a queue; touched only on the loop."""

    def __init__(self, budget: FairBudget) -> None:
        self.budget = budget
        self._queue: list[tuple[str, int, asyncio.Future[None]]] = []

    def try_take(self, handle: str, bytes_: int) -> bool:
        """Take the bytes if they fit now and nobody waits for them."""
        if self._queue or not self.budget.fits(handle, bytes_):
            return False
        self.budget.take(handle, bytes_)
        return True

    async def take(self, handle: str, bytes_: int, timeout_s: float) -> None:
        """Take the bytes when they fit. Raises Overloaded when the time is up."""
        if self.try_take(handle, bytes_):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (handle, bytes_, future)
        self._queue.append(entry)
        self._grant()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except BaseException as e:
            if entry in self._queue:
                self._queue.remove(entry)
            elif future.done() and not future.cancelled():
                self.give(handle, bytes_)  # granted, but nobody is there any more
            if isinstance(e, TimeoutError):
                raise Overloaded(
                    f"{bytes_} bytes of memory for {handle} not free after {timeout_s:.1f} s"
                ) from e
            raise

    def give(self, handle: str, bytes_: int) -> None:
        """Give bytes back; 0 is allowed."""
        if bytes_:
            self.budget.give(handle, bytes_)
            self._grant()

    def _grant(self) -> None:
        for entry in list(self._queue):
            handle, bytes_, future = entry
            if self.budget.fits(handle, bytes_):
                self._queue.remove(entry)
                if not future.done():
                    self.budget.take(handle, bytes_)
                    future.set_result(None)
