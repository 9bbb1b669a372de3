"""Short questions to the hub, with a deadline that a stopped process does not use up.

Decides what counts as proof that the hub cannot be reached: a connection that fails, or silence
while this process was running. After a SIGSTOP or a suspend every timer is overdue at once while
the answers lie unread in the sockets; taken for a lost hub, that would make the first reads after
a pause stale although the hub could have been asked.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hubspoke.errors import DeadlineExceeded, HubSpokeError
from hubspoke.ports import Clock

_T = TypeVar("_T")


class HubCalls:
    """Of one spoke."""

    def __init__(self, clock: Clock, *, down: Callable[[str], None]) -> None:
        """down: the hub did not answer, and why."""
        self._clock = clock
        self._down = down
        self.rtt_s: float | None = None  # least round trip of a lease round so far
        self.unanswered: str | None = None  # why the last call failed; None: it was answered

    async def ask(self, call: Coroutine[Any, Any, _T], patience_s: float) -> _T | None:
        """The answer; None: there was none, and `unanswered` says why if that proves anything."""
        began = self._clock.now()
        task = asyncio.create_task(call)
        try:
            # In halves: a pause ends one of them early, and the other is time to read what came.
            for _ in range(2):
                await asyncio.wait({task}, timeout=patience_s / 2)
                if task.done():
                    break
            else:
                self._failed(f"no answer in {patience_s:.1f} s")
                return None
            answer = task.result()
        except DeadlineExceeded as e:
            # The link's own deadline lies behind ours: only a pause makes it come first.
            if self._clock.now() - began <= patience_s:
                self._failed(str(e))
            return None
        except HubSpokeError as e:
            self._failed(str(e))
            return None
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        self.unanswered = None
        return answer

    def _failed(self, reason: str) -> None:
        self.unanswered = reason
        self._down(reason)
