"""Listing a folder in slices, at offsets that hold while names come and go.

An offset counts entries. A handle remembers after which key each page of its listing began and,
for its last page, after which key each entry was: so reading on, going back to a place and
rewinding meet every name that was there all the time exactly once, whatever else changes. A
handle that is not known (its process is gone) counts from the beginning.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from hubspoke.core.ids import ObjectEntry
from hubspoke.core.namespace import NamespaceRecord, group_end
from hubspoke.frontends.fuse.paths import component_fault, may_be_shadowed
from hubspoke.spoke.tree import Tree

# 1 ms of the loop: a read that comes meanwhile waits no longer.
SLICE = 500
SLICE_MIN = 16


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


async def entries_after(tree: Tree, bucket: str, prefix: str, after: str, limit: int) -> Slice:
    """About `limit` entries of a folder behind a key; none may mean that the next ones come later
    (`ended` tells). Raises NoSuchBucket, HubUnavailable, DeadlineExceeded."""
    limit = min(max(limit, SLICE_MIN), SLICE)
    while True:
        page = await tree.page(bucket, prefix=prefix, after=after, limit=limit)
        ended = len(page.records) < limit
        entries = list(_shown(tree, prefix, page.records, ended=ended))
        if entries or ended:
            return Slice(entries, page.kept_until, ended)
        # Nothing of this slice can be shown; a folder below may have been skipped in it.
        after = _behind(prefix, page.records[-1].name.key)
        await asyncio.sleep(0)


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


def _behind(prefix: str, key: str) -> str:
    """The last key that belongs to the same entry."""
    cut = key.find("/", len(prefix))
    return key if cut < 0 else group_end(key[: cut + 1])


def _shown(
    tree: Tree, prefix: str, records: list[NamespaceRecord], *, ended: bool
) -> Iterator[Shown]:
    at, group = len(prefix), ""
    for i, record in enumerate(records):
        key = record.name.key
        if group and key.startswith(group):
            continue
        group = ""
        cut = key.find("/", at)
        name = key[at:] if cut < 0 else key[at:cut]
        if cut >= 0:
            group = key[: cut + 1]
        if not name or component_fault(name) is not None:
            continue
        if group:
            yield Shown(name, group_end(group), None)
        elif not _shadowed(tree, records, i, ended=ended):
            yield Shown(name, key, record.entry)


def _shadowed(tree: Tree, records: list[NamespaceRecord], i: int, *, ended: bool) -> bool:
    """Whether keys below this one make its name a folder."""
    bucket, key = records[i].name
    if i + 1 < len(records) or ended:
        following = records[i + 1].name.key if i + 1 < len(records) else None
        told = may_be_shadowed(key, following)
        if told is not None:
            return told
    return tree.few_below(bucket, key + "/") > 0
