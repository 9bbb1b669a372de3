"""Whether a folder is read as whole objects or as records, from its first reads.

Records: reads of one length, evenly apart (`records`), each elsewhere than the last. Files: whole
objects, or objects read on from where the last read of them ended. Decided on KIND_READS reads,
again and again until they agree by three quarters; what never does so has no items.
"""

import math
from collections import Counter
from collections.abc import Sequence

from hubspoke.core.epochs.records import Records, records_of
from hubspoke.core.streams import Access

KIND_READS = 32
AGREE = 0.75
HEADS_MAX = 0.5  # of the reads may be of what is in front of the records


def kind_of(reads: Sequence[Access]) -> Records | bool:
    """The records; True: files; False: the reads do not agree."""
    length, _ = Counter(a.length for a in reads).most_common(1)[0]
    ends: dict[int, int] = {}
    files = heads = 0
    found: list[tuple[str, int]] = []
    for a in reads:
        number = a.obj.number
        whole = a.offset == 0 and a.length == a.obj.size
        if whole or a.offset == ends.get(number, 0):
            files += 1
            heads += a.offset == 0 and not whole and a.length != length
        elif a.length == length or a.offset + a.length == a.obj.size:
            found.append((a.obj.name.key, a.offset))
        ends[number] = a.offset + a.length
    need = math.ceil(AGREE * (len(reads) - min(heads, int(HEADS_MAX * len(reads)))))
    records = records_of(found, length, need) if len(found) >= need else None
    return records or files >= AGREE * len(reads)


def to_the_end(reads: Sequence[Access]) -> bool:
    """Whether objects that were begun were read to their end, and not their heads alone."""
    heads = sum(a.offset == 0 for a in reads)
    return sum(a.offset + a.length == a.obj.size for a in reads) >= AGREE * heads
