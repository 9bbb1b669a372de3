"""Fits the two ensembles to examples and writes them as arrays: the same bytes every time.

scikit-learn grows the trees, in one thread and with fixed seeds; what is written has nothing of
it left. Leaves are scaled by the learning rate, inner nodes get the mean of their leaves, so that
the effect of each column can be told.
"""

import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hubspoke.adapters.model_file import FORMAT, NAME
from hubspoke.core.features import NAMES, VERSION
from hubspoke.core.trees import Trees
from hubspoke.errors import ConfigError
from hubspoke.learn.examples import Examples, write_arrays
from hubspoke.learn.families import PATTERNS

SEED = 20_240_501


@dataclass(frozen=True, slots=True)
class Shape:
    """Small enough that scoring 64 candidates takes less than a millisecond."""

    stages: int = 40
    depth: int = 4
    pattern_stages: int = 12
    learning_rate: float = 0.2
    leaf: int = 20  # examples


def fit(examples: Examples, shape: Shape) -> tuple[Trees, Trees]:
    """(pattern, use). Raises ConfigError without examples of each pattern, used and not."""
    lacking = [p for i, p in enumerate(PATTERNS) if not (examples.patterns == i).any()]
    if lacking or len(set(examples.used.tolist())) < 2:
        raise ConfigError(f"too few runs: no examples of {', '.join(lacking) or 'both ends'}")
    # Each pattern weighs the same, however many candidates its runs had.
    counts = np.bincount(examples.patterns, minlength=len(PATTERNS))
    weights = (len(examples) / len(PATTERNS) / np.maximum(1, counts))[examples.patterns]
    pattern = _grow(examples, examples.patterns, weights, shape, shape.pattern_stages)
    use = _grow(examples, examples.used, weights, shape, shape.stages)
    return pattern, use


def _grow(
    examples: Examples,
    labels: npt.NDArray[np.int8],
    weights: npt.NDArray[np.float64],
    shape: Shape,
    stages: int,
) -> Trees:
    # Here: a second of imports that nobody but who trains has to pay.
    from sklearn.ensemble import GradientBoostingClassifier

    grown = GradientBoostingClassifier(
        n_estimators=stages,
        max_depth=shape.depth,
        learning_rate=shape.learning_rate,
        min_samples_leaf=shape.leaf,
        random_state=SEED,
    ).fit(examples.rows, labels, sample_weight=weights)
    trees = [tree.tree_ for stage in grown.estimators_ for tree in stage]
    outputs = grown.estimators_.shape[1]
    base = np.asarray(grown._raw_predict_init(examples.rows[:1])).reshape(-1)[:outputs]
    full = [_complete(tree, shape.depth, shape.learning_rate) for tree in trees]
    return Trees(
        np.stack([f for f, _, _ in full]),
        np.stack([t for _, t, _ in full]),
        np.stack([v for _, _, v in full]),
        base.astype(np.float64),
    )


def _complete(tree: Any, depth: int, rate: float) -> tuple[Any, Any, Any]:
    """Nodes of one tree by their place in a complete one; see core.trees."""
    n = 2 ** (depth + 1) - 1
    feature, threshold, value = np.zeros(n, np.int16), np.full(n, np.inf), np.zeros(n)

    def put(place: int, node: int) -> tuple[float, float]:
        """Returns (sum of the leaves' values by their examples, examples)."""
        leaf = tree.children_left[node] < 0
        if not leaf:
            feature[place], threshold[place] = tree.feature[node], tree.threshold[node]
            left = put(2 * place + 1, tree.children_left[node])
            right = put(2 * place + 2, tree.children_right[node])
            total, weight = left[0] + right[0], left[1] + right[1]
            value[place] = total / weight
            return total, weight
        own, weight = float(tree.value[node, 0, 0]) * rate, float(tree.n_node_samples[node])
        below = [place]
        for at in below:  # a leaf repeated to the last level: left, always
            value[at] = own
            if 2 * at + 2 < n:
                below += [2 * at + 1, 2 * at + 2]
        return own * weight, weight

    put(0, 0)
    return feature, threshold, value


def write(folder: Path, pattern: Trees, use: Trees, trained: dict[str, Any]) -> dict[str, Any]:
    """NAME.npz and NAME.json in the folder; returns the second."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for head, trees in (("pattern", pattern), ("use", use)):
        arrays[f"{head}_feature"] = trees.feature
        arrays[f"{head}_threshold"] = trees.threshold
        arrays[f"{head}_value"] = trees.value
        arrays[f"{head}_base"] = trees.base
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}.npz"
    write_arrays(path, arrays)
    document = {
        "format": FORMAT,
        "features": VERSION,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "columns": list(NAMES),
        "patterns": list(PATTERNS),
        "on": dict.fromkeys(PATTERNS, False),
        "trained": trained,
    }
    write_document(folder, document)
    return document


def write_document(folder: Path, document: dict[str, Any]) -> None:
    (folder / f"{NAME}.json").write_text(json.dumps(document, indent=1) + "\n")


def train(examples: Examples, folder: Path, shape: Shape | None = None) -> dict[str, Any]:
    """Fit, write, and return the document beside the arrays; it is off for all patterns until it
    is evaluated."""
    pattern, use = fit(examples, shape or Shape())
    trained = {
        "runs": examples.runs,
        "examples_by_pattern": {
            p: [int(np.sum(of)), round(float(examples.used[of].mean()), 4) if of.any() else None]
            for p, of in ((p, examples.patterns == i) for i, p in enumerate(PATTERNS))
        },
        "quality": quality(examples, pattern, use),
        "versions": versions(),
    }
    return write(folder, pattern, use, trained)


def versions() -> dict[str, str]:
    """What the bytes depend on besides the examples."""
    import sklearn

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "machine": platform.machine(),
    }


def quality(examples: Examples, pattern: Trees, use: Trees) -> dict[str, float]:
    """Of the ensembles on examples: shares that are right, and the log loss of use."""
    p = 1 / (1 + np.exp(-use.scores(examples.rows)[:, 0]))
    p = np.clip(p, 1e-6, 1 - 1e-6)
    used = examples.used.astype(np.float64)
    loss = -np.mean(used * np.log(p) + (1 - used) * np.log(1 - p))
    guessed = np.argmax(pattern.scores(examples.rows), axis=1)
    return {
        "examples": float(len(examples)),
        "used_share": float(used.mean()),
        "pattern_accuracy": float(np.mean(guessed == examples.patterns)),
        "use_accuracy": float(np.mean((p >= 0.5) == (used == 1))),
        "use_log_loss": float(loss),
    }
