"""When the predictor looks at the reads that came: soon, but not for each. It decides nothing
else."""

import asyncio
from collections.abc import Callable

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

    def soon(self, now: float) -> None:
        """There is something to look at since `now`."""
        if self._at is None:
            due = self._last + self._interval_s
            self._at = asyncio.get_running_loop().call_later(max(0.0, due - now), self._look)

    def _look(self) -> None:
        self._at = None
        now = self._clock.now()
        self._last = now
        self._predict(now)

    def close(self) -> None:
        """Nothing is looked at any more."""
        if self._at is not None:
            self._at.cancel()
            self._at = None
