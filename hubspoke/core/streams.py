"""From accesses to streams: which reads belong together, whatever connection they came over.

A *stream* is a set of reads near each other in one object, by however many workers and ranks.
Each access moves its frontier `hi`; the last RECENT accesses say how wide the front is that the
workers form together (`recent_lo`..`hi`), and a ring of page marks says how much of the object
behind that front was really read. A dense past means that together they read everything
("sequential", though no single worker does); permanent holes mean that each worker's own stride
has to be followed; a sparse front means random reads, where only what is asked for is fetched.

Reordering inside the front never breaks a stream: nothing here depends on the order of arrival
inside the last RECENT accesses.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hubspoke.core.cache import CachedObject
from hubspoke.core.ids import PAGE_BYTES, ReadState, page_span

RECENT = 64
RING_PAGES = 16_384  # 64 MiB: the widest front that is still told from random reads
SLACK_BYTES_MIN = 4 << 20
SLACK_BYTES_MAX = 32 << 20
STREAMS_PER_OBJECT_MAX = 8
REREAD_BYTES_MIN = 256 << 10
STREAMS_MAX = 4_096
CLIENTS_PER_STREAM_MAX = 256
RATE_WINDOW_S = 1.0


class Access(NamedTuple):
    """One read as a door saw it. client: connection or handle."""

    obj: CachedObject
    offset: int
    length: int
    client: str
    at: float
    state: ReadState


class Pattern(enum.Enum):
    UNKNOWN = "unknown"
    SEQUENTIAL = "sequential"
    STRIDED = "strided"
    RANDOM = "random"


class RateMeter:
    """Bytes per second over the last second; over the time since the start if that is less."""

    def __init__(self, now: float) -> None:
        self._start = now
        self._points: deque[tuple[float, int]] = deque()
        self._bytes = 0

    def add(self, bytes_: int, now: float) -> None:
        if self._points and now - self._points[-1][0] < RATE_WINDOW_S / 100:
            at, n = self._points[-1]
            self._points[-1] = (at, n + bytes_)
        else:
            self._points.append((now, bytes_))
        self._bytes += bytes_

    def per_second(self, now: float) -> float:
        while self._points and now - self._points[0][0] > RATE_WINDOW_S:
            self._bytes -= self._points.popleft()[1]
        # A span below 50 ms says more about the burst than about the consumer.
        return self._bytes / max(min(now - self._start, RATE_WINDOW_S), 0.05)


@dataclass(slots=True)
class Cursor:
    """One client's own walk: runs of adjacent reads, and the jump between their starts."""

    run_start: int
    run_end: int
    run_at: float
    last_run_length: int = 0
    jump: int = 0
    confirmed: int = 0  # equal jumps in a row
    period_s: float = 0.0
    adjacent: int = 0

    def access(self, offset: int, length: int, at: float) -> None:
        if offset == self.run_end:
            self.run_end += length
            self.adjacent += 1
            return
        if self.run_start <= offset < self.run_end:
            return  # read again
        jump, run = offset - self.run_start, self.run_end - self.run_start
        if jump == self.jump and run == self.last_run_length:
            self.confirmed += 1
        else:
            self.confirmed = 0
        self.period_s = at - self.run_at
        self.jump, self.last_run_length = jump, run
        self.run_start, self.run_end, self.run_at = offset, offset + length, at


