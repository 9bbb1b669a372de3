"""The read-index round trips of a spoke (core.read_index), shared by the readers that wait.

A round belongs to no reader: one that gives up takes only its own wait with it.
"""

import asyncio
import logging
from collections.abc import Callable

from hubspoke import wire
from hubspoke.core.ids import Epoch, LogSequence
from hubspoke.core.leases import Grant, SpokeLease
from hubspoke.core.read_index import History, ReadIndex, ReadRounds
from hubspoke.ports import Clock, HubLink
from hubspoke.spoke.hub_calls import HubCalls
from hubspoke.spoke.replica import Replica, revoked_name

log = logging.getLogger(__name__)

ROUNDS_IN_FLIGHT_MAX = 2


class IndexRounds:
    def __init__(
        self,
        link: HubLink,
        calls: HubCalls,
        replica: Replica,
        lease: SpokeLease,
        clock: Clock,
        spoke_id: str,
        *,
        patience_s: Callable[[], float],
        heard: Callable[[int], None],
    ) -> None:
        """patience_s: for one round. heard: the hub answered and is at this sequence."""
        self._link = link
        self._calls = calls
        self._replica = replica
        self._lease = lease
        self._clock = clock
        self._spoke_id = spoke_id
        self._patience_s = patience_s
        self._heard = heard
        self._rounds = ReadRounds(ROUNDS_IN_FLIGHT_MAX)
        self._waiting: dict[int, asyncio.Future[ReadIndex | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def index(self) -> ReadIndex | None:
        """Of a round that is sent from now on; None: it failed."""
        number = self._rounds.join()
        future = self._waiting.get(number)
        if future is None:
            future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send()
        return await asyncio.shield(future)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self) -> None:
        while (number := self._rounds.send()) is not None:
            task = asyncio.create_task(self._round(number))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _round(self, number: int) -> None:
        index: ReadIndex | None = None
        try:
            index = await self._ask()
        finally:
            self._rounds.ended(number)
            self._waiting.pop(number).set_result(index)
        self._send()

    async def _ask(self) -> ReadIndex | None:
        replica = self._replica
        request = wire.ReadIndexRequest(self._spoke_id, replica.history().epoch or "")
        sent_at = self._clock.now()
        reply = await self._calls.ask(self._link.read_index(request), self._patience_s())
        if reply is None:
            return None
        if not replica.continues(reply.epoch, reply.incarnation):
            log.info("read index of another history hub_epoch=%s", reply.epoch)
            return None
        names = tuple((r.revocation_id, revoked_name(r)) for r in reply.revocations)
        sequence = LogSequence(reply.sequence)
        self._lease.replied(
            sent_at=sent_at,
            grant=Grant(0.0, names, reply.through),
            required=sequence,
            applied=replica.sequence,
            now=self._clock.now(),
        )
        self._heard(sequence)
        return ReadIndex(
            History(Epoch(reply.epoch), replica.history().incarnation), sequence, names
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("read-index round failed error=%r", error)
