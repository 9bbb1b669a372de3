"""Facts about this host: TCP sysctls, limits, clock."""

import ctypes
import resource
import time
from pathlib import Path

from hubspoke.doctor.judge.host import MICROSECONDS, ClockFacts, LimitFacts
from hubspoke.doctor.judge.network import TcpFacts

_STA_UNSYNC, _TIME_ERROR = 0x40, 5


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), as far as it is read; the rest is room."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # microseconds
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 40),
    ]


def _sysctl(name: str, proc: Path) -> str | None:
    try:
        return (proc / "sys" / name).read_text().strip()
    except OSError:
        return None


def tcp(proc: Path = Path("/proc")) -> TcpFacts:
    def third(name: str) -> int | None:
        fields = (_sysctl(name, proc) or "").split()
        return int(fields[2]) if len(fields) == 3 else None

    idle = _sysctl("net/ipv4/tcp_slow_start_after_idle", proc)
    return TcpFacts(
        rmem_max=third("net/ipv4/tcp_rmem"),
        wmem_max=third("net/ipv4/tcp_wmem"),
        congestion=_sysctl("net/ipv4/tcp_congestion_control", proc),
        available=tuple((_sysctl("net/ipv4/tcp_available_congestion_control", proc) or "").split()),
        slow_start_after_idle=None if idle is None else idle != "0",
    )


def limits(
    folders: int | None, *, counted_all: bool = True, proc: Path = Path("/proc")
) -> LimitFacts:
    watches = _sysctl("fs/inotify/max_user_watches", proc)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return LimitFacts(
        descriptors=1 << 30 if hard == resource.RLIM_INFINITY else hard,
        watches=None if watches is None else int(watches),
        folders=folders,
        counted_all=counted_all,
    )


def clock() -> ClockFacts:
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
        boottime = True
    except OSError:
        boottime = False
    timex = _Timex()  # modes 0: only asked, nothing set
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        return ClockFacts(boottime, None)
    synchronized = state != _TIME_ERROR and not timex.status & _STA_UNSYNC
    return ClockFacts(boottime, synchronized, timex.maxerror * MICROSECONDS)
