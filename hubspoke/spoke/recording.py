"""Recorders of traces: every read of this spoke, as frames of a trace file, while it serves.

The path of a read does nothing for it: reads are handed over where they are drained for the
predictor, a list at a time, and coded here in slices of the loop. A recorder that does not keep up
loses reads, whole lists of them, and is told how many; the spoke waits for none.

    drain -> take (bounded) -> a slice of columns -> frame -> the recorder's connection
                   |
                   +-- no room: dropped, counted
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hubspoke.core.accesses import Accesses
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import ObjectName
from hubspoke.core.streams import Access
from hubspoke.errors import Overloaded
from hubspoke.ports import Clock
from hubspoke.traces.format import TICKS, FrameWriter, Reads
from hubspoke.traces.trace import CODES

RECORDERS_MAX = 4


@dataclass(frozen=True, slots=True)
class RecordingTuning:
    # Reads that wait for a recorder: two seconds of the most that a spoke serves, 20 MB.
    waiting_max: int = 131_072
    # Of one frame: its coding holds the loop for a millisecond.
    slice_reads: int = 2_048
    # Between two looks at what waits. Each ends with a frame of facts, so that a recorder knows
    # that the spoke lives, and how far the trace has come.
    interval_s: float = 0.25
    # Names and connections that are told apart; a trace of more objects drops their reads.
    objects_max: int = 1 << 20
    clients_max: int = 65_536


class _Taken:
    """A sink that is emptied with each yield."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self._parts.append(data)
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class Recording:
    """The reads of one recorder, from its start on."""

    def __init__(self, facts: dict[str, object], start: float, tuning: RecordingTuning) -> None:
        """start: on the clock of the reads."""
        self.dropped = 0
        self._start = start
        self._tuning = tuning
        self._lists: deque[Sequence[Access]] = deque()
        self._waiting = 0
        self._sink = _Taken()
        self._writer = FrameWriter(self._sink, facts, level=1)
        self._numbers: dict[ObjectName, int] = {}
        self._sizes: list[int] = []
        self._clients: dict[str, int] = {}
        self._clients_met = 0
        self._last = 0  # ticks

    def take(self, reads: Sequence[Access], dropped: int) -> None:
        """Reads that were drained; dropped: before them, by the core."""
        self.dropped += dropped
        if self._waiting + len(reads) > self._tuning.waiting_max:
            self.dropped += len(reads)
        elif reads:
            self._lists.append(reads)
            self._waiting += len(reads)

    def slice(self) -> bytes | None:
        """Frames for the next reads that wait, None if there are none."""
        room = self._tuning.slice_reads
        found: list[Access] = []
        while self._lists and room:
            reads = self._lists.popleft()
            if len(reads) > room:
                self._lists.appendleft(reads[room:])
                reads = reads[:room]
            found += reads
            room -= len(reads)
        self._waiting -= len(found)
        if not found:
            return None
        self._code([a for a in found if a.at >= self._start])
        return self._sink.take()

    def progress(self, now: float, facts: dict[str, object]) -> bytes:
        """A frame that tells how far the trace is, what it lacks, and `facts`."""
        self._writer.facts(facts | self._facts(now))
        return self._sink.take()

    def end(self, now: float, facts: dict[str, object]) -> bytes:
        """The last frame."""
        self._writer.end({**facts, **self._facts(now), "ended": "the spoke stopped"})
        return self._sink.take()

    def _facts(self, now: float) -> dict[str, object]:
        return {"seconds": max(0.0, now - self._start), "dropped_reads": self.dropped}

    def _code(self, found: list[Access]) -> None:
        new: list[tuple[int, int, str]] = []
        numbers = self._numbered(found, new)
        if None in numbers:
            found = [a for a, n in zip(found, numbers, strict=True) if n is not None]
            self.dropped += len(numbers) - len(found)
            numbers = [n for n in numbers if n is not None]
        self._writer.objects(new)
        if not found:
            return
        _, offsets, lengths, clients, at, states, *_ = zip(*found, strict=True)
        seconds = np.array(at) - self._start
        ticks = np.maximum.accumulate(np.maximum((seconds * TICKS).astype(np.int64), self._last))
        self._last = int(ticks[-1])
        reads = Reads(
            ticks,
            np.array(numbers, np.int32),
            np.array(offsets, np.int64),
            np.array(lengths, np.int64),
            np.array([self._client(client) for client in clients], np.int32),
            np.array([CODES[state] for state in states], np.uint8),
        )
        self._writer.reads(reads)

    def _numbered(self, found: list[Access], new: list[tuple[int, int, str]]) -> list[int | None]:
        """new: gets what the recorder has to be told first."""
        numbers: list[int | None] = []
        last, number = None, None
        for a in found:  # mostly of the object before
            if a.obj is not last:
                last = a.obj
                number = self._number(last, new)
            numbers.append(number)
        return numbers

    def _number(self, obj: CachedObject, new: list[tuple[int, int, str]]) -> int | None:
        """A version that is larger makes its object so in the trace; one that is smaller does
        not, as reads of the other are there."""
        name, size = obj.name, obj.size
        number = self._numbers.get(name)
        if number is None:
            if len(self._numbers) >= self._tuning.objects_max:
                return None
            number = self._numbers[name] = len(self._sizes)
            self._sizes.append(size)
        elif size <= self._sizes[number]:
            return number
        self._sizes[number] = size
        new.append((number, size, str(name)))
        return number

    def _client(self, client: str) -> int:
        number = self._clients.get(client)
        if number is None:
            if len(self._clients) >= self._tuning.clients_max:
                self._clients.clear()  # most are gone; who is not gets another number
            number = self._clients[client] = self._clients_met
            self._clients_met += 1
        return number


class Recorders:
    """All recordings under way; touched only on the loop."""

    def __init__(
        self,
        accesses: Accesses,
        facts: Callable[[], dict[str, object]],
        progress: Callable[[], dict[str, object]],
        clock: Clock,
        tuning: RecordingTuning,
    ) -> None:
        """facts: what is known of the spoke now. progress: those that get known as it works."""
        self._accesses = accesses
        self._facts = facts
        self._progress = progress
        self._clock = clock
        self._tuning = tuning
        self._under_way = 0
        self._closed = asyncio.Event()

    def record(self) -> AsyncGenerator[bytes, None]:
        """A trace file in pieces, from now on, until the spoke closes. Raises Overloaded."""
        if self._under_way >= RECORDERS_MAX:
            raise Overloaded(
                f"{self._under_way} recorders are at work, at most {RECORDERS_MAX} may"
            )
        return self._frames()

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        recording = Recording(self._facts(), self._clock.now(), self._tuning)
        end = self._accesses.watch(recording.take)
        self._under_way += 1
        try:
            while True:
                closed = self._closed.is_set()
                # What comes in the meantime is for the next look, or this one might not end.
                for _ in range(1 + self._tuning.waiting_max // self._tuning.slice_reads):
                    data = recording.slice()
                    if data is None:
                        break
                    yield data
                    await asyncio.sleep(0)
                now = self._clock.now()
                if closed:
                    yield recording.end(now, self._progress())
                    return
                yield recording.progress(now, self._progress())
                await self._pause()
        finally:
            self._under_way -= 1
            end()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._tuning.interval_s):
                await self._closed.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """No more reads will come: recordings end with what they have."""
        self._accesses.drain()
        self._closed.set()
