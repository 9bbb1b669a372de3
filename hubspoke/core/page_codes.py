"""The codes of pages: states and use in one byte, and what is searched for and done with them.

A code is state | use. Sets of codes are searched for and changes are carried out by the C code
of `re` and `bytes`, a block at a time.
"""

import re
from collections.abc import Callable

from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES

PAGES_PER_BLOCK = BLOCK_BYTES // PAGE_BYTES

ABSENT, QUEUED, FLIGHT, UNVERIFIED, PRESENT = range(5)
# What is known of a page's use: asked for by a reader ever; wanted by a prefetch and not asked for
# since. Both: read in an earlier epoch, fetched again for the next read.
UNUSED, ASKED, PREFETCHED = 0, 8, 16
STATE, USE = 7, 24  # bits of a code
_ALL = [state | use for use in (0, 8, 16, 24) for state in range(5)]


class Codes:
    """A set of page codes, ready to be searched for in C."""

    __slots__ = ("absent", "all", "any", "members", "runs")

    def __init__(self, has: Callable[[int, int], bool]) -> None:
        """has: whether a page of (state, use) belongs to the set."""
        self.members = bytes(c for c in _ALL if has(c & STATE, c & USE))
        klass = b"[" + re.escape(self.members) + b"]"
        self.any = re.compile(klass)
        self.all = re.compile(klass + b"*")
        self.runs = re.compile(klass + b"+")
        self.absent = ABSENT in self.members


def changing(new: Callable[[int, int], int]) -> bytes:
    """A translation for `PageMap.change`: the new code of a page of (state, use)."""
    return bytes(new(c & STATE, c & USE) if c in _ALL else c for c in range(256))


IS_ABSENT = Codes(lambda state, _: state == ABSENT)
IS_QUEUED = Codes(lambda state, _: state == QUEUED)
IS_FLYING = Codes(lambda state, _: state == FLIGHT)
IS_NOT_FLYING = Codes(lambda state, _: state != FLIGHT)
IS_UNVERIFIED = Codes(lambda state, _: state == UNVERIFIED)
IS_PRESENT = Codes(lambda state, _: state == PRESENT)
IS_PRESENT_READ = Codes(lambda state, use: state == PRESENT and use == ASKED)
IS_LOCAL = Codes(lambda state, _: state >= UNVERIFIED)
IS_NOT_LOCAL = Codes(lambda state, _: state < UNVERIFIED)
IS_COMING = Codes(lambda state, _: state >= FLIGHT)  # or here; these are accounted
IS_UNASKED = Codes(lambda state, _: state < FLIGHT)  # of the hub
IS_ASKED = Codes(lambda _, use: use & ASKED > 0)  # by a reader, ever
IS_NEW = Codes(lambda _, use: use & ASKED == 0)
# Of a prefetch in flight: what a reader has asked for meanwhile.
IS_AWAITED = Codes(lambda state, use: state == FLIGHT and use == ASKED)
IS_PREFETCHED = Codes(lambda state, use: state > FLIGHT and use & PREFETCHED > 0)
IS_READ = Codes(lambda _, use: use == ASKED)
# What keeps a block from being consumed: a reader or the hub is still to come to it.
IS_TO_COME = Codes(lambda state, use: state == FLIGHT or (state > FLIGHT and use != ASKED))

TO_QUEUE = changing(
    lambda state, use: QUEUED | use | PREFETCHED if state == ABSENT else state | use
)
TO_UNQUEUE = changing(lambda state, use: ABSENT | (use & ASKED) if state == QUEUED else state | use)
# A demand for what a prefetch has only queued is no prefetch any more.
TO_FLY = changing(lambda _, use: FLIGHT | (use & ASKED))
TO_FLY_PREFETCHED = changing(lambda _, use: FLIGHT | use | PREFETCHED)
TO_ARRIVE = changing(lambda state, use: (PRESENT if state == FLIGHT else state) | use)
TO_VERIFY = changing(lambda state, use: (PRESENT if state == UNVERIFIED else state) | use)
# What is queued was never there, and its prefetch is still to come.
TO_DROP = changing(lambda state, use: state | use if state == QUEUED else ABSENT | (use & ASKED))
TO_ASK = changing(lambda state, _: state | ASKED)
TO_FORGET_ASKED = changing(lambda state, use: state | (use & PREFETCHED))
