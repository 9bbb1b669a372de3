"""How glibc keeps freed memory: a process that moves bytes must not give each buffer back.

Out of the box, memory freed at the top of the heap goes back to the kernel at once when it is more
than twice the largest buffer freed so far, and comes back page by page, each with a fault. Buffers
of 256 KiB made and dropped by the thousand a second then cost more than moving their bytes: a hub
answering ranges of 256 KiB spent 1.66 CPU seconds per GiB, with these settings 0.60 (ranges of
4 MiB: 0.75 and 0.41; bench/fetch_frames.py).
"""

import contextlib
import ctypes
import logging

log = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
# Kept per arena after a burst; a few of them are what a process may hold more than it uses.
TRIM_BYTES = 64 << 20
TOP_PAD_BYTES = 1 << 20
# glibc's own upper bound; buffers of up to PART_BYTES_MAX must stay below.
MMAP_BYTES = 32 << 20


def keep_freed_memory() -> bool:
    """Set it for this process, before threads are started. Returns False where the C library has
    no such settings (musl), which costs speed only."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        log.debug("no mallopt in this C library")
        return False
    return bool(
        mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
        and mallopt(_M_TOP_PAD, TOP_PAD_BYTES)
        and mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
    )


def give_back() -> None:
    """Return freed memory to the kernel once, after something large that does not come again."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
