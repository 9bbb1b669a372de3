"""The cache folder's index: an append-only file of checksummed slots of one size.

It is read once at start and never mapped (an I/O error under a mapping kills the process). A slot
is believed only if its checksum holds; one that does not is a frame that is missed, nothing
worse, because a frame is checked against its digest before it is given to a reader. Data is
written before the slot that names it, and the slot that takes it back before a hole is punched.

    magic "HSCI" u32 format, zeros up to 24 bytes | slot...
    slot: kind u8 | pages u8 | texts u16 | object u32 | page u32 | value u64 | crc32 u32
    OBJECT    value: size; `texts` slots follow that hold bucket, key and version
    TEXT      kind u8 | 19 bytes | crc32 u32
    FRAME     value: digest
    PUNCH     value: how many pages
    DROP

All slots being alike, a million of them are checked and sorted by numpy in a second, where a loop
over records took four (bench/cache_restart.py).
"""

import os
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hubspoke.core.frames import PAGES_MAX, RECORD, Frames, StoredFrame
from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES, ObjectName, Version, page_span
from hubspoke.errors import FormatError
from hubspoke.ports import IndexedObject

FORMAT = 2
SLOT_BYTES = 24
OBJECT, FRAME, PUNCH, DROP, TEXT = 1, 2, 3, 4, 5

_HEAD = struct.Struct("<4sI16x")
_BODY = struct.Struct("<BBHIIQ")
_CRC = struct.Struct("<I")
_LENGTHS = struct.Struct("<HHH")
_TEXT_BYTES = SLOT_BYTES - 1 - _CRC.size
_BLOCK_PAGES = BLOCK_BYTES // PAGE_BYTES
_ROWS = 2_048  # blocks whose pages are looked at at once: 4 MiB

_SLOT = np.dtype(
    [
        ("kind", "u1"),
        ("pages", "u1"),
        ("texts", "<u2"),
        ("object", "<u4"),
        ("page", "<u4"),
        ("value", "<u8"),
        ("crc", "<u4"),
    ]
)
_PACKED = np.dtype([("page", "<u4"), ("pages", "u1"), ("digest", "<u8")])
assert _SLOT.itemsize == SLOT_BYTES and _PACKED.itemsize == RECORD.size

Slots = npt.NDArray[Any]  # of _SLOT
Longs = npt.NDArray[np.uint64]


def head() -> bytes:
    return _HEAD.pack(b"HSCI", FORMAT)


def _slot(body: bytes) -> bytes:
    return body + _CRC.pack(zlib.crc32(body))


def object_record(number: int, name: ObjectName, version: Version, size: int) -> bytes:
    texts = [t.encode("utf-8") for t in (name.bucket, name.key, version)]
    text = _LENGTHS.pack(*(len(t) for t in texts)) + b"".join(texts)
    parts = [text[i : i + _TEXT_BYTES] for i in range(0, len(text), _TEXT_BYTES)]
    first = _slot(_BODY.pack(OBJECT, 0, len(parts), number, 0, size))
    return first + b"".join(
        _slot(bytes((TEXT,)) + part.ljust(_TEXT_BYTES, b"\x00")) for part in parts
    )


def frame_record(number: int, offset: int, length: int, digest: int) -> bytes:
    first, last = page_span(offset, length)
    assert offset % PAGE_BYTES == 0 and last - first <= PAGES_MAX, (offset, length)
    return _slot(_BODY.pack(FRAME, last - first, 0, number, first, digest))


def punch_record(number: int, offset: int, length: int) -> bytes:
    first, last = page_span(offset, length)
    return _slot(_BODY.pack(PUNCH, 0, 0, number, first, last - first))


def drop_record(number: int) -> bytes:
    return _slot(_BODY.pack(DROP, 0, 0, number, 0, 0))


