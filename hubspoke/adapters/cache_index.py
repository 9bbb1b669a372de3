"""The cache folder's index: an append-only file of checksummed records.

It is read once at start and never mapped (an I/O error under a mapping kills the process). A
record is believed only if its checksum holds; reading stops at the first that fails, and the
file is cut there: what it would have said is a miss, nothing worse. Data is written before the
record that names it.

    magic "HSCI" u32 format | record...
    record: kind u8 | length u16 | payload | crc32 u32 of all before
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator

from hubspoke.core.cache import StoredFrame
from hubspoke.core.ids import ObjectName, Version
from hubspoke.errors import FormatError
from hubspoke.ports import IndexedObject

FORMAT = 1
_HEAD = struct.Struct("<4sI")
_RECORD = struct.Struct("<BH")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<IQIQ")  # object, offset, length, digest
_PUNCH = struct.Struct("<IQQ")  # object, offset, length
_DROP = struct.Struct("<I")
_OBJECT = struct.Struct("<IQHHH")  # object, size, lengths of bucket, key, version

KIND_OBJECT, KIND_FRAME, KIND_PUNCH, KIND_DROP = 1, 2, 3, 4


def head() -> bytes:
    return _HEAD.pack(b"HSCI", FORMAT)


def _record(kind: int, payload: bytes) -> bytes:
    body = _RECORD.pack(kind, len(payload)) + payload
    return body + _CRC.pack(zlib.crc32(body))


def object_record(number: int, name: ObjectName, version: Version, size: int) -> bytes:
    texts = [t.encode("utf-8") for t in (name.bucket, name.key, version)]
    fixed = _OBJECT.pack(number, size, *(len(t) for t in texts))
    return _record(KIND_OBJECT, fixed + b"".join(texts))


def frame_record(number: int, offset: int, length: int, digest: int) -> bytes:
    return _record(KIND_FRAME, _FRAME.pack(number, offset, length, digest))


def punch_record(number: int, offset: int, length: int) -> bytes:
    return _record(KIND_PUNCH, _PUNCH.pack(number, offset, length))


def drop_record(number: int) -> bytes:
    return _record(KIND_DROP, _DROP.pack(number))


def check_head(data: bytes) -> None:
    """Raises FormatError when the file is not an index of this format."""
    if len(data) < _HEAD.size:
        raise FormatError(f"cache index of {len(data)} bytes has no head")
    magic, number = _HEAD.unpack_from(data)
    if magic != b"HSCI" or number != FORMAT:
        raise FormatError(f"cache index format {magic!r} {number}, this program writes {FORMAT}")


def parse(data: bytes) -> tuple[dict[int, IndexedObject], int]:
    """All objects with the frames that are still theirs, and how many bytes were sound."""
    check_head(data)
    objects: dict[int, IndexedObject] = {}
    at = _HEAD.size
    for kind, payload, end in _records(data, at):
        _apply(objects, kind, payload)
        at = end
    return objects, at


def _records(data: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    while at + _RECORD.size <= len(data):
        kind, length = _RECORD.unpack_from(data, at)
        crc_at = at + _RECORD.size + length
        if crc_at + _CRC.size > len(data):
            return
        (crc,) = _CRC.unpack_from(data, crc_at)
        if crc != zlib.crc32(data[at:crc_at]):
            return
        yield kind, data[at + _RECORD.size : crc_at], crc_at + _CRC.size
        at = crc_at + _CRC.size


def _apply(objects: dict[int, IndexedObject], kind: int, payload: bytes) -> None:
    if kind == KIND_FRAME:
        number, offset, length, digest = _FRAME.unpack(payload)
        if number in objects:
            objects[number].frames.append(StoredFrame(offset, length, digest))
    elif kind == KIND_PUNCH:
        number, offset, length = _PUNCH.unpack(payload)
        if number in objects:
            o = objects[number]
            end = offset + length
            o.frames = [f for f in o.frames if f.offset >= end or f.offset + f.length <= offset]
    elif kind == KIND_DROP:
        objects.pop(_DROP.unpack(payload)[0], None)
    elif kind == KIND_OBJECT:
        number, size, *lengths = _OBJECT.unpack_from(payload)
        texts, at = [], _OBJECT.size
        for n in lengths:
            texts.append(payload[at : at + n].decode("utf-8"))
            at += n
        name = ObjectName(texts[0], texts[1])
        objects[number] = IndexedObject(number, name, Version(texts[2]), size)


def write_whole(path: str, objects: Iterable[IndexedObject]) -> None:
    """A compacted index, durable under `path` when it returns."""
    temporary = path + ".new"
    with open(temporary, "wb") as f:
        f.write(head())
        for o in objects:
            f.write(object_record(o.number, o.name, o.version, o.size))
            for frame in o.frames:
                f.write(frame_record(o.number, frame.offset, frame.length, frame.digest))
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)
