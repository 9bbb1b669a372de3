"""Files of one kind in one folder: what was learned of those that were read serves the next.

Assumes: the files of a folder with the same suffix are written alike and read alike. So their
indexes are about as long, and the same names are read of each. Which file is next is known only
if they are opened in listing order; otherwise each will be, some day, and the indexes and first
groups of all are brought, as long as that is less than what was read of the set already and a
small part of the cache: a job that reads only some of the files has wasted no more than that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hubspoke.core.generators.candidates import Candidate, Listing
from hubspoke.core.ids import ObjectEntry, ObjectName

FAILED_MAX = 4  # objects without a layout before a set is left alone
FILES_MAX = 1_024  # prepared and not yet opened
END_READ_MAX = 1 << 20  # a longer read of an end is one of the file
AHEAD_MAX = 256  # files looked for at one opening
NEAR_BYTES = 4 << 20  # prepared whatever was read
Key = tuple[str, str, str]


def key_of(name: ObjectName) -> Key:
    """Bucket, folder, suffix."""
    folder, _, last = name.key.rpartition("/")
    return name.bucket, folder, last.rpartition(".")[2] if "." in last else ""


@dataclass(slots=True)
class Prepared:
    """A file that is not opened yet. index, head: bytes of it that were asked for."""

    index: int
    head: int = 0
    number: int | None = None  # of the object, once its layout is known


@dataclass(slots=True)
class FileSet:
    """index_bytes: what readers read of a file to know it, at its head or its tail. columns: names
    that were read of a file, None as long as that is not known."""

    key: Key
    format: str | None = None
    failed: int = 0
    at_head: bool = False
    index_bytes: int = 0
    ends: list[int] = field(default_factory=lambda: [0, 0])  # longest reads of: tail, head
    columns: frozenset[str] | None = None
    rate: float = 0.0  # of one pass over a file, bytes a second
    burst: float = 0.0  # of one pass, bytes in the time that hides the latency
    read_bytes: int = 0
    short: bool = False  # more would be prepared if more had been read
    last: ObjectName | None = None  # opened
    in_order: bool = True
    opened: dict[ObjectName, int] = field(default_factory=dict)
    prepared: dict[ObjectName, Prepared] = field(default_factory=dict)

    @property
    def hopeless(self) -> bool:
        return self.format is None and self.failed >= FAILED_MAX

    def end_read(self, length: int, *, at_head: bool) -> None:
        """A reader read so much of a file at one of its ends, where its index may be."""
        if length <= END_READ_MAX:
            self.ends[at_head] = max(self.ends[at_head], length)

    def indexed(self, length: int, *, at_head: bool) -> None:
        """A file's index takes so much of one end; readers may read more than that at once."""
        if at_head != self.at_head:
            self.index_bytes = 0
        self.at_head = at_head
        self.index_bytes = max(self.index_bytes, length, self.ends[at_head])

    def open(self, name: ObjectName) -> bool:
        """A reader opens a file; returns whether another one was opened last."""
        if name == self.last:
            return False
        if self.last is not None:
            self.in_order = self.in_order and name > self.last
        if name in self.opened:  # another epoch
            self.opened.clear()
            self.in_order = True
        self.last = name
        prepared = self.prepared.pop(name, None)
        self.opened[name] = 0 if prepared is None else prepared.head
        if len(self.opened) > FILES_MAX:
            del self.opened[next(iter(self.opened))]
        return True

    def budget(self, share: int) -> int:
        """Bytes that may still be prepared; share: of the cache, at most."""
        return self._most(share) - sum(p.index + p.head for p in self.prepared.values())

    def head_bytes(self, share: int) -> int:
        """Of the first groups of each prepared file, so that there is room for indexes of more."""
        left = self._most(share) * 3 // 4 - sum(p.index for p in self.prepared.values())
        return max(0, left) // max(1, len(self.prepared))

    def _most(self, share: int) -> int:
        return min(share, max(self.read_bytes, NEAR_BYTES))

    def following(self, listing: Listing, readers: int) -> Iterator[tuple[ObjectName, ObjectEntry]]:
        """Files that may be opened next and are not prepared."""
        assert self.last is not None
        # Each doubles what is known about the order; few openings say little.
        ahead = 2 * readers if self.in_order else min(AHEAD_MAX, 4 ** len(self.opened))
        bucket, folder, _ = self.key
        first = ObjectName(bucket, f"{folder}/" if folder else "")
        starts = [self.last] if self.in_order else [self.last, first]
        for start in starts:
            for name, entry in listing.following(start, ahead + readers):
                if ahead <= 0 or len(self.prepared) >= FILES_MAX:
                    return
                if name in self.opened or key_of(name) != self.key or not entry.size:
                    continue
                ahead -= 1
                if name not in self.prepared:
                    yield name, entry

    def prepare(
        self, name: ObjectName, entry: ObjectEntry, in_s: float, room: int
    ) -> Candidate | None:
        """Bring a file's index, in so many seconds, if it takes less than `room`."""
        length = min(self.index_bytes, entry.size)
        if length > room:
            return None
        self.prepared[name] = Prepared(length)
        offset = 0 if self.at_head else entry.size - length
        evidence = len(self.opened)
        return Candidate("layout", 0, name, entry, offset, length, in_s, evidence)
