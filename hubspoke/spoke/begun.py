"""A read that was begun: its pages are asked for, and nobody waits for them yet.

Who reads many ranges begins all of them and takes them in turn: most have come when it is theirs,
and cost no task, no future and no timer. What goes wrong before is not left for that turn: such a
read goes on in a task of its own, beside the others.
"""

import asyncio
from collections.abc import Callable

from hubspoke.errors import HubSpokeError
from hubspoke.ports import ReadResult
from hubspoke.spoke.piece import Piece, Pieces, Range

# Accounts a piece for its reader; told when the last of it came, if that is known.
Finish = Callable[[Piece, float | None], ReadResult]


class Begun:
    """frontends.ranges.BegunRead; touched only on the loop."""

    __slots__ = ("_finish", "_need", "_over", "_pieces", "_range", "_task")

    def __init__(self, pieces: Pieces, wanted: Range, finish: Finish) -> None:
        self._pieces = pieces
        self._range = wanted
        self._finish = finish
        self._task: asyncio.Task[Piece] | None = None
        self._over = False
        self._need = pieces.need(wanted)

    def ask(self) -> None:
        """Ask for what is missing, with others that are begun right behind it."""
        if self._pieces.ask(self._need, self._range):
            self._need.trouble = self._go_on
        else:
            self._go_on(None)

    def _go_on(self, error: HubSpokeError | None) -> None:
        self._need.trouble = None
        bringing = self._pieces.bring_for(self._need, self._range, error)
        self._task = asyncio.get_running_loop().create_task(bringing)

    def _end(self) -> None:
        self._over = True
        self._need.trouble = None
        self._pieces.over(self._need, self._range)

    def result_now(self) -> ReadResult | None:
        """The read if nothing has to be waited for."""
        body = None if self._task is not None else self._pieces.here(self._need, self._range)
        if body is None:
            return None
        self._end()
        return self._finish(Piece(body, 0, False), self._need.came)

    async def result(self) -> ReadResult:
        """As Reader.read."""
        self._need.trouble = None
        try:
            if self._task is not None:
                piece = await self._task
            else:
                piece = await self._pieces.bring_for(self._need, self._range, None)
        finally:
            self._end()
        return self._finish(piece, None)

    async def give_up(self) -> None:
        """Nobody takes it any more; also where it was taken, or failed."""
        if self._over:
            return
        self._end()
        if self._task is None:
            return
        self._task.cancel()
        (piece,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(piece, Piece):
            self._pieces.give_back(piece, self._range)
