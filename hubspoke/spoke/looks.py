"""Looks at indexes of files for the core, which has no bytes: reads them from the cache, parses.

Beside the read path and behind it: one look at a time, bytes by a thread of the disk's, and the
parser gives the loop back every millisecond. Whatever goes wrong means that the object has no
layout; its readers never know.
"""

import asyncio
import logging
from collections.abc import Callable

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import page_span
from hubspoke.core.layouts.book import Book, Due
from hubspoke.core.layouts.layout import NoLayout
from hubspoke.core.layouts.probe import Look, Seen, read
from hubspoke.core.spoke import SpokeCore
from hubspoke.ports import Clock
from hubspoke.spoke.filler import Filler

log = logging.getLogger(__name__)

READ_DEADLINE_S = 2.0  # a disk that takes longer has better things to do
SLICE_S = 0.001


class Looks:
    """Touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        filler: Filler,
        clock: Clock,
        predict_soon: Callable[[float], None],
    ) -> None:
        """predict_soon: something was seen, from which more may follow."""
        self._predict_soon = predict_soon
        self._books = core.prediction.books
        self._cache = core.cache
        self._filler = filler
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Begin with what is due, unless something is looked at already."""
        if self._task is None:
            due = self._due()
            if due:
                self._task = asyncio.get_running_loop().create_task(self._look(due))
                self._task.add_done_callback(self._ended)

    def _due(self) -> list[tuple[Book, Due]]:
        return [(book, due) for book in self._books for due in book.due()]

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            raise RuntimeError("looking at indexes ended") from task.exception()

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self, due: list[tuple[Book, Due]]) -> None:
        while due:
            for book, one in due:
                book.saw(one, await self._seen(one))
                self._predict_soon(self._clock.now())
            due = self._due()

    async def _seen(self, due: Due) -> Seen | None:
        try:
            return await self._parsed(due.look, await self._bytes(due.obj, *due.look.span))
        except (NoLayout, OSError) as e:
            log.debug("no layout object=%s error=%s", due.obj.name, e)
            return None

    async def _bytes(self, obj: CachedObject, offset: int, length: int) -> bytes:
        """From the cache. Raises OSError if they are gone, or the disk is slow."""
        disk = self._filler.disks.of(obj.number)
        pages = page_span(offset, length)
        cache = self._cache
        if disk is None or obj.dead or not cache.readable(obj, *pages):
            raise OSError("not in the cache any more")
        reading = disk.read(obj.number, offset, length)
        cache.pin(obj, *pages)

        def unpin(_: "asyncio.Future[bytes]") -> None:
            cache.unpin(obj, *pages)
            self._filler.drop(cache.reap(obj))

        reading.add_done_callback(unpin)
        done, _ = await asyncio.wait({reading}, timeout=READ_DEADLINE_S)
        if not done:
            reading.add_done_callback(lambda f: f.cancelled() or f.exception())
            raise OSError("the disk is slow")
        return reading.result()

    async def _parsed(self, look: Look, data: bytes) -> Seen:
        parsing, began = read(look, data), self._clock.now()
        while True:
            try:
                next(parsing)
            except StopIteration as end:
                seen: Seen = end.value
                return seen
            if self._clock.now() - began > SLICE_S:
                await asyncio.sleep(0)
                began = self._clock.now()
