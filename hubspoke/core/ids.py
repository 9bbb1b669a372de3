"""Names, versions and the units of the cache: what everything else is counted in.

Blocks are immutable because their identity contains the object's version: a block can be lost,
never stale. Only the map name -> version changes, and only the hub's log changes it.
"""

import enum
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

PAGE_BYTES = 4096  # the presence bit, and the unit of an exact range
BLOCK_BYTES = 1 << 20  # identity, eviction, accounting
FRAME_BYTES_MAX = 256 << 10  # what one digest covers, on the wire and on disk
PART_BYTES_MAX = 16 << 20  # one request in sequential mode
KEY_BYTES_MAX = 1024  # S3's limit on a key, in UTF-8 bytes

Version = NewType("Version", str)  # opaque ASCII, at most 128 characters, given by the store
LogSequence = NewType("LogSequence", int)  # position in the hub's log; the first change is 1
Epoch = NewType("Epoch", str)  # identity of one hub state; a rebuilt state gets a new one


class ObjectName(NamedTuple):
    """Exact bytes: no case folding, no Unicode normalisation, no path cleaning."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """What the namespace knows of one object version.

    size: bytes. etag: without quotes. modified_ns: Unix time in nanoseconds.
    headers: stored response headers by lower-case name (content-type, x-amz-meta-*, ...).
    """

    version: Version
    size: int
    etag: str
    modified_ns: int
    headers: dict[str, str] = field(default_factory=dict)


StoredObject = tuple[ObjectName, ObjectEntry]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the hub's log: `name` now has `entry`, or is gone (`entry` is None)."""

    sequence: LogSequence
    name: ObjectName
    entry: ObjectEntry | None


class TrafficClass(enum.Enum):
    """Why bytes cross the WAN, in order of precedence."""

    __hash__ = object.__hash__  # a member is one object; Enum's own is a call of Python for each

    DEMAND = "demand"
    PREFETCH = "prefetch"
    METADATA = "metadata"


class ReadState(enum.Enum):
    """State of an object read on arrival (INTERFACE, response headers)."""

    __hash__ = object.__hash__

    HIT = "hit"  # every byte was local
    LATE = "late"  # all missing bytes were already in flight
    MISS = "miss"  # had to ask the hub


def kind_of(name: ObjectName) -> str:
    """What is behind the last dot; of names without one, or numbered there, each is a kind."""
    return name.key.rpartition(".")[2]


def page_span(offset: int, length: int) -> tuple[int, int]:
    """First page and one past the last page of a byte range; length > 0."""
    return offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)
