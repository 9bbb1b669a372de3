"""Notices that a folder is read in another way than before, and says in which.

Streams come and go with every file, so one that ends is no change: what counts is what the last
reads of the whole folder were taken for. WINDOW reads are looked at; a change is told when most of
them agree on something else than what was believed. Reads of young streams say nothing.

    sequential | backward | strided by n | by layout | random      of bytes, from their streams
    objects in listing order | in another order                    of whole objects, from their job

What random reads are beyond that (an epoch, in an order that is known or not) is `epochs`'
business: to learn it is no change, and to lose it is told there.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from hubspoke.core.epochs.epochs import Epochs
from hubspoke.core.epochs.items import Folder
from hubspoke.core.epochs.job import RECENT
from hubspoke.core.streams import Access, Pattern, Stream

WINDOW = 48  # reads; two batches of a small job
MOST = 0.75
FOLDERS_MAX = 256
STEADY = 4  # equal jumps in a row, to tell one stride from another
RANDOM = Pattern.RANDOM.value
IN_ORDER, SHUFFLED = "objects in listing order", "objects in another order"

Told = Callable[[str], None]


class _Way:
    """How one folder is read: (what, reads) of the last WINDOW reads, and what is believed."""

    __slots__ = ("believed", "counts", "runs", "total")

    def __init__(self) -> None:
        self.believed: str | None = None
        self.runs: deque[tuple[str, int]] = deque()
        self.counts: Counter[str] = Counter()
        self.total = 0

    def read(self, what: str, reads: int) -> None:
        if reads == 1 and self.total == WINDOW == self.counts[what] == len(self.runs):
            return  # WINDOW times the same, one by one: the oldest leaves, the same comes
        reads = min(reads, WINDOW)
        self.runs.append((what, reads))
        self.counts[what] += reads
        self.total += reads
        while self.total - self.runs[0][1] >= WINDOW:
            old, n = self.runs.popleft()
            self.counts[old] -= n
            self.total -= n

    def changed(self) -> str | None:
        """What was believed until now, if it no longer is."""
        what, n = self.counts.most_common(1)[0]
        if what == self.believed or self.total < WINDOW or n < MOST * self.total:
            return None
        before, self.believed = self.believed, what
        return before


class Relearning:
    """All folders that are read."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._ways: OrderedDict[Folder, _Way] = OrderedDict()

    def random(self, folder: Folder) -> bool:
        """Whether the folder is read at random, as far as is known."""
        way = self._ways.get(folder)
        return way is not None and way.believed == RANDOM

    def look(
        self, moved: Mapping[Stream, Sequence[Access]], accesses: Sequence[Access], told: Told
    ) -> None:
        """Take in what reads were taken for; moved: the streams they belong to, if to any."""
        touched: dict[Folder, _Way] = {}
        # Many streams of one folder come in a row.
        last: Folder | None = None
        objects: str | None = None
        for folder, what, reads in _taken_for(moved, accesses):
            if folder is not last:
                last, objects = folder, self._objects(folder)
            what = objects or what
            if what is None or not reads:
                continue
            way = touched.get(folder)
            if way is None:
                way = touched[folder] = self._way(folder)
            way.read(what, reads)
        for folder, way in touched.items():
            before = way.changed()
            if before is not None:
                if way.believed == RANDOM:
                    self._epochs.relearn(folder)
                told(f"{'/'.join(folder)}: reads were {before}, are {way.believed}")

    def _way(self, folder: Folder) -> _Way:
        """As it was last, and now the latest of all."""
        way = self._ways.get(folder)
        if way is None:
            way = self._ways[folder] = _Way()
            if len(self._ways) > FOLDERS_MAX:
                self._ways.popitem(last=False)
        self._ways.move_to_end(folder)
        return way

    def _objects(self, folder: Folder) -> str | None:
        """Of a folder whose objects are the items, in which order they are opened."""
        known = self._epochs.sets.get(folder)
        if known is None or known.items.record is not None or not known.small:
            return None
        job = max(known.jobs.all, key=lambda j: j.last_at, default=None)
        if job is None or job.count <= 2 * RECENT:
            return None
        return IN_ORDER if job.walks else SHUFFLED


def _taken_for(
    moved: Mapping[Stream, Sequence[Access]], accesses: Sequence[Access]
) -> Iterator[tuple[Folder, str | None, int]]:
    """(folder, what, reads); reads that no stream wants are random unless they open an object."""
    lone: dict[int, int] = {}
    folders: dict[int, Folder] = {}
    if sum(map(len, moved.values())) < len(accesses):  # or each belongs to a stream
        for a in accesses:
            if a.offset:
                number = a.obj.number
                lone[number] = lone.get(number, 0) + 1
                folders[number] = a.obj.data_set.folder
    for s, reads in moved.items():
        number = s.obj.number
        if number in lone:
            lone[number] -= sum(1 for a in reads if a.offset)
        yield s.obj.data_set.folder, _stream(s), len(reads)
    for number, n in lone.items():
        if n > 0:
            yield folders[number], RANDOM, n


def _stream(s: Stream) -> str | None:
    if s.layout:
        return "by layout"
    match s.pattern:
        case Pattern.UNKNOWN:
            return None
        case Pattern.STRIDED:
            steady = max(s.clients.values(), key=lambda c: c.confirmed)
            return f"strided by {steady.jump:,}" if steady.confirmed >= STEADY else None
        case _:
            return str(s.pattern.value)
