"""Runs: a client reads a piece of an object by several reads in a row, then a piece elsewhere.

Assumes: pieces are about as long as the last ones were, as records of a packed file are that are
read at random by reads smaller than they are. Of a run that has come so far the next is proposed
as far as half of those went that were longer, if half of all were. So of pieces that are all alike
a first read says all; and what would be taken for a scan of its own (`sequential`, by a run alone)
is left to this.

Silent where reads are single, and where nobody has jumped yet: then other generators know better.
Counted by object and not by stream as jumps are (`streams.Cursor`): each piece may be a new stream,
and a client's jump from one to another is what ends a run.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_high

from hubspoke.core.accesses import PieceOf
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.streams import Access, Stream

SOURCE = "runs"
RUNS = 16  # the last ones decide
EVIDENCE_MIN, READS_MIN = 4, 3
OBJECTS_MAX, CLIENTS_MAX = 1_024, 256
BYTES_MAX = 4 << 20  # of a run that are proposed at once


class _Run:
    """What a client reads in a row. told: up to where it was proposed. alone: its last one was of
    a read or two, so it may read in another way now than the others."""

    __slots__ = ("alone", "end", "reads", "start", "told")

    def __init__(self, start: int, end: int, *, alone: bool) -> None:
        self.start, self.end, self.told = start, end, end
        self.reads, self.alone = 1, alone


@dataclass(slots=True)
class _Runs:
    """Of one object."""

    by_client: dict[str, _Run] = field(default_factory=dict)
    # Of a run that is over; 0 of one or two reads.
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=RUNS))

    @property
    def known(self) -> bool:
        """Whether the object is read in pieces."""
        return 2 * sum(map(bool, self.lengths)) >= max(len(self.lengths), 2 * EVIDENCE_MIN)

    def reach(self, length: int) -> int:
        """How long a run that has come so far will be, at least as likely as not."""
        longer = [n for n in self.lengths if n > length]
        if not longer or 2 * len(longer) < len(self.lengths):
            return length
        return median_high(longer)


class Runs:
    """Watches what each client reads in a row, by object."""

    def __init__(self) -> None:
        self._objects: OrderedDict[int, _Runs] = OrderedDict()

    def observe(self, accesses: Sequence[Access]) -> list[Candidate]:
        """Take accesses in, in order of time; what is left of the runs that they belong to."""
        begun: dict[tuple[int, str], tuple[CachedObject, _Runs, _Run]] = {}
        number, of = -1, None
        for obj, offset, length, client, _, _ in accesses:
            if not 0 < length < obj.size or obj.dead or type(client) is PieceOf:
                continue
            if of is None or obj.number != number:
                number, of = obj.number, self._of(obj.number)
            run = of.by_client.get(client)
            if run is not None and offset == run.end:
                run.end += length
                run.reads += 1
                run.alone = False
            elif run is None or not run.start <= offset < run.end:
                run = _begin(of, client, run, offset, length)
            if run.end >= run.told and not run.alone and of.known:
                begun[number, client] = obj, of, run
        return [c for each in begun.values() if (c := _rest(*each)) is not None]

    def _of(self, number: int) -> _Runs:
        found = self._objects.pop(number, None) or _Runs()
        self._objects[number] = found
        if len(self._objects) > OBJECTS_MAX:
            self._objects.popitem(last=False)
        return found

    def within(self, s: Stream) -> bool:
        """Whether each client at the stream's front is in a run that may end where others did; with
        none there they have gone on to other pieces."""
        of = self._objects.get(s.obj.number)
        if of is None or not of.known:
            return False
        longest = max(of.lengths)
        at = [run for client in s.clients if (run := of.by_client.get(client)) is not None]
        at = [run for run in at if s.recent_lo <= run.end <= s.hi]
        return all(run.end - run.start <= longest and not run.alone for run in at)


def _begin(of: _Runs, client: str, before: _Run | None, offset: int, length: int) -> _Run:
    """The client reads elsewhere than before."""
    several = before is not None and before.reads >= READS_MIN
    if before is not None:
        of.lengths.append(before.end - before.start if several else 0)
    elif len(of.by_client) >= CLIENTS_MAX:
        del of.by_client[next(iter(of.by_client))]
    run = of.by_client[client] = _Run(
        offset, offset + length, alone=before is not None and not several
    )
    return run


def _rest(obj: CachedObject, of: _Runs, run: _Run) -> Candidate | None:
    """What is likely to be left of the run."""
    end = min(run.start + of.reach(run.end - run.start), run.end + BYTES_MAX, obj.size)
    start = run.end // PAGE_BYTES * PAGE_BYTES
    if end <= run.end:
        return None
    run.told = end
    return Candidate(SOURCE, 0, obj.name, None, start, end - start, 0.0, len(of.lengths))
