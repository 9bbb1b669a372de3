"""One fetch: many ranges of many objects as one stream of frames.

    ranges -> pieces (<= PIECE_BYTES, cut at absolute multiples) -> reads, a few ahead -> frames

What is in memory is read as the socket takes it. Reads that have to wait run ahead of the socket
by a bounded amount, so that disk and socket work at the same time and a slow spoke holds no more
than that. All are sent in the order asked for. Frames are cut at absolute multiples of
FRAME_BYTES_MAX, so that none crosses a block of the spoke's cache. An error ends its range only.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import zstandard

from hubspoke import wire
from hubspoke.core.ids import (
    FRAME_BYTES_MAX,
    PAGE_BYTES,
    ObjectEntry,
    ObjectName,
    TrafficClass,
    Version,
)
from hubspoke.errors import HubSpokeError, InvalidRange, InvalidRequest, NoSuchKey, VersionChanged
from hubspoke.frontends.asgi import Send
from hubspoke.frontends.data_protocol import PARTS
from hubspoke.hub.service import HubService

PIECE_BYTES = 1 << 20  # one read of the store and one write to the socket: 4 frames
# Up to here packing takes 0.1 ms on the spot, less than a thread and its turn: the first bytes of a
# read wait for it.
PACKED_NOW_BYTES_MAX = 32 << 10
ERROR_TEXT_BYTES_MAX = 500
_CLASSES = {c.value for c in TrafficClass}
_CODES: tuple[tuple[type[HubSpokeError], int], ...] = (
    (VersionChanged, wire.ERROR_CHANGED),
    (NoSuchKey, wire.ERROR_GONE),
    (InvalidRange, wire.ERROR_RANGE),
)


@dataclass(frozen=True, slots=True)
class FetchConfig:
    objects_max: int = 4096
    ranges_max: int = 4096
    # What one stream may carry; more is asked for in another request.
    bytes_max: int = 1 << 30
    # Ahead of the socket: two pieces hide a disk of 1 ms behind a socket of 1 GB/s; small ranges
    # need more reads at once to hide the same disk.
    ahead_bytes: int = 4 << 20
    ahead_reads: int = 16
    # Small frames leave together up to here: a write to the socket costs about 20 us.
    write_bytes: int = 256 << 10
    # zstd level 1 must save a tenth of a piece's first frame, or the piece goes as it is.
    zstd_ratio_max: float = 0.9
    # After a trial that did not pay, so many pieces of the object go as they are: a trial of
    # random bytes costs the hub 0.3 ms, as much as all else it does with a piece.
    pieces_untried: int = 31


Frames = list[bytes | memoryview]  # of one piece: headers and payloads


def _is_there(loaded: "Frames | asyncio.Task[Frames]") -> bool:
    return loaded.done() if isinstance(loaded, asyncio.Task) else True


@dataclass(frozen=True, slots=True)
class _Piece:
    range_index: int
    offset: int
    length: int
    last: bool


def check_fetch(request: wire.FetchRequest, config: FetchConfig) -> None:
    """Raises InvalidRequest naming the field, what it holds and what would be right."""
    if not 1 <= len(request.ranges) <= config.ranges_max:
        raise InvalidRequest(f"fetch of {len(request.ranges)} ranges; 1 to {config.ranges_max}")
    if len(request.objects) > config.objects_max:
        raise InvalidRequest(
            f"fetch of {len(request.objects)} objects; {config.objects_max} at most"
        )
    if request.traffic_class not in _CLASSES:
        raise InvalidRequest(f"traffic class {request.traffic_class!r}; one of {sorted(_CLASSES)}")
    total = 0
    for i, r in enumerate(request.ranges):
        if not 0 <= r.object < len(request.objects):
            raise InvalidRequest(f"range {i}: object {r.object} of {len(request.objects)}")
        if r.offset < 0 or r.offset % PAGE_BYTES or r.length <= 0:
            raise InvalidRequest(
                f"range {i}: {r.offset}+{r.length}; offset a multiple of {PAGE_BYTES}, length > 0"
            )
        total += r.length
    if total > config.bytes_max:
        raise InvalidRequest(f"fetch of {total} bytes; {config.bytes_max} at most")


class Packing:
    """Which objects' bytes are worth a trial of packing, by what the last one said."""

    NAMES_MAX = 4096  # forgotten all at once

    def __init__(self, pieces_untried: int) -> None:
        self._pieces = pieces_untried
        self._untried: dict[ObjectName, int] = {}

    def due(self, name: ObjectName) -> bool:
        """Whether the next piece of the object would be tried."""
        return not self._untried.get(name, 0)

    def tries(self, name: ObjectName) -> bool:
        """Whether the next piece of the object should be tried."""
        left = self._untried.get(name, 0)
        if left:
            self._untried[name] = left - 1
        return not left

    def tried(self, name: ObjectName, *, pays: bool) -> None:
        """What a trial has shown."""
        if pays or len(self._untried) >= self.NAMES_MAX:
            self._untried.pop(name, None) if pays else self._untried.clear()
        if not pays:
            self._untried[name] = self._pieces


