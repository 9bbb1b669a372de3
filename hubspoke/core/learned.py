"""A learned ranker: how likely a candidate is to be read, where that was shown to beat the rules.

Two ensembles of trees: one says which way of reading a row looks like, one how likely it is that
the candidate is read before it would be evicted. The second is asked only for the ways for which
the model's own table says that it won against the rules on workloads it never saw; all else, and
candidates of sources it was not trained on, is the rules'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubspoke.core.features import SOURCES, Matrix, Rows
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.trees import Trees


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
        self._on = np.array([model.on.get(p, False) for p in model.patterns])

    def score(self, candidates: Sequence[Candidate], rows: Rows) -> list[float]:
        """See ranking.Score."""
        ruled = self._rules(candidates)
        mine = [i for i, c in enumerate(candidates) if c.source in SOURCES]
        if not mine or not self._on.any():
            return ruled
        seen = rows([candidates[i] for i in mine])
        decided = self._on[self._model.looks_like(seen)]
        learned = self._model.probabilities(seen)
        for i, on, p in zip(mine, decided.tolist(), learned.tolist(), strict=True):
            if on:
                ruled[i] = p
        return ruled
