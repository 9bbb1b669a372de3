"""The search for cycles spares what is there at the start, and still finds new ones."""

import subprocess
import sys

CYCLES = """
import gc, sys, weakref
from hubspoke.adapters.interpreter import YOUNGEST, keep_all_that_is_there, serve_first

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

serve_first()
kept = [Node() for _ in range(1_000)]
keep_all_that_is_there()
assert gc.get_freeze_count() > 1_000
assert not any(isinstance(o, Node) for o in gc.get_objects())  # what a search looks at
lost = cycle()
assert lost() is not None
more = [[] for _ in range(2 * YOUNGEST)]
assert lost() is None, "a cycle made later is found without being asked for"
print(sys.getswitchinterval())
"""


def test_cycles_are_found_without_searching_what_was_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CYCLES], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("0.001", "")
