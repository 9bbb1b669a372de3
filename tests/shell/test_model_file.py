"""A model file is used only if all of it fits; else the rules decide and say why."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hubspoke.adapters import model_file
from hubspoke.adapters.model_file import (
    NAME,
    SLOW_CALLS,
    Guarded,
    installed,
    installed_score,
    load,
    ranker,
)
from hubspoke.core.features import NAMES, Matrix
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import ObjectName
from hubspoke.learn.train import Shape, train
from tests.learn.test_learn import made_up

CANDIDATE = Candidate("sequential", 1, ObjectName("b", "k"), None, 0, 4096, 0.0, 5)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    train(made_up(), folder, Shape(stages=3, depth=3, pattern_stages=2))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    for name in (f"{NAME}.npz", f"{NAME}.json"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    switch(tmp_path, heads=True)
    return tmp_path


def change(folder: Path, by: Callable[[dict[str, Any]], None]) -> None:
    path = folder / f"{NAME}.json"
    document = json.loads(path.read_text())
    by(document)
    path.write_text(json.dumps(document))


def switch(folder: Path, **on: bool) -> None:
    change(folder, lambda d: d["on"].update(on))


def rows(of: Sequence[Candidate]) -> Matrix:
    return np.zeros((len(of), len(NAMES)), np.float32)


def test_a_good_model_names_itself_by_its_digest(folder: Path) -> None:
    found = ranker(folder)
    assert found.name == f"sha256:{load(folder).sha256}"
    assert len(found.score([CANDIDATE], rows)) == 1


def test_a_model_that_is_off_leaves_it_to_the_rules(folder: Path) -> None:
    switch(folder, heads=False)
    assert "did not beat them" in ranker(folder).name


def test_without_a_model_the_rules_say_so(tmp_path: Path) -> None:
    assert ranker(tmp_path).name == "rules: no learned model is installed"


@pytest.mark.parametrize(
    ("by", "why"),
    [
        (lambda d: d.update(format=2), "expected format 1"),
        (lambda d: d.update(features=99), "features 99, not 1"),
        (lambda d: d.update(sha256="0" * 64), "sha256 is"),
        (lambda d: d["columns"].reverse(), "other columns"),
        (lambda d: d.update(patterns=["heads"], on={}), "outputs for 1 patterns"),
        (lambda d: d["on"].update(nonsense=True), "do not agree"),
    ],
)
def test_what_does_not_fit_is_not_used(
    folder: Path, by: Callable[[dict[str, Any]], None], why: str
) -> None:
    change(folder, by)
    name = ranker(folder).name
    assert name.startswith("rules: the model is not used: ") and why in name


def test_a_cut_file_is_not_used(folder: Path) -> None:
    path = folder / f"{NAME}.npz"
    path.write_bytes(path.read_bytes()[:-100])
    assert "sha256 is" in ranker(folder).name
    (folder / f"{NAME}.json").write_text("{")
    assert ranker(folder).name.startswith("rules: the model is not used: ")


def test_a_slow_model_rests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "SLOW_S", -1.0)
    monkeypatch.setattr(model_file, "RESTED_CALLS", 2)
    found = Guarded(load(folder))
    for _ in range(SLOW_CALLS):
        assert found.name.startswith("sha256:")
        found.score([CANDIDATE], rows)
    assert found.name == "rules: the learned model is too slow on this machine"
    for _ in range(2):
        found.score([CANDIDATE], rows)
    assert found.name.startswith("sha256:")


def test_what_is_shipped_fits_this_version() -> None:
    assert len(load(installed()).patterns) > 1


def test_what_one_simulated_spoke_thinks_is_unknown_to_the_next() -> None:
    asked: list[int] = []

    def rows(candidates: Sequence[Candidate]) -> Matrix:
        asked.append(len(candidates))
        return np.zeros((len(candidates), len(NAMES)), np.float32)

    for score in (installed_score(), installed_score()):
        score([CANDIDATE], rows)
        score([CANDIDATE], rows)
    assert asked == [1, 1], "once by each, which then keeps its opinion"
