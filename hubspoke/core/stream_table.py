"""Which stream an access belongs to; reads that belong to none.

Read near the front of a stream is read by it. A read that is near nothing is *lone*: it costs a
few words, and becomes a stream when others come that are nearer to it than chance would put them
(`surprise`). So random reads of a large object are no streams at all, and cost a few
microseconds each.

An object that is read whole by one read has nothing to be predicted inside of it: that is an
opening, for those who follow names. The first read of an object near its start or at its end
begins a stream at once; lone reads of an object that was begun at one of its ends are told of with
that stream, for those who know from there how the file is laid out.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from hubspoke.core.ids import PAGE_BYTES, ReadState
from hubspoke.core.page_marks import PageMarks
from hubspoke.core.streams import (
    FRONT_SLACK_BYTES_MAX,
    Access,
    Home,
    Pattern,
    RateMeter,
    Stream,
    near_start,
    slack_bytes,
    surprise,
)

STREAMS_MAX = 4_096
STREAMS_PER_OBJECT_MAX = 64
STALE_READS = 512  # of the object; with so many since its last one a young stream is forgotten
OBJECTS_MAX = 8_192  # objects with lone reads and no stream are among them
LONE_MAX = 64  # places of one object with lone reads; the newest
LONE_PER_PLACE = 4
SURPRISE_MIN = 3.0  # to become a stream; to be believed it takes more
AWAY_MIN, AWAY_MAX = 4, 4  # objects left after their start: so many, and so many for one read on
LEFT_READS = 3
READ_ON_MANY = 64  # of which it is judged
FOLDERS_MAX = 1_024
PLACE_BITS = 20  # ends of reads are remembered by the MiB
PLACES_MAX = 1_024
FEW = 2  # so many streams are looked through one by one

Opened = Callable[[Access, Stream | None], None]
Numbered = tuple[int, Access]  # which read of its object it was


class ReadOn:
    """Whether objects that are opened at their start are read on, by folder: where reads are
    random, one in a while begins an object by chance."""

    def __init__(self) -> None:
        self._folders: OrderedDict[tuple[str, str], list[int]] = OrderedDict()

    def opened(self, s: Stream) -> bool:
        """The first read of an object is at its start. Returns whether it will be read on."""
        on, away = self._counts(s)
        return away < AWAY_MIN or AWAY_MAX * on >= away

    def read_on(self, s: Stream) -> None:
        """The object's head was not all that was read of its beginning."""
        self._count(s, 0)

    def left(self, s: Stream) -> None:
        """Other parts of the object were read, and its beginning no further: more of them than a
        reader takes to find its way in a file that has a directory."""
        self._count(s, 1)

    def _count(self, s: Stream, which: int) -> None:
        if s.head is not None:
            counts = self._counts(s)
            counts[which] += 1
            if sum(counts) >= READ_ON_MANY:
                counts[:] = [counts[0] // 2, counts[1] // 2]

    def _counts(self, s: Stream) -> list[int]:
        folder = s.obj.data_set.folder
        counts = self._folders.get(folder)
        if counts is None:
            counts = self._folders[folder] = [0, 0]
            if len(self._folders) > FOLDERS_MAX:
                self._folders.popitem(last=False)
        return counts


class ObjectReads(Home):
    """Streams and lone reads of one object."""

    __slots__ = ("lone", "opener", "places", "slack", "streams")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.slack = slack_bytes(size)
        self.streams: list[Stream] = []
        self.opener: Stream | None = None  # begun by the object's first read, at one of its ends
        self.places: dict[int, Stream] = {}  # where streams have been last
        self.lone: dict[int, tuple[Numbered, ...]] = {}  # by the place they end at

    def nearest(self, offset: int, end: int) -> Stream | None:
        """The nearest front, the latest of equals: the front of an epoch that has ended must not
        swallow the reads of the next one."""
        streams = self.streams
        if len(streams) > FEW:
            found = self.places.get(offset >> PLACE_BITS)
            if found is not None and not found.gone and found.distance(offset, end) == 0:
                return found
        best, least = None, 0
        slack, low, high = self.slack, offset - FRONT_SLACK_BYTES_MAX, end + FRONT_SLACK_BYTES_MAX
        for s in streams:  # as `distance` does, without a call for each; most are too far away
            hi = s.hi
            if hi < low:
                continue
            lo = s.recent_lo
            if lo > high:
                continue
            away = lo - end if end < lo else offset - hi if offset > hi else 0
            if away > slack and away > 2 * (hi - lo):
                continue
            if best is None or away < least or (away == least and s.last_at > best.last_at):
                best, least = s, away
        return best

    def moved(self, s: Stream, end: int) -> None:
        """A read of the stream has ended here."""
        if len(self.streams) > FEW:
            if len(self.places) >= PLACES_MAX:
                self.places.clear()
            self.places[end >> PLACE_BITS] = s

    def alone(self, a: Access) -> "list[Numbered] | None":
        """One more read that is near no stream; returns those it makes one with, in order."""
        lone, slack = self.lone, self.slack
        start, end = a.offset, a.offset + a.length
        at = start // slack
        near: list[Numbered] = []
        # By where they end: what ends just here, and what begins just where this one ends.
        for place in dict.fromkeys((at - 1, at, at + 1, (end + a.length) // slack)):
            near += lone.get(place, ())
        together = [*near, (self.reads, a)]
        if near:
            together.sort(key=itemgetter(0))
            low = min(b.offset for _, b in together)
            span = max(b.offset + b.length for _, b in together) - low
            of_reads = self.reads - together[0][0] + 1
            if surprise(len(together), span, of_reads, a.obj.size) >= SURPRISE_MIN:
                for _, b in near:
                    lone.pop((b.offset + b.length) // slack, None)
                return together
        lone[end // slack] = (*lone.pop(end // slack, ())[-LONE_PER_PLACE + 1 :], together[-1])
        if len(lone) > LONE_MAX:
            del lone[next(iter(lone))]
        return None


class StreamTable:
    """All streams; finds the one an access belongs to."""

    def __init__(self) -> None:
        self.by_object: dict[int, ObjectReads] = {}
        self._count = 0
        self._next_id = 1
        self._latest = -1  # the object read last
        self.moved: dict[Stream, list[Access]] = {}  # by the last `observe`, or so far
        self.heads = ReadOn()

    def observe(
        self, accesses: Sequence[Access], born: Callable[[Stream], None], opened: Opened
    ) -> dict[Stream, list[Access]]:
        """Sort accesses into streams.

        born: called for each stream at its first access, before the next one is looked at.
        opened: for a read that begins an object, with its stream unless it is all of it.
        Returns: the streams that moved, with what moved them and lone reads of their object.
        """
        self.moved = moved = dict[Stream, list[Access]]()
        for a in accesses:
            obj, offset, length, _, _, _ = a
            if length == 0 or obj.dead:
                continue
            if length >= obj.size:
                opened(a, None)
                continue
            home = self._home(a)
            home.reads += 1
            streams = home.streams
            if len(streams) == 1:
                alone = streams[0]
                stream = None if alone.distance(offset, offset + length) is None else alone
            else:
                stream = home.nearest(offset, offset + length)
            again = stream is not None and stream.rereads(offset, length)
            if stream is not None and not again:
                if stream.head is not None and stream.accesses == 1:
                    self.heads.read_on(stream)
                stream.access(a)
                if len(streams) > FEW:
                    home.moved(stream, offset + length)
                if stream in moved:
                    moved[stream].append(a)
                else:
                    moved[stream] = [a]
                continue
            together: list[Numbered] | None = [(home.reads, a)]
            if stream is not None:
                self._remove(home, stream)
            elif home.reads > 1 or not (
                near_start(offset, length, obj.size) or offset + length >= obj.size
            ):
                if home.reads == LEFT_READS and home.streams and home.streams[0].accesses == 1:
                    self.heads.left(home.streams[0])
                together = home.alone(a)
            if together is None:
                opener = home.opener
                if opener is not None and not opener.gone:
                    opener.waits += a.state is not ReadState.HIT
                    moved.setdefault(opener, []).append(a)
                continue
            stream = self._begin(home, together, born)
            moved.setdefault(stream, []).append(a)
            if len(together) == 1 and not stream.chained and offset == 0:
                opened(a, stream)
        return moved

    def _home(self, a: Access) -> ObjectReads:
        number = a.obj.number
        if number == self._latest:
            return self.by_object[number]
        home = self.by_object.pop(number, None)  # in order of last use
        if home is None:
            home = ObjectReads(a.obj.size)
            while len(self.by_object) >= OBJECTS_MAX:
                self.forget(next(iter(self.by_object)))
        self.by_object[number] = home
        self._latest = number
        return home

    def _begin(
        self, home: ObjectReads, reads: list[Numbered], born: Callable[[Stream], None]
    ) -> Stream:
        """A new stream of these reads; the last one is that which has just come."""
        first, a = reads[0][1], reads[-1][1]
        while self._count >= STREAMS_MAX:
            self.forget(next(iter(self.by_object)))
        if len(home.streams) > FEW:
            self._make_room(home)
        start = min(b.offset for _, b in reads)
        begins = home.reads == 1 and near_start(start, a.length, a.obj.size)
        from_start = begins and start > 0
        start = 0 if begins else start  # what is before it is read soon
        marks = PageMarks(start // PAGE_BYTES, len(a.obj.pages))
        stream = Stream(
            self._next_id,
            a.obj,
            start,
            start,
            first.at,
            RateMeter(first.at),
            marks,
            start,
            home,
            reads[0][0] - 1,
            home.slack,
            planned=start,
            from_start=from_start,
        )
        self._next_id += 1
        self._count += 1
        home.streams.append(stream)
        for _, b in reads:
            stream.access(b)
        home.moved(stream, a.offset + a.length)
        if home.reads == 1 and not from_start:
            home.opener = stream
        if begins:
            stream.head = self.heads.opened(stream)
        born(stream)
        return stream

    def _make_room(self, home: ObjectReads) -> None:
        """What has not been recognised and is read no more goes, and one of all if need be."""
        stale = home.reads - STALE_READS
        for s in list(home.streams):
            if s.last_read < stale and s.pattern in (Pattern.UNKNOWN, Pattern.RANDOM):
                self._remove(home, s)
        if len(home.streams) >= STREAMS_PER_OBJECT_MAX:
            self._remove(home, min(home.streams, key=lambda s: s.last_read))

    def _remove(self, home: ObjectReads, stream: Stream) -> None:
        stream.gone = True
        home.streams.remove(stream)
        self._count -= 1

    def forget(self, number: int) -> None:
        """The object left the cache or its version is obsolete."""
        home = self.by_object.pop(number, None)
        if home is not None:
            for s in list(home.streams):
                self._remove(home, s)
        if number == self._latest:
            self._latest = -1

    def __iter__(self) -> Iterator[Stream]:
        for home in self.by_object.values():
            yield from home.streams

    def __len__(self) -> int:
        return self._count
