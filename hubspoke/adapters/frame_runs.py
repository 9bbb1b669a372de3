"""Frames that lie one behind the other go to a disk together: each call by itself costs a turn of
the interpreter, an append to the index and a hand-over of the lock that the loop waits for."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hubspoke import wire
from hubspoke.errors import CorruptFrame

# Few enough that a disk that takes long for them is slow: at 5 MB/s 0.2 s.
RUN_FRAMES_MAX = 4


@dataclass(slots=True)
class Writing:
    """Frames of one object on their way to a disk, in order. ended: may hold OSError and
    CorruptFrame. written: how many of them are there; counted by the disk's thread, so that it
    holds as soon as `ended` is done."""

    frames: Sequence[wire.Frame]
    written: int = 0
    ended: asyncio.Future[None] = field(init=False)


def runs(frames: Sequence[wire.Frame]) -> Iterator[Sequence[wire.Frame]]:
    """The frames in their order, cut wherever one does not begin where the last ended."""
    first = 0
    for i in range(1, len(frames) + 1):
        before, data = frames[i - 1]
        follows = i < len(frames) and frames[i][0].offset == before.offset + len(data)
        if not follows or i - first == RUN_FRAMES_MAX:
            yield frames[first:i]
            first = i


def checked(run: Sequence[wire.Frame], of: str) -> tuple[list[tuple[bytes, int]], Exception | None]:
    """What of a run is sound up to the first that is not, with its digests, and its error."""
    sound: list[tuple[bytes, int]] = []
    for header, data in run:
        try:
            wire.check_digest(header, data, of)
        except CorruptFrame as e:
            return sound, e
        sound.append((data, header.digest))
    return sound, None


def write_all(descriptor: int, parts: list[memoryview], offset: int) -> None:
    """All of it from `offset` on. Raises OSError."""
    while parts:
        n = os.pwritev(descriptor, parts, offset)
        offset += n
        while parts and n >= len(parts[0]):
            n -= len(parts.pop(0))
        if n:
            parts[0] = parts[0][n:]
