"""The README's training loop, as it is printed, through the mount and through fsspec."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts import Site, site

ROOT = Path(__file__).parent.parent.parent
FILES = 12


def printed_loop() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = [
        b for b in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if "url_to_fs" in b
    ]
    return str(found)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as made:
        (made.bucket / "tokens").mkdir()
        for i in range(FILES):
            (made.bucket / "tokens" / f"{i:02}.bin").write_bytes(random.Random(i).randbytes(40_000))
        with made.running_spoke():
            yield made


def test_it_prints_the_same_through_the_mount_and_through_fsspec(place: Site) -> None:
    def printed(where: str) -> list[str]:
        environ = {**os.environ, "HUBSPOKE_ENDPOINT": place.spoke.data}
        command = [sys.executable, "-c", printed_loop(), where]
        done = subprocess.run(
            command, env=environ, check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout.splitlines()

    native = printed(str(place.bucket / "tokens"))
    assert len(native) == FILES
    assert printed(str(place.data / "tokens")) == native
    assert printed("hubspoke://data/tokens") == native
