"""Listing a folder in slices, at offsets that hold while names come and go.

An offset counts entries. A handle remembers after which key each page of its listing began and,
for its last page, after which key each entry was: so reading on, going back to a place and
rewinding meet every name that was there all the time exactly once, whatever else changes. A
handle that is not known (its process is gone) counts from the beginning.
"""

import asyncio
import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from hubspoke.core.ids import ObjectEntry
from hubspoke.core.names import mount_fault
from hubspoke.core.namespace import NamespaceRecord, group_end
from hubspoke.spoke.tree import Tree, behind

# 1 ms of the loop: a read that comes meanwhile waits no longer.
SLICE = 500
SLICE_MIN = 16
ROUNDS_MAX = 64


@dataclass(frozen=True, slots=True)
class Shown:
    """An entry of a folder. behind: the listing goes on after this key. entry None: a folder."""

    name: str
    behind: str
    entry: ObjectEntry | None


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries in order; kept_until: as of spoke.tree. ended: the folder has no more."""

    entries: list[Shown]
    kept_until: float
    ended: bool


class Place:
    """Where one handle is in its folder."""

    def __init__(self) -> None:
        self._ordinals = [0]  # of the first entry of each page read so far, rising
        self._afters = [""]
        self._last: dict[int, str] = {}  # ordinal -> key, of the last page

    def find(self, ordinal: int) -> tuple[str, int]:
        """After which key entry number `ordinal` comes, when so many more are skipped."""
        after = self._last.get(ordinal)
        if after is not None:
            return after, 0
        i = bisect_right(self._ordinals, ordinal) - 1
        return self._afters[i], ordinal - self._ordinals[i]

    def rewind(self) -> None:
        """The listing begins anew."""
        self._ordinals, self._afters, self._last = [0], [""], {}

    def read(self, ordinal: int, after: str, entries: list[Shown]) -> None:
        """A page was handed out: entry number `ordinal`, behind the key `after`, and those that
        follow."""
        self._last = {ordinal + 1 + i: e.behind for i, e in enumerate(entries)}
        i = bisect_right(self._ordinals, ordinal)
        if self._ordinals[i - 1] != ordinal:
            self._ordinals.insert(i, ordinal)
            self._afters.insert(i, after)


async def entries_after(tree: Tree, bucket: str, prefix: str, after: str, wanted: int) -> Slice:
    """About `wanted` entries of a folder behind a key; none only at its end. Raises NoSuchBucket,
    HubUnavailable, DeadlineExceeded."""
    wanted = min(max(wanted, SLICE_MIN), SLICE)
    entries: list[Shown] = []
    limit = wanted
    for rounds in itertools.count(1):
        page = await tree.page(bucket, prefix=prefix, after=after, limit=limit)
        before = len(entries)
        entries += _shown(tree, prefix, page.records, ended=len(page.records) < limit)
        # What was read before an await may be untrue by now: right to be told, not to be kept.
        kept_until = 0.0 if before else page.kept_until
        if len(page.records) < limit:
            return Slice(entries, kept_until, True)
        if len(entries) >= wanted // 2 or (entries and rounds >= ROUNDS_MAX):
            return Slice(entries, kept_until, False)
        last = page.records[-1].name.key
        after = entries[-1].behind if len(entries) > before else behind(prefix, last)
        # Small steps through large folders: all but one of the keys are read for nothing.
        large = len(entries) - before < limit // 4
        limit = SLICE_MIN if large else min(2 * limit, wanted)
        await asyncio.sleep(0)
    raise AssertionError("a count has no end")


async def key_before(tree: Tree, bucket: str, prefix: str, place: Place, ordinal: int) -> str:
    """The key behind which entry number `ordinal` comes. Raises as `entries_after`."""
    after, skip = place.find(ordinal)
    while skip > 0:
        found = await entries_after(tree, bucket, prefix, after, SLICE)
        if len(found.entries) >= skip:
            return found.entries[skip - 1].behind
        if found.ended:
            return group_end(prefix)
        skip -= len(found.entries)
        after = found.entries[-1].behind
        await asyncio.sleep(0)
    return after


def _shown(
    tree: Tree, prefix: str, records: list[NamespaceRecord], *, ended: bool
) -> Iterator[Shown]:
    at, group = len(prefix), ""
    for i, record in enumerate(records):
        key = record.name.key
        if (group and key.startswith(group)) or key == prefix:
            continue
        group = ""
        if mount_fault(key, record.entry.size) is not None:
            continue
        cut = key.find("/", at)
        if cut >= 0:
            group = key[: cut + 1]
            yield Shown(key[at:cut], group_end(group), None)
        elif not _is_folder_too(tree, records, i, ended=ended):
            yield Shown(key[at:], key, record.entry)


def _is_folder_too(tree: Tree, records: list[NamespaceRecord], i: int, *, ended: bool) -> bool:
    """Whether paths below this key make a folder of its name. The key that follows in order tells
    in nearly all cases: only what comes before "KEY/" can stand between."""
    bucket, key = records[i].name
    below = key + "/"
    if i + 1 == len(records) and ended:
        return False
    if i + 1 < len(records):
        following = records[i + 1].name.key
        if following >= below and not following.startswith(below):
            return False
    return tree.paths_below(bucket, below, 1) > 0
