"""Next object: when a file ends, the next one in listing order follows; small files in a row.

Assumes: loaders sort their files by name, so the listing is the order. Two forms:
- the tail of a dense stream flows over into the next object of the folder, before the end is
  reached, or where its readers leave the folder's files (`habits`); a stream that was entered this
  way carries pattern, rate and boost on;
- a folder whose objects are opened one after the other (by any number of workers, in any order
  inside a window) is a sequential stream of whole objects.
Of a kind of file that readers pass by, such as an index beside each file of data, nothing is
brought, until one of it is opened. Kinds are told by what is behind the last dot of a name.

Does not hold for shuffled file lists; then the second form sees openings far apart and is silent,
and looks into the listing for a walk at ever fewer of them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hubspoke.core.epochs.items import folder_of
from hubspoke.core.generators.candidates import Candidate, Listing
from hubspoke.core.habits import Habits
from hubspoke.core.ids import ObjectEntry, ObjectName, StoredObject, kind_of
from hubspoke.core.streams import RateMeter, Stream

SOURCE = "next_object"
FOLLOWING = 8  # objects after the end of one that its stream may flow over to
SPREAD_MAX = 64  # objects: openings further apart are not one walk
DENSITY_MIN = 0.3
OPENINGS_MIN = 4
OBJECTS_AHEAD_MAX = 512
ANCHOR_OBJECTS = 2 * SPREAD_MAX  # listed when a walk may begin; more once it is one
TRIES, PAUSE_MAX = 4, 32  # openings apart: each is a beginning at first, then one in so many
FOLDERS_MAX = 1_024
PASSED_MIN = 3  # of a kind, since one of it was opened: then it is left out
KINDS_MAX = 64
WHOLE_BYTES_MAX = 4 << 20  # of an object opened in a walk, at most this much in advance


def overflow(
    s: Stream, beyond: int, following: Sequence[StoredObject], hide_s: float, habits: Habits
) -> list[Candidate]:
    """The first `beyond` bytes after the end of the stream's object, in the objects after it: of
    each what is read of such files."""
    found: list[Candidate] = []
    for name, entry in following:
        if beyond <= 0:
            break
        part = habits.part(name, entry.size)
        if part is None:
            break
        start, n = part[0], min(beyond, part[1] - part[0])
        beyond -= n
        if n:
            found.append(
                Candidate(SOURCE, s.stream_id, name, entry, start, n, hide_s, 1 + s.chained)
            )
    return found


@dataclass(slots=True)
class Walk:
    """Openings in one folder, by their place in the listing."""

    names: list[ObjectName]
    entries: list[ObjectEntry]
    place: dict[ObjectName, int]
    rate: RateMeter
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=32))
    frontier: int = 0
    planned: int = 0
    ahead: int = 0  # bytes between the two, and of each object there
    brought: deque[int] = field(default_factory=deque)
    most: int = WHOLE_BYTES_MAX  # of each
    opened: int = 0  # bytes
    apart: int = 0  # openings elsewhere since it was a walk
    passed: dict[str, int] = field(default_factory=dict)  # by kind, since one of it was opened

    @property
    def dense(self) -> bool:
        if len(self.recent) < OPENINGS_MIN:
            return False
        places = set(self.recent)
        spread = max(places) - min(places) + 1
        return spread <= SPREAD_MAX * 2 and len(places) / spread >= DENSITY_MIN

    def bring(self) -> int:
        """One object more is planned; returns how many bytes of it, by its place."""
        self.planned += 1
        n = min(self.entries[self.planned - 1].size, self.most)
        if self.left_out(self.names[self.planned]):
            n = 0
        self.brought.append(n)
        self.ahead += n
        return n

    def give_back(self, at: int) -> None:
        """The object at this place, and all behind it, are not planned after all."""
        while self.planned >= max(at, self.frontier + 1):
            self.planned -= 1
            self.ahead -= self.brought.pop()

    def advance(self, at: int) -> None:
        """The object at this place was opened."""
        for _ in range(self.frontier, min(at, self.planned)):
            self.ahead -= self.brought.popleft()
        again = bool(self.passed) and self.left_out(self.names[at])
        if self.passed or at > self.frontier + 1:
            self._pass_by(at)
        self.frontier = max(self.frontier, at)
        self.planned = max(self.planned, self.frontier)
        if again:  # those of its kind that are ahead were left out
            self.give_back(self.frontier + 1)

    def _pass_by(self, at: int) -> None:
        """What lies between the furthest object opened so far and this one was passed by."""
        for i in range(self.frontier + 1, at):
            kind = kind_of(self.names[i])
            self.passed[kind] = self.passed.get(kind, 0) + 1
        self.passed.pop(kind_of(self.names[at]), None)
        if len(self.passed) > KINDS_MAX:
            self.passed.clear()

    def left_out(self, name: ObjectName) -> bool:
        """Whether readers pass objects of this kind by."""
        return bool(self.passed) and self.passed.get(kind_of(name), 0) >= PASSED_MIN


class Walks:
    """The second form: which folders are walked in listing order."""

    def __init__(self) -> None:
        self._folders: dict[tuple[str, str], Walk] = {}

    def opened(
        self,
        name: ObjectName,
        entry_size: int,
        listing: Listing,
        now: float,
        hide_s: float,
        floor_bytes: int,
        most: int = WHOLE_BYTES_MAX,
        room: int | None = None,
    ) -> list[Candidate]:
        """An object was opened (its first access of a stream); returns what follows it, at most
        `most` bytes of each object. room: bytes ahead, where what they displace is known to be of
        more use."""
        folder = (name.bucket, name.key[: name.key.rfind("/") + 1])
        walk = self._folders.pop(folder, None)
        at = None if walk is None else walk.place.get(name)
        if walk is None or at is None:
            walk = self._anchor(name, listing, now, walk)
            at = walk.place.get(name)
        self._folders[folder] = walk
        if len(self._folders) > FOLDERS_MAX:
            del self._folders[next(iter(self._folders))]
        if at is None:
            return []
        walk.recent.append(at)
        walk.advance(at)
        walk.most = min(most, WHOLE_BYTES_MAX)
        length = min(entry_size, walk.most)
        walk.rate.add(length, now)
        walk.opened += length
        if not walk.dense:
            return []
        walk.apart = 0
        # No more than was opened so far: some workers' first files at once are no rate.
        want = max(min(walk.rate.per_second(now) * hide_s, walk.opened), floor_bytes)
        return self._ahead(walk, listing, hide_s, want if room is None else min(want, room))

    def left_out(self, name: ObjectName) -> bool:
        """See `Walk.left_out`."""
        walk = self._folders.get(folder_of(name))
        return walk is not None and walk.left_out(name)

    def refused(self, name: ObjectName) -> None:
        """What was proposed of this object was not taken, and nobody looks at it again: it and all
        behind it are proposed anew, as long as it is ahead of its walk."""
        walk = self._folders.get(folder_of(name))
        if walk is not None:
            walk.give_back(walk.place.get(name, walk.planned + 1))

    def _anchor(self, name: ObjectName, listing: Listing, now: float, before: Walk | None) -> Walk:
        """A walk that begins here, or the former one if it is not worth a look."""
        apart = 0 if before is None else before.apart + 1
        if before is not None and apart > TRIES:
            before.apart = apart
            if apart % min(1 << apart - TRIES, PAUSE_MAX):
                return before
        following = listing.following(name, ANCHOR_OBJECTS)
        names = [name, *(n for n, _ in following)]
        # Only the objects that follow are ever proposed, so the opened one needs no entry.
        entries = [e for _, e in following]
        rate = before.rate if before is not None else RateMeter(now)
        place = {n: i for i, n in enumerate(names)}
        passed = {} if before is None else before.passed
        return Walk(names, entries, place, rate, apart=apart, passed=passed)

    def _ahead(self, walk: Walk, listing: Listing, hide_s: float, want: float) -> list[Candidate]:
        if walk.frontier + SPREAD_MAX >= len(walk.names):
            self._extend(walk, listing)
        found: list[Candidate] = []
        while walk.planned + 1 < len(walk.names) and walk.ahead < want:
            n, i = walk.bring(), walk.planned
            if n:
                name, entry = walk.names[i], walk.entries[i - 1]
                found.append(Candidate(SOURCE, 0, name, entry, 0, n, hide_s, len(walk.recent)))
        return found

    def _extend(self, walk: Walk, listing: Listing) -> None:
        following = listing.following(walk.names[-1], OBJECTS_AHEAD_MAX)
        for name, entry in following:
            walk.place[name] = len(walk.names)
            walk.names.append(name)
            walk.entries.append(entry)
        cut = walk.frontier - 4 * SPREAD_MAX
        if cut <= OBJECTS_AHEAD_MAX:
            return
        # Forget what lies far behind, so that a walk over a million objects stays small.
        walk.names, walk.entries = walk.names[cut:], walk.entries[cut:]
        walk.place = {n: i for i, n in enumerate(walk.names)}
        walk.frontier -= cut
        walk.planned -= cut
        recent = [i - cut for i in walk.recent if i >= cut]
        walk.recent.clear()
        walk.recent.extend(recent)
