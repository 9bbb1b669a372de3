"""Readers that wait for pages, each on a future of its own.

A reader that is cancelled takes only its own future with it. Nothing waits without a deadline.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from hubspoke.core.ids import ObjectName
from hubspoke.errors import DeadlineExceeded, HubSpokeError


@dataclass(slots=True, eq=False)
class Waiter:
    number: int  # the object's
    first: int
    last: int
    future: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Waiters:
    """By object number; names that wait for a change are kept apart."""

    def __init__(self) -> None:
        self._pages: dict[int, list[Waiter]] = {}
        self._names: dict[ObjectName, list[asyncio.Future[None]]] = {}

    def add(self, number: int, first: int, last: int) -> Waiter:
        """Register before the pages are asked for, so that no arrival is missed."""
        waiter = Waiter(number, first, last)
        self._pages.setdefault(number, []).append(waiter)
        return waiter

    async def wait(self, waiter: Waiter, timeout_s: float, name: ObjectName) -> None:
        """Until all pages are there; raises what failed them, or DeadlineExceeded."""
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.future
        except TimeoutError as e:
            raise DeadlineExceeded(
                f"{name}: pages {waiter.first}..{waiter.last} not there after {timeout_s:.1f} s"
            ) from e
        finally:
            self._remove(waiter)

    def _remove(self, waiter: Waiter) -> None:
        waiters = self._pages.get(waiter.number)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._pages[waiter.number]

    def wake(self, number: int, readable: Callable[[int, int], bool]) -> None:
        """Pages of the object have arrived."""
        for w in self._pages.get(number, ()):
            if not w.future.done() and readable(w.first, w.last):
                w.future.set_result(None)

    def fail(self, number: int, first: int, last: int, error: HubSpokeError) -> None:
        """Pages [first, last) will not come."""
        for w in self._pages.get(number, ()):
            if not w.future.done() and w.first < last and first < w.last:
                w.future.set_exception(error)

    def fail_all(self, error: HubSpokeError) -> None:
        for waiters in self._pages.values():
            for w in waiters:
                if not w.future.done():
                    w.future.set_exception(error)

    async def next_change(self, name: ObjectName, timeout_s: float) -> None:
        """Until the replica applies a change of the name, or the time is up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._names.setdefault(name, []).append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return
        finally:
            futures = self._names.get(name, [])
            if future in futures:
                futures.remove(future)
            if not futures:
                self._names.pop(name, None)

    def name_changed(self, name: ObjectName) -> None:
        for future in self._names.get(name, ()):
            if not future.done():
                future.set_result(None)
