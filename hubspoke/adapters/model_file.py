"""The learned model on disk: arrays in an .npz, and beside it what they mean in a .json.

The json names the npz's digest, the columns of features it was trained on and the patterns for
which it decides. Whatever does not fit is a reason to let the rules decide, never an error: a
spoke serves without a model. No pickle is read or written.
"""

import hashlib
import io
import json
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import hubspoke
from hubspoke.core import features
from hubspoke.core.features import Rows
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.learned import LearnedRanker, Model
from hubspoke.core.ranking import RuleRanker, Score
from hubspoke.core.trees import Trees
from hubspoke.errors import FormatError
from hubspoke.ports import Ranker

FORMAT = 1
NAME = "access-pattern-v1"
PARTS = ("feature", "threshold", "value", "base")
FILE_BYTES_MAX = 16 << 20

# A call may take this long for each 64 candidates: as long as one predict may wait for the next.
SLOW_S = 2e-3
SLOW_CALLS = 3  # in a row; one may be the machine's fault
RESTED_CALLS = 1_000


def installed() -> Path:
    """The models that came with the package: in a checkout they lie beside it."""
    package = Path(hubspoke.__file__).parent
    packed = package / "_models"
    return packed if packed.is_dir() else package.parent / "models"


def load(folder: Path) -> Model:
    """The model in a folder. Raises FormatError saying what does not fit, OSError."""
    meta = load_document(folder)
    path = folder / f"{NAME}.npz"
    if path.stat().st_size > FILE_BYTES_MAX:
        raise FormatError(f"{path.name}: more than {FILE_BYTES_MAX} bytes")
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != meta.get("sha256"):
        raise FormatError(f"{path.name}: sha256 is {digest}, {NAME}.json says {meta.get('sha256')}")
    if meta.get("columns") != list(features.NAMES):
        raise FormatError(f"{path.name}: trained on other columns than this version has")
    patterns, on = meta.get("patterns"), meta.get("on")
    if not isinstance(patterns, list) or not isinstance(on, dict) or set(on) - set(patterns):
        raise FormatError(f"{NAME}.json: `patterns` and `on` do not agree")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            pattern, use = (_trees(arrays, head) for head in ("pattern", "use"))
    except (ValueError, KeyError, OSError) as e:
        raise FormatError(f"{path.name}: {e}") from e
    if len(pattern.base) != len(patterns) or len(use.base) != 1:
        raise FormatError(f"{path.name}: {len(pattern.base)} outputs for {len(patterns)} patterns")
    return Model(
        tuple(str(p) for p in patterns),
        pattern,
        use,
        {str(p): bool(v) for p, v in on.items()},
        digest,
    )


def load_document(folder: Path) -> dict[str, Any]:
    """What the arrays mean. Raises FormatError, OSError."""
    path = folder / f"{NAME}.json"
    try:
        meta = json.loads(path.read_bytes())
    except ValueError as e:
        raise FormatError(f"{path.name}: {e}") from e
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise FormatError(f"{path.name}: expected format {FORMAT}")
    if meta.get("features") != features.VERSION:
        raise FormatError(f"{path.name}: features {meta.get('features')}, not {features.VERSION}")
    return meta


def _trees(arrays: Any, head: str) -> Trees:
    feature, threshold, value, base = (arrays[f"{head}_{part}"] for part in PARTS)
    trees = Trees(
        feature.astype(np.int16),
        threshold.astype(np.float64),
        value.astype(np.float64),
        base.astype(np.float64),
    )
    wrong = trees.wrong(len(features.NAMES))
    if wrong is not None:
        raise ValueError(f"{head}: {wrong}")
    return trees


@cache
def _installed_model() -> Model | None:
    try:
        return load(installed())
    except (FormatError, OSError):
        return None


def installed_score() -> Score:
    """The installed model's, or the rules'; without `Guarded`'s clock and with no opinion of
    earlier streams, so that the same candidates always have the same score."""
    model = _installed_model()
    return RuleRanker().score if model is None else LearnedRanker(model).score


def ranker(folder: Path | None = None) -> Ranker:
    """The installed model's, or the rules with the reason why they decide."""
    try:
        model = load(installed() if folder is None else folder)
    except FileNotFoundError:
        return RuleRanker()
    except (FormatError, OSError) as e:
        return RuleRanker(f"the model is not used: {e}")
    if not any(model.on.values()):
        return RuleRanker(f"sha256:{model.sha256} did not beat them for any pattern")
    return Guarded(model)


class Guarded:
    """ports.Ranker that leaves the work to the rules for a while when the model is slow."""

    def __init__(self, model: Model) -> None:
        self._learned = LearnedRanker(model)
        self._rules = RuleRanker("the learned model is too slow on this machine")
        self._slow = 0  # calls in a row
        self._resting = 0  # calls left to the rules

    @property
    def name(self) -> str:
        return self._rules.name if self._resting else self._learned.name

    def score(self, candidates: Sequence[Candidate], rows: Rows) -> Sequence[float]:
        """See ports.Ranker."""
        if self._resting:
            self._resting -= 1
            return self._rules.score(candidates)
        began = time.perf_counter()
        found = self._learned.score(candidates, rows)
        took = time.perf_counter() - began
        self._slow = self._slow + 1 if took > SLOW_S * -(-len(candidates) // 64) else 0
        if self._slow >= SLOW_CALLS:
            self._slow, self._resting = 0, RESTED_CALLS
        return found