@dataclass(slots=True)
class Parsed:
    """What an index says. slots: all that it has, sound: those whose checksum holds."""

    objects: dict[int, IndexedObject]
    slots: int
    sound: int

    @property
    def needed(self) -> int:
        """Slots that say the same."""
        texts = (len(object_record(o.number, o.name, o.version, 0)) for o in self.objects.values())
        return sum(texts) // SLOT_BYTES + sum(len(o.frames) for o in self.objects.values())


def parse(data: bytes) -> Parsed:
    """All objects with the frames that are still theirs. Raises FormatError if the file is not
    an index of this format."""
    if len(data) < _HEAD.size:
        raise FormatError(f"cache index of {len(data)} bytes has no head")
    magic, number = _HEAD.unpack_from(data)
    if magic != b"HSCI" or number != FORMAT:
        raise FormatError(f"cache index format {magic!r} {number}, this program writes {FORMAT}")
    n = (len(data) - _HEAD.size) // SLOT_BYTES
    slots: Slots = np.frombuffer(data, _SLOT, n, _HEAD.size)
    sound = _checksums(slots) == slots["crc"]
    kinds = np.where(sound, slots["kind"], 0)
    objects, born = _objects(data, slots, kinds)
    at = np.flatnonzero(kinds == FRAME)
    at = at[_born_before(slots["object"][at], at, born)]
    punches = np.flatnonzero(kinds == PUNCH)
    at = at[~_punched(slots, at, punches, _whole_blocks(slots, punches, objects))]
    for number, frames in _frames(slots, at, objects):
        objects[number].frames = frames
    return Parsed(objects, n, int(np.count_nonzero(sound)))


def _checksums(slots: Slots) -> npt.NDArray[np.uint32]:
    """zlib.crc32 of every slot but its last four bytes; table by table, 65,536 slots at once."""
    table = np.array([_crc_of(byte) for byte in range(256)], np.uint32)
    raw = slots.view(np.uint8).reshape(len(slots), SLOT_BYTES)
    found = np.empty(len(slots), np.uint32)
    for start in range(0, len(slots), 65_536):
        part = raw[start : start + 65_536]
        crc = np.full(len(part), 0xFFFFFFFF, np.uint32)
        for column in range(SLOT_BYTES - _CRC.size):
            crc = table[(crc ^ part[:, column]) & 0xFF] ^ (crc >> np.uint32(8))
        found[start : start + 65_536] = ~crc
    return found


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0xEDB88320 if byte & 1 else 0)
    return byte


def _objects(
    data: bytes, slots: Slots, kinds: npt.NDArray[Any]
) -> tuple[dict[int, IndexedObject], dict[int, int]]:
    """Objects that were not dropped, and where their slots begin: numbers are used again by a
    spoke that starts anew, so what is before that is not theirs."""
    drops = np.flatnonzero(kinds == DROP)
    dropped = dict(zip(slots["object"][drops].tolist(), drops.tolist(), strict=True))
    objects: dict[int, IndexedObject] = {}
    born: dict[int, int] = {}
    for at in np.flatnonzero(kinds == OBJECT).tolist():
        _, _, texts, number, _, size = _BODY.unpack_from(data, _HEAD.size + at * SLOT_BYTES)
        whole = len(kinds) > at + texts and (kinds[at + 1 : at + 1 + texts] == TEXT).all()
        if dropped.get(number, -1) > at or not whole:
            continue
        starts = (_HEAD.size + (at + 1 + i) * SLOT_BYTES + 1 for i in range(texts))
        text = b"".join(data[s : s + _TEXT_BYTES] for s in starts)
        try:
            name, version = _names(text)
        except (struct.error, UnicodeDecodeError):
            continue
        objects[number] = IndexedObject(number, name, version, size, Frames(size))
        born[number] = at
    return objects, born


def _born_before(
    numbers: npt.NDArray[Any], at: npt.NDArray[np.intp], born: dict[int, int]
) -> npt.NDArray[np.bool_]:
    if not born:
        return np.zeros(len(at), np.bool_)
    known = np.array(sorted(born), np.int64)
    begins = np.array([born[n] for n in known.tolist()], np.int64)
    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    mine: npt.NDArray[np.bool_] = (known[place] == numbers) & (begins[place] < at)
    return mine