@dataclass(slots=True, eq=False)
class Stream:
    """Reads near each other in one object. All positions are bytes."""

    stream_id: int
    obj: CachedObject
    start: int
    hi: int
    started_at: float
    rate: RateMeter
    seen: bytearray  # ring of page marks below the frontier
    recent_lo: int
    pattern: Pattern = Pattern.UNKNOWN
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT))
    clients: dict[str, Cursor] = field(default_factory=dict)
    accesses: int = 0
    bytes_read: int = 0
    last_at: float = 0.0
    waits: int = 0  # reads that were not hits since the last proposal
    boost: float = 1.0
    boosted_at: float = float("-inf")
    chained: int = 0  # how many objects in a row this stream has followed
    planned: int = 0  # end of what was proposed so far
    hide_bytes: int = 0  # what hides latency now: the plan's own bound
    layout: str = ""  # what is read of a file whose structure is known

    @property
    def spread(self) -> int:
        return self.hi - self.recent_lo

    @property
    def density(self) -> float:
        """Share of the front that its accesses cover; above 1 where they overlap."""
        return sum(b - a for a, b in self.recent) / max(1, self.spread)

    def distance(self, offset: int) -> int | None:
        """Bytes between the front and a read, 0 inside of it; None: too many to belong to it."""
        lo, hi = self.recent_lo, self.hi
        if lo <= offset <= hi:
            return 0
        away = lo - offset if offset < lo else offset - hi
        if away <= SLACK_BYTES_MIN or away <= min(2 * (hi - lo), SLACK_BYTES_MAX):
            return away
        return None

    def rereads(self, offset: int, length: int) -> bool:
        """Whether a read starts the object anew: it has been read to its end, or lies well
        behind the front, and these pages were read before. Random reads come back at any time."""
        if self.pattern is Pattern.RANDOM:
            return False
        end = offset + length
        ended = self.hi >= self.obj.size
        behind = end <= self.recent_lo - max(self.spread, REREAD_BYTES_MIN)
        return (ended or behind) and self.coverage(offset, end) == 1.0

    def access(self, a: Access) -> None:
        end = a.offset + a.length
        self.accesses += 1
        self.bytes_read += a.length
        self.last_at = a.at
        self.rate.add(a.length, a.at)
        self._remember(a.offset, end)
        if a.state is not ReadState.HIT:
            self.waits += 1
        self._mark(a.offset, end)
        cursor = self.clients.get(a.client)
        if cursor is not None:
            cursor.access(a.offset, a.length, a.at)
            return
        if len(self.clients) >= CLIENTS_PER_STREAM_MAX:
            del self.clients[next(iter(self.clients))]
        self.clients[a.client] = Cursor(a.offset, end, a.at)

    def _remember(self, start: int, end: int) -> None:
        recent = self.recent
        leaves = recent[0][0] if len(recent) == RECENT else -1
        recent.append((start, end))
        if leaves == self.recent_lo:
            self.recent_lo = min(start for start, _ in recent)
        elif start < self.recent_lo:
            self.recent_lo = start

    def _mark(self, start: int, end: int) -> None:
        first, last = page_span(start, end - start)
        if last - first == 1 and end <= self.hi:
            if first >= self._floor:
                self.seen[first % len(self.seen)] = 1
            return
        if end > self.hi:
            # The ring holds the pages below the frontier: what comes into it anew
            # must be cleared of the marks of what falls out.
            old, new = -(-self.hi // PAGE_BYTES), last
            for a, b in self._slices(max(old, new - len(self.seen)), new):
                self.seen[a:b] = bytes(b - a)
            self.hi = end
        for a, b in self._slices(max(first, self._floor), last):
            self.seen[a:b] = b"\1" * (b - a)

    @property
    def _floor(self) -> int:
        """First page the ring still knows."""
        return max(0, -(-self.hi // PAGE_BYTES) - len(self.seen))

    def _slices(self, first: int, last: int) -> list[tuple[int, int]]:
        """Index ranges of pages [first, last) in the ring."""
        n = len(self.seen)
        if last <= first:
            return []
        if last - first >= n:
            return [(0, n)]
        a, b = first % n, (last - 1) % n + 1
        return [(a, b)] if a < b else [(a, n), (0, b)]

    def coverage(self, start: int, end: int) -> float:
        """Share of the pages of [start, end) that were read, as far back as the ring goes."""
        first, last = max(start // PAGE_BYTES, self._floor), -(-end // PAGE_BYTES)
        if first >= last:
            return 0.0
        marked = sum(self.seen.count(1, a, b) for a, b in self._slices(first, last))
        return marked / (last - first)

    def first_unread(self) -> int:
        """Start of the first page inside the front that nobody has read, or its end."""
        at = max(self.recent_lo // PAGE_BYTES, self._floor)
        for a, b in self._slices(at, -(-self.hi // PAGE_BYTES)):
            hole = self.seen.find(0, a, b)
            if hole >= 0:
                return (at + hole - a) * PAGE_BYTES
            at += b - a
        return self.hi // PAGE_BYTES * PAGE_BYTES

    def describe(self) -> dict[str, object]:
        """What is believed about this stream, for /v1/streams."""
        return {
            "id": self.stream_id,
            "object": str(self.obj.name),
            "pattern": self.pattern.value,
            "layout": self.layout or None,
            "position": self.hi,
            "size": self.obj.size,
            "clients": len(self.clients),
            "accesses": self.accesses,
            "bytes": self.bytes_read,
            "bytes_per_second": self.rate.per_second(self.last_at),
            "front_bytes": self.spread,
            "prefetched_to": self.planned,
            "objects_followed": self.chained,
        }


class StreamTable:
    """All streams; finds the one an access belongs to."""

    def __init__(self) -> None:
        self.by_object: dict[int, list[Stream]] = {}
        self._count = 0
        self._next_id = 1
        self._latest = -1  # the object read last

    def observe(
        self, accesses: Sequence[Access], on_new: Callable[[Stream], None]
    ) -> dict[Stream, list[Access]]:
        """Sort accesses into streams; returns the streams that moved, with what moved them.
        on_new: called for each stream at its first access, before the next one is looked at."""
        moved: dict[Stream, list[Access]] = {}
        for a in accesses:
            if a.length == 0 or a.obj.dead:
                continue
            stream = self._find(a)
            if stream is None:
                stream = self._new(a)
                stream.access(a)
                on_new(stream)
            else:
                stream.access(a)
            moved.setdefault(stream, []).append(a)
        return moved

    def _find(self, a: Access) -> Stream | None:
        number = a.obj.number
        streams = self.by_object.get(number)
        if streams is None:
            return None
        if number != self._latest:
            self.by_object[number] = self.by_object.pop(number)  # in order of last use
            self._latest = number
        # The nearest front, the latest of equals: the front of an epoch that has ended must not
        # swallow the reads of the next one.
        best, least = None, 0
        for s in streams:
            away = s.distance(a.offset)
            if away is None:
                continue
            if best is None or away < least or (away == least and s.last_at > best.last_at):
                best, least = s, away
        if best is None or not best.rereads(a.offset, a.length):
            return best
        streams.remove(best)
        self._count -= 1
        return None

    def _new(self, a: Access) -> Stream:
        while self._count >= STREAMS_MAX:
            self.forget(next(iter(self.by_object)))
        streams = self.by_object.setdefault(a.obj.number, [])
        self._latest = a.obj.number
        if len(streams) >= STREAMS_PER_OBJECT_MAX:
            streams.remove(min(streams, key=lambda s: s.last_at))
            self._count -= 1
        start = a.offset
        ring = bytearray(min(RING_PAGES, len(a.obj.pages)))
        stream = Stream(
            self._next_id, a.obj, start, start, a.at, RateMeter(a.at), ring, start, planned=start
        )
        self._next_id += 1
        self._count += 1
        streams.append(stream)
        return stream

    def forget(self, number: int) -> None:
        """The object left the cache or its version is obsolete."""
        self._count -= len(self.by_object.pop(number, ()))

    def __iter__(self) -> Iterator[Stream]:
        for streams in self.by_object.values():
            yield from streams

    def __len__(self) -> int:
        return self._count
