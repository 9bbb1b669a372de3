"""The namespace as paths: what a path is, and what a folder holds, for those who keep answers.

A folder is there as long as a key below it is. Nothing here waits for a change that its asker's
own hold on an answer keeps from happening (see SpokeLease.held_back).
"""

from dataclasses import dataclass, replace

from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.core.names import hidden_beginning, mount_fault
from hubspoke.core.namespace import NamespaceRecord, PageSpan, bucket_name, group_end
from hubspoke.errors import NoSuchBucket
from hubspoke.ports import Clock, NamespaceStore
from hubspoke.spoke.admission import Admission, Covered

# Looks for a path among hidden keys, 10 us each; then it is taken for a folder.
HIDDEN_TRIES = 64


@dataclass(frozen=True, slots=True)
class Looked:
    """What a path is; a folder hides the object of its name. kept_until: when the answer ends
    that may be kept, in the clock's seconds; 0.0: it may not."""

    entry: ObjectEntry | None  # the object of that very key
    folder: bool  # paths lie below it; or the bucket itself
    kept_until: float


@dataclass(frozen=True, slots=True)
class Page:
    """Records in the order of their keys; kept_until as above."""

    records: list[NamespaceRecord]
    kept_until: float


class Tree:
    """Over a spoke's replica."""

    def __init__(
        self, namespace: NamespaceStore, admission: Admission, clock: Clock, deadline_s: float
    ) -> None:
        """deadline_s: of one answer."""
        self._namespace = namespace
        self._admission = admission
        self._clock = clock
        self._deadline_s = deadline_s

    def __len__(self) -> int:
        """Objects."""
        return len(self._namespace)

    def look_now(self, name: ObjectName) -> Looked | None:
        """As `look`, without waiting; None where it has to wait. A key "" is the bucket."""
        until = self._admission.kept_until(_path(name))
        return None if until is None else self._look(name, until)

    async def look(self, name: ObjectName) -> Looked:
        """Raises HubUnavailable, DeadlineExceeded."""
        covered = _path(name)
        deadline = self._clock.now() + self._deadline_s
        await self._admission.path_admitted(covered, name, deadline)
        looked = self._look(name, self._admission.kept_until(covered) or 0.0)
        if looked.entry is None and not looked.folder:
            self._admission.absent(name)
        return looked

    def _look(self, name: ObjectName, until: float) -> Looked:
        bucket, key = name
        if not key:
            return Looked(None, bucket in self._namespace.buckets(), until)
        record = self._namespace.get(name)
        folder = self.paths_below(bucket, key + "/", 1) > 0
        return Looked(None if record is None else record.entry, folder, until)

    def paths_below(self, bucket: str, prefix: str, most: int) -> int:
        """How many keys below a prefix that ends in "/" are paths, `most` at most."""
        after, found = "", 0
        for _ in range(HIDDEN_TRIES):
            listed = self._namespace.listed(bucket, prefix=prefix, after=after, limit=most)
            for key, size, _, _ in listed:
                found += mount_fault(key, size) is None
            if found >= most or len(listed) < most:
                return min(found, most)
            after = behind(prefix, listed[-1][0])
        return most

    async def page(self, bucket: str, *, prefix: str, after: str, limit: int) -> Page:
        """At most `limit` records with `prefix` behind the key `after`. Raises NoSuchBucket,
        HubUnavailable, DeadlineExceeded."""
        deadline = self._clock.now() + self._deadline_s
        span = PageSpan(bucket, prefix, after, after)  # nothing yet but the bucket
        while True:
            leased = await self._admission.page_admitted(span, deadline)
            if bucket not in self._namespace.buckets():
                raise NoSuchBucket(f"{bucket}: no such bucket")
            records = self._namespace.scan(bucket, prefix=prefix, after=after, limit=limit)
            span = replace(span, last=records[-1].name.key if len(records) == limit else None)
            if not leased or not self._admission.revoked(span):
                return Page(records, self._admission.kept_until(span.covers) or 0.0)

    async def buckets(self) -> list[str]:
        """All of them, in order. Raises HubUnavailable, DeadlineExceeded."""
        await self._admission.buckets_admitted(self._clock.now() + self._deadline_s)
        return sorted(self._namespace.buckets())


def behind(prefix: str, key: str) -> str:
    """The last key that could begin with what hides `key`, found below `prefix`."""
    beginning = hidden_beginning(key)
    return group_end(beginning) if len(prefix) < len(beginning) < len(key) else key


def _path(name: ObjectName) -> Covered:
    """The names that say what a path is: its own, those below it, and its bucket."""
    bucket, key = name
    of_bucket = bucket_name(bucket)
    if not key:
        return lambda other: other == of_bucket
    below = key + "/"

    def covered(other: ObjectName) -> bool:
        return other.bucket == bucket and (
            other.key == key or not other.key or other.key.startswith(below)
        )

    return covered
