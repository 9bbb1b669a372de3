"""A hub and a spoke for foreign clients. `make test-clients`."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes import get_json, hub, running, spoke

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}


class Ends(NamedTuple):
    """URLs of the two data ports, and of the spoke's admin port."""

    hub: str
    spoke: str
    admin: str


@pytest.fixture(scope="session")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    folder = tmp_path_factory.mktemp("hubspoke")
    (folder / "store" / "data").mkdir(parents=True)
    with running(*hub(folder / "store", folder / "state")) as a_hub:
        a_hub.ready()
        with running(*spoke(a_hub.data, folder / "cache", "--cache-size", "1GiB")) as a_spoke:
            a_spoke.ready()
            deadline = time.monotonic() + 30
            while get_json(a_spoke.admin + "/readyz")[0] != 200:
                assert time.monotonic() < deadline, a_spoke.log
                time.sleep(0.05)
            yield Ends(a_hub.data, a_spoke.data, a_spoke.admin)


Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command with credentials and no configuration of this machine; its stdout."""

    def run_(*command: str | Path) -> str:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        environ = {**kept, **CREDENTIALS, "HOME": str(tmp_path)}
        result = subprocess.run(
            list(map(str, command)), env=environ, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run_
