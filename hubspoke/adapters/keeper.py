"""A small parent of a daemon: it keeps descriptors that must outlive a crash, and starts it again.

    parent   fork -> daemon        "keep `fuse`", with the descriptor -->  kept
             waits                 killed, or crashed
             fork -> daemon        <-- finds `fuse` where it was

What is kept stays open in the parent, so for the kernel nothing has happened: a mount is alive and
its requests wait, a listening socket takes connections. The parent reads nothing of what it keeps
and imports nothing that the daemon needs; a daemon forks from it as it was at its start.

Never: start a daemon again that ended on purpose, that kept nothing, or that crashes all the time.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

KEEP, DROP = b"+", b"-"
NAME_BYTES_MAX = 64
_MESSAGES_MAX = 1_024
LOOK_S = 1.0  # between two looks at what the daemon wants kept
CRASHES_MAX, CRASHES_WITHIN_S = 5, 60.0
BACKOFF_S = 0.1
_TO_END = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_TO_END, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1
_SENT_BY_KERNEL = 0x80  # si_code of what a terminal sends, to all of its processes
# What the parent sends in place of its own SIGTERM or SIGINT: who signals all processes of a group
# (`timeout`, `kill %1`, systemd) reaches the daemon too, and that is not a second signal.
PASSED_ON = signal.SIGRTMIN


class Kept:
    """The daemon's side: what an earlier daemon left, and what is to be kept from now on. Where
    the parent was killed nothing is kept; the daemon is told to end by then."""

    def __init__(self, sock: socket.socket, descriptors: dict[str, int]) -> None:
        self._socket = sock
        self._descriptors = descriptors

    def __contains__(self, name: str) -> bool:
        return name in self._descriptors

    def take(self, name: str) -> int | None:
        """A descriptor that becomes the caller's; it stays kept."""
        return self._descriptors.pop(name, None)

    def keep(self, name: str, descriptor: int) -> None:
        """Keep a copy, in place of what was kept under the name. Waits if the parent is slow."""
        assert len(name) < NAME_BYTES_MAX, name
        with suppress(ConnectionError):
            socket.send_fds(self._socket, [KEEP + name.encode()], [descriptor])

    def drop(self, name: str) -> None:
        """Keep it no longer: from then on a crash is the end of it."""
        with suppress(ConnectionError):
            self._socket.send(DROP + name.encode())


def supervise(name: str, needed: str, lost: Callable[[], None]) -> Kept:
    """Fork; returns in the daemon only, each time anew. The parent exits with the daemon's status.

    name: for what is said on stderr. needed: without this kept, a daemon that ends is not started
    again. lost: what the parent does when it gives up, or a daemon ended without dropping `needed`.
    The daemon is told to end by PASSED_ON.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent, kept = os.getpid(), dict[str, int]()
    crashes: deque[float] = deque()
    while True:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            ours.close()
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return Kept(theirs, kept)
        theirs.close()
        ours.setblocking(False)
        status, stopping = _watch(pid, ours, kept)
        ours.close()
        code = os.waitstatus_to_exitcode(status)
        expected = code in (0, 2) or stopping
        if expected or needed not in kept:
            if code < 0 and not expected:
                _say(f"{name}: ended by {signal.Signals(-code).name}")
            if needed in kept:
                _give_up(kept, lost)
            code = -signal.SIGTERM if code == -PASSED_ON else code
            sys.exit(code if code >= 0 else 128 - code)
        now = time.monotonic()
        crashes.append(now)
        while now - crashes[0] > CRASHES_WITHIN_S:
            crashes.popleft()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        if len(crashes) > CRASHES_MAX:
            _say(f"{name}: pid {pid} ended {how}, {len(crashes)} times in a minute: given up")
            _give_up(kept, lost)
            sys.exit(1)
        _say(f"{name}: pid {pid} ended {how}; started again")
        time.sleep(BACKOFF_S * 2 ** (len(crashes) - 1))


def _give_up(kept: dict[str, int], lost: Callable[[], None]) -> None:
    for descriptor in kept.values():
        os.close(descriptor)
    lost()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end_with(parent: int) -> None:
    """Let the kernel end this process, in order, when the parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


def _watch(pid: int, ours: socket.socket, kept: dict[str, int]) -> tuple[int, bool]:
    """Pass signals on and keep what is to be kept, until the daemon ends. Returns its wait status
    and whether it was told to end."""
    stopping = False
    while True:
        told = signal.sigtimedwait(_SIGNALS, LOOK_S)
        _drain(ours, kept)
        # Interrupted after its deadline (stopped and continued, by Ctrl-Z or a debugger, or the
        # machine slept), CPython 3.11 to 3.13 return a siginfo that nobody filled in.
        if told is not None and told.si_signo in _TO_END:
            stopping = True
            if told.si_code != _SENT_BY_KERNEL:  # which told the daemon, too
                os.kill(pid, PASSED_ON)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _drain(ours, kept)
            return status, stopping


def _drain(ours: socket.socket, kept: dict[str, int]) -> None:
    for _ in range(_MESSAGES_MAX):
        try:
            message, descriptors, _, _ = socket.recv_fds(ours, NAME_BYTES_MAX, 1)
        except (BlockingIOError, ConnectionResetError):
            return
        if not message:
            return
        name = message[1:].decode()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        former = kept.pop(name, None)
        if former is not None:
            os.close(former)
        if message[:1] == KEEP:
            kept[name] = descriptors[0]
