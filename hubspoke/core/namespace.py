"""The rules of the log: what a replica may take over, and what a listing page covers.

Decides: whether changes continue a replica's sequence, repeat it or leave a gap; whether a
record may replace another; whether a feed can be resumed; which names a page of a listing
speaks for. It must never let a name, or the sequence, move backwards.

Keys are ordered by their UTF-8 bytes. Python orders `str` by code points, and UTF-8 was made so
that both orders are the same, so plain comparison of keys is right here (it is not in languages
with UTF-16 strings). Surrogates have no UTF-8 form; doors refuse such keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hubspoke.core.ids import (
    KEY_BYTES_MAX,
    Change,
    Epoch,
    LogSequence,
    ObjectEntry,
    ObjectName,
)

# What a listing shows of an object: key, size, ETag, modified_ns. A plain tuple, because a page
# has a thousand, and a record with a name and an entry in it takes 2 us to make.
Listed = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """An entry with the log position that wrote it, so that a snapshot never moves a name back."""

    name: ObjectName
    entry: ObjectEntry
    sequence: LogSequence

    def listed(self) -> Listed:
        """What a listing shows of it."""
        entry = self.entry
        return self.name.key, entry.size, entry.etag, entry.modified_ns


@dataclass(frozen=True, slots=True)
class Accepted:
    """changes: consecutive, from `applied + 1` on. gap: something before the rest is missing."""

    changes: tuple[Change, ...]
    gap: bool


def accept(applied: LogSequence, changes: Sequence[Change]) -> Accepted:
    """Choose what of `changes` a replica at `applied` takes over now.

    Duplicates (sequence <= applied, or repeated inside the message) are ignored. At the first
    hole everything behind it is left out, whatever its order: a later resume brings it again.
    """
    taken: list[Change] = []
    at = int(applied)
    for change in changes:
        if change.sequence <= at:
            continue
        if change.sequence != at + 1:
            return Accepted(tuple(taken), gap=True)
        taken.append(change)
        at += 1
    return Accepted(tuple(taken), gap=False)


def supersedes(new: LogSequence, old: LogSequence | None) -> bool:
    """Whether a record written at `new` may replace one written at `old` (None: no record).

    A fuzzy snapshot holds records newer than the sequence it starts from; the changes replayed
    after it meet those records and must not put an older state back.
    """
    return old is None or new > old


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a hub, from start to stop. since: the log's last sequence when it began."""

    id: str
    since: LogSequence


def shared_history(
    lives: Sequence[Incarnation], incarnation: str, hub_sequence: LogSequence
) -> LogSequence | None:
    """How far the log as `incarnation` wrote it is this hub's log; None: it is not known.

    A state restored from a copy has the epoch, and again the sequences, of changes that it does
    not hold: only who wrote them tells them apart (as the leader epochs of Kafka, KIP-101).
    """
    for life, following in zip(lives, [*lives[1:], None], strict=True):
        if life.id == incarnation:
            return hub_sequence if following is None else following.since
    return None


def resume_refusal(
    *,
    replica_epoch: Epoch | None,
    applied: LogSequence,
    hub_epoch: Epoch,
    shared: LogSequence | None,
    log_reaches: bool,
) -> str | None:
    """Why a feed after `applied` cannot be given and a snapshot is needed; None: go on.

    shared: the last change that the log and the replica's history have in common, None when
    that is not known. log_reaches: the log still holds `applied + 1`.
    """
    if replica_epoch != hub_epoch:
        return f"epoch {replica_epoch or 'none'} at the spoke, {hub_epoch} at the hub"
    if shared is None:
        return f"sequence {applied} at the spoke comes from a life of the hub that its log forgot"
    if applied > shared:
        return (
            f"sequence {applied} at the spoke is ahead of {shared}, the last that it shares with "
            "the hub: was the hub's state restored from a copy?"
        )
    if not log_reaches:
        return f"the log no longer reaches back to sequence {applied}"
    return None


def bucket_name(bucket: str) -> ObjectName:
    """What stands for the bucket itself in the log: no object has an empty key."""
    return ObjectName(bucket, "")


@dataclass(frozen=True, slots=True)
class PageSpan:
    """The names a listing page speaks for: those it shows, and those it shows to be absent.

    after: exclusive. last: inclusive; None when the page reaches the end of the listing.
    """

    bucket: str
    prefix: str
    after: str
    last: str | None

    def covers(self, name: ObjectName) -> bool:
        """`name.key` "" stands for the bucket itself, which every page of it depends on."""
        if name.bucket != self.bucket:
            return False
        if not name.key:
            return True
        if not name.key.startswith(self.prefix) or name.key <= self.after:
            return False
        return self.last is None or name.key <= self.last


def group_end(prefix: str) -> str:
    """The greatest string a legal key beginning with `prefix` can be, in UTF-8 order."""
    left = KEY_BYTES_MAX - len(prefix.encode())
    tail = ("", "\x7f", "\u07ff", "\uffff")[left % 4] if left > 0 else ""
    return prefix + "\U0010ffff" * (left // 4) + tail
