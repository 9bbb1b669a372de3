"""Sequential: together, the workers read everything.

Assumes: what lies behind the front was read without permanent holes, so what lies ahead will be
read too, in about the same order. One reader in order, many workers with batches dealt to them,
ranks that interleave: all look the same from above, a dense front that moves. Does not hold for
a stride with gaps (the coverage behind the front shows it) nor for random reads (the front is
sparse).

Before there is anything behind the front (the first reads of a job) it is decided by the front
itself: reads as close together as this are not chance in an object this large.
"""

import math
from collections.abc import Callable

from hubspoke.core.generators.candidates import Ahead, Candidate, DepthConfig
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.recent import RECENT
from hubspoke.core.streams import HEAD_BYTES, Pattern, Stream

PAST_BYTES_MIN = 512 << 10  # as much past is evidence; less is too young to show holes
COVERAGE_MIN = 0.9
COVERAGE_AGAIN = 0.98  # of what had holes
YOUNG_DENSITY_MIN = 0.1  # 8 workers' first reads, one record of every ten
YOUNG_ACCESSES = 4
SURE_ACCESSES = 8  # so many reads are enough to call a front sequential
DECIDED_ACCESSES = 16  # or random, if it is sparse
# But not while this share goes on where its client was, or most clients have just begun.
ADJACENT_MIN, DECIDED_MAX, BEGUN_MAX = 0.7, 1_024, 128
# Of random reads, what is fetched for nothing by chance may be a hundredth of what is read.
CHANCE_MAX = 0.01
YOUNG_DEPTH = 4  # times what was read so far, until it is sure
# A front as narrow and as unlikely as this is filled although its reads are few and small: what
# is at stake is no more than the front.
UP_MIN = 0.6  # as many steps down leave it open whether the front goes up
SURPRISE_NARROW = 30.0
NARROW_BYTES_MAX = 4 << 20
PART_BYTES_MIN, PARTS_MAX = 2 << 20, 8  # with a time of their own


def judge(s: Stream, ahead: Ahead) -> bool:
    """Whether the stream is read densely, upwards; sets its pattern when that is sure."""
    if _past(s):
        # Judge by the past just behind the front, so that a change shows within a few front
        # widths, not when a whole file's average has moved.
        window = max(4 * s.spread, PAST_BYTES_MIN)
        least = COVERAGE_AGAIN if s.pattern is Pattern.STRIDED else COVERAGE_MIN
        dense = s.coverage(max(s.start, s.recent_lo - window), s.recent_lo) >= least
        if s.pattern in (Pattern.STRIDED, Pattern.RANDOM) and _scattered(s, ahead):
            # All of the past may have been read in another order, by an epoch before or late in
            # this one.
            s.pattern = Pattern.RANDOM
            return False
        if dense:
            s.pattern = Pattern.SEQUENTIAL
        elif s.pattern in (Pattern.SEQUENTIAL, Pattern.UNKNOWN):
            strided = _close(s) or any(c.confirmed for c in s.clients.values())
            s.pattern = Pattern.STRIDED if strided else Pattern.RANDOM
        return dense
    if s.pattern in (Pattern.STRIDED, Pattern.RANDOM):
        return False  # until the past says otherwise: in a small file random reads look dense
    if s.pattern is Pattern.SEQUENTIAL:
        # Handed on by the object before, or judged earlier: keep it while the front is close.
        return s.accesses < 16 or _close(s)
    return _young(s, ahead)


def _past(s: Stream) -> bool:
    """Whether there is enough behind the front to judge by."""
    far = s.recent_lo - s.start >= PAST_BYTES_MIN  # most streams of many files are not yet
    least = 2 * s.spread if s.pattern is Pattern.UNKNOWN else 0
    return far and s.past >= max(PAST_BYTES_MIN, least)


def _scattered(s: Stream, ahead: Ahead) -> bool:
    """Whether reads are far apart, and no client jumps evenly; or, of what was read at random,
    no closer than chance puts them."""
    if s.pattern is Pattern.RANDOM and s.surprise < surprise_min(s, ahead):
        return True
    return not _close(s) and not any(c.confirmed for c in s.clients.values())


def _young(s: Stream, ahead: Ahead) -> bool:
    if s.accesses < 2:
        return False
    share = _share_of_strides(s) if s.accesses >= YOUNG_ACCESSES else None
    if share is not None and share < COVERAGE_MIN:
        s.pattern = Pattern.STRIDED
        return False
    unlikely, least = s.surprise, surprise_min(s, ahead)
    narrow = unlikely >= SURPRISE_NARROW and s.spread <= NARROW_BYTES_MAX
    close = narrow or _close(s)
    if close and unlikely >= (2 * least if s.accesses >= SURE_ACCESSES else 3 * least):
        if s.recent.share_down < UP_MIN:
            s.pattern = Pattern.SEQUENTIAL
    elif s.accesses >= (RECENT if close else DECIDED_ACCESSES) and (
        unlikely < least if close else not _read_on(s)
    ):
        s.pattern = Pattern.RANDOM
    if unlikely < least or not close:
        return False
    adjacent = max(c.adjacent for c in s.clients.values())
    begins = s.from_start and bool(s.head)
    return s.accesses >= YOUNG_ACCESSES or adjacent > 0 or begins


