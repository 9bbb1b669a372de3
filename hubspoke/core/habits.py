"""Which part of each file the readers of a folder take: from where, and how far before they leave.

Assumes: the files of a folder are read alike. Whoever takes a mebibyte of each of the last files
will do so of the next one, so what lies behind it is not brought. A reader that goes on past that
makes a new case of its file at once: all that was read as far says how much further it goes.

    open -> read -> left (others were opened meanwhile) -> its part is one of the folder's last
              ^------ read further: nobody had left it ------+

Nobody tells that a file is left; it is taken for left when its reader, or enough others, opened
more files without coming back to it. Each time that this was wrong, it takes twice as many in this
folder from then on.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from hubspoke.core.epochs.items import Folder, folder_of
from hubspoke.core.ids import ObjectName
from hubspoke.core.streams import NEVER, TAIL_BYTES, Access, Pattern, Stream

FOLDERS_MAX = 1_024
FILES_MAX = 8_192  # being read, of all folders
CLIENTS_MAX = 256  # of a folder
PARTS = 8  # the last files decide, of which three may differ from the rest
EVIDENCE_MIN = 3
LOOKED_AT = 16  # files that may be left, at an opening
# Openings without a read of a file after which it is left: by its own reader, and by anybody. A
# file that was read once only may be one of thousands that are read in turns.
OWN_OPENINGS, OPENINGS = 1, 2
OPENINGS_ONCE, ONCE_S = 64, 10.0
PATIENCE_MAX = 1 << 12
TRUSTED = 16  # files that were left and stayed so: patience halves
IDLE_READS = 8  # and twice its longest pause so far, counted in reads of the folder
YOUNG_BYTES = 256 << 10
NEAR_PART = 16  # what is so near to where most files end is brought too: a stall costs more
NEAR_BYTES = 64 << 10
SAME_START_MIN = 0.75  # of the files, to say where the next one will be begun


class Part(NamedTuple):
    """What was read of a file: bytes [start, end), NEVER: to its end. below: from the first byte
    read to the file's end, NEVER: the first byte is the file's."""

    start: int
    end: int
    below: int


class _File:
    """A file that is being read. What is counted is the folder's, at the file's last read."""

    def __init__(self, folder: "Habit", client: str) -> None:
        self.folder = folder
        self.client = client
        self.start, self.end = NEVER, 0  # of what was read; nothing yet
        self.directory = NEVER  # read at its end, as a directory is
        self.reads = self.longest = self.openings = self.own = 0
        self.read_at, self.last_at = folder.reads, 0.0
        self.limits, self.version = (NEVER, NEVER), -1
        self.streams: set[Stream] = set()

    def read(self, s: Stream, accesses: Sequence[Access]) -> None:
        """Take in reads of a stream of it."""
        folder, n, last = self.folder, len(accesses), accesses[-1]
        if self.reads and folder.reads - self.read_at > self.longest:
            self.longest = folder.reads - self.read_at
        folder.reads += n
        self.reads += n
        self.client = last.client
        self.own = folder.opened_by.get(self.client, 0)
        self.read_at, self.openings = folder.reads, folder.openings
        self.last_at = last.at
        self.streams.add(s)
        if s.layout:
            for a in accesses:
                self._took(a.offset, a.offset + a.length, s.obj.size)
        else:
            self._took(s.recent_lo if s.pattern is Pattern.BACKWARD else s.start, s.hi, s.obj.size)

    def _took(self, start: int, end: int, size: int) -> None:
        near = size // NEAR_PART
        # Unless it is as near to what was read before: then the readers came there.
        if start and size - start <= max(TAIL_BYTES, near) and not 0 < self.end >= start - near:
            self.directory = min(self.directory, start)
            return
        if start < self.start:
            self.start = start
        if end > self.end:
            self.end = end
            if end > self.folder.furthest:
                self.folder.furthest = end

    def left(self, now: float, hide_s: float) -> bool:
        """Whether its readers have gone on to other files. hide_s: as long as a read may wait."""
        folder = self.folder
        opened = (folder.openings - self.openings) / folder.patience
        if self.reads < 2:
            return opened >= OPENINGS_ONCE and now - self.last_at >= ONCE_S
        own = folder.opened_by.get(self.client, 0) - self.own
        if own >= OWN_OPENINGS * folder.patience:
            return True
        idle = folder.reads - self.read_at
        waited = now - self.last_at >= hide_s
        return waited and opened >= OPENINGS and idle >= 2 * self.longest + IDLE_READS

    def part(self, size: int) -> Part:
        """What was read of it until now."""
        if not self.end:
            return Part(self.directory, NEVER, size - self.directory)
        end = NEVER if size - self.end <= TAIL_BYTES else self.end
        return Part(self.start, end, size - self.start if self.start else NEVER)


class Habit:
    """One folder's."""

    def __init__(self) -> None:
        self.reads = self.openings = 0
        self.opened_by: OrderedDict[str, int] = OrderedDict()
        self.reading: OrderedDict[int, _File] = OrderedDict()  # by last read
        self.parts: OrderedDict[int, Part] = OrderedDict()  # of the files left last
        self.version = 0
        self.patience, self.trust = 1, 0
        self.furthest = 0  # end of what was read of any file

    def opened(self, client: str) -> None:
        """A file that was not being read is."""
        self.openings += 1
        self.opened_by[client] = self.opened_by.pop(client, 0) + 1
        if len(self.opened_by) > CLIENTS_MAX:
            self.opened_by.popitem(last=False)

    def returned(self) -> None:
        """A file was read on after it was taken for left."""
        self.patience, self.trust = min(PATIENCE_MAX, 2 * self.patience), 0

    def keep(self, number: int, part: Part) -> None:
        self.parts.pop(number, None)
        self.parts[number] = part
        if len(self.parts) > PARTS:
            self.parts.popitem(last=False)
        self.version += 1
        if self.trust >= TRUSTED:
            self.patience, self.trust = max(1, self.patience // 2), 0

    def end(self, read_to: int) -> int:
        """Where a file will be left that was read as far as this; NEVER: at its end."""
        return _limit([p.end for p in self.parts.values()], read_to)

    def below(self, read: int) -> int:
        """The same of a file read downwards: bytes above where it will be left."""
        return _limit([p.below for p in self.parts.values()], read)

    @property
    def start(self) -> int | None:
        """Where a file is begun; below 0: so far from its end. None: not known."""
        parts = self.parts.values()
        if len(parts) < EVIDENCE_MIN:
            return 0
        places = [sorted(p.start for p in parts), sorted(-p.below for p in parts)]
        if self.end(0) == NEVER:
            places.reverse()  # files of other sizes have tails as long, and begin elsewhere
        for starts in places:
            middle = starts[len(starts) // 2]
            near = sum(abs(start - middle) <= NEAR_BYTES for start in starts)
            if near >= SAME_START_MIN * len(starts):
                return middle
        return None


def _limit(ends: list[int], at: int) -> int:
    """As far as half of those go on that came as far as `at`; NEVER: nobody knows."""
    if len(ends) < EVIDENCE_MIN:
        return NEVER
    further = sorted(end for end in ends if end >= at)
    if not further:
        # Further than all of them, if by no more than they differ from each other.
        most, least = max(ends), min(ends)
        bound = most + (most - least) // 2
        return bound if at < bound else NEVER
    half = further[len(further) // 2]
    near = half + max(half // NEAR_PART, NEAR_BYTES)
    return max(end for end in further if end <= near)


class Habits:
    """All folders that are read."""

    def __init__(self) -> None:
        self._folders: OrderedDict[Folder, Habit] = OrderedDict()
        self._files: OrderedDict[int, _File] = OrderedDict()

    def get(self, folder: Folder) -> Habit | None:
        """What is known of a folder."""
        return self._folders.get(folder)

    def part(self, name: ObjectName, size: int) -> tuple[int, int] | None:
        """Bytes [start, end) of a file that will be read when it is opened; None: not known."""
        habit = self._folders.get(folder_of(name))
        if habit is None or not habit.parts:
            return 0, size
        start = habit.start
        if start is None:
            return None
        start = max(0, start + size) if start < 0 else start
        return start, max(start, min(size, habit.end(start)))

    def of_next(self, folder: Folder) -> int:
        """Bytes from its start that may be brought of each file after one of which some was
        read: as much as of any, until it is known where they are left."""
        habit = self._folders.get(folder)
        if habit is None:
            return YOUNG_BYTES
        if len(habit.parts) >= EVIDENCE_MIN:
            return habit.end(0)
        return max(YOUNG_BYTES, habit.furthest)

    def moved(self, moved: Mapping[Stream, Sequence[Access]], hide_s: float) -> None:
        """Streams were read. Sets how far each will be: `end_at`, and `bottom_at` downwards.
        hide_s: what a fetch takes, at most."""
        for s, accesses in moved.items():
            obj = s.obj
            number, size = obj.number, obj.size
            file = self._files.get(number) or self._open(s, accesses[-1].client, hide_s)
            folder = file.folder
            file.read(s, accesses)
            folder.reading.move_to_end(number)
            if s.left or file.end > file.limits[0]:
                # Whoever goes on has not left it, and until he does it is one that is read on.
                folder.keep(number, Part(file.start, NEVER, NEVER))
            if s.left:
                s.left = False
                folder.returned()
            if file.version != folder.version or file.end > file.limits[0]:
                file.version, below = folder.version, size - min(file.start, size)
                file.limits = folder.end(file.end), folder.below(below)
            end_at, below = file.limits
            s.end_at = end_at if end_at < size else size
            s.bottom_at = size - below if below < size else 0

    def _open(self, s: Stream, client: str, hide_s: float) -> _File:
        key = s.obj.data_set.folder
        folder = self._folders.pop(key, None) or Habit()
        self._folders[key] = folder
        if len(self._folders) > FOLDERS_MAX:
            self._folders.popitem(last=False)
        folder.opened(client)
        self._look(folder, s.last_at, hide_s)
        if len(self._files) >= FILES_MAX:
            number, oldest = self._files.popitem(last=False)
            del oldest.folder.reading[number]
        file = self._files[s.obj.number] = folder.reading[s.obj.number] = _File(folder, client)
        return file

    def _look(self, folder: Habit, now: float, hide_s: float) -> None:
        """A file is opened: others may be left."""
        for number, file in list(islice(folder.reading.items(), LOOKED_AT)):
            if file.left(now, hide_s):
                del folder.reading[number], self._files[number]
                for s in file.streams:
                    s.left = True
                    size = s.obj.size
                folder.keep(number, file.part(size))
                folder.trust += 1
