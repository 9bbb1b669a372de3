"""Values of the LMDB namespace <-> bytes: MessagePack arrays, new fields only at their ends.

Golden in the sense of the format number in lmdb_namespace: a change that old bytes do not decode
under needs a new number there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

import msgspec

from hubspoke import wire
from hubspoke.adapters.lmdb_tree import NameTree, Txn, decode_name, encode_name
from hubspoke.core.ids import Change, LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.core.namespace import Listed, NamespaceRecord, supersedes
from hubspoke.ports import Intent, Staged

T = TypeVar("T")


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    version: str
    size: int
    etag: str
    modified_ns: int
    headers: dict[str, str]


class _StoredShown(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of the same bytes: what a listing shows."""

    sequence: int
    version: str
    size: int
    etag: str
    modified_ns: int


class _StoredIntent(msgspec.Struct, frozen=True, array_like=True):
    bucket: str
    key: str
    before: str | None
    token: str | None
    size: int
    etag: str
    headers: dict[str, str]


_encode = msgspec.msgpack.Encoder().encode
_decode_stored = msgspec.msgpack.Decoder(_Stored).decode
_decode_shown = msgspec.msgpack.Decoder(_StoredShown).decode
_decode_change = msgspec.msgpack.Decoder(wire.WireEntry).decode
_decode_buckets = msgspec.msgpack.Decoder(list[str]).decode
_decode_intent = msgspec.msgpack.Decoder(_StoredIntent).decode


def pack_record(entry: ObjectEntry, sequence: int) -> bytes:
    return _encode(
        _Stored(sequence, entry.version, entry.size, entry.etag, entry.modified_ns, entry.headers)
    )


def pack_state(change: Change) -> bytes | None:
    """What the name holds after the change; None: nothing."""
    return None if change.entry is None else pack_record(change.entry, change.sequence)


def unpack_record(name: ObjectName, value: bytes) -> NamespaceRecord:
    s = _decode_stored(value)
    entry = ObjectEntry(Version(s.version), s.size, s.etag, s.modified_ns, s.headers)
    return NamespaceRecord(name, entry, LogSequence(s.sequence))


def unpack_listed(full: bytes, value: bytes) -> Listed:
    s = _decode_shown(value)
    return full[full.index(b"\0") + 1 :].decode(), s.size, s.etag, s.modified_ns


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """What a page is made of: from a stored name and value, and from a record of the overlay."""

    stored: Callable[[bytes, bytes], T]
    record: Callable[[NamespaceRecord], T]


RECORDS: Final = Shape(
    lambda full, value: unpack_record(decode_name(full), value), lambda record: record
)
LISTED: Final = Shape(unpack_listed, NamespaceRecord.listed)


def number_key(n: int) -> bytes:
    """Big-endian, so that LMDB's order is the order of the numbers."""
    return n.to_bytes(8, "big")


def pack_intent(intent: Intent) -> bytes:
    staged = intent.staged
    return _encode(
        _StoredIntent(
            intent.name.bucket,
            intent.name.key,
            intent.before,
            staged.token if staged else None,
            staged.size if staged else 0,
            staged.etag if staged else "",
            staged.headers if staged else {},
        )
    )


def unpack_intent(key: bytes, value: bytes) -> Intent:
    s = _decode_intent(value)
    name = ObjectName(s.bucket, s.key)
    staged = None if s.token is None else Staged(name, s.token, s.size, s.etag, s.headers)
    before = None if s.before is None else Version(s.before)
    return Intent(int.from_bytes(key, "big"), name, staged, before)


def record_sequence(value: bytes) -> LogSequence:
    return LogSequence(_decode_stored(value).sequence)


def add_newest(txn: Txn, tree: NameTree, records: Sequence[NamespaceRecord]) -> int:
    """Add records where the tree has none as new. Returns how many names it gained."""
    gained = 0
    for record in records:
        full = encode_name(record.name)
        value = pack_record(record.entry, record.sequence)
        if tree.put(txn, full, value, overwrite=False):
            gained += 1
            continue
        held = tree.get(txn, full)
        if held is None or supersedes(record.sequence, record_sequence(held)):
            tree.put(txn, full, value)
    return gained


def pack_change(change: Change) -> bytes:
    return _encode(wire.to_wire(change))


def unpack_change(value: bytes) -> Change:
    return wire.from_wire(_decode_change(value))


def pack_buckets(buckets: list[str]) -> bytes:
    return _encode(buckets)


def unpack_buckets(value: bytes) -> list[str]:
    return _decode_buckets(value)


def overlaid(
    overlay: dict[bytes, tuple[int, NamespaceRecord | None]], low: bytes, start: bytes
) -> list[tuple[bytes, NamespaceRecord | None]]:
    """Entries of the overlay from `low` on that begin with `start`, in order."""
    return sorted(
        (full, record)
        for full, (_, record) in overlay.items()
        if full >= low and full.startswith(start)
    )


def merge_page(
    stored: Iterator[tuple[bytes, bytes]],
    fresh: list[tuple[bytes, NamespaceRecord | None]],
    limit: int,
    shape: Shape[T],
) -> list[T]:
    """A page of a scan: both in order; an overlay entry hides the stored one of its name."""
    if not fresh:
        return [shape.stored(*held) for held in islice(stored, limit)]
    page: list[T] = []
    at = 0
    held = next(stored, None)
    while len(page) < limit and (held is not None or at < len(fresh)):
        if at < len(fresh) and (held is None or fresh[at][0] <= held[0]):
            full, record = fresh[at]
            at += 1
            if held is not None and held[0] == full:
                held = next(stored, None)
            if record is not None:
                page.append(shape.record(record))
            continue
        assert held is not None
        page.append(shape.stored(*held))
        held = next(stored, None)
    return page
