"""Whether a folder is read as whole objects or as records, from its first reads.

Records: reads of one length at multiples of it, each elsewhere than the last. Files: whole
objects, or objects read on from where the last read of them ended. Decided on KIND_READS reads,
again and again until they agree by three quarters; what never does so has no items.
"""

from collections import Counter
from collections.abc import Sequence

from hubspoke.core.streams import Access

KIND_READS = 32
AGREE = 0.75
FILES = 0  # as a length of records: there are none


def kind_of(reads: Sequence[Access]) -> int | None:
    """Length of the records, `FILES`, or None if the reads do not agree."""
    length, _ = Counter(a.length for a in reads).most_common(1)[0]
    ends: dict[int, int] = {}
    files = records = 0
    for a in reads:
        number = a.obj.number
        whole = a.offset == 0 and a.length == a.obj.size
        if whole or a.offset == ends.get(number, 0):
            files += 1
        elif a.offset % length == 0 and (a.length == length or a.offset + a.length == a.obj.size):
            records += 1
        ends[number] = a.offset + a.length
    if records >= AGREE * len(reads):
        return length
    return FILES if files >= AGREE * len(reads) else None


def to_the_end(reads: Sequence[Access]) -> bool:
    """Whether objects that were begun were read to their end, and not their heads alone."""
    heads = sum(a.offset == 0 for a in reads)
    return sum(a.offset + a.length == a.obj.size for a in reads) >= AGREE * heads
