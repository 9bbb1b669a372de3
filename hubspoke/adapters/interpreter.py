"""How the interpreter divides its time between the loop, other threads and the search for cycles.

- A thread that runs Python gives the loop its turn after SWITCH_S. The loop loses it with each
  system call, some three times in a read: beside a thread that is busy (LMDB's writer while a
  snapshot is loaded, a scan of the store) an answer took 5.2 ms, and takes 1.1 ms.
- The search for reference cycles stops everything. After the start there are 90,000 objects, nearly
  all of them modules and classes, and a search of all took 35 to 50 ms of CPU, each second or two
  while anything was kept that long. What is there when the ports open is not searched any more.
"""

import gc
import sys

SWITCH_S = 0.001  # 0.5 ms is no better at the 99th percentile
# So many new objects until the youngest are searched: 1 ms if all of them stay. The default, 700,
# makes the searches of older ones ten times as frequent too.
YOUNGEST = 7_000


def serve_first() -> None:
    """Set it for this process."""
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(YOUNGEST, 10, 10)


def keep_all_that_is_there() -> None:
    """What is there now stays until the end; once, when all has been loaded."""
    gc.freeze()
