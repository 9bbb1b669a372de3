"""When the predictor looks at the reads that came: soon, but not for each. It decides nothing
else."""

import asyncio
from collections.abc import Callable

from hubspoke.ports import Clock

# A look that takes long is followed by a pause of so many times as long, up to so many intervals:
# what it costs beside the accesses themselves is the same for one and for a hundred. Under a scan
# of 450 MB/s looks were 19 % of the loop at 2 ms, and 10 % at 10 ms; what is hidden is tens of ms.
PAUSE_OF_LOOK, PAUSE_INTERVALS = 20, 5


def until_next(took_s: float, interval_s: float) -> float:
    """Seconds from the beginning of a look to the next one's, at least."""
    return min(max(interval_s, PAUSE_OF_LOOK * took_s), PAUSE_INTERVALS * interval_s)


class Predicting:
    """Touched only on the loop."""

    def __init__(self, predict: Callable[[float], None], clock: Clock, interval_s: float) -> None:
        """predict: is told the time. interval_s: between two calls, at least."""
        self._predict = predict
        self._clock = clock
        self._interval_s = interval_s
        self._at: asyncio.TimerHandle | None = None
        self._due = float("-inf")

    def soon(self, now: float) -> None:
        """There is something to look at since `now`."""
        if self._at is None:
            delay_s = max(0.0, self._due - now)
            self._at = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._at = None
        now = self._clock.now()
        self._predict(now)
        self._due = now + until_next(self._clock.now() - now, self._interval_s)

    def close(self) -> None:
        """Nothing is looked at any more."""
        if self._at is not None:
            self._at.cancel()
            self._at = None
