"""asyncio in virtual time, for several processes that can be stopped, continued and killed.

    a callback is ready ---> its process runs     ---> it is called
                             its process stopped  ---> it is kept until the process goes on
                             its process killed   ---> it is kept until `bury`
    nothing is ready ------> the time is that of the next timer

Whose a callback is says its context: what a process starts, and all that follows from it, carries
the process. A killed one therefore runs no line more, no `finally` either, as after kill -9; `bury`
ends its tasks when nobody looks any more (a coroutine that is collected in the middle would run
them at any time, and tells the log).

Callbacks run in the order in which they became ready, as asyncio promises; what varies with a seed
is when. There are no sockets and no threads: whoever waits for one waits for ever, and a loop with
nothing left to do says so.
"""

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Process:
    """What is stopped, continued and killed together.

    fuse: so many callbacks more are run until `on_fuse` is called, which kills it; None: no end.
    """

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.fuse: int | None = None
        self.on_fuse: Callable[[], None] = self.kill
        self._loop = loop
        self._held: deque[events.Handle] = deque()
        self._context = copy_context()
        self._context.run(_process.set, self)
        loop.processes.append(self)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this process; it never ends if the process is killed first."""
        return self._loop.create_task(work, context=self._context.copy())

    def stop(self) -> None:
        """SIGSTOP: what is ready waits; clocks and networks go on."""
        self.stopped = True

    def go_on(self) -> None:
        self.stopped = False
        self.release()

    def kill(self) -> None:
        self.alive = False

    def release(self) -> None:
        """Give what was kept back to the loop."""
        self._loop.ready(self._held)
        self._held.clear()

    def takes(self, handle: events.Handle) -> bool:
        """Whether the callback is to be run now; else it is kept."""
        if self.stopped or not self.alive:
            self._held.append(handle)
            return False
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                self.on_fuse()
                return self.takes(handle)
        return True


_process: ContextVar[Process | None] = ContextVar("process", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """Time starts at 0 and moves only when nothing is ready. `callbacks`: run so far."""

    _ready: deque[events.Handle]

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = 0
        self.processes: list[Process] = []
        self._now = 0.0
        # Tuples, which compare fast and let timers of one moment go in the order they were set.
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._numbers = itertools.count()
        self._burying = False

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]  # typeshed binds the arguments' types to the callback's
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def ready(self, handles: deque[events.Handle]) -> None:
        self._ready.extend(handles)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]  # refuses all
        raise RuntimeError(f"{func}: no threads in virtual time")

    def bury(self) -> None:
        """End every task, those of the dead too; what they do now, nobody looks at."""
        self._burying = True
        for process in self.processes:
            process.release()
        for _ in range(100):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.wait(tasks, timeout=60.0))
        self.run_until_complete(self.shutdown_asyncgens())
        self.close()

    def _run_once(self) -> None:
        """asyncio's own step, with the jump in time and the gate of the processes."""
        timers, ready = self._timers, self._ready
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]  # as BaseEventLoop does
            if not timers:
                raise RuntimeError(f"nothing is left to happen at {self._now:.3f} s")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            one = ready.popleft()
            if one._cancelled:
                continue
            process = one._context.get(_process)  # type: ignore[attr-defined]  # whose it is
            if process is None or self._burying or process.takes(one):
                self.callbacks += 1
                one._run()

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Cancelled timers leave when their time has come; a run is short."""

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""
