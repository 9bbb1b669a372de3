"""Structure of the file itself: an index names the parts, and the parts read so far the next ones.

Assumes: who reads a file's index (Parquet footer, zip directory, safetensors header) reads parts
of it as the index has them; the same columns of every row group, and of the next files of the
folder (`file_set`). Requests are then exact: 40 of 200 columns cost a fifth of the file, where a
stride would follow the gaps of one row group and miss at each border.

    index read -> looked at (layouts.book) -> layout -> what is read of it (columns.Reading)
      -> the same of the coming groups, as far as hides the latency
      -> indexes of the next files -> looked at -> their first groups

Silent for a file that is read from its start to its end, which `sequential` does as well, and for
objects of no known format; of a folder with four of these no more are looked at. A tar has no
index: it is only known to be read to its end.
"""

from collections.abc import Sequence

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.generators.candidates import Candidate, DepthConfig, Listing
from hubspoke.core.generators.columns import Reading, Row
from hubspoke.core.generators.file_set import FileSet, Prepared, key_of
from hubspoke.core.habits import Habits
from hubspoke.core.ids import ObjectName
from hubspoke.core.layouts.book import PARTS_KEPT_MAX, Book
from hubspoke.core.layouts.layout import Layout
from hubspoke.core.layouts.numbers import Numbers
from hubspoke.core.layouts.probe import Look, Seen
from hubspoke.core.streams import NEVER, RATE_WINDOW_S, Access, Pattern, RateMeter, Stream

SIZE_MIN = 256 << 10  # a smaller object is there as soon as it was opened
YOUNG_ACCESSES = 4  # no other generator knows anything yet
SETS_MAX = 1_024
OBJECTS_MAX = 1_024  # with readings
READINGS_MAX = 4  # of one object
SHARE_PREPARED = 8  # a share of the cache for files that are not opened yet: an eighth
PREPARE_INTERVAL_S = 0.25
PREPARED_IN_S = 5.0  # when the next file is opened is not known; not before what is read now
INDEX_MAX = 16 << 20


