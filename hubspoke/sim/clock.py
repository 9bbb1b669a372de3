"""A clock of one machine: its own offset, and a rate that is not quite right."""

import asyncio

UNIX_NS = 1_700_000_000 * 10**9  # when every simulation begins


class DriftingClock:
    """ports.Clock over a loop's time. rate: its seconds per true second."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, offset_s: float = 0.0, rate: float = 1.0
    ) -> None:
        assert rate > 0, rate
        self.rate = rate
        self._loop = loop
        self._offset_s = offset_s
        self.unix_step_s = 0.0  # by how much somebody has set the Unix clock

    def now(self) -> float:
        return self._offset_s + self.rate * self._loop.time()

    def unix_ns(self) -> int:
        return UNIX_NS + int((self.unix_step_s + self.rate * self._loop.time()) * 1e9)
