"""Keeps what was learned from outcomes beyond this process: read at the start, written at times.

Off the loop, in a thread of its own: a drive that hangs takes nothing but this. What is lost with
a kill is a minute's learning.
"""

import asyncio
import logging

from hubspoke.adapters.disk_threads import DiskThreads
from hubspoke.adapters.outcomes_file import OutcomesFile
from hubspoke.core.outcomes import Outcomes

log = logging.getLogger(__name__)

KEEP_S = 60.0
PATIENCE_S = 2.0  # at start and end, with a drive that is slow


class Remembered:
    """file None: nothing is kept."""

    def __init__(self, outcomes: Outcomes, file: OutcomesFile | None) -> None:
        self._outcomes = outcomes
        self._file = file
        self._thread = DiskThreads("outcomes", 1)

    async def recall(self, now: float) -> None:
        """Take in what the last process has learned, if it can be had soon."""
        if self._file is None:
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                self._outcomes.restore(await self._thread.submit(self._file.load), now)
        except TimeoutError:
            log.warning("outcomes not read: the drive of --state is slow")

    async def keep(self) -> None:
        """Write now and then, for ever."""
        while self._file is not None:
            await asyncio.sleep(KEEP_S)
            await self._write(self._file)

    async def close(self) -> None:
        """Write once more."""
        if self._file is not None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._write(self._file)
            except TimeoutError:
                log.warning("outcomes not written: the drive of --state is slow")
        await self._thread.close(0.0)

    async def _write(self, file: OutcomesFile) -> None:
        kept = self._outcomes.kept()
        try:
            await self._thread.submit(lambda: file.save(kept))
        except OSError as e:
            log.warning("outcomes not written path=%s error=%s", file.path, e)
