"""A few threads for one folder's calls, that a hung disk cannot take from anybody else.

The threads are daemons: a call that never returns keeps its thread, not the process. Nobody's
work is queued behind threads that all hang.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
Job = Callable[[], None]


class DiskThreads:
    """Runs calls in the order of asking; all methods belong to the loop."""

    def __init__(self, name: str, threads: int) -> None:
        self.pending = 0  # asked for and not ended, hung ones included
        self._name = name
        self._most = threads
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in a thread; its result or exception comes on the loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(_look)
        self.pending += 1

        def ended(result: T | None, error: Exception | None) -> None:
            self.pending -= 1
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # None only where T is None

        def job() -> None:
            result: T | None = None
            error: Exception | None = None
            try:
                result = work()
            except Exception as e:
                error = e
            with suppress(RuntimeError):  # the loop has ended before the call has
                loop.call_soon_threadsafe(ended, result, error)

        if len(self._threads) < min(self._most, self.pending):
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(job)
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    async def close(self, timeout_s: float) -> bool:
        """End the threads when they have done what was asked; False if a call hangs on."""
        for _ in self._threads:
            self._jobs.put(None)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while any(t.is_alive() for t in self._threads):
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(0.005)
        return True


def _look(future: "asyncio.Future[T]") -> None:
    """Whoever waited may have given up: then nobody else looks at the exception."""
    if not future.cancelled():
        future.exception()
