"""The recorder: frames from a spoke's admin port into a trace file.

The spoke sends small frames, four times a second; the file gets chunks of many reads, which
compress, or of a few seconds, which a kill may cost. The file ends properly whatever ends the
recording: a bound, a signal, the spoke's stop, a lost connection; only a kill leaves it open.
"""

import http.client
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import numpy as np

from hubspoke.errors import FormatError, HubSpokeError
from hubspoke.traces.format import CHUNK_READS, TICKS, FrameReader, FrameWriter, Reads

PATH = "/v1/trace"
# The spoke sends something four times a second.
SILENCE_S = 10.0
# What a kill of the recorder costs at most, with CHUNK_READS.
FLUSH_S = 5.0
# After a signal: one frame may be on its way, the next one holds all reads before the signal.
LAST_LOOKS = 2


class RecordingFailed(HubSpokeError):
    """The spoke cannot be recorded; what came before is in the file."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is in the file. ended: why."""

    reads: int
    dropped_reads: int
    seconds: float
    file_bytes: int
    ended: str


class _Source(Protocol):
    def read1(self, n: int, /) -> bytes: ...


class TraceFile:
    """A trace file that grows by whole chunks. Raises FormatError if it cannot be written."""

    def __init__(self, path: Path, facts: dict[str, object], now: float) -> None:
        self.reads = 0
        self._path = path
        self._held: list[Reads] = []
        self._waiting = 0
        self._told: list[int] = []  # sizes of the objects that the file knows
        self._flushed = now
        try:
            self._file: BinaryIO = path.open("xb", buffering=0)
            self._writer = FrameWriter(self, facts)
        except FileExistsError as e:
            raise FormatError(f"{path}: exists; expected a name that is free") from e
        except OSError as e:
            raise FormatError(f"{path}: cannot be written: {e.strerror}") from e

    def write(self, data: bytes, /) -> int:
        """All of it, or an error: what a full disk took of a frame is a torn one."""
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        return len(data)

    def add(self, reads: Reads, names: list[str], sizes: list[int], now: float) -> None:
        """names, sizes: of all objects so far."""
        if self._waiting + len(reads) > CHUNK_READS:
            self.flush(names, sizes, now)
        self._held.append(reads)
        self._waiting += len(reads)

    def due(self, now: float) -> bool:
        return now - self._flushed >= FLUSH_S

    def flush(self, names: list[str], sizes: list[int], now: float) -> None:
        """Write what is held as one chunk."""
        self._flushed = now
        if not self._held:
            return
        known = len(self._told)
        objects = [
            (i, size, names[i])
            for i, size in enumerate(sizes)
            if i >= known or size != self._told[i]
        ]
        whole = Reads.joined(self._held)
        try:
            self._writer.objects(objects)
            self._writer.reads(whole)
        except OSError as e:
            raise FormatError(f"{self._path}: cannot be written: {e.strerror}") from e
        self._told = list(sizes)
        self.reads += len(whole)
        self._held, self._waiting = [], 0

    def end(self, facts: dict[str, object]) -> int:
        """The last frame; returns the file's bytes."""
        try:
            self._writer.end(facts)
            os.fsync(self._file.fileno())
            return self._file.tell()
        except OSError as e:
            raise FormatError(f"{self._path}: cannot be written: {e.strerror}") from e

    def close(self) -> None:
        self._file.close()


