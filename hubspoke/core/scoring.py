"""How candidates get their probability: rules or model first, then what became of their like.

The ranker sees each candidate with its row of features (made only if it asks for them); the
outcomes of this spoke correct what it says. The last candidates of each stream are kept to be
explained, not their rows: most are never asked about.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hubspoke.core.cache import Cache
from hubspoke.core.features import NAMES, Matrix, Sight, rows
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.outcomes import NONE, Arm, Outcomes
from hubspoke.core.ranking import Score
from hubspoke.core.streams import Pattern, Stream

LATEST_MAX = 256
ARMS_KEPT_MAX = 1_024
# Their own evidence decides (`core.epochs`): what is believed is given up when reads say so.
# Outcomes are kept by blocks, of which one holds records that came for several reasons.
BY_ITEMS = frozenset({"known_order", "blind_fill", "hints"})


class Scored(NamedTuple):
    """A candidate, its stream at the time, and the probabilities before and after outcomes."""

    candidate: Candidate
    stream: Stream | None
    ranked: float
    probability: float


class Scoring:
    """Scores candidates and keeps their outcomes. `streams`: those that moved, by id, set before
    candidates of theirs are scored."""

    def __init__(self, score: Score, cache: Cache, probability_min: float) -> None:
        self.outcomes = Outcomes()
        self.streams: dict[int, Stream] = {}
        self.latest: dict[tuple[int, str], Scored] = {}
        self._score = score
        self._cache = cache
        self._min = probability_min
        self._now = 0.0
        # Arms of the last candidates: each is asked for when it is scored and when it is queued.
        self._arms: dict[tuple[str, Pattern | None, str, str], Arm] = {}

    def moved(self, streams: Sequence[Stream], now: float) -> None:
        """These streams moved; candidates of theirs come next."""
        self.streams = {s.stream_id: s for s in streams}
        self._now = now
        self.outcomes.look(now)

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Probabilities in the order of the candidates."""
        if not candidates:
            return []
        ranked = self._score(candidates, lambda of: self.rows(of, self.streams))
        found: list[float] = []
        for c, p, after in zip(candidates, ranked, (*candidates[1:], None), strict=True):
            likely = p
            if c.source not in BY_ITEMS:
                likely = self.outcomes.adjusted(p, self._arm(c), self._min)
            found.append(likely)
            # Of candidates of one stream and source in a row only the last is the latest.
            if after is None or after.stream_id != c.stream_id or after.source != c.source:
                self._keep(Scored(c, self.streams.get(c.stream_id), p, likely))
        return found

    def _keep(self, scored: Scored) -> None:
        key = (scored.candidate.stream_id, scored.candidate.source)
        self.latest.pop(key, None)
        self.latest[key] = scored
        if len(self.latest) > LATEST_MAX:
            del self.latest[next(iter(self.latest))]

    def rows(self, candidates: Sequence[Candidate], streams: dict[int, Stream]) -> Matrix:
        """Features of the candidates as things are now."""
        cache = self._cache
        sight = Sight(streams, self._size, self._accuracy, cache.used, cache.capacity, self._now)
        return rows(candidates, sight)

    def _size(self, c: Candidate) -> int:
        if c.entry is not None:
            return c.entry.size
        obj = self._cache.current(c.name)
        return 0 if obj is None else obj.size

    def _accuracy(self, c: Candidate) -> tuple[float, float]:
        return self.outcomes.accuracy(self._arm(c))

    def describe(self, ranker: str) -> dict[str, object]:
        """For /v1/model: the last candidates with their features as they are now, the last ones
        first, and the outcomes by which probabilities are corrected."""
        last = list(self.latest.values())[::-1]
        streams = {s.stream.stream_id: s.stream for s in last if s.stream is not None}
        seen = self.rows([s.candidate for s in last], streams)
        return {
            "model": ranker,
            "columns": list(NAMES),
            "scored": [
                {
                    "stream": s.candidate.stream_id,
                    "object": str(s.candidate.name),
                    "source": s.candidate.source,
                    "ranked": s.ranked,
                    "probability": s.probability,
                    "row": row.tolist(),
                }
                for s, row in zip(last, seen, strict=True)
            ],
            "outcomes": [
                {
                    "source": source,
                    "pattern": pattern,
                    "folder": folder,
                    "useful_bytes": round(t.useful),
                    "late_bytes": round(t.late),
                    "wasted_bytes": round(max(t.wasted, t.known - t.useful - t.late)),
                }
                for (source, pattern, folder), t in self.outcomes.tallies.items()
            ],
        }

    def _arm(self, c: Candidate) -> Arm:
        s = self.streams.get(c.stream_id)
        pattern, name = None if s is None else s.pattern, c.name
        key = c.source, pattern, name.bucket, name.key[: name.key.rfind("/") + 1]
        arm = self._arms.get(key)
        if arm is None:
            arm = c.source, NONE if pattern is None else pattern.value, "/".join(key[2:])
            if len(self._arms) >= ARMS_KEPT_MAX:
                self._arms.clear()
            self._arms[key] = arm
        return arm

    def queued(self, c: Candidate, number: int, first: int, last: int) -> None:
        """Pages [first, last) of an object will be fetched for this candidate."""
        if c.source in BY_ITEMS:
            return
        self.outcomes.queued(self._arm(c), number, first, last, c.use_in_s)
