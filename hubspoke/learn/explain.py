"""Which features move the model's opinion of a candidate, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from hubspoke.core.features import COLUMNS, NAMES, SOURCES, Matrix, Rows
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.learned import LearnedRanker, Model
from hubspoke.errors import FormatError
from hubspoke.sim.prediction import replay
from hubspoke.sim.prediction.world import World
from hubspoke.traces.format import read_trace

EFFECTS_SHOWN = 5
_LOGARITHMS = {
    "evidence": "",
    "length": "B",
    "use_in": "ms",
    "ahead": "B",
    "accesses": "",
    "bytes_read": "B",
    "read_length": "B",
    "size": "B",
    "spread": "B",
    "rate": "B/s",
    "clients": "",
    "waits": "",
    "chained": "",
    "outcomes": "B",
}
_FLAGS = (
    "sequential",
    "strided",
    "next_object",
    "blind_fill",
    "heads",
    "has_stream",
    "starts_at_0",
    "known_random",
    "known_dense",
)


@dataclass(frozen=True, slots=True)
class Effect:
    """What one feature adds to the log odds of being read."""

    feature: str
    text: str
    value: float
    adds: float


@dataclass(frozen=True, slots=True)
class Explained:
    """pattern: what the model takes it for; decides: whether the model has the say there."""

    stream: int  # 0: of none
    subject: str
    source: str
    pattern: str
    decides: bool
    probability: float
    effects: tuple[Effect, ...]

    def document(self) -> dict[str, Any]:
        return {
            "stream": self.stream or None,
            "object": self.subject,
            "source": self.source,
            "pattern": self.pattern,
            "decides": self.decides,
            "probability": round(self.probability, 4),
            "effects": [
                {
                    "feature": e.feature,
                    "means": COLUMNS[e.feature],
                    "value": e.value,
                    "adds": round(e.adds, 4),
                }
                for e in self.effects
            ],
        }

    def lines(self) -> list[str]:
        """For people."""
        who = "the model decides" if self.decides else "the rules decide"
        of = f"stream {self.stream}, " if self.stream else ""
        lines = [
            f"{of}{self.subject}: proposed by {self.source}",
            f"  looks like {self.pattern} ({who}); read with probability {self.probability:.2f}",
        ]
        for e in self.effects:
            way = "speaks for" if e.adds > 0 else "speaks against"
            lines.append(f"  {way} it ({e.adds:+.2f}): {e.text}")
        return lines


def explain(model: Model, stream: int, subject: str, source: str, row: Matrix) -> Explained:
    """row: of one candidate."""
    start, effects = model.use.effects(row, 0)
    strongest = sorted(range(len(NAMES)), key=lambda i: -abs(effects[i]))[:EFFECTS_SHOWN]
    pattern = model.patterns[int(model.looks_like(row[None])[0])]
    return Explained(
        stream,
        subject,
        source,
        pattern,
        model.on.get(pattern, False),
        1 / (1 + exp(-(start + float(effects.sum())))),
        tuple(
            Effect(NAMES[i], in_words(NAMES[i], float(row[i])), float(row[i]), float(effects[i]))
            for i in strongest
            if effects[i]
        ),
    )


def in_words(feature: str, value: float) -> str:
    """A feature and its value as a person would say it."""
    text = COLUMNS[feature]
    if feature in _FLAGS:
        return f"{text}: {'yes' if value else 'no'}"
    if feature in _LOGARITHMS:
        return f"{text}: {_amount(2.0**value - 1, _LOGARITHMS[feature])}"
    if feature == "of_cache":
        return f"{text}: {2.0**value:.3g} of it"
    return f"{text}: {value:.0%}"


def _amount(value: float, unit: str) -> str:
    if unit not in ("B", "B/s"):
        return f"{value:,.0f} {unit}".strip()
    for prefix in ("", "Ki", "Mi", "Gi"):
        if value < 1024 or prefix == "Gi":
            break
        value /= 1024
    return f"{value:.3g} {prefix}{unit}"


def of_spoke(model: Model, document: Mapping[str, Any]) -> list[Explained]:
    """Of what a spoke's `/v1/model` says. Raises FormatError if it is of another version."""
    if document.get("columns") != list(NAMES):
        raise FormatError("the spoke has other columns of features than this version")
    scored: Sequence[Mapping[str, Any]] = document["scored"]
    return [
        explain(
            model,
            int(s["stream"]),
            str(s["object"]),
            str(s["source"]),
            np.array(s["row"], np.float32),
        )
        for s in scored
        if s["source"] in SOURCES
    ]


def of_trace(model: Model, path: Path, capacity: int | None) -> list[Explained]:
    """Of a trace that is read again in the simulator: the last candidates of each stream. Raises
    FormatError, ConfigError, OSError."""
    latest: dict[tuple[int, str], tuple[Candidate, Matrix]] = {}
    score = LearnedRanker(model).score

    def noted(candidates: Sequence[Candidate], rows: Rows) -> Sequence[float]:
        for c, row in zip(candidates, rows(candidates), strict=True):
            latest.pop((c.stream_id, c.source), None)
            latest[c.stream_id, c.source] = c, row
        return score(candidates, rows)

    World(replay.of_trace(path.name, read_trace(path), capacity), search_s=None, score=noted).run()
    return [
        explain(model, c.stream_id, str(c.name), c.source, row)
        for c, row in latest.values()
        if c.source in SOURCES
    ]
