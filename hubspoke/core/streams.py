"""From accesses to streams: which reads belong together, whatever connection they came over.

A *stream* is a set of reads near each other in one object, by however many workers and ranks.
Each access moves its frontier `hi`; the last RECENT accesses say how wide the front is that the
workers form together (`recent_lo`..`hi`), and page marks say how much of the object behind that
front was really read. A dense past means that together they read everything ("sequential",
though no single worker does); permanent holes mean that each worker's own stride has to be
followed; a sparse front means random reads, where only what is asked for is fetched.

Reordering inside the front never breaks a stream: nothing here depends on the order of arrival
inside the last RECENT accesses. Which stream an access belongs to is `stream_table`'s business.
"""

import enum
import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hubspoke.core.boost import Boost
from hubspoke.core.cache import CachedObject
from hubspoke.core.ids import PAGE_BYTES, ReadState
from hubspoke.core.page_marks import PageMarks
from hubspoke.core.recent import Recent

# Between two reads of one front, at most a part of the object: workers that each read their own
# eighth of it are eight fronts.
SLACK_BYTES_MAX = 4 << 20
SLACK_BYTES_MIN = 128 << 10
SLACK_PART = 64
FRONT_SLACK_BYTES_MAX = 32 << 20
# One record of 64 KiB out of each of many objects must not bring a MiB of one in 64 of them.
NEAR_START_BYTES_MAX, NEAR_START_PART, NEAR_START_WASTE = 2 << 20, 256, 0.1
HEAD_BYTES = 256 << 10  # a file opened at its start will usually be read on
REREAD_BYTES_MIN = 256 << 10
TAIL_BYTES = 64 << 10  # of an object, for a directory
CLIENTS_PER_STREAM_MAX = 256
RATE_WINDOW_S = 1.0
NEVER = 1 << 62  # beyond the end of all objects
ACTIVE_S = 10.0  # who has read nothing for so long waits for nothing


class Access(NamedTuple):
    """One read as a door saw it. client: connection or handle."""

    obj: CachedObject
    offset: int
    length: int
    client: str
    at: float
    state: ReadState


class Pattern(enum.Enum):
    __hash__ = object.__hash__  # as of ids.TrafficClass
    UNKNOWN = "unknown"
    SEQUENTIAL = "sequential"
    BACKWARD = "backward"
    STRIDED = "strided"
    RANDOM = "random"


