"""What the core's shells need from the outside world, as Protocols that adapters fill.

Every port has an adapter in adapters/memory.py, and one contract suite in tests/contract that
all adapters pass. Methods that may block are `async`; the others answer at once from memory.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hubspoke import wire
from hubspoke.core.features import Rows
from hubspoke.core.frames import Frames
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import (
    Change,
    Epoch,
    LogSequence,
    ObjectEntry,
    ObjectName,
    ReadState,
    StoredObject,
    Version,
)
from hubspoke.core.names import Skipped
from hubspoke.core.namespace import Listed as Listed
from hubspoke.core.namespace import NamespaceRecord as NamespaceRecord
from hubspoke.core.noticed import Part
from hubspoke.errors import HubSpokeError


class Clock(Protocol):
    """Time as an argument: `now` never goes back and includes suspends (CLOCK_BOOTTIME)."""

    def now(self) -> float: ...  # seconds
    def unix_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Staged:
    """Bytes that are in the store but not yet under their name. token: enough for the store to
    complete or discard them after a restart."""

    name: ObjectName
    token: str
    size: int
    etag: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class UploadedPart:
    number: int  # 1..10,000
    size: int
    etag: str
    modified_ns: int


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    name: ObjectName
    upload_id: str
    initiated_ns: int


class ObjectStore(Protocol):
    """The bytes of the hub's objects: a folder or an S3 bucket. Errors: NoSuchBucket, NoSuchKey,
    InvalidKey (this store cannot hold the key under exactly its name), VersionChanged,
    StoreUnavailable, NoSuchUpload, InvalidPart.
    """

    @property
    def skipped(self) -> Skipped: ...  # what the last whole scan that ended left out
    @property
    def list_requests(self) -> int: ...  # sent so far, where each has its price
    async def open(self) -> None: ...  # raises ConfigError when the store cannot be used
    async def close(self) -> None: ...
    def mounts(self) -> list[str]: ...  # buckets seen on a file system of their own
    async def expect_mounts(self, buckets: Sequence[str]) -> None: ...  # of an earlier life
    async def buckets(self) -> list[str]: ...
    async def create_bucket(self, bucket: str) -> None: ...
    async def delete_bucket(self, bucket: str) -> None: ...  # BucketNotEmpty
    def scan(self, part: Part | None = None) -> AsyncIterator[list[StoredObject]]: ...
    async def head(self, name: ObjectName) -> ObjectEntry | None: ...
    async def read(self, name: ObjectName, version: Version, offset: int, length: int) -> bytes:
        """Exactly the range, of exactly that version; or VersionChanged, NoSuchKey."""

    def read_now(
        self, name: ObjectName, version: Version, offset: int, length: int
    ) -> memoryview | None:
        """As `read`, where nothing has to be waited for; None otherwise, and if in doubt."""

    async def stage(
        self, name: ObjectName, headers: dict[str, str], chunks: AsyncIterator[bytes]
    ) -> Staged:
        """Write the bytes beside their name, durable when it returns. The ETag is their MD5 where
        the store lets it be. `headers` is read after the last chunk: a checksum that comes in a
        trailer is added to it until then. What was staged is thrown away if chunks raises."""

    async def stage_copy(
        self, source: ObjectName, version: Version, name: ObjectName, headers: dict[str, str]
    ) -> Staged: ...
    async def complete(self, staged: Staged) -> ObjectEntry:
        """Give the bytes their name. Once more after a crash, it finds the work done and returns
        the same entry; NoSuchUpload if the staged bytes are gone without having been completed."""

    async def discard(self, staged: Staged) -> None: ...  # idempotent
    async def sweep(self, keep: Collection[str]) -> None:
        """Throw away what a crash left staged, but the tokens in `keep`. Only at start."""

    async def delete(self, name: ObjectName) -> None: ...  # idempotent
    async def create_multipart(self, name: ObjectName, headers: dict[str, str]) -> str: ...
    async def put_part(
        self, name: ObjectName, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> UploadedPart: ...
    async def list_parts(self, name: ObjectName, upload_id: str) -> list[UploadedPart]: ...
    async def list_multiparts(self, bucket: str) -> list[MultipartUpload]: ...
    async def stage_multipart(
        self, name: ObjectName, upload_id: str, parts: Sequence[tuple[int, str]]
    ) -> Staged:
        """parts: (number, etag) in ascending order. The result's ETag is MD5-of-MD5s-N."""

    async def abort_multipart(self, name: ObjectName, upload_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Intent:
    """A change that was decided but not yet seen in the store; settled at start by a HEAD.

    staged: None for a delete. before: the version the name had, None if it was absent.
    """

    intent_id: int
    name: ObjectName
    staged: Staged | None
    before: Version | None


class NamespaceStore(Protocol):
    """Names, entries and the log; at the hub the truth, at a spoke the replica.

    What `apply` was given is visible to `get`, `scan` and `sequence` as soon as it was called;
    the await ends when it is durable. Keys are ordered by their UTF-8 bytes.

    Filling: `begin_load`, `load` ..., `adopt`. What was there stays as it is until `adopt` puts
    the loaded names in its place, all at once, also across a kill; the epoch is None until the
    first one. A change with key "" stands for its bucket and only moves the sequence.

    Errors: StoreUnavailable when it cannot be written. What was given before that was known stays
    visible and is written as soon as it can be; more is refused, save `drop_intent` and kept logs.
    """

    @property
    def epoch(self) -> Epoch | None: ...
    @property
    def sequence(self) -> LogSequence: ...
    def __len__(self) -> int: ...  # objects
    def get(self, name: ObjectName) -> NamespaceRecord | None: ...
    def scan(
        self, bucket: str, *, prefix: str = "", after: str = "", limit: int
    ) -> list[NamespaceRecord]:
        """Records with `prefix` and key > `after`, in key order, at most `limit`."""

    def listed(
        self, bucket: str, *, prefix: str = "", after: str = "", limit: int
    ) -> list[Listed]: ...  # the same for a listing

    def buckets(self) -> list[str]: ...
    def changes_after(self, sequence: LogSequence, limit: int) -> list[Change] | None:
        """The log after `sequence`; None if it no longer reaches back that far."""

    async def apply(self, changes: Sequence[Change]) -> None: ...
    async def set_buckets(self, buckets: Sequence[str]) -> None: ...
    async def begin_load(self) -> None: ...  # what an unfinished filling left is dropped
    async def load(self, records: Sequence[NamespaceRecord]) -> None:
        """Add a batch beside what is there; a record never replaces a newer one."""

    async def adopt(
        self,
        epoch: Epoch,
        sequence: LogSequence,
        *,
        buckets: Sequence[str],
        facts: Mapping[str, str] = ...,
    ) -> None: ...  # every `load` has returned; the log is empty afterwards
    def fact(self, key: str) -> str | None: ...  # small things that must survive a restart
    async def put_fact(self, key: str, value: str) -> None: ...
    async def put_intent(self, intent: Intent) -> None: ...
    async def drop_intent(self, intent_id: int) -> None: ...
    def intents(self) -> list[Intent]: ...
    def trouble(self) -> str | None: ...  # why it cannot be written now
    async def written(self) -> None: ...  # waits until all that was given before is durable
    async def close(self) -> None: ...


@dataclass(slots=True)
class IndexedObject:
    """A cached object found at start; its frames are unverified."""

    number: int
    name: ObjectName
    version: Version
    size: int
    frames: Frames


class FileSpan:
    """Bytes of an open file, lent to a door so that the kernel can send them.

    Whoever holds it calls `release`, once or more; until then the bytes stay where they are."""

    __slots__ = ("_release", "descriptor", "length", "offset")

    def __init__(
        self, descriptor: int, offset: int, length: int, release: Callable[[], None]
    ) -> None:
        self.descriptor = descriptor
        self.offset = offset
        self.length = length
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class BlockStore(Protocol):
    """Bytes of cached objects on local disks. Methods may block and raise OSError; all but
    `load` and `close` may be called from several threads. What `write` returned from is found
    by the next `load`, also after a kill -9."""

    def load(self) -> list[IndexedObject]: ...  # raises ConfigError
    def create(self, number: int, name: ObjectName, version: Version, size: int) -> None: ...
    def write(self, number: int, offset: int, data: bytes, digest: int) -> None: ...
    def read(self, number: int, offset: int, length: int) -> bytes: ...
    def read_now(self, number: int, offset: int, length: int) -> bytes | None:
        """The bytes if no disk has to be waited for, else None."""

    def copy_now(self, number: int, offset: int, buffer: memoryview) -> bool: ...  # into it
    def lend_now(self, number: int, offset: int, length: int) -> FileSpan | None:
        """The same without reading them; None too if they are not in a file."""

    def lend_file(self, number: int, length: int, *, now: bool) -> FileSpan | None:
        """All of a file. now: None if a disk has to be waited for. None always if it is none."""

    def punch(self, number: int, offset: int, length: int) -> None: ...
    def drop(self, number: int) -> None: ...
    def compact(self) -> None: ...  # make a grown index shorter; takes long, others go on
    def stored(self, place: int, limit: int) -> tuple[list[tuple[int, int, int, int]], int]:
        """Frames written at some time, for the scrub: (object, first page, pages, digest), at
        most about `limit` of them from a place on (0: the beginning); and the next place, 0
        after the last. Dropped ones may be among them."""

    def read_through(self, number: int, offset: int, length: int) -> bytes: ...  # not cached
    def allocated(self, known: dict[int, int]) -> list[tuple[int, int, int]]:
        """(object, offset, length) of what takes space, if more than `known` says."""

    def room(self) -> int | None:
        """Bytes that the disk can take before it has less free than it should; negative if it
        has less. None if it cannot be told."""

    @property
    def written_bytes(self) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Bytes of all hub connections since the start, as the kernel counted them.

    by_class: received bytes by TrafficClass value. retransmitted: sent again by this side.
    """

    received: int
    sent: int
    retransmitted: int
    received_by_class: dict[str, int]


class HubLink(Protocol):
    """The spoke's connections to its hub. Errors: HubUnavailable, DeadlineExceeded, FormatError."""

    url: str

    async def connect(self) -> None: ...  # open the lanes before they are needed
    async def fetch(
        self,
        lane: int,
        request: wire.FetchRequest,
        on_frames: Callable[[Sequence[wire.Frame]], Awaitable[None]],
        on_range: Callable[[int, HubSpokeError | None], None],
    ) -> None:
        """Send one request; on_frames for data frames as they come, their digests not yet checked;
        on_range(range, error) when a range has ended. Raises if the stream breaks."""

    async def lease(self, request: wire.LeaseRequest) -> wire.LeaseReply: ...
    async def read_index(self, request: wire.ReadIndexRequest) -> wire.ReadIndexReply: ...
    def feed(
        self, epoch: str, after: int, incarnation: str = ""
    ) -> AsyncIterator[wire.Message]: ...
    def snapshot(self) -> AsyncIterator[wire.Message]: ...
    def counters(self) -> LinkCounters: ...
    async def close(self) -> None: ...


class Ranker(Protocol):
    """Probabilities that candidates are read before they would be evicted."""

    @property
    def name(self) -> str: ...  # for the report: "sha256:..." of a model, or "rules: why"
    def score(self, candidates: Sequence[Candidate], rows: Rows) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class Resolved:
    """Answer to "which version is this?"; staleness_s is None under a valid lease."""

    name: ObjectName
    entry: ObjectEntry
    staleness_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A range of one version on its way to a reader.

    body: one buffer or span, or an iterator of both in order (its `aclose` gives up the rest); who
    takes a span releases it. state: None at the hub, which is no cache.
    """

    resolved: Resolved
    offset: int
    length: int
    body: bytes | FileSpan | AsyncIterator[bytes | FileSpan]
    state: ReadState | None = None


class Reader(Protocol):
    """One reader behind all doors: what a door needs to answer reads, at hub and spoke alike."""

    async def buckets(self) -> list[str]: ...
    async def resolve(self, name: ObjectName) -> Resolved:
        """Raises NoSuchBucket, NoSuchKey, HubUnavailable, DeadlineExceeded."""

    async def read(self, resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        """Bytes of exactly `resolved.entry.version`; length may be 0. client: who reads, e.g.
        "127.0.0.1:50312", so that accesses of one connection can be told apart."""

    async def list_page(
        self, bucket: str, *, prefix: str, after: str, limit: int
    ) -> list[Listed]: ...  # as NamespaceStore.listed
    def staleness_s(self) -> float | None:
        """How old what `list_page` or `buckets` has just returned may be, or a NoSuchKey or
        NoSuchBucket just raised; None: it is current. Ask before anything is awaited."""


class DirectReader(Protocol):
    """A reader that can answer some reads without waiting; None: ask the usual way."""

    def resolve_now(self, name: ObjectName, *, keep: bool = True) -> Resolved | None:
        """keep: it will be asked for again soon."""

    def read_now(
        self, resolved: Resolved, offset: int, length: int, client: str
    ) -> bytes | FileSpan | None:
        """A hit that waits for no disk; length > 0."""


class Writer(Protocol):
    """What the hub's door needs to change the namespace: each call returns when it is durable."""

    async def put(
        self,
        name: ObjectName,
        headers: dict[str, str],
        chunks: AsyncIterator[bytes],
        *,
        if_match: str | None = None,
        if_none_match: bool = False,
    ) -> ObjectEntry:
        """chunks may raise (BadDigest, InvalidRequest): then nothing has changed."""

    async def copy(
        self, source: Resolved, name: ObjectName, headers: dict[str, str]
    ) -> ObjectEntry: ...
    async def delete(self, name: ObjectName) -> None: ...  # idempotent; NoSuchBucket
    async def create_bucket(self, bucket: str) -> None: ...
    async def delete_bucket(self, bucket: str) -> None: ...
    async def create_multipart(self, name: ObjectName, headers: dict[str, str]) -> str: ...
    async def put_part(
        self, name: ObjectName, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> UploadedPart: ...
    async def complete_multipart(
        self, name: ObjectName, upload_id: str, parts: Sequence[tuple[int, str]]
    ) -> ObjectEntry: ...
    async def abort_multipart(self, name: ObjectName, upload_id: str) -> None: ...
    async def list_parts(self, name: ObjectName, upload_id: str) -> list[UploadedPart]: ...
    async def list_multiparts(self, bucket: str) -> list[MultipartUpload]: ...