def _names(text: bytes) -> tuple[ObjectName, Version]:
    found, at = [], _LENGTHS.size
    for n in _LENGTHS.unpack_from(text):
        found.append(text[at : at + n].decode("utf-8"))
        at += n
    # There are few buckets and many objects.
    return ObjectName(sys.intern(found[0]), found[1]), Version(found[2])


def _block_keys(numbers: npt.NDArray[Any], pages: npt.NDArray[Any]) -> Longs:
    return (numbers.astype(np.uint64) << np.uint64(32)) | (pages.astype(np.uint64) >> np.uint64(8))


def _whole_blocks(
    slots: Slots, punches: npt.NDArray[np.intp], objects: dict[int, IndexedObject]
) -> npt.NDArray[np.bool_]:
    """Which punches are of whole blocks: an object's last one may be short."""
    pages, counts = slots["page"][punches].astype(np.int64), slots["value"][punches]
    whole: npt.NDArray[np.bool_] = (pages % _BLOCK_PAGES == 0) & (counts > 0)
    short = np.flatnonzero(whole & (counts % np.uint64(_BLOCK_PAGES) != 0))
    ends = (pages[short] + counts[short].astype(np.int64)).tolist()
    for i, number, end in zip(short, slots["object"][punches[short]].tolist(), ends, strict=True):
        o = objects.get(number)
        whole[i] = o is None or end >= -(-o.size // PAGE_BYTES)
    return whole


def _punched(
    slots: Slots,
    at: npt.NDArray[np.intp],
    punches: npt.NDArray[np.intp],
    aligned: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Which of the frames at `at` were punched later. Frames lie in one block each, and punches
    are of whole blocks (`aligned`) or of any pages."""
    gone = np.zeros(len(at), np.bool_)
    if not len(punches) or not len(at):
        return gone
    pages, counts = slots["page"][punches], slots["value"][punches].astype(np.int64)
    blocks = np.maximum(1, (counts[aligned] + _BLOCK_PAGES - 1) // _BLOCK_PAGES)
    first = _block_keys(slots["object"][punches[aligned]], pages[aligned])
    steps = np.arange(int(blocks.sum())) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    keys = np.repeat(first, blocks) + steps.astype(np.uint64)
    when = np.repeat(punches[aligned], blocks)
    order = np.lexsort((when, keys))
    keys, when = keys[order], when[order]
    frame_keys = _block_keys(slots["object"][at], slots["page"][at])
    if len(keys):
        last = np.searchsorted(keys, frame_keys, "right") - 1
        hit = (last >= 0) & (keys[np.maximum(last, 0)] == frame_keys)
        gone |= hit & (when[np.maximum(last, 0)] > at)
    return gone | _punched_inside(slots, at, punches[~aligned])


def _punched_inside(
    slots: Slots, at: npt.NDArray[np.intp], punches: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """The same for punches of any pages: of items that were read, of frames that were bad. A frame
    of which one page is gone is gone, for its digest cannot be checked any more."""
    gone = np.zeros(len(at), np.bool_)
    if not len(punches) or not len(at):
        return gone
    numbers, pages = slots["object"][punches].astype(np.uint64), slots["page"][punches]
    first = pages.astype(np.int64)
    last = first + slots["value"][punches].astype(np.int64)
    blocks = (last - 1 >> 8) - (first >> 8) + 1
    which, step = _each(blocks)
    block = (first[which] >> 8) + step
    rows, row = np.unique(numbers[which] << np.uint64(32) | block.astype(np.uint64), False, True)
    start = np.maximum(first[which], block << 8) & 255
    count = np.minimum(last[which], block + 1 << 8) - (block << 8) - start
    keys = _block_keys(slots["object"][at], slots["page"][at])
    mine = np.minimum(np.searchsorted(rows, keys), len(rows) - 1)
    of = np.flatnonzero(rows[mine] == keys)
    mine = mine[of]
    in_row, in_mine = np.argsort(row, kind="stable"), np.argsort(mine, kind="stable")
    for low in range(0, len(rows), _ROWS):
        part = in_row[slice(*np.searchsorted(row[in_row], (low, low + _ROWS)))]
        # In the order of the slots, so that of a page's punches the last one stays.
        part = np.sort(part)
        table = np.full(_ROWS * _BLOCK_PAGES, -1, np.int64)
        table[_pages_of((row[part] - low) * _BLOCK_PAGES + start[part], count[part])] = np.repeat(
            punches[which[part]], count[part]
        )
        frames = in_mine[slice(*np.searchsorted(mine[in_mine], (low, low + _ROWS)))]
        found = at[of[frames]]
        length = np.maximum(slots["pages"][found].astype(np.int64), 1)
        place = (mine[frames] - low) * _BLOCK_PAGES + (slots["page"][found] & 255)
        if len(frames):
            latest = np.maximum.reduceat(
                table[_pages_of(place, length)], np.cumsum(length) - length
            )
            gone[of[frames]] = latest > found
    return gone


def _each(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """0, 0, 1, ... with 0, 1, 0, ...: each index as often as its count, and the how-manieth."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def _pages_of(start: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    which, step = _each(count)
    pages: npt.NDArray[np.int64] = start[which] + step
    return pages


def _frames(
    slots: Slots, at: npt.NDArray[np.intp], objects: dict[int, IndexedObject]
) -> Iterator[tuple[int, Frames]]:
    """The frames of each object, sorted; of those that overlap the later ones."""
    keys = (slots["object"][at].astype(np.uint64) << np.uint64(32)) | slots["page"][at]
    at = at[np.lexsort((at, keys))]
    numbers, pages = slots["object"][at], slots["page"][at].astype(np.int64)
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(at)]
    packed = np.empty(len(at), _PACKED)
    packed["page"], packed["pages"] = pages, slots["pages"][at]
    packed["digest"] = slots["value"][at]
    for start, end in pairwise(bounds):
        if start == end:
            continue
        number = int(numbers[start])
        size = objects[number].size
        ends = pages[start:end] + packed["pages"][start:end]
        fits = ends[-1] <= -(-size // PAGE_BYTES)
        if fits and not (ends[:-1] > pages[start + 1 : end]).any():
            yield number, Frames(size, packed[start:end].tobytes())
            continue
        inside = np.sort(at[start:end][ends <= -(-size // PAGE_BYTES)])
        yield number, Frames.of(size, [_stored(slots[i], size) for i in inside])


def _stored(slot: Any, size: int) -> StoredFrame:
    offset = int(slot["page"]) * PAGE_BYTES
    length = min(int(slot["pages"]) * PAGE_BYTES, size - offset)
    return StoredFrame(offset, length, int(slot["value"]))


def frames_in(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(object, first page, pages, digest) of the sound frame slots in a piece of an index."""
    slots: Slots = np.frombuffer(data, _SLOT, len(data) // SLOT_BYTES)
    found = slots[(slots["kind"] == FRAME) & (_checksums(slots) == slots["crc"])]
    for slot in found.tolist():
        _, pages, _, number, page, digest, _ = slot
        yield number, page, pages, digest


def whole(objects: Sequence[IndexedObject]) -> bytes:
    """An index that says no more than these objects."""
    parts = [head()]
    for o in objects:
        parts.append(object_record(o.number, o.name, o.version, o.size))
        packed = np.frombuffer(o.frames.packed, _PACKED)
        slots: Slots = np.zeros(len(packed), _SLOT)
        slots["kind"], slots["object"] = FRAME, o.number
        slots["page"], slots["pages"], slots["value"] = (packed[f] for f in _PACKED.names or ())
        slots["crc"] = _checksums(slots)
        parts.append(slots.tobytes())
    return b"".join(parts)


def write_whole(path: str, data: bytes) -> None:
    """Make `data` the index, durable under `path` when it returns."""
    temporary = path + ".new"
    with open(temporary, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)
