"""An epoll loop with exact timers, for the two WAN emulators.

Decides only the order of callbacks: descriptors first, then timers that are due, then what was put
off with `soon`. It must never swallow an exception of a callback: an emulator in an unknown state
measures nothing, so it dies and its owner sees that.

Own loop, because asyncio's and epoll's own timeouts are rounded up to a millisecond, which would be
a third of the error the emulated round trip may have; a timerfd wakes within some ten microseconds.
"""

import contextlib
import ctypes
import heapq
import os
import select
import signal
import stat
import struct
import time
from collections.abc import Callable
from typing import Final

_CLOCK_MONOTONIC: Final = 1  # also what time.monotonic() reads
_TFD_NONBLOCK: Final = 0o4000
_TFD_CLOEXEC: Final = 0o2000000
_TFD_TIMER_ABSTIME: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)

EDGE_IN: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
EDGE_BOTH: Final = EDGE_IN | select.EPOLLOUT


class Loop:
    """Descriptors, timers and signals of one single-threaded process."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._soon: list[Callable[[], None]] = []
        self._sequence = 0
        self._armed_for: float | None = None
        self._running = True
        self._timer = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        # Edge-triggered, so an expiry needs no read: setting the timer anew clears it.
        self._epoll.register(self._timer, select.EPOLLIN | select.EPOLLET)

    def add(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` when something in `mask` happens at `fd`."""
        self._handlers[fd] = handler
        self._epoll.register(fd, mask)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`; call it before closing."""
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back once at monotonic time `when`; not to be cancelled, so callbacks check."""
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, callback))

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn, after the descriptors that are ready by then."""
        self._soon.append(callback)

    def stop(self) -> None:
        """Leave `run` at the end of this turn."""
        self._running = False

    def run(self) -> None:
        """Turn until `stop`."""
        while self._running:
            self._arm()
            for fd, events in self._epoll.poll(0 if self._soon else -1):
                handler = self._handlers.get(fd)
                if handler is not None:  # removed by an earlier handler of this turn, or the timer
                    handler(events)
            now = time.monotonic()
            timers = self._timers
            while timers and timers[0][0] <= now:
                heapq.heappop(timers)[2]()
            put_off, self._soon = self._soon, []
            for callback in put_off:
                callback()

    def _arm(self) -> None:
        when = self._timers[0][0] if self._timers else None
        if when == self._armed_for or when is None:
            return
        self._armed_for = when
        ns = int(when * 1e9) + 1000  # a microsecond late, never early: early would find nothing due
        spec = struct.pack("4q", 0, 0, ns // 1_000_000_000, ns % 1_000_000_000)
        if _libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, spec, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")


def stop_on_signals(loop: Loop) -> None:
    """Make SIGTERM and SIGINT stop the loop, and the owner's death too.

    The owner's death shows as the end of standard input, if that is a pipe or socket.
    PR_SET_PDEATHSIG is not used: it fires when the *thread* that started us ends, not the process.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the wakeup descriptor does the work
    loop.add(reader, select.EPOLLIN, lambda _events: loop.stop())
    mode = os.fstat(0).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        os.set_blocking(0, False)
        loop.add(0, select.EPOLLIN, lambda _events: _stop_at_end(loop))


def _stop_at_end(loop: Loop) -> None:
    with contextlib.suppress(BlockingIOError):
        if not os.read(0, 4096):
            loop.stop()