def slack_bytes(size: int) -> int:
    """How far from others a read of an object of this size may be and yet belong to them."""
    return max(SLACK_BYTES_MIN, min(SLACK_BYTES_MAX, size // SLACK_PART))


def near_start(offset: int, length: int, size: int) -> bool:
    """Whether a first read there is one of a front that begins at the start, out of a shuffle
    buffer or by a later worker. Of first reads at random one in NEAR_START_PART is there; what it
    brings is for nothing then, and may be a small part of what such reads read."""
    near = min(NEAR_START_BYTES_MAX, size // NEAR_START_PART)
    brought = offset + HEAD_BYTES
    return offset == 0 or (offset <= near and brought * near <= NEAR_START_WASTE * length * size)


def surprise(reads: int, span: int, of_reads: int, size: int) -> float:
    """How much closer together reads are than chance puts them: `reads` of `of_reads` in `span`
    bytes of `size`. The natural logarithm of one over a bound (Chernoff's) of the probability
    that of random reads so many lie as near to one of them, on either side."""
    near, n, p = reads - 1, max(of_reads - 1, 1), 2 * span / size
    share = near / n
    if share <= p:
        return 0.0
    rest = 0.0 if near >= n else (n - near) * math.log((1 - share) / (1 - p))
    return near * math.log(share / p) + rest


class RateMeter:
    """Bytes per second over the last second; over the time since the start if that is less."""

    __slots__ = ("_at", "_bytes", "_last", "_points", "_start")

    def __init__(self, now: float) -> None:
        self._start = now
        self._points: deque[tuple[float, int]] = deque()  # but for the last
        self._at = float("-inf")  # of the last point
        self._last = 0
        self._bytes = 0

    def add(self, bytes_: int, now: float) -> None:
        self._bytes += bytes_
        if now - self._at < RATE_WINDOW_S / 100:
            self._last += bytes_
            return
        if self._last:
            self._points.append((self._at, self._last))
        self._at, self._last = now, bytes_

    def per_second(self, now: float) -> float:
        points = self._points
        while points and now - points[0][0] > RATE_WINDOW_S:
            self._bytes -= points.popleft()[1]
        if not points and now - self._at > RATE_WINDOW_S:
            self._bytes -= self._last
            self._at, self._last = float("-inf"), 0
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
    proposed_at: int = -1  # the run that was looked ahead from last
    proposed_to: int = -1  # the last run that was named then

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


class Home:
    """What streams of one object share: how often it was read in all."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        self.reads = 0


@dataclass(slots=True, eq=False)
class Stream:
    """Reads near each other in one object. All positions are bytes."""

    stream_id: int
    obj: CachedObject
    start: int
    hi: int
    started_at: float
    rate: RateMeter
    marks: PageMarks
    recent_lo: int
    home: Home = field(default_factory=Home)
    born: int = 0  # reads of the object before the first of this stream
    slack: int = SLACK_BYTES_MAX
    pattern: Pattern = Pattern.UNKNOWN
    recent: Recent = field(default_factory=Recent)
    clients: dict[str, Cursor] = field(default_factory=dict)
    accesses: int = 0
    bytes_read: int = 0
    last_at: float = 0.0
    last_read: int = 0  # which read of the object was the last of this stream
    waits: int = 0  # reads that were not hits since the last proposal
    boost: Boost = field(default_factory=Boost)
    chained: int = 0  # how many objects in a row this stream has followed
    runway_to: int = 0  # end of what was proposed for an outage
    planned: int = 0  # end of what was proposed so far; beyond the object: of what follows it
    hide_bytes: int = 0  # what hides latency now: the plan's own bound
    layout: str = ""  # what is read of a file whose structure is known
    look_at: int = -1  # a front this far is looked at again; before it nothing is due
    run_bytes: int = 0  # the run of the client that read last
    judged: int = 0  # accesses at the last look at random reads
    jumped: bool = False  # a client has jumped as far as before, once at least
    head: bool | None = None  # of a first read at the start: whether more of it is fetched at once
    # The object's first read began so near to its start that the start counts as one of the reads.
    from_start: bool = False
    gone: bool = False  # no longer in the table
    # Where its readers will leave the file (`habits`), and where if they read it downwards.
    end_at: int = NEVER
    bottom_at: int = 0
    left: bool = False  # they have

    @property
    def spread(self) -> int:
        return self.hi - self.recent_lo

    @property
    def end(self) -> int:
        """Of what is read of the object, as far as is known."""
        return min(self.obj.size, self.end_at)

    @property
    def ended(self) -> bool:
        """The object was read to its end, but for a directory there, which is read first."""
        return self.obj.size - self.hi <= TAIL_BYTES

    @property
    def density(self) -> float:
        """Share of the front that its accesses cover; above 1 where they overlap."""
        return self.recent.bytes / max(1, self.hi - self.recent_lo)

    @property
    def in_a_row(self) -> float:
        """The same of what its clients each read in a row so far."""
        lo, hi = self.recent_lo, self.hi
        runs = [min(c.run_end, hi) - max(c.run_start, lo) for c in self.clients.values()]
        return sum([n for n in runs if n > 0]) / max(1, hi - lo)

    @property
    def surprise(self) -> float:
        """See `surprise`: of the reads of the front among all reads of the object since, or of
        one client's reads each of which goes on where the one before has ended."""
        recent, size = self.recent, self.obj.size
        n, span = len(recent), max(recent.highest - self.recent_lo, PAGE_BYTES)
        others = self.home.reads - self.born - self.accesses
        of_reads = n + others * n // self.accesses if others > 0 else n
        length = max(recent.bytes // n, 1)
        in_a_row = self.run_bytes / length - (self.start > 0 or self.from_start)
        alone = in_a_row * math.log(size / length) if size > length else 0.0
        more = int(self.from_start)
        return max(surprise(n + more, span, of_reads + more, size), alone)

    @property
    def read_bytes(self) -> int:
        """Mean length of the last reads."""
        return self.recent.bytes // max(1, len(self.recent))

    def distance(self, offset: int, end: int) -> int | None:
        """Bytes between the front and a read, 0 inside of it; None: too many to belong to it."""
        lo, hi = self.recent_lo, self.hi
        if offset <= hi and end >= lo:
            return 0
        away = lo - end if end < lo else offset - hi
        if away <= self.slack or away <= min(2 * (hi - lo), FRONT_SLACK_BYTES_MAX):
            return away
        return None

    def rereads(self, offset: int, length: int) -> bool:
        """Whether a read starts the object anew: it has been read to its end or was left, or the
        read lies well behind the front, and these pages were read before. Random reads come back
        at any time."""
        if self.pattern is Pattern.RANDOM:
            return False
        end, lo, hi = offset + length, self.recent_lo, self.hi
        if not self.left and self.obj.size - hi > TAIL_BYTES:
            away = hi - lo
            if end > lo - (away if away > REREAD_BYTES_MIN else REREAD_BYTES_MIN):
                return False
        return self.marks.all(offset // PAGE_BYTES, -(-end // PAGE_BYTES))

    def access(self, a: Access) -> None:
        """Take one read in."""
        _, offset, length, client, at, state = a
        end, lo, hi = offset + length, self.recent_lo, self.hi
        self.accesses += 1
        self.bytes_read += length
        self.last_at = at
        self.last_read = self.home.reads
        self.rate.add(length, at)
        leaves = self.recent.add(offset, end)
        if leaves == lo or (leaves >= 0 and self.from_start):
            self.recent_lo = lo = self.recent.lowest
            self.from_start = False
        elif offset < lo:
            self.recent_lo = lo = offset
        if end > hi:
            self.hi = hi = end
        if state is not ReadState.HIT:
            self.waits += 1
        marks, pattern = self.marks, self.pattern
        if 5 * (hi - lo) > marks.bytes_known and pattern is not Pattern.RANDOM:
            self._widen()
        marks.mark(offset // PAGE_BYTES, -(-end // PAGE_BYTES))
        cursor = self.clients.get(client)
        if cursor is None:
            self._add_client(client, offset, end, at)
        elif pattern is not Pattern.SEQUENTIAL:
            cursor.access(offset, length, at)
            self.run_bytes = cursor.run_end - cursor.run_start
            if cursor.confirmed:
                self.jumped = True

    def _widen(self) -> None:
        """The front's past is judged by four times its width."""
        marks = self.marks
        while 5 * (self.hi - self.recent_lo) > marks.bytes_known and not marks.full_size:
            marks.grow()

    def _add_client(self, client: str, offset: int, end: int, at: float) -> None:
        if len(self.clients) >= CLIENTS_PER_STREAM_MAX:
            del self.clients[next(iter(self.clients))]
        self.clients[client] = Cursor(offset, end, at)
        self.run_bytes = end - offset

    def retreat(self) -> None:
        """The front moves down: it begins at the last reads and not at the highest ever."""
        self.hi = self.recent.highest
        self.marks.lower(-(-self.hi // PAGE_BYTES))

    def coverage(self, start: int, end: int) -> float:
        """Share of the pages of [start, end) that were read, as far back as is known."""
        return self.marks.share(start // PAGE_BYTES, -(-end // PAGE_BYTES))

    @property
    def past(self) -> int:
        """Bytes behind the front of which it is known whether they were read."""
        return self.recent_lo - max(self.start, self.marks.floor * PAGE_BYTES)

    def first_unread(self) -> int:
        """Start of the first page inside the front that nobody has read, or its end."""
        page = self.marks.first_unread(self.recent_lo // PAGE_BYTES)
        return min(page, self.hi // PAGE_BYTES) * PAGE_BYTES

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
            "prefetched_to": min(self.planned, self.obj.size),
            "objects_followed": self.chained,
        }
