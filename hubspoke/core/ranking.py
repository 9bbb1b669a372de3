"""How likely a candidate is to be read before it would be evicted, by rules.

The rules stand behind the Ranker port: a learned model replaces them when it is shown to do
better, and they decide whenever it does not answer.
"""

from collections.abc import Callable, Sequence

from hubspoke.core.features import Rows
from hubspoke.core.generators.candidates import Candidate

# Probabilities in the order of the candidates; rows of features are made of those asked for.
Score = Callable[[Sequence[Candidate], Rows], Sequence[float]]

# source -> (probability without evidence, probability with much of it, evidence that halves the
# distance between the two). Own rules, set by hand for the first form; their job is the order
# and the threshold, not calibration.
RULES: dict[str, tuple[float, float, int]] = {
    "sequential": (0.5, 0.99, 4),
    "backward": (0.5, 0.97, 4),
    "strided": (0.4, 0.97, 2),
    "runs": (0.4, 0.97, 2),
    "next_object": (0.5, 0.98, 2),
    "layout": (0.6, 0.995, 1),
    "blind_fill": (0.4, 0.95, 3),
    "heads": (0.4, 0.98, 2),
    "known_order": (0.8, 0.99, 16),
}


class RuleRanker:
    """The `rules` model of the report."""

    def __init__(self, why: str = "no learned model is installed") -> None:
        """why: the rules decide."""
        self.name = f"rules: {why}"

    def score(self, candidates: Sequence[Candidate], rows: Rows | None = None) -> list[float]:
        """Probabilities in the order of the candidates."""
        return [_probability(c) for c in candidates]


def _probability(c: Candidate) -> float:
    low, high, half = RULES[c.source]
    return float(high - (high - low) * 0.5 ** (c.evidence / half))
