"""Sequential: together, the workers read everything.

Assumes: what lies behind the front was read without permanent holes, so what lies ahead will be
read too, in about the same order. One reader in order, many workers with batches dealt to them,
ranks that interleave: all look the same from above, a dense front that moves. Does not hold for
a stride with gaps (the coverage behind the front shows it) nor for random reads (the front is
sparse).

Before there is anything behind the front (the first reads of a job) it is decided by the front
itself: reads as close together as this are not chance in an object this large.
"""

from hubspoke.core.generators.candidates import Candidate, DepthConfig
from hubspoke.core.streams import Pattern, Stream

PAST_BYTES_MIN = 512 << 10  # as much past is evidence; less is too young to show holes
COVERAGE_MIN = 0.9
YOUNG_DENSITY_MIN = 0.1  # 8 workers' first reads, one record of every ten
YOUNG_ACCESSES = 4
ADJACENT_SURE = 8  # reads of one client in a row: it goes on like that
HEAD_BYTES = 256 << 10  # a file opened at its start will usually be read on


def judge(s: Stream) -> bool:
    """Whether the stream is read densely; sets its pattern when that is sure either way."""
    past = s.recent_lo - s.start
    if past >= max(PAST_BYTES_MIN, 2 * s.spread if s.pattern is Pattern.UNKNOWN else 0):
        # Judge by the past just behind the front, so that a change shows within a few front
        # widths, not when a whole file's average has moved.
        window = max(4 * s.spread, PAST_BYTES_MIN)
        dense = s.coverage(max(s.start, s.recent_lo - window), s.recent_lo) >= COVERAGE_MIN
        if dense:
            s.pattern = Pattern.SEQUENTIAL
        elif s.pattern in (Pattern.SEQUENTIAL, Pattern.UNKNOWN):
            s.pattern = Pattern.RANDOM if s.density < YOUNG_DENSITY_MIN else Pattern.STRIDED
        return dense
    if s.pattern in (Pattern.STRIDED, Pattern.RANDOM):
        return False  # until the past says otherwise: in a small file random reads look dense
    if s.pattern is Pattern.SEQUENTIAL:
        # Handed on by the object before, or judged earlier: keep it while the front is close.
        return s.accesses < 16 or s.density >= YOUNG_DENSITY_MIN
    if s.accesses >= 16 and s.density < YOUNG_DENSITY_MIN:
        s.pattern = Pattern.RANDOM
        return False
    return _young(s)


def _young(s: Stream) -> bool:
    share = _share_of_strides(s)
    if share is not None and share < COVERAGE_MIN:
        s.pattern = Pattern.STRIDED
        return False
    adjacent = max((c.adjacent for c in s.clients.values()), default=0)
    if adjacent >= 2 and s.density >= YOUNG_DENSITY_MIN:
        if adjacent >= ADJACENT_SURE:
            s.pattern = Pattern.SEQUENTIAL
        return True
    return s.accesses >= YOUNG_ACCESSES and s.density >= YOUNG_DENSITY_MIN


def _share_of_strides(s: Stream) -> float | None:
    """Share of the object that clients with a confirmed stride read together; None if their
    strides do not agree or most clients have none."""
    steady = [c for c in s.clients.values() if c.confirmed >= 2 and c.jump > 0]
    if 2 * len(steady) < len(s.clients) or not steady:
        return None
    jump = steady[0].jump
    if any(c.jump != jump for c in steady):
        return None
    mean_run = sum(c.last_run_length for c in steady) / len(steady)
    return mean_run * len(s.clients) / jump


def propose(
    s: Stream,
    now: float,
    hide_s: float,
    config: DepthConfig,
    *,
    waited: bool = False,
    most: int = 1 << 62,
) -> tuple[list[Candidate], int]:
    """Candidates inside the stream's own object, and how many bytes beyond its end are due too.

    most: bytes that the cache can spare for what is ahead. waited: a read was no hit, so something
    planned is not there: look at all of it again.

    Sets `s.hide_bytes`: what must be ahead of the front so that latency is hidden.
    """
    size = s.obj.size
    young = s.accesses < YOUNG_ACCESSES and s.pattern is Pattern.UNKNOWN
    if young and s.start == 0 and s.planned == 0:
        return _ahead(s, min(size, s.hi + HEAD_BYTES), hide_s, 1), 0
    if not judge(s):
        s.hide_bytes = 0
        return [], 0
    rate = s.rate.per_second(now)
    depth = rate * hide_s * s.boost + s.spread
    s.hide_bytes = int(min(max(depth, config.floor_bytes), config.ceiling_bytes, most))
    target = s.hi + s.hide_bytes
    part = int(min(max(rate * 0.1, 256 << 10), 16 << 20, most))
    if waited or s.planned - s.hi < s.hide_bytes:
        # Extend by a whole part at a time: a request for every read would cost as many round
        # trips' worth of headers as the reads themselves.
        target += part
        return _ahead(s, min(target, size), hide_s, s.accesses), max(0, target - size)
    return [], 0


def _ahead(s: Stream, target: int, hide_s: float, evidence: int) -> list[Candidate]:
    # From the slowest worker on, not from the fastest: the holes inside the front are the next
    # reads of all; what was read may be dropped and must not be fetched again. What is there or
    # on its way already costs nothing to name again, and what was planned and then found no room
    # is found out.
    start = s.first_unread()
    s.planned = max(s.planned, target)
    if target <= start:
        return []
    return [
        Candidate("sequential", s.stream_id, s.obj.name, None, start, target - start, 0.0, evidence)
    ]
