"""The job's shuffled order against the real torch, in a virtual environment of its own.

torch and what it needs are some 5 GB: the environment is built once, in .venvs/torch, and used
again. Run by `make test-clients`, not by `make test`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venvs" / "torch"
INSTALL_S = 1500


@pytest.fixture(scope="module")
def torch_python() -> Path:
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, timeout=120)
    probe = [str(python), "-c", "import numpy, torch"]
    if subprocess.run(probe, capture_output=True, timeout=120).returncode:
        install = [str(python), "-m", "pip", "install", "--quiet", "torch", "numpy"]
        subprocess.run(install, check=True, timeout=INSTALL_S)
    return python


@pytest.mark.timeout(INSTALL_S + 300)
def test_shuffled_order_equals_torchs_distributed_sampler(torch_python: Path) -> None:
    script = ROOT / "tests" / "clients" / "torch_sampler.py"
    done = subprocess.run(
        [str(torch_python), str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed, 0 failed" in done.stdout
