"""Runway: more of what is read in order, bought to go on while the hub is away.

Assumes: as `sequential`, whose plan it goes on from; that one hides latency and comes first. Takes
what the path has left, a step at a time, as long as the cache holds it: most of the cache at
most, shared by the streams that are read now.
"""

from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.streams import Pattern, Stream

STEP_BYTES = 16 << 20
SHARE_OF_CACHE = 0.8  # the rest is for what was read, and for others


def extend(s: Stream, now: float, runway_s: float, most: int) -> list[Candidate]:
    """The next step of the stream's runway. most: bytes that it may have ahead."""
    if s.pattern is not Pattern.SEQUENTIAL:
        return []
    rate = s.rate.per_second(now)
    end = min(s.hi + int(min(rate * runway_s, most)), s.end)
    start = max(s.planned, s.runway_to)
    n = min(STEP_BYTES, end - start)
    # A whole step, or what is left of it.
    if n <= 0 or (n < STEP_BYTES and end < s.end and n < (end - s.hi) // 16):
        return []
    s.runway_to = start + n
    use_in_s = (start - s.hi) / max(rate, 1.0)
    return [Candidate("sequential", s.stream_id, s.obj.name, None, start, n, use_in_s, s.accesses)]
