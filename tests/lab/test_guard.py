"""What a killed owner leaves behind, judged by the ends of the processes themselves."""

import os
import select
import signal
import subprocess
import sys

import pytest

# Starts two processes that would stay, stops them, gives one of them free, and stays itself.
OWNER = """
import os, signal, subprocess, sys
from hubspoke.lab.guard import guard
command = [sys.executable, "-c", "import signal; signal.pause()"]
ours = [subprocess.Popen(command, start_new_session=True) for _ in range(2)]
for one in ours:
    guard().add(one.pid)
    os.kill(one.pid, signal.SIGSTOP)
guard().drop(ours[1].pid)
print(guard().process.pid, *(one.pid for one in ours), flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "end"),
    [("signal.pause()", signal.SIGKILL), ("raise SystemExit('done')", None)],
    ids=["killed", "ended"],
)
def test_what_is_guarded_ends_with_its_owner(then: str, end: signal.Signals | None) -> None:
    command = [sys.executable, "-W", "ignore", "-c", OWNER.format(then=then)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        guard, guarded, free = (int(pid) for pid in owner.stdout.readline().split())
        ends = [os.pidfd_open(pid) for pid in (guard, guarded, free)]
        try:
            if end is not None:
                os.killpg(owner.pid, end)
            for descriptor in ends[:2]:
                assert select.select([descriptor], [], [], 30.0)[0]
            assert not select.select([ends[2]], [], [], 0)[0]
        finally:
            for descriptor in ends:
                os.close(descriptor)
            os.kill(free, signal.SIGKILL)