class Layouts:
    """Every method is one event; `propose` gives what is to be fetched."""

    def __init__(self, cache: Cache, listing: Listing, depth: DepthConfig, habits: Habits) -> None:
        """habits: how much is read of the files of a folder; of later groups nothing is
        brought."""
        self.book = Book(cache, self._seen)
        self._cache = cache
        self._listing = listing
        self._depth = depth
        self._habits = habits
        self._sets: dict[tuple[str, str, str], FileSet] = {}
        self._readings: dict[int, list[Reading]] = {}
        self._found: list[Candidate] = []  # by what was seen since the last call
        self._just_opened: list[FileSet] = []
        self._prepared_at = float("-inf")

    def propose(
        self, s: Stream, accesses: Sequence[Access], now: float, hide_s: float
    ) -> list[Candidate] | None:
        """What is read next of the object, or None if its structure says nothing about that."""
        obj = s.obj
        if obj.size < SIZE_MIN:
            return None
        layout = self._layout(obj)
        self._ends(s, accesses, layout, now)
        if s.pattern is Pattern.SEQUENTIAL or (layout is not None and not layout.parts):
            return None
        if layout is None:
            # What begins at the end is no scan that would go on in the next object.
            at_end = s.start > 0 and s.hi >= obj.size and not s.chained
            return [] if at_end and self.book.looks_at(obj.number) else None
        files, found = self._set(obj.name), list[Candidate]()
        readings = self._note(obj, layout, accesses, files, hide_s)
        if layout.groups == 1 and s.accesses > YOUNG_ACCESSES and all(r.dense for r in readings):
            return (
                None  # part after part: `sequential` does it as well, and goes on in the next file
            )
        for r in readings:
            r.last_at = now
            found += self._ahead(s, r, files, now, hide_s)
            columns = len(r.columns)
            if columns:
                s.layout = f"{layout.format}, {columns} of {len(layout.names)} "
                s.layout += "columns" if layout.groups > 1 else "parts"
        return found

    def in_groups(self, obj: CachedObject) -> bool:
        """Whether some parts of the object are read again and again, group by group: it is no
        item that is read as a whole."""
        layout = self._layout(obj)
        return layout is not None and layout.groups > 1

    def take(self, now: float) -> list[Candidate]:
        """What was learned since the last call: of files just opened, and those looked at."""
        found, self._found = self._found, []
        opened, self._just_opened = self._just_opened, []
        for files in opened:
            found += self._next_files(files, now)
        if now - self._prepared_at >= PREPARE_INTERVAL_S:
            self._prepared_at = now
            for files in self._sets.values():
                if files.short and files.budget(self._prepared_max) >= files.index_bytes:
                    found += self._next_files(files, now)
                if files.prepared:
                    found += self._heads(files)
        return found

    @property
    def _prepared_max(self) -> int:
        return self._cache.capacity // SHARE_PREPARED

    # -- opening ------------------------------------------------------------------------------

    def _layout(self, obj: CachedObject) -> Layout | None:
        readings = self._readings.get(obj.number)
        return readings[0].layout if readings else self.book.get(obj.number)

    def _set(self, name: ObjectName) -> FileSet:
        key = key_of(name)
        files = self._sets.get(key)
        if files is None:
            if len(self._sets) >= SETS_MAX:
                del self._sets[next(iter(self._sets))]
            files = self._sets[key] = FileSet(key)
        return files

    def _ends(
        self, s: Stream, accesses: Sequence[Access], layout: Layout | None, now: float
    ) -> None:
        """Reads of an object's first and last bytes: there it is looked at, and there an index
        is."""
        obj = s.obj
        for a in accesses:
            at_head, at_tail = a.offset == 0, a.offset + a.length >= obj.size
            if not at_head and not at_tail:
                continue
            files = self._set(obj.name)
            if files.hopeless:
                return
            if at_head is not at_tail:
                files.end_read(a.length, at_head=at_head)
            if at_head:
                self.book.reads_at_head(obj)
            if at_tail:
                self.book.reads_at_tail(obj)
            if layout is None or not layout.parts:
                if layout is not None and s.pattern is Pattern.UNKNOWN:
                    s.pattern, s.layout = Pattern.SEQUENTIAL, layout.format
                continue
            if at_head is files.at_head:
                self._opened(obj, files)
                if layout.groups > 1 and files.columns:
                    self._reading(obj, layout, -1, now)

    def _opened(self, obj: CachedObject, files: FileSet) -> None:
        if files.open(obj.name):
            self._just_opened.append(files)

    def _next_files(self, files: FileSet, now: float) -> list[Candidate]:
        """A file of a set is opened: the indexes of those that may be next."""
        readers = sum(
            now - r.last_at < 1.0 for readings in self._readings.values() for r in readings
        )
        found: list[Candidate] = []
        room = files.budget(self._prepared_max)
        for name, entry in files.following(self._listing, max(1, readers)):
            c = files.prepare(name, entry, PREPARED_IN_S, room)
            files.short = c is None
            if c is None:
                break  # until more was read
            room -= c.length
            found.append(c)
            end = Look.head if files.at_head else Look.tail
            self.book.expect(name, entry.version, end(entry.size))
        return found

    def _seen(self, obj: CachedObject, seen: Seen | None) -> None:
        files = self._set(obj.name)
        if seen is None or isinstance(seen, Numbers):  # the latter is nothing that it looks for
            files.failed += 1
            return
        prepared = files.prepared.get(obj.name)
        if isinstance(seen, Look):
            # Where the rest of the index is; a reader that opened the file needs it at once.
            in_s = 0.0 if prepared is None else PREPARED_IN_S
            span = seen.span
            self._found.append(
                Candidate("layout", 0, obj.name, None, span.offset, span.length, in_s, 1)
            )
            return
        files.format = seen.format
        index = seen.index
        if seen.parts:
            at_head = index.offset == 0 or seen.format == "safetensors"
            length = index.offset + index.length if at_head else obj.size - index.offset
            files.indexed(min(length, INDEX_MAX), at_head=at_head)
            if prepared is None:
                self._opened(obj, files)
            else:
                prepared.index, prepared.number = max(prepared.index, length), obj.number

    # -- reading ------------------------------------------------------------------------------

    def _reading(self, obj: CachedObject, layout: Layout, group: int, now: float) -> Reading:
        """The pass that a read of the group belongs to; -1: of the index, a pass that begins."""
        readings = self._readings.get(obj.number)
        if readings is None:
            self._forget_readings(layout.parts)
            readings = self._readings[obj.number] = []
        if len(readings) == 1 and group >= 0 and readings[0].near(group):
            return readings[0]
        near = [r for r in readings if (r.near(group) if group >= 0 else r.group < 0)]
        if near:
            return min(near, key=lambda r: abs(r.group - group))
        if len(readings) >= READINGS_MAX:
            readings.remove(min(readings, key=lambda r: r.last_at))
        files = self._set(obj.name)
        head = files.opened.get(obj.name, 0)
        began = Reading(layout, RateMeter(now), now, head=head)
        readings.append(began)
        return readings[-1]

    def _forget_readings(self, parts: int) -> None:
        """Those of the objects opened first go until there is room for a layout more."""
        kept = sum(r[0].layout.parts for r in self._readings.values() if r)
        for number in list(self._readings):
            if kept + parts <= PARTS_KEPT_MAX and len(self._readings) < OBJECTS_MAX:
                return
            readings = self._readings.pop(number)
            kept -= readings[0].layout.parts if readings else 0

    def _note(
        self,
        obj: CachedObject,
        layout: Layout,
        accesses: Sequence[Access],
        files: FileSet,
        hide_s: float,
    ) -> list[Reading]:
        """Take the reads in; returns the passes that they belong to."""
        moved: dict[int, Reading] = {}
        for r in self._readings.get(obj.number, ()):
            if r.group < 0:  # the index was read just now
                moved[id(r)] = r
        for a in accesses:
            files.read_bytes += a.length
            parts = layout.touched(a.offset, a.length)
            if not parts:
                continue
            r = self._reading(obj, layout, parts[-1] // len(layout.names), a.at)
            r.rate.add(a.length, a.at)
            r.burst.add(a.length, a.at, hide_s)
            if r.note(parts) or r.row is None:
                r.want(files.columns)
                if r.settled:
                    files.columns = frozenset(layout.names[i] for i in r.columns)
            r.move(parts[-1], a.offset + a.length)
            moved[id(r)] = r
        for r in moved.values():
            if r.row is None:
                r.want(files.columns)
        return list(moved.values())

    def _ahead(
        self, s: Stream, r: Reading, files: FileSet, now: float, hide_s: float
    ) -> list[Candidate]:
        depth = self._depth
        if r.row is None or (r.layout.groups > 1 and not r.dense):
            return []
        known = r.settled or r.layout.groups == 1
        # What was planned and is not there, found no room or was dropped: look at all of it again,
        # but not for each read of those that wait for what is on its way.
        again = s.waits > 0 and now - r.again_at > hide_s
        r.again_at = now if again else r.again_at
        s.waits = 0
        rate = r.rate.per_second(now)
        # A young meter shows the speed of one burst.
        sustained = rate * hide_s if now - r.began >= RATE_WINDOW_S else 0.0
        burst = max(sustained, r.burst.peak)
        if known:
            files.rate, files.burst = rate, burst
        elif files.columns:
            rate, burst = max(rate, files.rate), max(burst, files.burst)
        group = r.row.bytes // r.layout.groups if r.layout.groups > 1 else 0
        most = int(self._cache.capacity / SHARE_PREPARED)
        if known or files.columns:
            want = max(burst + group, depth.floor_bytes)
            want += max(0, r.head - r.at)
        else:
            # More names are to come in this group: what is asked for of later ones would be in
            # the way.
            want = min(2 * group, depth.floor_bytes)
        ahead = int(min(want, depth.ceiling_bytes, most))
        if not again and r.planned - r.at >= ahead:
            return []
        start = r.at if again else r.planned
        step = int(min(max(rate * 0.1, 256 << 10), 16 << 20, most))
        pieces, planned = _before(s.end, r.row, start, max(r.planned, r.at + ahead + step))
        r.planned = max(r.planned, planned)
        s.hide_bytes, s.planned = ahead, s.hi
        return [
            Candidate(
                "layout",
                s.stream_id,
                s.obj.name,
                None,
                offset,
                length,
                (position - r.at) / max(rate, 1 << 20),
                r.groups_read,
            )
            for position, offset, length in pieces
        ]

    # -- files that are not opened yet --------------------------------------------------------

    def _heads(self, files: FileSet) -> list[Candidate]:
        """The first groups of prepared files: what its readers read while the rest of it is on
        its way."""
        waiting = [(n, p) for n, p in files.prepared.items() if p.number is not None]
        if not waiting or files.columns is None:
            return []
        each = files.head_bytes(self._prepared_max)
        want = int(min(max(files.burst, self._depth.floor_bytes), each))
        return [c for name, p in waiting for c in self._head(name, p, files, want)]

    def _head(self, name: ObjectName, p: Prepared, files: FileSet, want: int) -> list[Candidate]:
        layout = None if p.number is None else self.book.get(p.number)
        if layout is None or layout.groups == 1:
            return []
        r = Reading(layout, RateMeter(0.0), 0.0)
        r.want(files.columns)
        if r.row is None or want < p.head + r.row.bytes // layout.groups:
            return []
        part = self._habits.part(name, NEVER)
        end = NEVER if part is None else part[1]
        pieces, p.head = _before(end, r.row, p.head, min(want, r.row.bytes))
        return [
            Candidate("layout", 0, name, None, offset, length, PREPARED_IN_S, len(files.opened))
            for _, offset, length in pieces
        ]


def _before(end: int, row: Row, start: int, stop: int) -> tuple[list[tuple[int, int, int]], int]:
    """Pieces (position, offset, length) of a row's bytes [start, stop) that lie before a byte of
    the file, and up to which position that is: what lies behind may be wanted later, when it is
    known that readers go on."""
    found: list[tuple[int, int, int]] = []
    for position, offset, length in row.pieces(start, stop):
        n = min(length, end - offset)
        if n > 0:
            found.append((position, offset, n))
        if n < length:
            return found, position + max(n, 0)
    return found, stop
