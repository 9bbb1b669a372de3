"""`hubspoke` that kills itself with SIGKILL at the N-th pass of a point in the block store.

    python -m tests.killed_spoke PROOF POINT N spoke --hub ...

PROOF is a file that gets the name of the point just before, so that a test can tell that the
point was reached. An empty POINT never kills.
"""

import os
import signal
import sys
from pathlib import Path

from hubspoke import cli
from hubspoke.adapters import block_store


def main() -> None:
    proof, point, passes, *arguments = sys.argv[1:]
    left = int(passes)

    def at(name: str) -> None:
        nonlocal left
        if name != point:
            return
        left -= 1
        if left <= 0:
            Path(proof).write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    made = block_store.CacheFolder.__init__

    def hooked(self: block_store.CacheFolder, root: Path) -> None:
        made(self, root)
        self.at = at

    block_store.CacheFolder.__init__ = hooked  # type: ignore[method-assign] # for this process
    block_store.SLOTS_SPARE = 64  # so that a short test compacts
    sys.argv = ["hubspoke", *arguments]
    cli.main()


if __name__ == "__main__":
    main()
