"""What the learned model sees of a candidate and its stream: a fixed row of numbers.

A model is trained on these columns in this order, so a change of a column is a new VERSION and
models of another version are not used. Sizes and counts are logarithms: trees split them evenly,
and what was learned from small files holds for large ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np
import numpy.typing as npt

from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.streams import Pattern, Stream

VERSION = 1

# Sources that a model can be trained on; candidates of others are left to the rules.
SOURCES = ("sequential", "strided", "next_object", "blind_fill", "heads")

# column -> what `hubspoke model explain` calls it
COLUMNS: dict[str, str] = {
    "sequential": "proposed as the continuation of a dense front",
    "strided": "proposed as the next run of a stride",
    "next_object": "proposed as the next object in listing order",
    "blind_fill": "proposed as an unread record of a shuffled epoch",
    "heads": "proposed as the head of a file not opened yet",
    "evidence": "how often the rule behind it has held",
    "length": "bytes proposed",
    "use_in": "time until its use, as the rule has it",
    "ahead": "distance from the front",
    "has_stream": "belongs to a stream",
    "accesses": "reads of the stream so far",
    "bytes_read": "bytes the stream has read",
    "read_length": "mean length of its reads",
    "size": "size of the object",
    "share_read": "share of the object that was read",
    "position": "place of the front in the object",
    "starts_at_0": "the stream began at the object's start",
    "density": "share of the front that is read",
    "coverage": "share of what lies behind the front that was read",
    "spread": "width of the front",
    "rate": "bytes per second",
    "clients": "clients that form the stream",
    "strides": "share of its clients with a steady stride",
    "adjacent": "share of its reads that continue the one before",
    "waits": "reads that had to wait lately",
    "chained": "objects followed in a row",
    "known_random": "the rules call it random",
    "known_dense": "the rules call it sequential",
    "accuracy": "share of such proposals that was read lately",
    "outcomes": "bytes of such proposals whose end is known",
    "full": "share of the cache that is in use",
    "of_cache": "size of the object beside the cache",
}
NAMES = tuple(COLUMNS)

Matrix = npt.NDArray[np.float32]
Rows = Callable[[Sequence[Candidate]], Matrix]  # a row for each, made when asked for

_STREAMLESS = [0.0] * (NAMES.index("accuracy") - NAMES.index("has_stream"))
_BEHIND_BYTES_MIN = 512 << 10


@dataclass(frozen=True, slots=True)
class Sight:
    """What there is to see besides the candidates. streams: those that moved, by id. size: of a
    candidate's object. accuracy: share of the bytes of such candidates that was read, and of how
    many bytes that is known."""

    streams: Mapping[int, Stream]
    size: Callable[[Candidate], int]
    accuracy: Callable[[Candidate], tuple[float, float]]
    used: int
    capacity: int
    now: float


def rows(candidates: Sequence[Candidate], sight: Sight) -> Matrix:
    """A row for each candidate, in their order."""
    of_streams: dict[int, list[float]] = {}
    found = np.empty((len(candidates), len(NAMES)), np.float32)
    for i, c in enumerate(candidates):
        s = sight.streams.get(c.stream_id)
        if s is None:
            part = _STREAMLESS
        else:
            known = of_streams.get(c.stream_id)
            part = of_streams[c.stream_id] = known or _of_stream(s, sight.now)
        share, known_bytes = sight.accuracy(c)
        found[i] = (
            *(float(c.source == source) for source in SOURCES),
            _log(c.evidence),
            _log(c.length),
            _log(c.use_in_s * 1e3),
            _log(abs(c.offset - s.hi)) if s is not None and c.entry is None else 0.0,
            *part,
            share,
            _log(known_bytes),
            sight.used / max(1, sight.capacity),
            _log(sight.size(c)) - _log(sight.capacity),
        )
    return found


def _of_stream(s: Stream, now: float) -> list[float]:
    clients = s.clients.values()
    steady = sum(c.confirmed >= 2 for c in clients)
    adjacent = sum(c.adjacent for c in clients)
    behind = max(s.start, s.recent_lo - max(4 * s.spread, _BEHIND_BYTES_MIN))
    size = max(1, s.obj.size)
    return [
        1.0,
        _log(s.accesses),
        _log(s.bytes_read),
        _log(s.bytes_read / max(1, s.accesses)),
        _log(size),
        min(4.0, s.bytes_read / size),
        s.hi / size,
        float(s.start == 0),
        min(4.0, s.density),
        s.coverage(behind, s.recent_lo),
        _log(s.spread),
        _log(s.rate.per_second(now)),
        _log(len(s.clients)),
        steady / max(1, len(s.clients)),
        min(1.0, adjacent / max(1, s.accesses)),
        _log(s.waits),
        _log(s.chained),
        float(s.pattern is Pattern.RANDOM),
        float(s.pattern is Pattern.SEQUENTIAL),
    ]


def _log(value: float) -> float:
    """log2(1 + value) in sixteenths: finer differences are noise."""
    return round(16 * log2(1 + max(0.0, value))) / 16
