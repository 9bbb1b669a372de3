"""What can be set at a mount, with units and reasons."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FuseTuning:
    # The kernel keeps names for at most so long; less if the lease ends before.
    kept_s: float = 1.0
    # The kernel counts from when the task that asked has the answer, which may be late: so much
    # before the lease's end nothing is kept any more.
    late_s: float = 0.5
    # Read-ahead in requests, which nobody waits for. At 1 MiB each they fill a path of 1 GB/s and
    # 60 ms; readers who wait are not bound by it.
    in_flight: int = 64
    # Requests that wait here; then no more are taken from the kernel, which keeps them.
    waiting_max: int = 1_024
    # Of one reader by the kernel, in one request. Also what a random fault of a mapped file brings,
    # around it, for the first hundred of each open file: 31 times what was asked for at 128 KiB,
    # 62 at 256, 207 at 1 MiB, and all of it crosses the WAN. Sequential reads through the daemon:
    # 2.7, 3.4 and 4.1 GB/s. Programs that ask for more themselves (O_DIRECT) get up to 1 MiB.
    read_ahead: int = 256 << 10
    # Of files in a folder whose files are mapped and read at random, and of one whose files are
    # read on (read_ahead.py). Cut to 16 KiB, a record of three pages came in several READs, one
    # behind the other, which looked like the beginning of a scan: half of 32 MB files came.
    read_ahead_cut: int = 64 << 10
    read_ahead_wide: int = 1 << 20
    # Let the kernel read whole files by itself, where it can.
    passthrough: bool = True
    # Longer than any deadline below: what is not answered then never will be.
    deadline_s: float = 120.0
