"""When the predictor looks at the reads that came: soon, but not for each, and at what was begun
together as one. It decides nothing else."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hubspoke.ports import Clock


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

    def soon(self, now: float) -> None:
        """There is something to look at since `now`."""
        if self._at is None and not self._together:
            delay = max(0.0, self._last + self._interval_s - now)
            self._at = asyncio.get_running_loop().call_later(delay, self._look)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Reads that are begun inside are looked at as one, whatever turns of the loop they take:
        of a batch that says all that is wanted, a part looks like the beginning of more."""
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
            self.soon(self._clock.now())

    def _look(self) -> None:
        self._at = None
        if not self._together:
            self._last = self._clock.now()
            self._predict(self._last)

    def close(self) -> None:
        """Nothing is looked at any more."""
        if self._at is not None:
            self._at.cancel()
