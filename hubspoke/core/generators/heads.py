"""Heads: files that are opened in an order nobody knows, each of them read on from its start.

Assumes: a job reads every file of a folder once an epoch, several at a time, and each from its
start, as tf.data's interleave and WebDataset do. Which file is opened next is not known; that one
of those not opened yet will be is. So the first part of each is brought in advance: what a reader
takes while the rest is asked for. Believed when files are opened from their start, without
repeat, apart from listing order (a walk in order is `next_object`'s), and are read densely.

The heads of a data set that is read whole are all used, so what they cost is room: they get a
share of the cache. All files get a short head before any gets a long one, because which one is
opened next is a draw. While readers wait for a path that carries less than they read, the rest of
the files follows as far as the cache has room: the path is busy when streams begin and end.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from hubspoke.core.cache import Cache
from hubspoke.core.epochs.item_set import ItemSet
from hubspoke.core.epochs.items import Folder, ListedItems
from hubspoke.core.epochs.large_files import LargeFiles
from hubspoke.core.epochs.shelf import IDLE_S
from hubspoke.core.generators.candidates import Candidate, Listing
from hubspoke.core.generators.next_object import PASSED_MIN
from hubspoke.core.habits import Habits
from hubspoke.core.ids import ReadState, kind_of
from hubspoke.core.streams import NEVER, TAIL_BYTES, Access, Pattern, Stream

LARGE_BYTES = 4 << 20  # a folder of smaller files is read by items, not by streams
FILES_MAX = 16_384  # a folder with more would need heads too short to be of use
FOLDERS_MAX = 64
READERS_MAX = 256
READ_SHARE = 0.75  # of a file that was read to its end, or it was only looked into there
LEFT_S = 60.0  # a file that nobody went on with for so long was left
OPENINGS_MIN = 4
FROM_START_MIN = 0.75
ORDERED_MIN = 0.75  # share of the listing up to the last file opened: a walk in order opens all
KINDS_SAMPLE = 64
EPOCH_SHARE = 0.9  # a file opened again after so many others begins an epoch
SHARE_OF_CACHE, SHARE_WITH_ROOM = 1 / 8, 1 / 4  # while nothing is dropped for them
SHARE_OF_FILE = 1 / 8
HEAD_BYTES_MIN, HEAD_BYTES_MAX = 512 << 10, 16 << 20
MARGIN = 1.25
NAMES_PER_CALL = 64
USE_IN_S = 30.0  # behind all that is known to be read
FILL_USE_IN_S = 60.0  # behind the heads
# Reads that wait although their streams are known, for so long and with no longer pause: the path
# is the bottleneck, and it is no beginning.
HUNGRY_S, PAUSE_S = 2.0, 1.0
# In an order that is known the path is used while readers have hits, too, if it was the bottleneck
# in this epoch or the one before: what is kept may all be read first.
STARVED_EPOCHS = 2


@dataclass(slots=True)
class _Burst:
    """What a stream reads without a pause as long as a round trip."""

    item: int | None  # the file, if the listing is known
    at: float
    before: int  # bytes read before it began


@dataclass(slots=True, eq=False)
class Files:
    """The files of one folder in this epoch."""

    items: ListedItems
    opened: bytearray = field(default_factory=bytearray)  # by item
    openings: int = 0
    repeats: int = 0
    from_start: int = 0
    top: int = 0  # the last in listing order that was opened
    kinds: set[str] = field(default_factory=set)  # of those that were opened
    shuffled: bool = False  # they were opened apart from listing order
    burst: float = 0.0
    most: int = NEVER  # of each file that is read (`habits`)
    length: int = 0  # of the heads being brought
    at: int = 0  # the next file to bring the head of
    filled: tuple[int, int] = (0, 0)  # file and offset up to which whole ones were brought
    waited_since: float = 0.0
    waited_at: float = float("-inf")
    starved: int = 0  # epochs until it is forgotten that the path was the bottleneck
    waiting: list[Stream] = field(default_factory=list)  # opened before the listing was known
    live: dict[Stream, _Burst] = field(default_factory=dict)  # being read from their start
    ended: dict[Stream, None] = field(default_factory=dict)  # of these, since one was opened
    readers: dict[str, Stream] = field(default_factory=dict)  # what each client opened last
    known: LargeFiles | None = None  # follows the order while one is known

    @property
    def believed(self) -> bool:
        # A second job may read the folder, too.
        if not self.shuffled or self.repeats > self.openings:
            return False
        if self.from_start < FROM_START_MIN * self.openings:
            return False
        dense = (s for s in self.live if s.pattern is Pattern.SEQUENTIAL)
        least = min(OPENINGS_MIN, len(self.live))
        return sum(1 for _ in islice(dense, least)) == least

    def open(self, s: Stream) -> None:
        """A stream began."""
        if not self.items.complete:
            self.waiting.append(s)
            return
        item = self.items.number(s.obj.name, 0, 0)
        if item is None:
            return
        if self.opened[item]:
            if s.start:
                return  # the tail of a file that is being read
            if self.openings < EPOCH_SHARE * len(self.opened):
                self.repeats += 1
                return
            self.begin()
        self.opened[item] = 1
        self.openings += 1
        self.from_start += s.start == 0
        self.top = max(self.top, item)
        self.kinds.add(kind_of(s.obj.name))
        far = self.openings < ORDERED_MIN * (self.top + 1)
        if self.openings >= OPENINGS_MIN and far and not self.shuffled:
            self.shuffled = self.openings < ORDERED_MIN * (self.top + 1) * self._share_of_kinds()

    def _share_of_kinds(self) -> float:
        """Of the listing up to the last file opened, without what readers pass by: files of a kind
        that is common there and was never opened."""
        step = self.top // KINDS_SAMPLE + 1
        sample = [kind_of(self.items.object_name(i)) for i in range(0, self.top + 1, step)]
        passed = sum(
            n for kind, n in Counter(sample).items() if n >= PASSED_MIN and kind not in self.kinds
        )
        return 1 - passed / len(sample)

    def waited(self, now: float) -> None:
        """A read of a known stream had to wait."""
        if now - self.waited_at > PAUSE_S:
            self.waited_since = now
        self.waited_at = now
        if self.hungry(now):
            self.starved = STARVED_EPOCHS

    def hungry(self, now: float) -> bool:
        """Whether the path carries less than what is read."""
        return now - self.waited_at < PAUSE_S and now - self.waited_since > HUNGRY_S

    def begin(self) -> None:
        """An epoch begins."""
        self.opened = bytearray(self.items.count)
        self.openings = self.repeats = self.from_start = self.top = self.at = 0
        self.filled = (0, 0)
        self.starved = max(0, self.starved - 1)


class Heads:
    """Watches which files are opened; proposes the heads of those that are not yet."""

    def __init__(self, listing: Listing, cache: Cache, habits: Habits) -> None:
        self._listing = listing
        self._habits = habits
        self._cache = cache
        self._folders: dict[Folder, Files] = {}

    def shuffled(self, folder: Folder) -> bool:
        """Whether the object after another in the listing is none that follows it."""
        files = self._folders.get(folder)
        return files is not None and files.shuffled

    def opened(self, s: Stream, moving: Iterable[Stream]) -> None:
        """A stream began. One that carries on where another has ended reads as that one did.
        moving: those that were read since `moved`."""
        folder = s.obj.data_set.folder
        files = self._folders.pop(folder, None)
        if files is None:
            if s.obj.size < LARGE_BYTES:
                return
            files = Files(ListedItems(folder, self._listing, record=None))
        self._folders[folder] = files
        if len(self._folders) > FOLDERS_MAX:
            del self._folders[next(iter(self._folders))]
        files.open(s)
        if s.start == 0:
            _carry_on(files, s, moving)
            files.live[s] = _Burst(None, s.last_at, 0)
            if len(files.live) > READERS_MAX:
                del files.live[next(iter(files.live))]
            if len(files.readers) > READERS_MAX:
                del files.readers[next(iter(files.readers))]

    def moved(self, moved: dict[Stream, list[Access]], now: float, pause_s: float) -> None:
        """Streams were read; pause_s: what ends a burst."""
        for folder, files in self._folders.items():
            if not files.items.complete:
                _list(files, folder)
            live = files.live
            for s in moved.keys() & live.keys():
                burst = live[s]
                if _over(s):
                    files.ended[s] = None
                if now - burst.at > pause_s:
                    burst.at = now
                    burst.before = s.bytes_read - sum(a.length for a in moved[s])
                files.burst = max(files.burst, s.bytes_read - burst.before)
                if s.pattern is Pattern.SEQUENTIAL and _waited(moved[s]):
                    files.waited(now)

    def propose(
        self, want: int, room: int, sets: Mapping[Folder, ItemSet], now: float
    ) -> list[Candidate]:
        """About `want` bytes in all; room: what the cache takes without dropping anything. sets:
        what is known of the order of each folder."""
        found: list[Candidate] = []
        for folder, files in self._folders.items():
            if not files.items.complete:
                continue
            habit = self._habits.get(folder)
            files.most = NEVER if habit is None else habit.end(0)
            brought: list[Candidate] = []
            known = self._known(files, sets.get(folder), now)
            if known is not None:
                hungry = files.starved > 0
                brought = known.propose(want, _wanted(files), files.most, hungry=hungry)
            elif want > 0 and files.believed:
                share = SHARE_OF_CACHE if room < want else SHARE_WITH_ROOM
                brought = _heads(files, want, int(share * self._cache.capacity))
                if not brought and files.hungry(now):
                    brought = _fill(files, min(want, room))
            want -= sum(c.length for c in brought)
            found += brought
        return found

    def _known(self, files: Files, found: ItemSet | None, now: float) -> LargeFiles | None:
        """Whoever knows the order of all that is read of the folder now."""
        jobs = []
        if found is not None and found.items.record is None:  # records have other numbers
            jobs = [j for j in found.jobs.all if now - j.last_at < IDLE_S]
        if not files.live:
            return None
        if not jobs or any(j.follower is None and not j.guessing for j in jobs):
            if files.known is not None:
                files.known.end()
            return None
        if files.known is None:
            files.known = LargeFiles(files.items, self._cache)
        reading: dict[int, int] = {}
        for s, burst in files.live.items():
            if burst.item is None:
                burst.item = files.items.number(s.obj.name, 0, 0)
            if burst.item is not None and not _done(s) and now - s.last_at < LEFT_S:
                reading[burst.item] = min(s.recent_lo, reading.get(burst.item, s.recent_lo))
        data_set = next(iter(files.live)).obj.data_set
        return files.known if files.known.follow(jobs, reading, data_set) else None


def _waited(accesses: list[Access]) -> bool:
    return any(a.state is not ReadState.HIT for a in accesses)


def _done(s: Stream) -> bool:
    """Whether the file was read; a directory at its end may be read first."""
    return s.ended and s.bytes_read >= READ_SHARE * s.obj.size


def _list(files: Files, folder: Folder) -> None:
    """Read on in the listing."""
    files.items.grow()
    if files.items.complete:
        files.begin()
        for s in files.waiting:
            files.open(s)
        files.waiting = []


def _over(s: Stream) -> bool:
    return s.obj.size - s.hi <= TAIL_BYTES and _done(s)


def _carry_on(files: Files, s: Stream, moving: Iterable[Stream]) -> None:
    """The reader that opens a file has done with another: its pace is known."""
    client, live = next(iter(s.clients)), files.live
    before = files.readers.pop(client, None)
    # Only what was read since can have ended since: to look at all took a sixth of an opening.
    files.ended.update(dict.fromkeys(moving))
    done = [b for b in files.ended if b in live and _over(b)]
    files.ended.clear()
    if len(done) > 1:
        done.sort(key=list(live).index)
    if before is None or not _done(before):
        before = done[0] if done else None
    files.readers[client] = s
    for ended in done:
        del live[ended]
    if before is not None and before.pattern is Pattern.SEQUENTIAL and not s.chained:
        s.pattern, s.boost, s.rate = before.pattern, before.boost, before.rate


def _wanted(files: Files) -> int:
    """Bytes that a reader takes while the rest is asked for."""
    wanted = max(HEAD_BYTES_MIN, min(int(files.burst * MARGIN), HEAD_BYTES_MAX))
    return min(wanted, files.most)


def _heads(files: Files, want: int, all_: int) -> list[Candidate]:
    """all_: bytes of all heads at most."""
    items, found = files.items, list[Candidate]()
    wanted = min(_wanted(files), all_ // max(1, items.count))
    if not files.length:
        files.length = min(HEAD_BYTES_MIN, wanted)
    for _ in range(NAMES_PER_CALL):
        if files.at >= items.count:
            if files.length >= wanted:
                break
            files.length, files.at = min(2 * files.length, wanted), 0
        item = files.at
        files.at += 1
        if files.opened[item]:
            continue
        place = items.place(item)
        if place is None:
            continue
        name, entry, _, size = place
        length = min(files.length, wanted, int(size * SHARE_OF_FILE))
        if length <= 0:
            continue
        found.append(Candidate("heads", 0, name, entry, 0, length, USE_IN_S, files.openings))
        want -= length
        if want <= 0:
            break
    return found


def _fill(files: Files, want: int) -> list[Candidate]:
    """The next `want` bytes of files that are not opened yet."""
    items, found = files.items, list[Candidate]()
    item, at = files.filled
    for _ in range(NAMES_PER_CALL):
        if want <= 0 or item >= items.count:
            break
        place = None if files.opened[item] else items.place(item)
        size = 0 if place is None else min(place[3], files.most)
        if place is None or at >= size:
            item, at = item + 1, 0
            continue
        name, entry = place[:2]
        n = min(want, size - at)
        found.append(Candidate("heads", 0, name, entry, at, n, FILL_USE_IN_S, files.openings))
        at += n
        want -= n
    files.filled = item, at
    return found
