"""Signals for what runs processes of its own: each of them ends the block, and with it those.

Decides which signals count. It never relies on what was inherited: a shell starts `command &` in
a script with SIGINT ignored, Python leaves it so, and Ctrl-C or kill -INT would then do nothing.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the block, in the main thread.

    Only the first signal counts: a second Ctrl-C would cut short the ending of the processes,
    which is bounded anyway. A SIGHUP that is ignored stays so, which is what nohup asks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    kept = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