def _close(s: Stream) -> bool:
    """Whether the reads of the front are close together. Of many clients that each read a long run
    bit by bit, the last reads are far apart and the runs are not."""
    return s.density >= YOUNG_DENSITY_MIN or s.in_a_row >= YOUNG_DENSITY_MIN


def _read_on(s: Stream) -> bool:
    """Whether clients read on where they were, or have just begun: then it is too early to call
    the front random."""
    again = s.accesses - len(s.clients)
    if 4 * again < s.accesses:
        return s.accesses < BEGUN_MAX
    adjacent = sum([c.adjacent for c in s.clients.values()])
    return adjacent >= ADJACENT_MIN * again and s.accesses < DECIDED_MAX


def surprise_min(s: Stream, ahead: Ahead) -> float:
    """How unlikely by chance a front must be to be read ahead: the more bytes are at stake for
    each read that could be wrong, the more. What is ahead may lie in the next object."""
    return math.log(ahead.least / max(s.read_bytes, 1) / CHANCE_MAX)


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
    ahead: Ahead,
    in_runs: Callable[[Stream], bool] = lambda s: False,
) -> tuple[list[Candidate], int]:
    """Candidates inside the stream's own object, and how many bytes beyond are due too, if they
    follow: beyond where its readers will leave it, if that is known.

    ahead: how much the cache can spare. waited: a read was no hit, so something
    planned is not there: look at all of it again. in_runs: whether its clients are in the middle of
    pieces whose ends are known; a stream without a past of its own is nothing else.

    Sets `s.hide_bytes`: what must be ahead of the front so that latency is hidden.
    """
    if not waited and s.hi < s.look_at and s.pattern is Pattern.SEQUENTIAL:
        return [], 0
    if s.pattern is Pattern.RANDOM:
        if s.accesses - s.judged < DECIDED_ACCESSES:
            return [], 0
        s.judged = s.accesses
    if s.accesses == 1 and s.head and s.pattern is Pattern.UNKNOWN and s.planned == 0:
        # Where it is known how much is read of such files, no guess is needed.
        head = HEAD_BYTES if s.end_at >= s.obj.size else max(HEAD_BYTES, ahead.least)
        return _ahead(s, min(s.end, s.hi + head), 0.0, 1), 0
    if not judge(s, ahead):
        s.hide_bytes = 0
        return [], 0
    rate = s.rate.per_second(now)
    depth = rate * hide_s * s.boost.factor + s.spread
    if s.pattern is not Pattern.SEQUENTIAL:
        depth = min(depth, YOUNG_DEPTH * s.bytes_read)
    s.hide_bytes = int(min(max(depth, ahead.least), config.ceiling_bytes, ahead.most))
    part = part_bytes(rate, ahead.most)
    left = s.planned - s.hi - s.hide_bytes
    s.look_at = s.hi + max(PAGE_BYTES, min(left // 2, s.hide_bytes // 4))
    if (waited or left < 0) and (_past(s) or not in_runs(s)):
        # Extend by a whole part at a time: a request for every read would cost as many round
        # trips' worth of headers as the reads themselves.
        target = s.hi + s.hide_bytes + part
        return _ahead(s, target, rate, s.accesses), max(0, target - s.end)
    return [], 0


def part_bytes(rate: float, most: int) -> int:
    """By how much a plan is extended at a time."""
    return int(min(max(rate * 0.1, 256 << 10), 16 << 20, most))


def _ahead(s: Stream, target: int, rate: float, evidence: int) -> list[Candidate]:
    # From the slowest worker on, not from the fastest: the holes inside the front are the next
    # reads of all; what was read may be dropped and must not be fetched again. What is there or
    # on its way already costs nothing to name again, and what was planned and then found no room
    # is found out.
    start = s.first_unread()
    s.planned = max(s.planned, target)
    end = min(target, s.end)
    found: list[Candidate] = []
    # What is read later comes later: other streams' next bytes must not wait for it.
    part = max(PART_BYTES_MIN, (end - start) // PARTS_MAX)
    while start < end:
        n = end - start if rate <= 0 or end - start < 2 * part else part
        use_in_s = max(0.0, (start - s.hi) / rate) if rate > 0 else 0.0
        found.append(
            Candidate("sequential", s.stream_id, s.obj.name, None, start, n, use_in_s, evidence)
        )
        start += n
    return found
