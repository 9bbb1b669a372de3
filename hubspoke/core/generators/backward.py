"""Backward: the front moves down, by one reader or by many together.

Assumes: reads that go down and are as dense as those of a forward scan go on down. Formats that
are read from their end, and scans in reverse order. Ends when they no longer go down.
"""

from hubspoke.core.generators.candidates import Ahead, Candidate, DepthConfig
from hubspoke.core.generators.sequential import (
    YOUNG_DENSITY_MIN,
    part_bytes,
    surprise_min,
)
from hubspoke.core.ids import BLOCK_BYTES
from hubspoke.core.streams import Pattern, Stream


def judge(s: Stream, ahead: Ahead) -> bool:
    """Whether the stream is read downwards; sets its pattern, and its front then ends at its last
    reads."""
    known = s.pattern is Pattern.BACKWARD
    recent = s.recent
    if not recent.descends:
        goes_down = False
    else:
        dense = recent.bytes >= YOUNG_DENSITY_MIN * (recent.highest - s.recent_lo)
        goes_down = dense and (known or s.surprise >= surprise_min(s, ahead))
    if goes_down:
        if not known:
            s.pattern, s.planned = Pattern.BACKWARD, s.recent_lo
        s.retreat()
    elif known:
        s.pattern, s.start, s.planned = Pattern.UNKNOWN, s.recent_lo, s.hi
    return goes_down


def propose(
    s: Stream, now: float, hide_s: float, config: DepthConfig, *, waited: bool, ahead: Ahead
) -> list[Candidate]:
    """What lies below the front, the nearest first; sets `s.hide_bytes`."""
    if not judge(s, ahead):
        return []
    rate = max(s.rate.per_second(now), 1.0)
    depth = rate * hide_s * s.boost.factor + s.spread
    s.hide_bytes = int(min(max(depth, ahead.least), config.ceiling_bytes, ahead.most))
    if not waited and s.recent_lo - s.planned >= s.hide_bytes:
        return []
    end = s.hi if waited else min(s.planned, s.hi)
    s.planned = s.recent_lo - s.hide_bytes - part_bytes(rate, ahead.most)
    found = []
    while end > max(s.bottom_at, s.planned):
        start = max(s.bottom_at, s.planned, (end - 1) // BLOCK_BYTES * BLOCK_BYTES)
        use_in_s = max(0, s.recent_lo - end) / rate
        found.append(
            Candidate(
                "backward",
                s.stream_id,
                s.obj.name,
                None,
                start,
                end - start,
                use_in_s,
                s.accesses,
            )
        )
        end = start
    return found
