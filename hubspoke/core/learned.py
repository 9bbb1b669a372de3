"""A learned ranker: how likely a candidate is to be read, where that was shown to beat the rules.

Two ensembles of trees: one says which way of reading a row looks like, one how likely it is that
the candidate is read before it would be evicted. The second is asked only for the ways for which
the model's own table says that it won against the rules on workloads it never saw; all else, and
candidates of sources it was not trained on, is the rules'.

An opinion is kept and asked for again when the candidate's evidence or length has grown by half,
or after REUSED candidates: a stream of a million reads is looked at some dozen times as it grows
and then once in a while, and not for each of its parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubspoke.core.features import SOURCES, Matrix, Rows
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.trees import Trees

REUSED = 64
# A wrong guess costs hits where the model is off for what it really is: held-out columnar reads
# that were taken for random lost 2 points without this.
SURE = 0.9
KINDS_MAX = 4_096

Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """patterns: names of the outputs of `pattern`. on: those for which `use` decides. sha256: of
    the file it came from."""

    patterns: tuple[str, ...]
    pattern: Trees
    use: Trees
    on: Mapping[str, bool]
    sha256: str

    def probabilities(self, rows: Matrix) -> npt.NDArray[np.float64]:
        """That what a row stands for is read before it would be evicted."""
        found: npt.NDArray[np.float64] = 1 / (1 + np.exp(-self.use.scores(rows)[:, 0]))
        return found

    def decides(self, rows: Matrix) -> npt.NDArray[np.bool_]:
        """Of which rows it is sure enough that they are of the patterns for which it is on."""
        on = np.array([self.on.get(p, False) for p in self.patterns])
        if on.all():
            return np.ones(len(rows), np.bool_)
        scores = self.pattern.scores(rows)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        found: npt.NDArray[np.bool_] = odds[:, on].sum(axis=1) >= SURE * odds.sum(axis=1)
        return found

    def looks_like(self, rows: Matrix) -> npt.NDArray[np.intp]:
        """Index of the likeliest pattern of each row."""
        found: npt.NDArray[np.intp] = np.argmax(self.pattern.scores(rows), axis=1)
        return found

    def forced(self) -> "Model":
        """The same, deciding for all patterns: to be measured against the rules."""
        everywhere = dict.fromkeys(self.patterns, True)
        return Model(self.patterns, self.pattern, self.use, everywhere, self.sha256)


class LearnedRanker:
    """ports.Ranker of a model."""

    def __init__(self, model: Model) -> None:
        self.name = f"sha256:{model.sha256}"
        self._model = model
        self._rules = RuleRanker().score
        self._on = any(model.on.values())
        # Probability (None: the rules'), and for how many more candidates.
        self._known: dict[Kind, tuple[float | None, int]] = {}

    def score(self, candidates: Sequence[Candidate], rows: Rows) -> list[float]:
        """See ranking.Score."""
        found = self._rules(candidates)
        if not self._on:
            return found
        new: dict[Kind, list[int]] = {}
        for i, c in enumerate(candidates):
            if c.source not in SOURCES:
                continue
            kind = _kind(c)
            p, left = self._known.get(kind, (None, 0))
            if not left:
                new.setdefault(kind, []).append(i)
                continue
            self._known[kind] = p, left - 1
            if p is not None:
                found[i] = p
        if new:
            self._look(candidates, rows, new, found)
        return found

    def _look(
        self,
        candidates: Sequence[Candidate],
        rows: Rows,
        new: Mapping[Kind, Sequence[int]],
        found: list[float],
    ) -> None:
        """Ask the model of one candidate of each kind; writes into `found`."""
        seen = rows([candidates[of[0]] for of in new.values()])
        decided = self._model.decides(seen)
        learned = self._model.probabilities(seen)
        for (kind, of), on, p in zip(new.items(), decided.tolist(), learned.tolist(), strict=True):
            self._known.pop(kind, None)
            self._known[kind] = (p if on else None), REUSED
            if on:
                for i in of:
                    found[i] = p
        while len(self._known) > KINDS_MAX:
            del self._known[next(iter(self._known))]


def _kind(c: Candidate) -> Kind:
    """Candidates that the model would think alike of."""
    # Of a stream, or of a folder where there is none.
    of: object = c.stream_id or (c.name.bucket, c.name.key[: c.name.key.rfind("/") + 1])
    evidence = c.evidence * c.evidence  # half an octave
    return of, c.source, c.entry is None, evidence.bit_length(), (c.length * c.length).bit_length()