class Fetch:
    """One request that is being answered."""

    def __init__(
        self,
        hub: HubService,
        request: wire.FetchRequest,
        config: FetchConfig,
        packing: Packing,
        *,
        parts: bool = False,
    ) -> None:
        """packing: shared by all fetches. parts: the server takes bodies in parts
        (data_protocol.PARTS)."""
        self._hub = hub
        self._packing = packing
        self._parts = parts
        self._request = request
        self._config = config
        self._cancelled: set[int] = set()
        self._ended: set[int] = set()
        # Of the objects by their place in the request, as the log has them in this turn of the
        # loop: a look at the log for each of many small ranges took as long as reading them.
        self._sources: dict[int, tuple[ObjectName, ObjectEntry]] = {}

    def cancel(self, ranges: list[int]) -> None:
        """Give up these ranges, or all if none is named; what is on its way still arrives."""
        self._cancelled.update(ranges or range(len(self._request.ranges)))

    async def run(self, send: Send) -> None:
        """Send all frames; the end of the response is the caller's."""
        config = self._config
        pieces = self._pieces()
        window: deque[tuple[_Piece, Frames | asyncio.Task[Frames]]] = deque()
        ahead = 0
        out: Frames = []
        out_bytes = 0
        following = next(pieces, None)
        try:
            while True:
                self._sources.clear()
                while (
                    following is not None
                    and out_bytes < config.write_bytes
                    and ahead < config.ahead_bytes
                    and len(window) < config.ahead_reads
                ):
                    frames = self._load_now(following)
                    if frames is not None and not window:
                        out += self._closed(following, frames)
                        out_bytes += following.length
                    else:
                        loading = frames or asyncio.create_task(self._load(following))
                        window.append((following, loading))
                        ahead += following.length
                    following = next(pieces, None)
                if out and (
                    not window or out_bytes >= config.write_bytes or not _is_there(window[0][1])
                ):
                    await self._send(send, out)
                    out, out_bytes = [], 0
                    continue
                if not window:
                    return
                piece, loaded = window.popleft()
                ahead -= piece.length
                out += await self._frames_of(piece, loaded)
                out_bytes += piece.length
        finally:
            tasks = [loaded for _, loaded in window if isinstance(loaded, asyncio.Task)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send, out: Frames) -> None:
        if self._parts:
            await send({"type": PARTS, "parts": out})
        else:
            await send({"type": "http.response.body", "body": b"".join(out), "more_body": True})

    def _pieces(self) -> Iterator[_Piece]:
        for i, r in enumerate(self._request.ranges):
            at, end = r.offset, r.offset + r.length
            while at < end and i not in self._ended:
                cut = min(end, (at // PIECE_BYTES + 1) * PIECE_BYTES)
                yield _Piece(i, at, cut - at, cut == end)
                at = cut

    async def _frames_of(self, piece: _Piece, loaded: "Frames | asyncio.Task[Frames]") -> Frames:
        i = piece.range_index
        if i in self._ended or i in self._cancelled:
            if isinstance(loaded, asyncio.Task):
                loaded.cancel()
                await asyncio.gather(loaded, return_exceptions=True)
            return [] if i in self._ended else self._end(i, wire.ERROR_CANCELLED, "cancelled")
        try:
            frames = await loaded if isinstance(loaded, asyncio.Task) else loaded
        except HubSpokeError as e:
            code = next((code for cls, code in _CODES if isinstance(e, cls)), wire.ERROR_STORE)
            return self._end(i, code, str(e))
        return self._closed(piece, frames)

    def _closed(self, piece: _Piece, frames: Frames) -> Frames:
        """The frames, and the end of the range behind its last ones."""
        if piece.last:
            i = piece.range_index
            r = self._request.ranges[i]
            frames.append(wire.pack_frame(wire.FRAME_DONE, i, r.offset + r.length, 0))
        return frames

    def _end(self, i: int, code: int, text: str) -> Frames:
        self._ended.add(i)
        told = text.encode("utf-8", "replace")[:ERROR_TEXT_BYTES_MAX]
        offset = self._request.ranges[i].offset
        head = wire.pack_frame(wire.FRAME_ERROR, i, offset, code, payload_bytes=len(told))
        return [head, told]

    def _load_now(self, piece: _Piece) -> Frames | None:
        """A piece that needs no disk and takes no time to pack; None: it is for `_load`."""
        if piece.range_index in self._cancelled:
            return None
        try:
            name, version = self._source(piece.range_index)
        except HubSpokeError:
            return None
        zstd = self._request.accept_zstd
        if zstd and piece.length > PACKED_NOW_BYTES_MAX and self._packing.due(name):
            return None
        data = self._hub.read_now(name, version, piece.offset, piece.length)
        if data is None:
            return None
        if not zstd or not self._packing.tries(name):
            return _plain(piece, data)
        packed = _compressed(piece, data, self._config.zstd_ratio_max)
        self._packing.tried(name, pays=packed is not None)
        return _plain(piece, data) if packed is None else packed

    def _source(self, index: int) -> tuple[ObjectName, Version]:
        """What a range is of. Raises NoSuchKey, VersionChanged, InvalidRange."""
        r = self._request.ranges[index]
        source = self._sources.get(r.object)
        if source is None:
            o = self._request.objects[r.object]
            name = ObjectName(o.bucket, o.key)
            entry = self._hub.known(name)
            if entry is None:
                raise NoSuchKey(f"{name}: no such object")
            if entry.version != o.version:
                raise VersionChanged(f"{name}: version {entry.version}, {o.version} was asked for")
            source = self._sources[r.object] = name, entry
        name, entry = source
        if r.offset + r.length > entry.size:
            raise InvalidRange(f"{name}: {r.offset}+{r.length} of {entry.size} bytes")
        return name, entry.version

    async def _load(self, piece: _Piece) -> Frames:
        if piece.range_index in self._cancelled:
            return []
        self._sources.clear()  # a turn of its own
        name, version = self._source(piece.range_index)
        data = await self._hub.read_version(name, version, piece.offset, piece.length)
        if not self._request.accept_zstd or not self._packing.tries(name):
            # Digests of a piece take 50 us, less than handing them to a thread and back.
            return _plain(piece, data)
        ratio_max = self._config.zstd_ratio_max
        if piece.length <= PACKED_NOW_BYTES_MAX:
            packed = _compressed(piece, data, ratio_max)
        else:
            loop = asyncio.get_running_loop()
            packed = await loop.run_in_executor(None, _compressed, piece, data, ratio_max)
        self._packing.tried(name, pays=packed is not None)
        return _plain(piece, data) if packed is None else packed


def _cuts(piece: _Piece, data: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    view = memoryview(data)
    at, end = piece.offset, piece.offset + piece.length
    while at < end:
        cut = min(end, (at // FRAME_BYTES_MAX + 1) * FRAME_BYTES_MAX)
        yield at, view[at - piece.offset : cut - piece.offset]
        at = cut


def _plain(piece: _Piece, data: bytes | memoryview) -> Frames:
    frames: Frames = []
    for at, view in _cuts(piece, data):
        n = len(view)
        frames.append(
            wire.pack_frame(wire.FRAME_DATA, piece.range_index, at, n, wire.digest(view), n)
        )
        frames.append(view)
    return frames


def _compressed(piece: _Piece, data: bytes | memoryview, ratio_max: float) -> Frames | None:
    """Frame by frame; None if the first shows that it does not pay."""
    zstd = zstandard.ZstdCompressor(level=1)
    frames: Frames = []
    for at, view in _cuts(piece, data):
        packed = zstd.compress(view)
        if len(packed) > ratio_max * len(view):
            if not frames:
                return None
            head = wire.pack_frame(
                wire.FRAME_DATA, piece.range_index, at, len(view), wire.digest(view), len(view)
            )
            frames += [head, view]
            continue
        head = wire.pack_frame(
            wire.FRAME_DATA, piece.range_index, at, len(view), wire.digest(view), len(packed),
            wire.FLAG_ZSTD,
        )  # fmt: skip
        frames += [head, packed]
    return frames
