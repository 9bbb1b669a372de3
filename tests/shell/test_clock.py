"""The clock that leases are counted by goes on while the machine sleeps."""

import shutil
import subprocess
import sys

import pytest

OFFSET_S = 1_000_000
# As after a suspend of that length: CLOCK_BOOTTIME is ahead, CLOCK_MONOTONIC is not.
SUSPENDED = ["unshare", "--time", "--boottime", str(OFFSET_S)]
SCRIPT = """
import time
from hubspoke.adapters.clock import BootClock
print(BootClock().now() - time.monotonic())
"""


def test_the_clock_counts_the_time_of_a_suspend() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("the command `unshare` is missing: install the package util-linux")
    probe = subprocess.run([*SUSPENDED, "true"], capture_output=True, timeout=30)
    if probe.returncode != 0:
        pytest.skip(f"no time namespace here (needs root): {probe.stderr.decode().strip()}")
    run = subprocess.run(
        [*SUSPENDED, sys.executable, "-c", SCRIPT], capture_output=True, timeout=60, check=True
    )
    assert float(run.stdout) > OFFSET_S / 2
