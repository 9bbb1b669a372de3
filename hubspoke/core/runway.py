"""How long readers could go on without the hub: what is here ahead of them, in time.

Told only of reads whose order is known: of others nothing is ahead.
"""

from collections.abc import Iterable, Iterator

from hubspoke.core.epochs.item_set import ItemSet
from hubspoke.core.epochs.job import Job
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.page_codes import IS_LOCAL
from hubspoke.core.streams import ACTIVE_S, Pattern, Stream


def runway_s(streams: Iterable[Stream], sets: Iterable[ItemSet], now: float) -> float | None:
    """Seconds until the first reader would have to wait; None if no order is known."""
    return min((*_of_streams(streams, now), *_of_jobs(sets, now)), default=None)


def _of_streams(streams: Iterable[Stream], now: float) -> Iterator[float]:
    for s in streams:
        if s.pattern is Pattern.SEQUENTIAL and now - s.last_at <= ACTIVE_S and s.hi < s.obj.size:
            rate = s.rate.per_second(s.last_at)
            if rate > 0:
                yield _ahead_bytes(s) / rate


def _ahead_bytes(s: Stream) -> int:
    """Bytes that are here from the first one inside the front that nobody has read."""
    start = s.first_unread() // PAGE_BYTES
    run = s.obj.pages.first_run(start, len(s.obj.pages), IS_LOCAL)
    if run is None or run[0] != start:
        return 0
    return s.obj.range_bytes(*run)


def _of_jobs(sets: Iterable[ItemSet], now: float) -> Iterator[float]:
    for each in sets:
        for job in each.jobs.all:
            if job.follower is not None and now - job.last_at <= ACTIVE_S and job.rate > 0:
                yield _ahead_items(each, job) / job.rate


def _ahead_items(found: ItemSet, job: Job) -> int:
    """Items of the job's order that are here, or proposed, before the first that is not."""
    f = job.follower
    assert f is not None
    numbers = f.order.items[f.base :]
    lacking = ~job.read[numbers] & ~found.shelf.here[numbers]
    first = int(lacking.argmax()) if lacking.any() else len(numbers)
    return max(0, f.base + first - f.front)
