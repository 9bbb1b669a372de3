"""The hub-spoke protocol: messages and frames <-> bytes (PROTOCOL_VERSION 1).

All of it travels over HTTP/1.1 on the hub's data port under /_hubspoke/v1/ (a legal bucket name
cannot start with an underscore):

    POST fetch     FetchRequest              -> frames, one stream (below)
    POST cancel    CancelRequest             -> 204
    POST lease     LeaseRequest              -> LeaseReply
    GET  snapshot                            -> SnapshotStart, SnapshotBatch messages, SnapshotEnd
    GET  feed?epoch=E&after=N&spoke=ID       -> FeedStart, then FeedChanges, FeedRevoke,
                                                FeedHeartbeat, or FeedResync and the end

A *message* is a 4-byte little-endian length and that many bytes of MessagePack (arrays tagged
with the message's name); each snapshot message is compressed (zstd). A *frame* is a fixed header
and a payload of at most FRAME_BYTES_MAX:

    magic u8 | kind u8 | flags u16 | range u32 | offset u64 | length u32 | payload u32 | digest u64

`range` names an entry of the request's `ranges`, and so the object and the version; `offset` is
absolute in the object; `digest` is xxh3-64 of the decoded bytes. Each DATA frame is usable as it
arrives. An ERROR frame ends its range, a DONE frame ends a range that was sent whole; the stream
ends after the last range. A hub of version N serves spokes of N-1 to N+1 by adding fields only
at the end of a message: MessagePack arrays are read with defaults for what is missing.
"""

import struct
from typing import NamedTuple, Union

import msgspec
import xxhash

from hubspoke.core.ids import (
    FRAME_BYTES_MAX,
    Change,
    LogSequence,
    ObjectEntry,
    ObjectName,
    Version,
)
from hubspoke.errors import CorruptFrame, FormatError

PROTOCOL_VERSION = 1
PREFIX = "/_hubspoke/v1/"
MESSAGE_BYTES_MAX = 16 << 20
FRAME_MAGIC = 0xF5
FRAME_HEADER = struct.Struct("<BBHIQIIQ")
# Before each range of a spoke's answer to `ranges`: an HTTP status, and how many bytes follow.
RANGE_RECORD = struct.Struct("<IQ")
FRAME_DATA, FRAME_ERROR, FRAME_DONE = 1, 2, 3
FLAG_ZSTD = 1

# Codes of ERROR frames; the spoke turns each into one of our errors.
ERROR_CHANGED, ERROR_GONE, ERROR_STORE, ERROR_RANGE, ERROR_CANCELLED = 1, 2, 3, 4, 5


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class FetchObject(msgspec.Struct, frozen=True, array_like=True):
    bucket: str
    key: str
    version: str


class FetchRange(msgspec.Struct, frozen=True, array_like=True):
    """object: index into `objects`. The range lies inside the object; offset is page-aligned."""

    object: int
    offset: int
    length: int


class FetchRequest(_Message, frozen=True, array_like=True, tag=True):
    """spoke and number together name the request for a later cancel."""

    spoke: str
    number: int
    traffic_class: str
    objects: list[FetchObject]
    ranges: list[FetchRange]
    accept_zstd: bool = False


class CancelRequest(_Message, frozen=True, array_like=True, tag=True):
    """ranges: indexes to give up; empty gives up the whole request."""

    spoke: str
    number: int
    ranges: list[int] = []


class Revocation(msgspec.Struct, frozen=True, array_like=True):
    """The lease on `names` is called back until the change with `revocation_id` is applied."""

    revocation_id: int
    bucket: str
    key: str


class LeaseRequest(_Message, frozen=True, array_like=True, tag=True):
    """applied: last log sequence the replica has applied. acked: revocations that are in force.

    rtt_s: least round trip the spoke has seen, 0 when not known; the term is at least four.
    """

    spoke: str
    epoch: str
    applied: int
    acked: list[int] = []
    rtt_s: float = 0.0


class LeaseReply(_Message, frozen=True, array_like=True, tag=True):
    """term_s: 0 when not granted (`reason` says why). required: what must be applied first.

    revocations: all that are under way. through: the highest revocation id issued so far; one
    up to it that is not listed has ended, with a change up to `required` or without one.
    """

    epoch: str
    term_s: float
    required: int
    revocations: list[Revocation] = []
    reason: str = ""
    through: int = 0
    incarnation: str = ""


class ReadIndexRequest(_Message, frozen=True, array_like=True, tag=True):
    """Where is the log now? Asked by a spoke that has no lease; grants none."""

    spoke: str
    epoch: str


class ReadIndexReply(_Message, frozen=True, array_like=True, tag=True):
    """sequence: the last published change. revocations, through: as in a LeaseReply."""

    epoch: str
    sequence: int
    revocations: list[Revocation] = []
    through: int = 0
    incarnation: str = ""


class WireEntry(msgspec.Struct, frozen=True, array_like=True):
    bucket: str
    key: str
    sequence: int
    version: str = ""  # empty: a tombstone
    size: int = 0
    etag: str = ""
    modified_ns: int = 0
    headers: dict[str, str] = {}


class SnapshotStart(_Message, frozen=True, array_like=True, tag=True):
    """entries may be newer than `sequence`: the feed after `sequence` completes the snapshot."""

    epoch: str
    sequence: int
    entries: int
    buckets: list[str]
    incarnation: str = ""


