"""Reads of a spoke: state on arrival, what is missing fetched and waited for, bytes handed out.

A read belongs to its reader and a fetch to the filler: a reader that goes away takes only its
own wait with it. Bytes leave as a buffer when they are few and as a span of the cache file when
they are many, so that the kernel moves them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

from hubspoke.core.accesses import PieceOf
from hubspoke.core.budget import FairBudget
from hubspoke.core.cache import CachedObject
from hubspoke.core.ids import BLOCK_BYTES, ObjectName, ReadState, page_span
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.streams import Access
from hubspoke.errors import VersionChanged
from hubspoke.ports import Clock, FileSpan, ReadResult, Resolved
from hubspoke.spoke.begun import Begun
from hubspoke.spoke.filler import Filler
from hubspoke.spoke.memory import Memory
from hubspoke.spoke.piece import Piece, Pieces, Range
from hubspoke.spoke.tuning import SpokeTuning

T = TypeVar("T")

# How far a long read that passes the cache by is ahead of its reader, at most: enough for 270 MB/s
# at 60 ms. Less when the memory is wanted by others.
AHEAD_BYTES = 16 << 20


# The first byte of a long read must not wait for a block: pieces begin with what a new connection
# carries in its first round trip, and double.
FIRST_BYTES = 8 << 10

# A long GET asks for the rest of its window so much later than for its first piece: behind 31
# other requests the hub took 13 ms for it.
HEAD_START_S = 0.004
# What is here already goes out in longer pieces, which cost as much each.
HERE_BYTES = 4 << 20
# The window grows with what was read: a client that goes away early has cost little.
FIRST_WINDOW_BYTES = 64 << 20

# Pieces that the cache does not take: their lengths, and who brings them.
Ahead = deque[tuple[int, "asyncio.Task[Piece]"]]


class SpokeReads:
    """The reading half of a spoke; touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        filler: Filler,
        clock: Clock,
        tuning: SpokeTuning,
        *,
        predict_soon: Callable[[float], None],
        noted: Callable[[ObjectName], None],
    ) -> None:
        """predict_soon: accesses wait for the predictor since then. noted: the object is read."""
        self.core = core
        self.filler = filler
        self.clock = clock
        self.tuning = tuning
        self.memory = Memory(FairBudget(tuning.memory))
        self._pieces = Pieces(core, filler, clock, self.memory, tuning.fetch_attempts)
        self._predict_soon = predict_soon
        self._noted_name = noted

    @property
    def _window(self) -> int:
        """What is asked for as a whole, and has to find room beside what others read."""
        return min(self.tuning.window_bytes, max(self.core.cache.capacity // 4, BLOCK_BYTES))

    async def read(self, resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        """See ports.Reader."""
        begun = self._begun(resolved, offset, length, client)
        return begun if isinstance(begun, ReadResult) else await begun.result()

    def begin(
        self, resolved: Resolved, offset: int, length: int, client: str
    ) -> ReadResult | Begun:
        """`read`, to be waited for later; others are begun right behind it."""
        begun = self._begun(resolved, offset, length, client)
        if isinstance(begun, Begun):
            begun.ask()
        return begun

    def _begun(
        self, resolved: Resolved, offset: int, length: int, client: str
    ) -> ReadResult | Begun:
        if length == 0:
            return ReadResult(resolved, offset, 0, b"", ReadState.HIT)
        started = self.clock.now()
        obj = self._open(resolved)
        core = self.core
        state, cause, missed = self._arrive(obj, offset, length)
        stale = resolved.staleness_s is not None
        self._noted_name(resolved.name)
        if length > self.tuning.whole_bytes_max:
            core.accesses.long(Access(obj, offset, length, client, started, state))
            pieces = self._long(obj, offset, length, client)
            noted = self._noted(pieces, state, length, missed, cause, started, stale)
            return ReadResult(resolved, offset, length, noted, state)
        core.access(obj, offset, length, client, state, started)
        self._predict_soon(started)

        def finish(piece: Piece, came: float | None = None) -> ReadResult:
            # The door has the bytes now, and sends them at once or in a few steps.
            self.memory.give(client, piece.charged)
            found = ReadState.MISS if piece.turned else state
            why, lacked = ("bypassed", length) if piece.turned else (cause, missed)
            took = (self.clock.now() if came is None else came) - started
            wait = 0.0 if found is ReadState.HIT else took
            core.ledger.read(found, length, lacked, why, took, wait, started, stale)
            return ReadResult(resolved, offset, length, piece.body, found)

        if state is ReadState.HIT and core.cache.readable(obj, *page_span(offset, length)):
            body = self._pieces.local(obj, offset, length)
            if body is not None:
                return finish(Piece(body, 0, False))
        deadline = started + self.tuning.read_deadline_s
        return Begun(self._pieces, Range(obj, offset, length, deadline, client), finish)

    def _arrive(
        self, obj: CachedObject, offset: int, length: int
    ) -> tuple[ReadState, str | None, int]:
        """State, cause and missing bytes of a read that comes now."""
        state, cause = self.core.arrive(obj, offset, length)
        if state is ReadState.HIT and self.filler.disks.readable(obj.number):
            return state, cause, 0
        if state is ReadState.HIT:
            return ReadState.MISS, "bypassed", length
        if state is ReadState.MISS and not self.filler.fills(obj.number):
            cause = "bypassed"
        return state, cause, self.core.missing(obj, offset, length)

    def read_now(
        self, resolved: Resolved, offset: int, length: int, client: str
    ) -> bytes | FileSpan | None:
        """See ports.DirectReader."""
        return self._now(resolved, offset, length, client, self._pieces.local)

    def copy_now(self, resolved: Resolved, offset: int, buffer: memoryview, client: str) -> bool:
        """`read_now` into a buffer of that length; False where it is None."""

        def copied(obj: CachedObject, offset: int, _: int) -> bool | None:
            return self._pieces.copy_now(obj, offset, buffer) or None

        return self._now(resolved, offset, len(buffer), client, copied) is not None

    def _now(
        self,
        resolved: Resolved,
        offset: int,
        length: int,
        client: str,
        local: Callable[[CachedObject, int, int], T],
    ) -> T | None:
        """Account what `local` gives as a hit; None if it may not be asked, or gives nothing."""
        core = self.core
        obj = core.cache.current(resolved.name)
        if obj is None or obj.version != resolved.entry.version:
            return None
        first, last = page_span(offset, length)
        read_before = obj.read_before(first, last)
        if not read_before and not core.cache.readable(obj, first, last):
            return None
        started = self.clock.now()
        body = local(obj, offset, length)
        if body is None:
            return None
        self._noted_name(resolved.name)
        took = self.clock.now() - started
        if read_before:
            core.accesses.hit(obj, offset, length, client, started, took)
        else:
            core.access(obj, offset, length, client, ReadState.HIT, started)
            core.ledger.read(ReadState.HIT, length, 0, None, took, 0.0, started)
        self._predict_soon(started)
        return body

    def _open(self, resolved: Resolved) -> CachedObject:
        obj = self.core.cache.current(resolved.name)
        if obj is not None and obj.version == resolved.entry.version:
            return obj
        obj, obsolete = self.core.open(resolved.name, resolved.entry)
        self.filler.drop(obsolete)
        return obj

    async def _long(
        self,
        obj: CachedObject,
        offset: int,
        length: int,
        client: str,
    ) -> AsyncGenerator[Piece, None]:
        """Pieces of a long range; asks ahead of the reader by at most a window."""
        end, asked, at = offset + length, offset, offset
        step = FIRST_BYTES
        piece_of = PieceOf(client)
        ahead: Ahead = deque()
        begun = offset
        try:
            while at < end:
                if obj.dead:  # and out of the book perhaps, as nobody held it in between
                    raise VersionChanged(f"{obj.name} is no longer version {obj.version}")
                n = self._next(obj, at, end, step)
                step = min(2 * step, BLOCK_BYTES)
                if not ahead and self.core.cache.state(obj, *page_span(at, n)) is ReadState.MISS:
                    # A disk that was behind has let frames go: what is ahead has more such holes,
                    # and piece by piece each would take a round trip.
                    asked = at
                asked, begun, refused = max(asked, at), max(begun, at), False
                window = min(self._window, max(FIRST_WINDOW_BYTES, at - offset))
                if asked < end and asked - at <= window * 3 // 4:
                    until = min(end, at + window)
                    if asked == offset and self.filler.ask(obj, offset, n):
                        asked += n
                    if asked < until:
                        later_s = HEAD_START_S if asked == offset + n else 0.0
                        refused = not self.filler.ask(obj, asked, until - asked, later_s)
                        asked = asked if refused else until
                if refused:
                    begun = self._begin(obj, begun, end, n, client, ahead)
                n, task = ahead.popleft() if ahead else (n, None)
                now = self.clock.now()
                state, _ = self.core.arrive(obj, at, n)
                self.core.access(obj, at, n, piece_of, state, now)
                self._predict_soon(now)
                deadline = now + self.tuning.read_deadline_s
                piece = await (
                    self._pieces.bring(Range(obj, at, n, deadline, client))
                    if task is None
                    else task
                )
                try:
                    yield piece
                finally:
                    self.memory.give(client, piece.charged)
                at += n
        finally:
            await self._give_up(ahead, client)

    def _next(self, obj: CachedObject, at: int, end: int, step: int) -> int:
        """How long the next piece of a long read is: to the end of its block at most, so that it
        comes early and pins one block; longer if all of it is here already."""
        n = min(end - at, BLOCK_BYTES - at % BLOCK_BYTES, step)
        while n < min(end - at, HERE_BYTES) and (at + n) % BLOCK_BYTES == 0:
            more = min(end - at - n, BLOCK_BYTES)
            if not self.core.cache.readable(obj, *page_span(at, n + more)):
                break
            n += more
        return n

    def _begin(
        self, obj: CachedObject, begun: int, end: int, first: int, client: str, ahead: "Ahead"
    ) -> int:
        """Fetch pieces past the cache ahead of their reader, as far as its share of the memory
        goes: they are in no file, so each has a task that holds it. Returns how far."""
        budget = self.memory.budget
        deadline = self.clock.now() + self.tuning.read_deadline_s
        held = 0
        while begun < end and len(ahead) < AHEAD_BYTES // BLOCK_BYTES:
            most = BLOCK_BYTES if ahead else first
            n = min(end - begun, BLOCK_BYTES - begun % BLOCK_BYTES, most)
            held += n
            if ahead and not budget.fits(client, held):
                break
            bringing = self._pieces.bring(Range(obj, begun, n, deadline, client))
            ahead.append((n, asyncio.get_running_loop().create_task(bringing)))
            begun += n
        return begun

    async def _give_up(self, ahead: "Ahead", client: str) -> None:
        """Nobody will take these pieces."""
        for _, task in ahead:
            task.cancel()
        for result in await asyncio.gather(*(t for _, t in ahead), return_exceptions=True):
            if isinstance(result, Piece):
                self.memory.give(client, result.charged)
                if isinstance(result.body, FileSpan):
                    result.body.release()

    async def _noted(
        self,
        pieces: AsyncGenerator[Piece, None],
        state: ReadState,
        length: int,
        missed: int,
        cause: str | None,
        started: float,
        stale: bool,
    ) -> AsyncIterator[bytes | FileSpan]:
        """Account a long read when its first byte is there: what follows is paced by the
        reader and says nothing about latency."""
        noted = False
        async with aclosing(pieces):
            async for piece in pieces:
                if not noted:
                    if piece.turned:
                        state, cause, missed = ReadState.MISS, "bypassed", length
                    took = self.clock.now() - started
                    wait = 0.0 if state is ReadState.HIT else took
                    self.core.ledger.read(state, length, missed, cause, took, wait, started, stale)
                    noted = True
                yield piece.body
