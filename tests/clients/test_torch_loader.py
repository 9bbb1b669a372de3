"""A torch DataLoader that nobody gave a seed, 20,000 files, 60 ms away: its seed is found.

Takes minutes, most of them for the search of 2^32 seeds beside the job; `bench/torch_loader.py`
tells the figures, the next epoch's too. The step leaves the search time on two busy cores.
"""

from pathlib import Path

import pytest

from bench.torch_loader import RUN_S, SOON, Setting, run
from tests.clients.environments import INSTALL_S, environment
from tests.golden.make import ALONE, REQUIREMENTS


@pytest.mark.timeout(INSTALL_S + RUN_S)
def test_seed_is_found_beside_the_job_and_the_rest_of_the_epoch_hits(tmp_path: Path) -> None:
    python = environment("golden", *REQUIREMENTS, alone=ALONE) / "python"
    found = run(Setting(python, step_s=0.7, second=1), tmp_path)
    assert found["believed_after_s"] is not None, found
    assert "torch shuffle, seed" in found["orders"][0], found
    assert found["hits_after"] >= 0.99, found


@pytest.mark.timeout(INSTALL_S + RUN_S)
def test_next_epoch_hits_from_its_first_batch_once_the_process_is_found(tmp_path: Path) -> None:
    """A search for the process takes longest; of this one it ends early."""
    python = environment("golden", *REQUIREMENTS, alone=ALONE) / "python"
    found = run(Setting(python, step_s=0.5, second=40, seed=SOON), tmp_path)
    assert found["next_known_after_s"] is not None, found
    assert f"torch DataLoader, seed {SOON}, epoch 1" in found["orders"][-1], found
    assert found["second_first_batch"] >= 0.99 and found["second"] >= 0.99, found
