"""Ends processes whose owner was killed before it could end them.

    owner --- "+PID", "-PID", one a line ---> guard --- at the end of the pipe ---> kill -9

PR_SET_PDEATHSIG is not used: it fires when the *thread* that started a process ends. Nor does a
hub or spoke look at its standard input: a service has none, and one that is stopped could not.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
from functools import cache
from typing import IO

END_S = 10.0


class Guard:
    """Of one owner. Processes lead groups of their own (`start_new_session`)."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "hubspoke.lab.guard"]
        # Not in the owner's group: who ends that one must not end its guard first.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def add(self, pid: int) -> None:
        """The process and its group end with this one."""
        self._tell(f"+{pid}\n")

    def drop(self, pid: int) -> None:
        """It has ended, or may live on."""
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        """End what was added and not dropped."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(END_S)

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        # Unbuffered as a whole line, so that threads need no lock.
        os.write(self.process.stdin.fileno(), line.encode())


@cache
def guard() -> Guard:
    """Of this process."""
    ours = Guard()
    atexit.register(ours.close)
    return ours


def watch(lines: IO[str]) -> None:
    """What a guard does until its owner is gone."""
    guarded: set[int] = set()
    for line in lines:
        (guarded.add if line[0] == "+" else guarded.discard)(int(line[1:]))
    for pid in guarded:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(sys.stdin)
