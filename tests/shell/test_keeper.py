"""The parent that keeps descriptors over a crash, around a small daemon."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hubspoke.adapters import keeper

DAEMON = textwrap.dedent("""
    import os, signal, sys, threading
    from hubspoke.adapters.keeper import PASSED_ON, supervise

    kept = supervise("daemon", "thing", lambda: print("lost", flush=True))
    told = [signal.SIGTERM, PASSED_ON]
    if "deaf" not in sys.argv:
        signal.pthread_sigmask(signal.SIG_BLOCK, told)
    thing = kept.take("thing")
    if thing is None:
        reader, writer = os.pipe()
        os.write(writer, b"x")
        if "keep" in sys.argv:
            kept.keep("thing", reader)
        print("new", os.getpid(), flush=True)
    else:
        found = os.read(thing, 1).decode()
        reader, writer = os.pipe()
        os.write(writer, b"y")
        kept.keep("thing", reader)
        print("again", found, os.getpid(), flush=True)


    def obey():
        for line in sys.stdin:
            if line.startswith("drop"):
                kept.drop("thing")
                print("dropped", flush=True)
            elif line.startswith("exit"):
                os._exit(int(line.split()[1]))


    threading.Thread(target=obey, daemon=True).start()
    if "deaf" not in sys.argv:
        signal.sigwait(told)
        os._exit(0)
    threading.Event().wait()
""")


@contextmanager
def daemon(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def line(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def say(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def test_what_was_kept_is_there_after_a_crash() -> None:
    with daemon("keep") as process:
        word, pid = line(process)
        assert word == "new"
        for content in "xy":
            os.kill(int(pid), signal.SIGKILL)
            word, found, pid = line(process)
            assert (word, found) == ("again", content)
        process.terminate()
        assert process.wait(30) == 0


def test_what_an_end_leaves_kept_is_given_up() -> None:
    """Told to end and killed by it, as by a second signal: nobody would serve what is kept."""
    with daemon("keep", "deaf") as process:
        assert line(process)[0] == "new"
        process.terminate()
        assert line(process) == ["lost"]
        assert process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.parametrize("status", [0, 2])
def test_an_end_on_purpose_is_passed_on(status: int) -> None:
    with daemon("keep") as process:
        assert line(process)[0] == "new"
        say(process, f"exit {status}")
        assert process.wait(30) == status


def test_an_unexpected_status_is_a_crash() -> None:
    with daemon("keep") as process:
        assert line(process)[0] == "new"
        say(process, "exit 1")
        assert line(process)[0] == "again"


def test_without_what_is_needed_a_crash_is_the_end() -> None:
    with daemon() as process:
        os.kill(int(line(process)[1]), signal.SIGKILL)
        assert process.wait(30) == 128 + signal.SIGKILL
    with daemon("keep") as process:
        _, pid = line(process)
        say(process, "drop")
        assert line(process) == ["dropped"]
        os.kill(int(pid), signal.SIGKILL)
        assert process.wait(30) == 128 + signal.SIGKILL


def test_crashes_all_the_time_are_given_up() -> None:
    with daemon("keep") as process:
        pid = line(process)[1]
        for _ in range(5):
            os.kill(int(pid), signal.SIGKILL)
            pid = line(process)[2]
        os.kill(int(pid), signal.SIGKILL)
        assert line(process) == ["lost"]
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert "6 times in a minute: given up" in process.stderr.read()


def test_the_daemon_ends_with_its_parent() -> None:
    with daemon("keep") as process:
        word, pid = line(process)
        process.kill()
        # Its end of the pipe closes when the last of both has ended.
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert word == "new" and pid


def test_a_parent_that_was_stopped_and_goes_on_was_not_told_to_end() -> None:
    """As by a debugger, Ctrl-Z and fg, or a paused container: the wait is interrupted after its
    own deadline, and what sigtimedwait then returns is no signal (CPython 3.11 to 3.13)."""
    with daemon("keep") as process:
        first = line(process)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(keeper.LOOK_S * 1.2)  # its deadline has to pass
        os.kill(process.pid, signal.SIGCONT)
        os.kill(int(first[1]), signal.SIGKILL)
        assert line(process)[:2] == ["again", "x"]