class SnapshotBatch(_Message, frozen=True, array_like=True, tag=True):
    entries: list[WireEntry]


class SnapshotEnd(_Message, frozen=True, array_like=True, tag=True):
    """sequence: the hub's when it ended; the replica is one consistent state from there on."""

    entries: int
    sequence: int = 0


class FeedStart(_Message, frozen=True, array_like=True, tag=True):
    """The hub's own `sequence` when the feed began; region: where the hub is, "" if not said.

    incarnation: the life of the hub that goes on with the log; the replica's history from here on.
    """

    epoch: str
    sequence: int
    protocol: int
    buckets: list[str]
    region: str = ""
    incarnation: str = ""


class FeedChanges(_Message, frozen=True, array_like=True, tag=True):
    """Consecutive log entries; buckets: the bucket list after them, if it changed.

    An entry with key "" and no version stands for a change of the bucket itself. ended:
    revocations that are over with these entries (`entries` is empty if one ended without any).
    """

    entries: list[WireEntry]
    buckets: list[str] | None = None
    ended: list[int] = []


class FeedRevoke(_Message, frozen=True, array_like=True, tag=True):
    revocations: list[Revocation]


class FeedHeartbeat(_Message, frozen=True, array_like=True, tag=True):
    sequence: int


class FeedResync(_Message, frozen=True, array_like=True, tag=True):
    """The log does not reach back, or the epoch is another: take a snapshot."""

    epoch: str
    reason: str


Message = Union[  # noqa: UP007 - msgspec reads the union at run time
    FetchRequest,
    CancelRequest,
    LeaseRequest,
    LeaseReply,
    ReadIndexRequest,
    ReadIndexReply,
    SnapshotStart,
    SnapshotBatch,
    SnapshotEnd,
    FeedStart,
    FeedChanges,
    FeedRevoke,
    FeedHeartbeat,
    FeedResync,
]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)
_LENGTH = struct.Struct("<I")


def encode(message: Message) -> bytes:
    """One message without its length."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Raises FormatError if `data` is not one whole message."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise FormatError(f"hub-spoke message of {len(data)} bytes: {e}") from e


def pack_message(body: bytes) -> bytes:
    """`body` (an encoded, perhaps compressed message) behind its length."""
    if len(body) > MESSAGE_BYTES_MAX:
        raise FormatError(f"message of {len(body)} bytes, at most {MESSAGE_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


def message_length(head: bytes) -> int:
    """Length from the 4 bytes in front of a message; FormatError if it exceeds the limit."""
    (n,) = _LENGTH.unpack(head)
    if n > MESSAGE_BYTES_MAX:
        raise FormatError(f"message of {n} bytes announced, at most {MESSAGE_BYTES_MAX}")
    return int(n)


class FrameHeader(NamedTuple):
    kind: int
    flags: int
    range_index: int
    offset: int
    length: int  # decoded bytes (DATA), or the error code (ERROR)
    payload_bytes: int
    digest: int


# A frame and its payload, decoded.
Frame = tuple[FrameHeader, bytes]


def pack_frame(
    kind: int,
    range_index: int,
    offset: int,
    length: int,
    digest: int = 0,
    payload_bytes: int = 0,
    flags: int = 0,
) -> bytes:
    """A frame's header; the payload follows it on the wire."""
    return FRAME_HEADER.pack(
        FRAME_MAGIC, kind, flags, range_index, offset, length, payload_bytes, digest
    )


def unpack_frame(data: bytes | memoryview, at: int = 0) -> FrameHeader:
    """Raises FormatError on anything that is not a frame header of this protocol version."""
    if len(data) - at < FRAME_HEADER.size:
        raise FormatError(f"frame header of {len(data) - at} bytes, {FRAME_HEADER.size} expected")
    magic, kind, flags, index, offset, length, payload, digest = FRAME_HEADER.unpack_from(data, at)
    if magic != FRAME_MAGIC or kind not in (FRAME_DATA, FRAME_ERROR, FRAME_DONE):
        raise FormatError(f"not a frame: magic {magic:#x}, kind {kind}")
    if payload > FRAME_BYTES_MAX or (kind == FRAME_DATA and length > FRAME_BYTES_MAX):
        raise FormatError(f"frame of {payload} bytes ({length} decoded), {FRAME_BYTES_MAX} at most")
    return FrameHeader(kind, flags, index, offset, length, payload, digest)


def digest(data: bytes | bytearray | memoryview) -> int:
    """xxh3-64: against accidents, not against an adversary."""
    return xxhash.xxh3_64_intdigest(data)


def check_digest(header: FrameHeader, data: bytes, of: str) -> None:
    """Raises CorruptFrame unless `data` is what `header` promises."""
    if len(data) != header.length or digest(data) != header.digest:
        raise CorruptFrame(f"{of}: frame at {header.offset}+{header.length} fails its digest")


def to_wire(change: Change) -> WireEntry:
    entry = change.entry
    if entry is None:
        return WireEntry(change.name.bucket, change.name.key, change.sequence)
    return WireEntry(
        change.name.bucket,
        change.name.key,
        change.sequence,
        entry.version,
        entry.size,
        entry.etag,
        entry.modified_ns,
        entry.headers,
    )


def from_wire(w: WireEntry) -> Change:
    entry = None
    if w.version:
        entry = ObjectEntry(Version(w.version), w.size, w.etag, w.modified_ns, w.headers)
    return Change(LogSequence(w.sequence), ObjectName(w.bucket, w.key), entry)
