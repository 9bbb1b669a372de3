"""Answers that take time: a task for each request that waits, within bounds.

Never: leave a request without an answer. One that is given up by its asker ends with EINTR, one
that takes longer than any deadline, or fails in a way that nobody expected, with EIO.
"""

import asyncio
import errno
import logging
from collections.abc import Coroutine

from hubspoke.errors import HubSpokeError
from hubspoke.frontends.fuse.channel import Channel
from hubspoke.frontends.fuse.errors import errno_of
from hubspoke.frontends.fuse.tuning import FuseTuning

log = logging.getLogger(__name__)


class Answers:
    """What handlers answer by; over the channel of one mount."""

    def __init__(self, channel: Channel, tuning: FuseTuning) -> None:
        self.now = channel.answer
        self.bytes = channel.answer_bytes
        self.refuse = channel.refuse
        self._channel = channel
        self._tuning = tuning
        self._waiting: dict[int, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def later(self, unique: int, work: Coroutine[None, None, None]) -> None:
        """Let `work` answer; what it raises is answered for it."""
        task = asyncio.get_running_loop().create_task(self._run(unique, work))
        self._waiting[unique] = task
        task.add_done_callback(lambda _: self._ended(unique))
        if len(self._waiting) >= self._tuning.waiting_max:
            self._channel.pause()

    def give_up(self, unique: int) -> None:
        """The asker was interrupted. What it waited for goes on for others."""
        if (task := self._waiting.get(unique)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Answer all that waits with EINTR."""
        tasks = list(self._waiting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, unique: int) -> None:
        self._waiting.pop(unique, None)
        if len(self._waiting) < self._tuning.waiting_max:
            self._channel.start()

    async def _run(self, unique: int, work: Coroutine[None, None, None]) -> None:
        try:
            async with asyncio.timeout(self._tuning.deadline_s):
                await work
        except HubSpokeError as e:
            log.debug("refused error=%s", e)
            self.refuse(unique, errno_of(e))
        except TimeoutError:
            self.refuse(unique, errno.EIO)
        except asyncio.CancelledError:
            self.refuse(unique, errno.EINTR)
        except Exception:
            log.exception("request failed")
            self.refuse(unique, errno.EIO)
