"""When the predictor looks at the reads that came: soon, but not for each, and at what was begun
together as one. It decides nothing else."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hubspoke.ports import Clock

TOGETHER_S = 0.1  # a thousand ranges are begun in less


class Predicting:
    """Touched only on the loop."""

    def __init__(self, predict: Callable[[float], None], clock: Clock, interval_s: float) -> None:
        """predict: is told the time. interval_s: between two calls, at least."""
        self._predict = predict
        self._clock = clock
        self._interval_s = interval_s
        self._at: asyncio.TimerHandle | None = None
        self._last = float("-inf")
        self._together = 0
        self._since = 0.0  # when the first of what is begun together was

    def soon(self, now: float) -> None:
        """There is something to look at since `now`."""
        if self._at is None:
            due = self._last + self._interval_s
            due = max(due, self._since + TOGETHER_S) if self._together else due
            self._at = asyncio.get_running_loop().call_later(max(0.0, due - now), self._look)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Reads that are begun inside are looked at as one, whatever turns of the loop they take:
        of a batch that says all that is wanted, a part looks like the beginning of more. Others'
        reads wait with them, so for at most TOGETHER_S: names of a batch may be asked of the hub.
        """
        now = self._clock.now()
        self._since = self._since if self._together else now
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
            if not self._together:
                self.close()
                self.soon(self._clock.now())

    def _look(self) -> None:
        self._at = None
        now = self._clock.now()
        if self._together and now < self._since + TOGETHER_S:
            self.soon(now)
            return
        self._last = now
        self._predict(now)

    def close(self) -> None:
        """Nothing is looked at any more."""
        if self._at is not None:
            self._at.cancel()
            self._at = None
