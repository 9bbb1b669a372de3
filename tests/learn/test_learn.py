"""The model at a small scale: the same bytes every time, what scikit-learn says, and the card."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hubspoke.adapters.model_file import NAME, installed, load
from hubspoke.cli import app
from hubspoke.core.features import NAMES
from hubspoke.core.ids import ReadState
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig
from hubspoke.errors import ConfigError, FormatError
from hubspoke.learn.card import card
from hubspoke.learn.evaluate import (
    MODEL,
    PEERS,
    RULES,
    SHIPPED,
    Difference,
    Evaluation,
    Judged,
    Run,
    difference,
    judge,
    measure,
)
from hubspoke.learn.examples import Examples, explore, gather, read, save
from hubspoke.learn.explain import explain, in_words, of_spoke
from hubspoke.learn.families import PATTERNS
from hubspoke.learn.train import Shape, fit, train
from hubspoke.learn.variants import Variant, build, held_out, pattern_of, trained
from tests.core.virtual_wan import Names

SMALL = Shape(stages=3, depth=3, pattern_stages=2)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def made_up(n: int = 400) -> Examples:
    """Read if the evidence is good; the pattern is in the length."""
    rng = np.random.default_rng(1)
    rows = rng.uniform(0, 20, (n, len(NAMES))).astype(np.float32)
    patterns = (rows[:, NAMES.index("length")] / 20 * len(PATTERNS)).astype(np.int8)
    return Examples(rows, patterns, (rows[:, NAMES.index("evidence")] > 8).astype(np.int8), 1)


def test_the_same_run_has_the_same_examples() -> None:
    variant = Variant(("heads",), 3, False)
    a, b = explore(build(variant)), explore(build(variant))
    assert len(a) > 20
    assert (a.rows == b.rows).all() and (a.used == b.used).all()
    assert set(a.patterns.tolist()) == {list(PATTERNS).index("heads")}
    assert a.used.mean() < 0.1, "only heads are read, so that the rest never is"


def test_what_is_read_counts_as_used() -> None:
    found = explore(build(Variant(("listing",), 1, False)))
    assert found.used.mean() > 0.7


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_has_examples(pattern: str) -> None:
    """Also of what is fetched by items, of which the arms' outcomes are not told."""
    found = explore(build(Variant((pattern,), 0, False)))
    assert len(found) > 20
    assert set(found.patterns.tolist()) == {list(PATTERNS).index(pattern)}


def test_both_jobs_of_a_pair_have_examples() -> None:
    found = gather([Variant(("heads", "sequential"), 0, False)], 1)
    assert len(set(found.patterns.tolist())) == 2


def test_training_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        save(made_up(), tmp_path / f"{folder}.npz")
        train(read(tmp_path / f"{folder}.npz"), tmp_path / folder, SMALL)
    assert sha256(tmp_path / "a.npz") == sha256(tmp_path / "b.npz")
    for name in (f"{NAME}.npz", f"{NAME}.json"):
        assert sha256(tmp_path / "a" / name) == sha256(tmp_path / "b" / name)
    assert json.loads((tmp_path / "a" / f"{NAME}.json").read_text())["sha256"] == sha256(
        tmp_path / "a" / f"{NAME}.npz"
    )


def test_the_arrays_say_what_scikit_learn_says() -> None:
    from sklearn.ensemble import GradientBoostingClassifier

    examples, shape = made_up(), Shape(stages=5, depth=3, pattern_stages=2)
    pattern, use = fit(examples, shape)
    counts = np.bincount(examples.patterns, minlength=len(PATTERNS))
    weights = (len(examples) / len(PATTERNS) / counts)[examples.patterns]
    for trees, labels, stages in ((use, examples.used, 5), (pattern, examples.patterns, 2)):
        theirs = GradientBoostingClassifier(
            n_estimators=stages,
            max_depth=3,
            learning_rate=shape.learning_rate,
            min_samples_leaf=shape.leaf,
            random_state=20_240_501,
        ).fit(examples.rows, labels, sample_weight=weights)
        expected = np.asarray(theirs.decision_function(examples.rows)).reshape(len(examples), -1)
        np.testing.assert_allclose(trees.scores(examples.rows), expected, atol=1e-12)
    row = examples.rows[7]
    start, effects = use.effects(row, 0)
    assert start + effects.sum() == pytest.approx(use.scores(row[None])[0, 0])


def test_too_few_examples_are_refused() -> None:
    few = gather([Variant(("listing",), 1, False)], 1)
    with pytest.raises(ConfigError, match="too few runs: no examples of sequential"):
        fit(few, SMALL)


def test_what_is_no_examples_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(b"PK nothing")
    with pytest.raises(FormatError, match="no examples"):
        read(path)


def test_held_out_runs_are_no_trained_runs() -> None:
    pairs = {v.patterns for v in trained(4) if len(v.patterns) == 2}
    theirs = {build(v).path for v in trained(2) if v.patterns[0] == "heads"}
    for pattern in PATTERNS:
        assert not theirs & {build(v).path for v in held_out(pattern, 1)}
        assert not pairs & {v.patterns for v in held_out(pattern, 9)}
    assert "lookups" not in {p for v in trained(4) for p in v.patterns}
    assert pattern_of("0-heads/000001.h5") == "heads"


# -- against the rules --------------------------------------------------------------------------


def test_differences_are_of_pairs() -> None:
    clear = difference([0.5, 0.9, 0.1], [0.4, 0.8, 0.0])
    assert clear.mean == pytest.approx(0.1) and clear.band == pytest.approx(0, abs=1e-12)
    assert clear.clear
    assert not difference([0.5, 0.1], [0.4, 0.2]).clear
    assert not difference([0.5], [0.1]).clear, "one run has no band"


