"""Writes the golden files: orders as the real packages give them, one family a file.

    python -m tests.golden.make [FAMILY ...]

Each family's script runs in a virtual environment that holds the packages below and nothing of
ours; it is one for all, as most of it is torch, some 5 GB where it comes with CUDA. tests/core
compares our recipes with the files, so it needs no package; `make test-clients` does what is done
here and compares with what is stored.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.clients.environments import environment
from tests.golden.told import FOLDER

ROOT = FOLDER.parents[1]
FAMILIES = [
    "torch",
    "huggingface",
    "webdataset",
    "dlio",
    "mosaicml",
    "megatron",
    "litdata",
    "nanogpt",
]
REQUIREMENTS = (
    *("torch==2.13.0", "accelerate==1.15.0", "datasets==5.2.0", "webdataset==1.0.2", "numpy"),
    # What is imported of the packages below.
    *("catalogue", "zstd", "python-snappy", "Brotli", "requests", "tqdm", "boto3", "xxhash"),
    *("fsspec", "pillow", "packaging", "lightning-utilities", "tifffile", "filelock", "psutil"),
    "hydra-core",
)
# Without what they require: gigabytes that are not needed here, and other versions of the above.
ALONE = (
    *("mosaicml-streaming==0.13.0", "megatron-core==0.16.1", "litdata==0.2.76"),
    "dlio_benchmark==2.0.0",
)
RUN_S = 600


def made(family: str) -> dict[str, Any]:
    """What the golden file of a family should hold: the versions asked for and found, the cases."""
    bin_ = environment("golden", *REQUIREMENTS, alone=ALONE)
    done = subprocess.run(
        [str(bin_ / "python"), "-m", f"tests.golden.real_{family}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def text(golden: dict[str, Any]) -> str:
    """One line a case, so that a difference shows which."""
    head = {key: value for key, value in golden.items() if key != "cases"}
    lines = ",\n".join(json.dumps(case) for case in golden["cases"])
    return json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n"


def stored(family: str) -> Path:
    return FOLDER / f"{family}.json"


def main() -> None:
    for family in sys.argv[1:] or FAMILIES:
        stored(family).write_text(text(made(family)), encoding="utf-8")
        print(stored(family))


if __name__ == "__main__":
    main()
