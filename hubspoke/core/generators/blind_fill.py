"""Blind fill: a shuffled epoch reads every record once, so any record not read yet will be.

Assumes: records of one length at multiples of it, drawn without replacement from all objects of
one folder. That is believed only when sampling *with* replacement is excluded: k reads of n
records without a repeat have a probability of about exp(-k^2 / 2n) if drawn with replacement,
so k^2 / 2n > 3 leaves 5 % (WORKLOADS, "blind fill"). One repeat ends it for good; a dense or
strided stream in the folder keeps it from starting.

Fetches in file order at what the path carries, after everything that has a nearer use. Never
pushes anything out of the cache: it stops when the cache is full.
"""

from dataclasses import dataclass, field

from hubspoke.core.generators.candidates import Candidate, Listing
from hubspoke.core.ids import BLOCK_BYTES, ObjectEntry, ObjectName
from hubspoke.core.streams import Access, Pattern, Stream

OBJECTS_MAX = 1_024  # a folder with more is not filled blindly
FOLDERS_MAX = 64
RECORDS_SEEN_MAX = 65_536  # enough for k^2 / 2n > 3 up to n = 7e8
EVIDENCE_MIN = 3.0
OUTSTANDING_BYTES_MIN = 8 << 20

Folder = tuple[str, str]


@dataclass(slots=True)
class Draw:
    """What was read of one folder in an order that no other generator explains."""

    length: int
    objects: list[tuple[ObjectName, ObjectEntry]]
    records: int
    seen: set[tuple[str, int]] = field(default_factory=set)
    refuted: bool = False
    at_object: int = 0
    at_offset: int = 0

    @property
    def evidence(self) -> float:
        return len(self.seen) ** 2 / (2 * max(1, self.records))


class BlindFill:
    """Watches folders that are read at random; fills those that are drawn without replacement."""

    def __init__(self) -> None:
        self._draws: dict[Folder, Draw | None] = {}  # None: not of this kind

    def observe(self, stream: Stream, a: Access, listing: Listing) -> Folder | None:
        """Count one access of a stream; returns its folder if that is being filled."""
        folder = (a.obj.name.bucket, a.obj.name.key[: a.obj.name.key.rfind("/") + 1])
        if folder not in self._draws:
            self._add(folder, a, listing)
        draw = self._draws[folder]
        if draw is None:
            return None
        if stream.pattern is not Pattern.RANDOM and stream.accesses > 16:
            self._draws[folder] = None  # another generator understands it
            return None
        record = (a.obj.name.key, a.offset)
        if draw.refuted or record in draw.seen or a.length != draw.length or a.offset % a.length:
            # The last record of a file may be short; anything else is another way of reading.
            if a.offset + a.length != a.obj.size or record in draw.seen:
                draw.refuted = True
            return None
        if len(draw.seen) < RECORDS_SEEN_MAX:
            draw.seen.add(record)
        return folder if draw.evidence > EVIDENCE_MIN else None

    def _add(self, folder: Folder, a: Access, listing: Listing) -> None:
        if len(self._draws) >= FOLDERS_MAX:
            del self._draws[next(iter(self._draws))]
        objects = listing.following(ObjectName(*folder), OBJECTS_MAX + 1)
        if len(objects) > OBJECTS_MAX:
            self._draws[folder] = None
            return
        records = sum(-(-e.size // a.length) for _, e in objects)
        self._draws[folder] = Draw(a.length, objects, records)

    def propose(self, folder: Folder, want: int, room: int) -> list[Candidate]:
        """The next `want` bytes of the folder that may still be unread, at most `room`."""
        draw = self._draws[folder]
        assert draw is not None
        found: list[Candidate] = []
        left = min(want, room)
        while left > 0 and draw.at_object < len(draw.objects):
            name, entry = draw.objects[draw.at_object]
            n = min(left, entry.size - draw.at_offset, BLOCK_BYTES - draw.at_offset % BLOCK_BYTES)
            if n > 0:
                found.append(
                    Candidate(
                        "blind_fill", 0, name, entry, draw.at_offset, n, 60.0, int(draw.evidence)
                    )
                )
                draw.at_offset += n
                left -= n
            if draw.at_offset >= entry.size:
                draw.at_object, draw.at_offset = draw.at_object + 1, 0
        return found
