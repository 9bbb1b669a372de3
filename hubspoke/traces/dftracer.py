"""Traces of DFTracer and of DLIO's profiler before it, `.pfw` and `.pfw.gz`.

Source: the DFTracer documentation, "DFTracer Format" (docs/trace_format.rst in
hariharan-devarajan/dftracer), and what its POSIX layer logs (src/dftracer/brahma/posix.cpp). JSON
lines, in older versions between "[" and "]":

    {"name":"read","cat":"POSIX","pid":..,"tid":..,"ts":us,"dur":us,"ph":"X" or 1,
     "args":{"hhash":..,"fhash":.. or "fname":..,"fd":..,"count":..,"ret":..}}
    {"name":"FH","ph":"M" or 4,"args":{"name":path,"value":hash}}     what a fhash stands for

pread says its offset. read goes on where the descriptor stands: 0 after open, moved by read and
by lseek, which says where to. Without a descriptor in the events a process is taken to have one
for each file. What was read is `ret`; without it what was asked for, `count` or `size`.

Reads through a mapping or by stdio are not in such events, and writes are no reads; both are left
out. A run has a file for each process: they are read together, in order of time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hubspoke.errors import FormatError
from hubspoke.traces.lines import lines, wrong
from hubspoke.traces.trace import Trace, TraceBuilder

_READS = {"read", "pread", "pread64"}
_OPENS = {"open", "open64", "openat", "openat64", "creat", "creat64"}
_SEEKS = {"lseek", "lseek64"}
_METADATA = ("M", 4)
_COMPLETE = ("X", 1)
_BYTES_MAX = 1 << 62
SEEK_SET, SEEK_CUR = 0, 1


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ph: str | int = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float | None = None
    args: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of interest. handle: process and descriptor; worker: process and thread."""

    at: float
    name: str
    file: str | int
    handle: tuple[Any, ...]
    worker: tuple[Any, ...]
    ret: int | None
    count: int | None
    offset: int | None
    whence: int | None


class _Calls:
    """What the files tell, before it is known in which order."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.paths: dict[str, str] = {}  # hash -> path
        self.skipped = 0

    def take(self, path: Path, number: int, text: str) -> None:
        text = text.strip().removeprefix("[").removesuffix("]").strip().removesuffix(",")
        if not text:
            return
        try:
            event = msgspec.json.decode(text, type=_Event)
        except msgspec.DecodeError as e:
            shown = text if len(text) <= 60 else text[:60] + "..."
            raise wrong(path, number, f"{shown!r}: expected an event of DFTracer: {e}") from e
        if event.ph in _METADATA and event.name == "FH":
            value, name = event.args.get("value"), event.args.get("name")
            if not isinstance(name, str) or value is None:
                raise wrong(path, number, f"FH {event.args}: expected args with name and value")
            self.paths[str(value)] = name
        elif event.ph in _COMPLETE and event.cat == "POSIX" and event.name in _CALLS:
            self._call(path, number, event)
        else:
            self.skipped += 1

    def _call(self, path: Path, number: int, event: _Event) -> None:
        args = event.args
        file = args.get("fname", args.get("fhash"))
        if not isinstance(file, str | int):
            raise wrong(path, number, f"{event.name} of no file: expected args with fname or fhash")
        if event.ts is None:
            raise wrong(path, number, f"{event.name} at no time: expected ts, in microseconds")
        known = {k: v for k in _NUMBERS if isinstance(v := args.get(k), int)}
        if (odd := args.get("ret")) is not None and "ret" not in known:
            raise wrong(path, number, f"{event.name} returned {odd!r}: expected a number")
        process = (args.get("hhash", args.get("hostname")), event.pid)
        # An open tells its descriptor by what it returns.
        fd = known.get("ret") if event.name in _OPENS else known.get("fd")
        count = known.get("count", known.get("size"))
        if event.name in _READS and "ret" not in known and count is None:
            raise wrong(path, number, f"{event.name} of unknown length: expected ret or count")
        if event.name.startswith("pread") and "offset" not in known:
            raise wrong(path, number, f"{event.name} without an offset: expected it in args")
        self.calls.append(
            _Call(
                at=event.ts,
                name=event.name,
                file=file,
                handle=(process, str(file) if fd is None else fd),
                worker=(process, event.tid),
                ret=known.get("ret"),
                count=count,
                offset=known.get("offset"),
                whence=known.get("whence"),
            )
        )


_CALLS = _READS | _OPENS | _SEEKS
_NUMBERS = ("ret", "fd", "count", "size", "offset", "whence")


def read_dftracer(paths: Iterable[Path], *, bucket: str, root: str | None) -> Trace:
    """The reads in all of the files, which are those of one run.

    bucket: of the names. root: a folder; only files below it, their keys relative to it.
    Raises FormatError naming file and line; if there is no read in any of them.
    """
    found = _Calls()
    sources = [str(path) for path in paths]
    for source in sources:
        for number, text in lines(Path(source)):
            found.take(Path(source), number, text)
    found.calls.sort(key=lambda call: call.at)
    builder = TraceBuilder()
    positions: dict[tuple[Any, ...], int] = {}
    outside = 0
    for call in found.calls:
        span = _moved(call, positions)
        if span is None:
            continue
        name = _key(found.paths.get(str(call.file), str(call.file)), root)
        if name is None:
            outside += 1
            continue
        offset, length = span
        at = call.at / 1e6
        builder.add(f"{bucket}/{name}", offset, length, at=at, client=call.worker)
    if not len(builder):
        where = "" if root is None else f" below {root} ({outside} elsewhere)"
        raise FormatError(
            f"{', '.join(sources)}: no read{where} among {len(found.calls)} calls and "
            f"{found.skipped} other events: expected events read, pread of category POSIX"
        )
    facts: dict[str, object] = {
        "source": "DFTracer",
        "files": sources,
        "events_left_out": found.skipped,
        "reads_outside": outside,
    }
    return builder.build(facts)


def _moved(call: _Call, positions: dict[tuple[Any, ...], int]) -> tuple[int, int] | None:
    """What the call read, as offset and length, None for nothing; moves its descriptor."""
    if call.name in _OPENS:
        positions[call.handle] = 0
        return None
    position = positions.get(call.handle, 0)
    if call.name in _SEEKS:
        if call.ret is not None and call.ret >= 0:
            positions[call.handle] = call.ret
        elif call.ret is None and call.whence == SEEK_SET and call.offset is not None:
            positions[call.handle] = call.offset
        elif call.ret is None and call.whence == SEEK_CUR and call.offset is not None:
            positions[call.handle] = position + call.offset
        return None
    length = call.count if call.ret is None else call.ret
    if length is None or not 0 < length < _BYTES_MAX:  # the end of the file, or an error
        return None
    offset = position
    if call.name == "read":
        positions[call.handle] = position + length
    elif call.offset is not None:
        offset = call.offset
    return (offset, length) if 0 <= offset < _BYTES_MAX else None


def _key(path: str, root: str | None) -> str | None:
    if root is None:
        return path.lstrip("/")
    below = root.rstrip("/") + "/"
    return path.removeprefix(below) if path.startswith(below) else None
