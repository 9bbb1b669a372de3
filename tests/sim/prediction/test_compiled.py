"""Compiled loops where numba may keep its code, and where it may not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from hubspoke.sim.prediction.compiled import compiled

@compiled
def twice(value: int) -> int:
    return 2 * value

print(twice(21))
"""


def run(module: Path, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-B", str(module)],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """In a folder whose `__pycache__` cannot be made, also not by root: a file has its name."""
    (tmp_path / "__pycache__").write_text("")
    path = tmp_path / "loops.py"
    path.write_text(MODULE)
    return path


def test_without_a_place_for_machine_code_it_still_runs(module: Path) -> None:
    assert run(module, HOME="/dev/null", XDG_CACHE_HOME="/dev/null") == "42\n"
    assert sorted(p.name for p in module.parent.iterdir()) == ["__pycache__", "loops.py"]


def test_machine_code_goes_where_the_user_says(module: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert run(module, NUMBA_CACHE_DIR=str(kept)) == "42\n"
    assert list(kept.rglob("*.nbi"))