class Recorder:
    """One recording, from the first frame to the last."""

    def __init__(
        self,
        out: Path,
        source: str,
        *,
        seconds: float | None,
        reads: int | None,
        stopped: Callable[[], bool],
    ) -> None:
        """source: what is recorded, for errors. seconds, reads: bounds. stopped: somebody wants
        it to end."""
        self._out = out
        self._seconds = seconds
        self._reads = reads
        self._stopped = stopped
        self._frames = FrameReader(source)
        self._file: TraceFile | None = None
        self._taken = 0
        self._looks = 0  # frames of facts since `stopped`

    def run(self, stream: _Source) -> Recorded:
        """Raises RecordingFailed after the file was ended, FormatError."""
        failure: str | None = None
        try:
            ended = self._follow(stream)
        except (OSError, http.client.HTTPException) as e:
            failure = ended = f"connection lost: {e}"
        except FormatError as e:
            failure = ended = str(e)
        if self._file is None:
            raise RecordingFailed(failure or ended)
        try:
            recorded = self._end(self._file, ended)
        finally:
            self._file.close()
        if failure is not None:
            raise RecordingFailed(f"{failure}; {recorded.reads} reads are in {self._out}")
        return recorded

    def _follow(self, stream: _Source) -> str:
        """Until it ends; returns why."""
        told: object = None
        while data := stream.read1(1 << 16):
            now = time.monotonic()
            for reads in self._frames.feed(data):
                if self._take(reads, now):
                    return f"{self._reads} reads"
            contents = self._frames.contents
            if contents.facts is None:
                continue
            file = self._opened(now)
            if file.due(now):
                file.flush(contents.names, contents.sizes, now)
            if contents.complete:
                return str(contents.facts.get("ended"))
            if (seconds := contents.facts.get("seconds")) == told:
                continue
            told = seconds
            if self._seconds is not None and _number(seconds) >= self._seconds:
                return f"{self._seconds:g} s"
            if self._stopped():
                self._looks += 1
                if self._looks >= LAST_LOOKS:
                    return "stopped"
        raise ConnectionError("the spoke ended the answer before the trace")

    def _opened(self, now: float) -> TraceFile:
        """The file, from the moment on when the spoke has told what the header holds."""
        if self._file is None:
            self._file = TraceFile(self._out, self._frames.contents.facts or {}, now)
        return self._file

    def _take(self, reads: Reads, now: float) -> bool:
        """Whether that was the last one wanted."""
        file = self._opened(now)
        most = len(reads)
        if self._seconds is not None:
            most = int(np.searchsorted(reads.ticks, self._seconds * TICKS, side="right"))
        if self._reads is not None:
            most = min(most, self._reads - self._taken)
        if most < len(reads):
            reads = reads.first(most)
        if most:
            contents = self._frames.contents
            file.add(reads, contents.names, contents.sizes, now)
            self._taken += most
        return self._taken == self._reads

    def _end(self, file: TraceFile, ended: str) -> Recorded:
        contents = self._frames.contents
        facts = contents.facts or {}
        length, lost = _number(facts.get("seconds")), int(_number(facts.get("dropped_reads")))
        if self._seconds is not None:
            length = min(length, self._seconds)
        file.flush(contents.names, contents.sizes, time.monotonic())
        size = file.end({**facts, "seconds": length, "dropped_reads": lost, "ended": ended})
        return Recorded(file.reads, lost, length, size, ended)


def _number(fact: object) -> float:
    return float(fact) if isinstance(fact, int | float) else 0.0


def record(
    base: str,
    out: Path,
    *,
    seconds: float | None,
    reads: int | None,
    stopped: Callable[[], bool],
) -> Recorded:
    """Record the spoke at `base`, its admin port, into a new file. See Recorder.

    A proxy from the environment is not used for loopback.
    """
    if out.exists():
        raise FormatError(f"{out}: exists; expected a name that is free")
    url = base + PATH
    host = urlsplit(url).hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    opener = build_opener(ProxyHandler({})) if local else build_opener()
    try:
        answer = opener.open(url, timeout=SILENCE_S)
    except HTTPError as e:
        with e:
            detail = e.read(1_000).decode(errors="replace") if e.code == 429 else e.reason
        raise RecordingFailed(
            f"{url}: answered {e.code} {detail}; expected a spoke's admin port"
        ) from e
    except (URLError, OSError, ValueError) as e:
        reason = getattr(e, "reason", e)
        raise RecordingFailed(f"{url}: cannot be reached: {reason}") from e
    recorder = Recorder(out, url, seconds=seconds, reads=reads, stopped=stopped)
    try:
        return recorder.run(answer)
    finally:
        with suppress(OSError):
            answer.close()
