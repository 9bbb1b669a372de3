"""What a generator proposes, and what it may look at."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hubspoke.core.ids import ObjectEntry, ObjectName


class Candidate(NamedTuple):
    """Bytes that may be read soon. A tuple, since one is made for each run of a stride and for
    each of many small objects: a frozen dataclass takes three times as long to make.

    use_in_s: seconds until the first of them is needed. evidence: how often the rule behind it
    was seen to hold for this stream; the ranker turns it into a probability.
    """

    source: str  # the generator's name
    stream_id: int
    name: ObjectName
    entry: ObjectEntry | None  # None: the stream's own object
    offset: int
    length: int
    use_in_s: float
    evidence: int

    def of_bytes(self, offset: int, length: int) -> "Candidate":
        """The same of other bytes of its object."""
        source, stream_id, name, entry, _, _, use_in_s, evidence = self
        return Candidate(source, stream_id, name, entry, offset, length, use_in_s, evidence)


class Ahead(NamedTuple):
    """Bytes that one stream may have ahead of it."""

    least: int  # whatever its rate
    most: int
    runway: int = 0  # the same of what was bought for an outage


class Listing(Protocol):
    """The namespace as a generator sees it: names in listing order."""

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        """At most `limit` objects after `name` in the same folder (up to the last slash)."""
        ...


@dataclass(frozen=True, slots=True)
class DepthConfig:
    # A fetch takes a round trip to start, about one more through a cold window, and the lane it
    # wants may be busy for a third; x1.5 for the noise of a shared machine.
    round_trips: float = 3.0
    margin: float = 1.5
    jitter_s: float = 0.05
    rtt_s_default: float = 0.1  # until the first lease round trip has been timed
    floor_bytes: int = 1 << 20
    ceiling_bytes: int = 256 << 20
    boost_max: float = 8.0
    # Seconds of reading that shall be here ahead, to go on without the hub; 0: what hides latency.
    runway_s: float = 0.0

    def hide_s(self, rtt_s: float | None) -> float:
        rtt = self.rtt_s_default if rtt_s is None else rtt_s
        return (rtt * self.round_trips + self.jitter_s) * self.margin
