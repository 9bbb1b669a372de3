"""Training's own readers through the mount, byte for byte: torch DataLoader, datasets, webdataset,
safetensors, torch.load. Cold, then with all of it cached."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.environments import INSTALL_S, environment
from tests.golden.make import ALONE, REQUIREMENTS
from tests.mounts import Site, site

PROGRAM = Path(__file__).parent / "real_loaders.py"
LOADERS = ["dataloader", "datasets", "webdataset", "safetensors", "torch-load"]
RUN_S = 240


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("loaders")) as made:
        run(made, "make", made.bucket)
        yield made


def run(place: Site, *arguments: str | Path) -> str:
    """In the environment that the golden files have, which holds all of them."""
    python = environment("golden", *REQUIREMENTS, alone=ALONE) / "python"
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(place.base / "hf")}
    done = subprocess.run(
        [str(python), str(PROGRAM), *map(str, arguments)],
        env={**os.environ, **offline}, capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(INSTALL_S + 4 * RUN_S)
@pytest.mark.parametrize("loader", LOADERS)
def test_loader_reads_what_the_files_have(place: Site, loader: str, tmp_path: Path) -> None:
    place.cache = tmp_path / "cache"  # an empty one for each
    with place.running_spoke():
        for _ in ("cold", "warm"):
            assert "are the same" in run(place, loader, place.data, place.bucket)


@pytest.mark.timeout(INSTALL_S + 2 * RUN_S)
def test_comparison_would_find_a_difference(place: Site, tmp_path: Path) -> None:
    """The oracle of the others: one token of a copy is another one."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", place.bucket, copy], check=True, timeout=60)
    with (copy / "tokens.bin").open("r+b") as file:
        file.seek(1_000_000)
        first = file.read(1)
        file.seek(1_000_000)
        file.write(bytes([first[0] ^ 1]))
    with pytest.raises(AssertionError, match="not what the files have"):
        run(place, "dataloader", copy, place.bucket)