def judged(hits: Difference, egress: Difference) -> Judged:
    return Judged("random", 9, {}, hits, egress)


SAME = Difference(0.0, 0.001)


@pytest.mark.parametrize(
    ("hits", "egress", "wins"),
    [
        (SAME, SAME, False),
        (SAME, Difference(-0.5, 0.1), True),
        (SAME, Difference(-0.5, 0.6), False),  # inside the band
        (Difference(0.05, 0.01), SAME, True),
        (Difference(0.05, 0.01), Difference(0.02, 0.01), False),  # paid for in bytes
        (Difference(0.05, 0.01), Difference(0.06, 0.1), False),
        (Difference(-0.003, 0.002), Difference(-0.5, 0.1), False),  # paid for in hits
        (Difference(-0.02, 0.1), Difference(-0.5, 0.1), False),
        (Difference(-0.005, 0.01), Difference(-0.5, 0.1), True),  # not more than chance
        (Difference(0.001, 0.0), SAME, False),  # nobody would notice
    ],
)
def test_a_win_is_beyond_the_band_and_costs_nothing(
    hits: Difference, egress: Difference, wins: bool
) -> None:
    assert judged(hits, egress).wins is wins


def test_a_ranker_that_knows_that_heads_are_not_read_on_wastes_nothing() -> None:
    workload = build(Variant(("heads",), 1, True))
    never = measure(workload, score=lambda candidates, rows: [0.0] * len(candidates))
    always = measure(workload, score=lambda candidates, rows: [1.0] * len(candidates))
    assert never.waste == 0 and never.egress == pytest.approx(1.0, abs=0.01)
    assert always.waste > 0.5
    found = judge("heads", {RULES: [always, always], MODEL: [never, never]})
    assert found.wins or found.hits.mean < 0


def test_the_card_tells_what_is_off(tmp_path: Path) -> None:
    document = train(made_up(), tmp_path, SMALL)
    model = load(tmp_path)
    run = Run(0.9, 1.2, 0.1)
    means = dict.fromkeys((*PEERS.values(), RULES, MODEL, SHIPPED), run)
    better = Difference(-0.5, 0.1)
    forced = [
        Judged(p, 9, means, SAME, better if p == "heads" else SAME) for p in (*PATTERNS, "lookups")
    ]
    evaluation = Evaluation(forced, forced, document["trained"]["quality"])
    assert [p for p, on in evaluation.on.items() if on] == ["heads"]
    text = card(model, document["trained"], evaluation)
    assert "- decides for: heads\n" in text
    assert "| sequential | +0.00 ± 0.10 | +0.000 ± 0.001 | no |" in text
    assert "| lookups | +0.00 ± 0.10 | +0.000 ± 0.001 | never trained on |" in text


# -- in words -----------------------------------------------------------------------------------


def test_the_strongest_features_are_named(tmp_path: Path) -> None:
    train(made_up(), tmp_path, SMALL)
    model, row = load(tmp_path), made_up().rows[0]
    found = explain(model, 7, "b/k", "sequential", row)
    assert found.effects[0].feature == "evidence"
    assert found.decides is False
    assert found.lines()[0] == "stream 7, b/k: proposed by sequential"
    assert any("how often the rule behind it has held" in line for line in found.lines())


def test_what_a_spoke_tells_is_explained(tmp_path: Path) -> None:
    names = Names({"d/k": 4 << 20})
    core = SpokeCore(SpokeConfig(1 << 26), RuleRanker().score, names, 0.0, 0)
    ((name, entry),) = names.entries.items()
    core.access(core.open(name, entry)[0], 0, 4096, "c", ReadState.MISS, 0.0)
    core.predict(0.0)
    told = json.loads(json.dumps(core.prediction.scoring.describe("rules: of a test")))
    train(made_up(), tmp_path, SMALL)
    (found,) = of_spoke(load(tmp_path), told)
    assert (found.subject, found.source) == ("b/d/k", "sequential")
    assert found.stream == next(iter(core.prediction.streams)).stream_id
    told["columns"].reverse()
    with pytest.raises(FormatError, match="other columns"):
        of_spoke(load(tmp_path), told)


def test_features_are_said_in_their_units() -> None:
    assert in_words("starts_at_0", 1.0) == "the stream began at the object's start: yes"
    assert in_words("length", float(np.log2(1 + (256 << 10)))) == "bytes proposed: 256 KiB"
    assert in_words("clients", 3.0) == "clients that form the stream: 7"
    assert in_words("density", 0.25) == "share of the front that is read: 25%"


# -- the command --------------------------------------------------------------------------------


def test_train_and_explain_from_the_command_line(tmp_path: Path) -> None:
    save(made_up(), tmp_path / "examples.npz")
    cli, out = CliRunner(), tmp_path / "out"
    found = cli.invoke(
        app, ["model", "train", "--out", str(out), "--examples", str(tmp_path / "examples.npz")]
    )
    assert found.exit_code == 0, found.output
    assert f"sha256:{load(out).sha256}" in found.output
    trace = Path(__file__).parent.parent / "traces" / "trace_v1.hstrace"
    found = cli.invoke(app, ["model", "explain", str(trace), "--model", str(out), "--json"])
    assert found.exit_code == 0, found.output
    assert {"probability", "effects", "pattern"} <= set(json.loads(found.output)["explained"][0])


def test_a_missing_model_is_told(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["model", "evaluate", "--model", str(tmp_path)])
    assert found.exit_code == 1


@pytest.mark.soak
def test_the_shipped_model_is_rebuilt_bit_for_bit(tmp_path: Path) -> None:
    document = train(read(installed() / f"{NAME}.examples.npz"), tmp_path)
    assert document["sha256"] == load(installed()).sha256
