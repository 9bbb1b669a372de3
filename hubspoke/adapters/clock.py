"""The real clock: CLOCK_BOOTTIME counts on while the machine sleeps, so that a lease does not
outlive a suspend."""

import time


class BootClock:
    """ports.Clock on Linux."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def unix_ns(self) -> int:
        return time.time_ns()
