"""Virtual time: a heap of what is to happen.

Nothing here waits: an event is a call at a time, events of one time happen in the order in which
they were asked for, so a run depends on its inputs alone.
"""

import heapq
from collections.abc import Callable
from typing import Any


class Engine:
    """`at` asks for a call, `run` makes all of them. Times are seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        self._asked += 1
        heapq.heappush(self._events, (when, self._asked, call, args))

    def run(self) -> None:
        """Until nothing is left to happen."""
        events, pop = self._events, heapq.heappop
        while events:
            self.now, _, call, args = pop(events)
            self.happened += 1
            call(*args)
