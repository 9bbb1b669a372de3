"""The hub's log in LMDB: sequence (8 bytes, big-endian) -> change, and how much of it is kept."""

from typing import TYPE_CHECKING

from hubspoke.adapters.lmdb_records import number_key, unpack_change
from hubspoke.adapters.lmdb_tree import Txn
from hubspoke.core.ids import Change, LogSequence

if TYPE_CHECKING:
    import lmdb

# One change is about 200 bytes: a million are 200 MB, and at 100 changes a second cover a spoke
# that was away for nearly three hours.
LOG_ENTRIES_MAX = 1_000_000
# Long keys and user metadata make an entry up to 4 KB; then this bound comes first.
LOG_BYTES_MAX = 1 << 30
# Dropped in one commit at most: a bound that was lowered must not make a commit take seconds.
DROPPED_MAX = 10_000


def entries_after(
    txn: Txn, log: "lmdb._Database", sequence: LogSequence, limit: int
) -> list[Change]:
    """From the first entry behind `sequence` that is kept."""
    cursor = txn.cursor(log)
    if not cursor.set_range(number_key(sequence + 1)):
        return []
    values = zip(range(limit), cursor.iternext(keys=False), strict=False)
    return [unpack_change(value) for _, value in values]


def trim(txn: Txn, log: "lmdb._Database", entries_max: int, bytes_max: int) -> None:
    """Drop the oldest entries beyond the bounds; the last one always stays."""
    stat = txn.stat(log)
    entries = stat["entries"]
    pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    size = pages * stat["psize"]
    excess = entries - entries_max
    if size > bytes_max:
        # Of about equal size: what is wrong about that is put right by the commits that follow.
        excess = max(excess, 1 + int(entries * (1 - bytes_max / size)))
    cursor = txn.cursor(log)
    for _ in range(min(excess, DROPPED_MAX, entries - 1)):
        cursor.first()
        cursor.delete()
