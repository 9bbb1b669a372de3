"""Requests to the hub and what they carry."""

from dataclasses import dataclass, field

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import PAGE_BYTES, TrafficClass
from hubspoke.core.pacing import Lane
from hubspoke.core.page_codes import PAGES_PER_BLOCK


@dataclass(slots=True, eq=False)
class FetchedRange:
    """Pages [first, last) of one object inside a request. stored: for the cache; otherwise they
    pass through memory to the readers that wait for them."""

    obj: CachedObject
    first: int
    last: int
    stored: bool = True

    def goes_on_in(self, other: "FetchedRange") -> bool:
        """Whether the two are one range."""
        same = self.obj is other.obj and self.stored == other.stored
        return same and self.last == other.first

    def by_block(self) -> "list[FetchedRange]":
        """The same pages as ranges that do not cross the bound of a block."""
        cuts = range(
            (self.first // PAGES_PER_BLOCK + 1) * PAGES_PER_BLOCK, self.last, PAGES_PER_BLOCK
        )
        if not cuts:
            return [self]
        ends = [*cuts, self.last]
        firsts = [self.first, *cuts]
        return [
            FetchedRange(self.obj, a, b, self.stored) for a, b in zip(firsts, ends, strict=True)
        ]

    @property
    def offset(self) -> int:
        return self.first * PAGE_BYTES

    @property
    def length(self) -> int:
        return self.obj.range_bytes(self.first, self.last)


@dataclass(slots=True, eq=False)
class Fetch:
    """One request to the hub on one lane."""

    number: int
    lane: Lane
    traffic_class: TrafficClass
    ranges: list[FetchedRange]
    sent_at: float
    open_ranges: set[int] = field(default_factory=set)
    arrived: int = 0  # bytes
    warm: bool = False  # nobody predicted it, somebody asked for it to be there
    bytes: int = field(init=False)  # of all ranges, which stay as they are

    def __post_init__(self) -> None:
        self.bytes = sum([r.length for r in self.ranges])


@dataclass(slots=True)
class Punch:
    """Effect: these bytes are no longer in the cache; free them before writing there again."""

    obj: CachedObject
    offset: int
    length: int
