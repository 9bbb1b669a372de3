"""Boosted trees as arrays, and the ranker that asks them where they were shown to win."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.features import NAMES, SOURCES
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import ObjectName
from hubspoke.core.learned import KINDS_MAX, REUSED, LearnedRanker, Model
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.trees import Trees

EVIDENCE = NAMES.index("evidence")
LENGTH = NAMES.index("length")


def stump(column: int, above: float, low: float, high: float) -> Trees:
    """`high` where the column is above a threshold, `low` elsewhere."""
    return Trees(
        np.array([[column, 0, 0]], np.int16),
        np.array([[above, 0.0, 0.0]]),
        np.array([[(low + high) / 2, low, high]]),
        np.zeros(1),
    )


def row(**values: float) -> npt.NDArray[np.float32]:
    found = np.zeros(len(NAMES), np.float32)
    for name, value in values.items():
        found[NAMES.index(name)] = value
    return found


def test_a_row_goes_right_above_the_threshold_only() -> None:
    trees = stump(EVIDENCE, 3.0, -1.0, 2.0)
    rows = np.stack([row(evidence=e) for e in (0, 3, 3.5, 9)])
    assert trees.scores(rows)[:, 0].tolist() == [-1.0, -1.0, 2.0, 2.0]


def test_trees_take_turns_in_adding_to_the_outputs() -> None:
    a, b = stump(EVIDENCE, 3.0, -1.0, 2.0), stump(LENGTH, 1.0, 10.0, 20.0)
    both = Trees(
        np.concatenate([a.feature, b.feature] * 2),
        np.concatenate([a.threshold, b.threshold] * 2),
        np.concatenate([a.value, b.value] * 2),
        np.array([0.5, 100.0]),
    )
    rows = np.stack([row(evidence=9), row(length=2)])
    assert both.scores(rows).tolist() == [[4.5, 120.0], [-1.5, 140.0]]


def test_effects_sum_up_to_the_score() -> None:
    trees = stump(EVIDENCE, 3.0, -1.0, 2.0)
    start, effects = trees.effects(row(evidence=9), 0)
    assert start + effects.sum() == pytest.approx(2.0)
    assert effects[EVIDENCE] == pytest.approx(1.5)
    assert np.count_nonzero(effects) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"feature": np.array([[len(NAMES), 0, 0]], np.int16)}, "does not exist"),
        ({"threshold": np.zeros((1, 7))}, "do not agree"),
        ({"value": np.array([[0.0, np.inf, 0.0]])}, "no numbers"),
        ({"base": np.zeros(2)}, "outputs"),
    ],
)
def test_damaged_arrays_are_told(change: dict[str, npt.NDArray[np.float64]], why: str) -> None:
    good = stump(EVIDENCE, 3.0, -1.0, 2.0)
    assert good.wrong(len(NAMES)) is None
    parts = {p: getattr(good, p) for p in ("feature", "threshold", "value", "base")}
    found = Trees(**{**parts, **change}).wrong(len(NAMES))
    assert found is not None and why in found


def test_trees_of_no_full_depth_are_told() -> None:
    two = Trees(np.zeros((1, 2), np.int16), np.zeros((1, 2)), np.zeros((1, 2)), np.zeros(1))
    assert two.wrong(len(NAMES)) == "2 nodes are no complete tree"


# -- the ranker ---------------------------------------------------------------------------------

NEVER = stump(EVIDENCE, 99.0, -50.0, 50.0)  # use: probability 0


def model(on: dict[str, bool], sure: float = 5.0) -> Model:
    """Says "b" for long candidates and "a" for others, and that nothing is ever read."""
    a, b = stump(LENGTH, 10.0, sure, 0.0), stump(LENGTH, 10.0, 0.0, sure)
    pattern = Trees(
        np.concatenate([a.feature, b.feature]),
        np.concatenate([a.threshold, b.threshold]),
        np.concatenate([a.value, b.value]),
        np.zeros(2),
    )
    return Model(("a", "b"), pattern, NEVER, on, "0" * 64)


def candidates() -> list[Candidate]:
    name = ObjectName("b", "k")
    return [
        Candidate(source, 1, name, None, 0, length, 0.0, 5)
        for source in ("sequential", "oracle")
        for length in (100, 1 << 20)
    ]


def test_an_opinion_is_kept_until_the_evidence_has_grown() -> None:
    asked: list[Candidate] = []

    def noted(of: Sequence[Candidate]) -> npt.NDArray[np.float32]:
        asked.extend(of)
        return rows(of)

    ranker, c = LearnedRanker(model({"a": True})), candidates()[0]
    first = ranker.score([c, c], noted)
    assert first[0] == first[1] == ranker.score([c], noted)[0]
    assert len(asked) == 1
    ranker.score([c._replace(evidence=8), c._replace(stream_id=2), c._replace(length=300)], noted)
    assert len(asked) == 4
    for _ in range(REUSED + 1):
        ranker.score([c], noted)
    assert len(asked) == 5
    for i in range(2 * KINDS_MAX):
        ranker.score([c._replace(stream_id=i)], noted)
    assert len(ranker._known) == KINDS_MAX


def rows(of: Sequence[Candidate]) -> npt.NDArray[np.float32]:
    return np.stack([row(length=np.log2(c.length), evidence=5) for c in of])


def score(on: dict[str, bool]) -> list[float]:
    of = candidates()
    return LearnedRanker(model(on)).score(of, rows)


@pytest.fixture(autouse=True)
def another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    from hubspoke.core import ranking

    assert "oracle" not in SOURCES
    monkeypatch.setitem(ranking.RULES, "oracle", (0.9, 0.9, 1))


def test_the_model_decides_where_it_is_on_for_the_pattern_of_the_row() -> None:
    ruled = RuleRanker().score(candidates())
    assert score({"a": True, "b": False}) == [pytest.approx(0.0, abs=1e-9), *ruled[1:]]
    assert score({"a": False, "b": True})[0] == ruled[0]
    assert score({"b": True})[1] == pytest.approx(0.0, abs=1e-9)


def test_it_decides_only_where_it_is_sure_of_the_pattern() -> None:
    of = candidates()
    unsure = LearnedRanker(model({"a": True}, sure=1.0)).score(of, rows)
    assert unsure == RuleRanker().score(of)


def test_rows_are_made_for_candidates_of_its_sources_only() -> None:
    asked: list[Candidate] = []

    def noted(of: Sequence[Candidate]) -> npt.NDArray[np.float32]:
        asked.extend(of)
        return rows(of)

    LearnedRanker(model({"a": True})).score(candidates(), noted)
    assert [c.source for c in asked] == ["sequential"] * 2


def test_a_source_it_was_not_trained_on_is_left_to_the_rules() -> None:
    assert score({"a": True, "b": True})[2:] == RuleRanker().score(candidates())[2:]


def test_rows_are_not_made_where_nothing_is_on() -> None:
    def none(of: object) -> npt.NDArray[np.float32]:
        raise AssertionError

    of = candidates()
    ranker = LearnedRanker(model({}))
    assert ranker.score(of, none) == RuleRanker().score(of)
    assert ranker.name == "sha256:" + "0" * 64


def test_forced_it_decides_for_all_patterns() -> None:
    of = candidates()
    found = LearnedRanker(model({}).forced()).score(of, rows)
    assert found[:2] == [pytest.approx(0.0, abs=1e-9)] * 2
