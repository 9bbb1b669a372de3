"""The file format of traces, `.hstrace`, and the same bytes on their way from a spoke.

    file    = b"hstrace1" frame*                    the digit is the version
    frame   = kind (4 bytes) length (u32) check (u32) payload digest (u64)      little endian
    check   = xxh32 of kind and length, with the frame's place in the file as seed
    digest  = xxh3_64 of the payload
    payload = zstd of
      FACT  a JSON object: what is known of the run. The first frame; a later one adds to it
      OBJS  a JSON list of [number, size, name]: objects new to the file, numbered from 0 in order;
            a number that is known already: the object has grown to this size
      READ  columns of at most CHUNK_READS reads, see _pack
      ENDS  a JSON object like FACT's, and the last frame: the file is complete

A frame is appended by one write, so a killed recorder leaves whole frames and perhaps a torn one,
which the reader leaves out; `complete` in the facts is then False. Anything else that is not as
written here is damage: an error that names file and place. The check of the head keeps a damaged
length from passing for the end of the file.

Columns are coded for how data is read: the offset as the distance from where the same client's
last read of the same object in the chunk ended, the time as microseconds since the read before.
Each is cut to the bytes it needs, and stored byte plane by byte plane, for zstd.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash
import zstandard

from hubspoke.errors import FormatError
from hubspoke.traces.trace import Float64, Int32, Int64, Trace, Uint8

MAGIC = b"hstrace1"
SUFFIX = ".hstrace"
CHUNK_READS = 65_536
OBJECTS_MAX = 4_096  # of one frame; names are at most 1,088 bytes, and escaped six times that
PAYLOAD_MAX = 32 << 20  # before compression
TICKS = 1_000_000  # of a second

_HEAD = struct.Struct("<4sII")
_DIGEST = struct.Struct("<Q")
_COUNT = struct.Struct("<II")  # reads, columns' widths packed as hexadecimal digits
_WIDTHS = (1, 2, 4, 8)
_KINDS = (b"FACT", b"OBJS", b"READ", b"ENDS")


COLUMNS = ("ticks", "objects", "offsets", "lengths", "clients", "states")


@dataclass(frozen=True, slots=True)
class Reads:
    """Reads one after another, as columns; numbers of objects are those of the file."""

    ticks: Int64  # microseconds since the trace's start
    objects: Int32
    offsets: Int64
    lengths: Int64
    clients: Int32
    states: Uint8

    def __len__(self) -> int:
        return len(self.ticks)

    def first(self, most: int) -> "Reads":
        """The first `most` of them."""
        return Reads(*(getattr(self, name)[:most] for name in COLUMNS))

    @staticmethod
    def joined(chunks: Sequence["Reads"]) -> "Reads":
        """One after the other; at least one."""
        return Reads(*(np.concatenate([getattr(c, name) for c in chunks]) for name in COLUMNS))


class _Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


class FrameWriter:
    """Frames of one stream, each handed to the sink in one piece."""

    def __init__(self, sink: _Sink, facts: dict[str, object], *, level: int = 9) -> None:
        """level: of zstd; a spoke that streams takes 1."""
        self._sink = sink
        self._place = len(MAGIC)
        self._zstd = zstandard.ZstdCompressor(level=level)
        sink.write(MAGIC)
        self.facts(facts)

    def facts(self, facts: dict[str, object]) -> None:
        self._frame(b"FACT", msgspec.json.encode(facts))

    def objects(self, objects: Sequence[tuple[int, int, str]]) -> None:
        """(number, size, name): new ones, or known ones that have grown."""
        for i in range(0, len(objects), OBJECTS_MAX):
            self._frame(b"OBJS", msgspec.json.encode(objects[i : i + OBJECTS_MAX]))

    def reads(self, reads: Reads) -> None:
        """At most CHUNK_READS; their objects were told before."""
        self._frame(b"READ", _pack(reads))

    def end(self, facts: dict[str, object]) -> None:
        self._frame(b"ENDS", msgspec.json.encode(facts))

    def _frame(self, kind: bytes, payload: bytes) -> None:
        body = self._zstd.compress(payload)
        check = _check(kind, len(body), self._place)
        digest = _DIGEST.pack(xxhash.xxh3_64_intdigest(body))
        self._sink.write(_HEAD.pack(kind, len(body), check) + body + digest)
        self._place += _HEAD.size + len(body) + _DIGEST.size


def _check(kind: bytes, length: int, place: int) -> int:
    head = kind + length.to_bytes(4, "little")
    return xxhash.xxh32_intdigest(head, seed=place & 0xFFFFFFFF)


def _groups(reads: Reads) -> tuple[Int64, Any]:
    """An order in which reads of one client and object stand together, each group in order of
    time; and where in that order groups begin."""
    key = reads.clients.astype(np.int64) << 32 | reads.objects
    order = np.argsort(key, kind="stable")
    sorted_ = key[order]
    first = np.ones(len(key), bool)
    first[1:] = sorted_[1:] != sorted_[:-1]
    return order, first


def _pack(reads: Reads) -> bytes:
    """reads, widths (a digit each), then ticks, objects, offsets, lengths, clients, states."""
    order, first = _groups(reads)
    offsets, lengths = reads.offsets[order], reads.lengths[order]
    jumps = offsets.copy()
    jumps[1:] -= np.where(first[1:], 0, offsets[:-1] + lengths[:-1])
    jumped = np.empty_like(jumps)
    jumped[order] = jumps
    columns = [
        np.diff(reads.ticks, prepend=0),
        np.diff(reads.objects.astype(np.int64), prepend=0),
        jumped,
        reads.lengths,
        reads.clients.astype(np.int64),
        reads.states.astype(np.int64),
    ]
    packed = [_narrow(column) for column in columns]
    widths = sum(width << 4 * i for i, (width, _) in enumerate(packed))
    return _COUNT.pack(len(reads), widths) + b"".join(data for _, data in packed)


def _narrow(column: Int64) -> tuple[int, bytes]:
    folded = (column << 1 ^ column >> 63).view(np.uint64)  # small ones of both signs stay small
    most = int(folded.max(initial=0))
    width = next(w for w in _WIDTHS if most < 1 << 8 * w)
    cut = folded.astype(f"<u{width}")
    return width, cut.view(np.uint8).reshape(-1, width).T.tobytes()


def _unpack(payload: bytes) -> Reads:
    """Raises ValueError, saying what is wrong."""
    if len(payload) < _COUNT.size:
        raise ValueError(f"{len(payload)} bytes of reads, expected {_COUNT.size} or more")
    count, widths = _COUNT.unpack_from(payload)
    each = [widths >> 4 * i & 15 for i in range(6)]
    if not 0 < count <= CHUNK_READS or not set(each) <= set(_WIDTHS):
        raise ValueError(f"{count} reads of widths {widths:x}, expected 1 to {CHUNK_READS} reads")
    if len(payload) != _COUNT.size + count * sum(each):
        raise ValueError(f"{len(payload)} bytes for {count} reads of widths {widths:x}")
    columns, at = [], _COUNT.size
    for width in each:
        planes = np.frombuffer(payload, np.uint8, count * width, at).reshape(width, count)
        folded = np.ascontiguousarray(planes.T).view(f"<u{width}").ravel().astype(np.uint64)
        columns.append((folded >> 1).view(np.int64) ^ -(folded & 1).view(np.int64))
        at += count * width
    ticks, objects, jumps, lengths, clients, states = columns
    small = (clients, 1 << 31), (states, 1 << 8)
    if any(((c < 0) | (c >= most)).any() for c, most in small):
        raise ValueError("a client or state beyond its range")
    numbers = np.cumsum(objects)
    if ((numbers < 0) | (numbers >= 1 << 31)).any():
        raise ValueError("the number of an object beyond its range")
    reads = Reads(
        np.cumsum(ticks),
        numbers.astype(np.int32),
        jumps,
        lengths,
        clients.astype(np.int32),
        states.astype(np.uint8),
    )
    order, first = _groups(reads)
    # In a group, an offset is the sum of the jumps up to it and of the lengths before it.
    sums = np.cumsum(jumps[order] + lengths[order]) - lengths[order]
    begins = np.flatnonzero(first)
    before = np.repeat(sums[begins] - jumps[order][begins], np.diff(begins, append=count))
    reads.offsets[order] = sums - before
    return reads


@dataclass(slots=True)
class Contents:
    """What the frames of a stream have told so far."""

    facts: dict[str, object] | None = None  # until its frame has come
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    complete: bool = False  # the frame ENDS was there

    def take(self, kind: bytes, payload: bytes) -> Reads | None:
        """Raises ValueError, saying what is wrong."""
        if self.complete:
            raise ValueError(f"{kind.decode()} after ENDS, expected the end of the file")
        match kind:
            case b"READ":
                reads = _unpack(payload)
                if reads.objects.max() >= len(self.names):
                    raise ValueError(f"object {reads.objects.max()} is read and not told of")
                return reads
            case b"OBJS":
                self._objects(msgspec.json.decode(payload, type=list[tuple[int, int, str]]))
            case _:
                told = msgspec.json.decode(payload, type=dict[str, Any])
                self.facts = {**(self.facts or {}), **told}
                self.complete = kind == b"ENDS"
        return None

    def _objects(self, objects: Iterable[tuple[int, int, str]]) -> None:
        for number, size, name in objects:
            if not 0 <= size < 1 << 63:
                raise ValueError(f"object {name!r} of size {size}")
            if number == len(self.names):
                self.names.append(name)
                self.sizes.append(size)
            elif 0 <= number < len(self.names) and self.names[number] == name:
                self.sizes[number] = size
            else:
                raise ValueError(f"object {number} is {name!r}, expected number {len(self.names)}")


class FrameReader:
    """Frames out of bytes that come in pieces of any size."""

    def __init__(self, source: str) -> None:
        """source: the file or URL, for errors."""
        self.contents = Contents()
        self._source = source
        self._held = bytearray()
        self._place = 0  # of the first byte held
        self._zstd = zstandard.ZstdDecompressor()

    def feed(self, data: bytes) -> Iterator[Reads]:
        """The reads of frames that are whole now. Raises FormatError."""
        self._held += data
        if self._place == 0 and not self._begins():
            return
        while (frame := self._next()) is not None:
            kind, body = frame
            place = self._place
            try:
                reads = self.contents.take(kind, self._inflate(body))
            except (ValueError, zstandard.ZstdError, msgspec.DecodeError) as e:
                raise self._damaged(f"{kind.decode()}: {e}") from e
            used = _HEAD.size + len(body) + _DIGEST.size
            del self._held[:used]
            self._place = place + used
            if reads is not None:
                yield reads

    @property
    def torn(self) -> int:
        """Bytes behind the last whole frame."""
        return len(self._held)

    @property
    def place(self) -> int:
        """Where the last whole frame ends."""
        return self._place

    def _begins(self) -> bool:
        start = bytes(self._held[: len(MAGIC)])
        if len(start) < len(MAGIC) and MAGIC.startswith(start):
            return False
        if start[:-1] == MAGIC[:-1] and start != MAGIC:
            raise FormatError(f"{self._source}: version {start[-1:]!r}, this HubSpoke reads 1")
        if start != MAGIC:
            raise FormatError(
                f"{self._source}: begins with {start!r}, expected {MAGIC!r}; traces of other "
                "tools are read by `hubspoke trace convert`"
            )
        del self._held[: len(MAGIC)]
        self._place = len(MAGIC)
        return True

    def _next(self) -> tuple[bytes, bytes] | None:
        if len(self._held) < _HEAD.size:
            return None
        kind, length, check = _HEAD.unpack_from(self._held)
        if check != _check(kind, length, self._place) or kind not in _KINDS:
            raise self._damaged("the head of a frame")
        if self.contents.facts is None and kind != b"FACT":
            raise self._damaged(f"{kind.decode()} first, expected FACT")
        end = _HEAD.size + length
        if len(self._held) < end + _DIGEST.size:
            return None
        body = bytes(memoryview(self._held)[_HEAD.size : end])
        (digest,) = _DIGEST.unpack_from(self._held, end)
        if digest != xxhash.xxh3_64_intdigest(body):
            raise self._damaged(f"{kind.decode()}: its digest does not match")
        return kind, body

    def _inflate(self, body: bytes) -> bytes:
        size = zstandard.get_frame_parameters(body).content_size
        if size > PAYLOAD_MAX:  # also where it is not told
            raise ValueError(f"{size} bytes inflated, expected at most {PAYLOAD_MAX}")
        return self._zstd.decompress(body)

    def _damaged(self, what: str) -> FormatError:
        return FormatError(f"{self._source}: damaged at byte {self._place}: {what}")


def write_trace(path: Path, trace: Trace) -> None:
    """Write a whole trace; a file that exists is replaced when the new one is complete."""
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            _write(FrameWriter(file, trace.facts), trace)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise FormatError(f"{path}: cannot be written: {e.strerror}") from e


def _write(writer: FrameWriter, trace: Trace) -> None:
    sizes = trace.sizes.tolist()
    writer.objects(list(zip(range(len(sizes)), sizes, trace.names, strict=True)))
    ticks = to_ticks(trace.at)
    for i in range(0, len(trace), CHUNK_READS):
        t = trace.part(i, i + CHUNK_READS)
        part = ticks[i : i + CHUNK_READS]
        writer.reads(Reads(part, t.objects, t.offsets, t.lengths, t.clients, t.states))
    writer.end({})


def to_ticks(seconds: Float64) -> Int64:
    """Rounded, so that what was read from a file is written to it again as it was."""
    return np.rint(seconds * TICKS).astype(np.int64)


def read_trace(path: Path) -> Trace:
    """The trace in a file; `complete` in its facts says whether its recorder ended it.

    Raises FormatError: no such file, not a trace, or damaged; names the file and the place.
    """
    reader = FrameReader(str(path))
    chunks: list[Reads] = []
    try:
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                chunks += reader.feed(data)
    except OSError as e:
        raise FormatError(f"{path}: cannot be read: {e.strerror}") from e
    contents = reader.contents
    if contents.facts is None:
        raise FormatError(f"{path}: ends at byte {reader.place + reader.torn}, before any frame")
    if contents.complete and reader.torn:
        raise FormatError(f"{path}: damaged at byte {reader.place}: bytes after the last frame")
    facts = {**contents.facts, "complete": contents.complete}
    try:
        return _joined(chunks, contents, facts)
    except FormatError as e:
        raise FormatError(f"{path}: {e}") from e


def _joined(chunks: list[Reads], contents: Contents, facts: dict[str, object]) -> Trace:
    def column(name: str, kind: Any) -> Any:
        return np.concatenate([np.empty(0, kind), *(getattr(c, name) for c in chunks)])

    return Trace(
        names=contents.names,
        sizes=np.array(contents.sizes, np.int64),
        at=column("ticks", np.int64) / TICKS,
        objects=column("objects", np.int32),
        offsets=column("offsets", np.int64),
        lengths=column("lengths", np.int64),
        clients=column("clients", np.int32),
        states=column("states", np.uint8),
        facts=facts,
    )
