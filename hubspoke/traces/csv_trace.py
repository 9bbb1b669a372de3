"""Traces as CSV, as libCacheSim reads them.

Source: libCacheSim, doc/quickstart_cachesim.md, "Use different trace types": columns are named by
number from 1 in a string such as `time-col=2,obj-id-col=5,obj-size-col=4,delimiter=,,
has-header=true`; time and size are optional, the delimiter and the header are guessed if they are
not told. Times are seconds, and a request is for a whole object: offset 0, its size as length.
obj-id-is-num is taken and makes no difference. op-col: only reads are taken (get, gets, read, r).

offset-col and client-col are ours: what we write has them, so that nothing is lost on a way back.
Our names are percent-encoded, as libCacheSim reads ASCII without quotes.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from hubspoke.errors import ConfigError, FormatError
from hubspoke.traces.lines import lines, wrong
from hubspoke.traces.trace import NOT_KNOWN, STATES, Trace, TraceBuilder

HEADER = "time,obj_id,obj_size,op,offset,client,state"
_READS = {"get", "gets", "read", "r"}
_COLUMNS = ("time", "obj-id", "obj-size", "op", "offset", "client")
_DELIMITERS = ",\t|;: "
_DELIMITER = re.compile(r"(?:^|,)\s*delimiter=(\\t|.)\s*(?=,|$)")
_BOOL = {"true": True, "1": True, "false": False, "0": False}
_INT_MAX = 1 << 62
EXPECTED = (
    "expected such as time-col=1,obj-id-col=2,obj-size-col=3,op-col=4,offset-col=5,client-col=6,"
    "delimiter=,,has-header=true"
)


@dataclass(frozen=True, slots=True)
class CsvParams:
    """columns: by name, from 1. delimiter, has_header: None to guess."""

    columns: dict[str, int]
    delimiter: str | None = None
    has_header: bool | None = None


def parse_params(text: str) -> CsvParams:
    """libCacheSim's way to say what the columns are. Raises ConfigError."""
    delimiter: str | None = None
    if found := _DELIMITER.search(text):
        delimiter = "\t" if found[1] == "\\t" else found[1]
        text = text[: found.start()] + text[found.end() :]
    columns: dict[str, int] = {}
    has_header: bool | None = None
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        column = name.removesuffix("-col")
        if column in _COLUMNS and name != column and value.isdecimal() and 0 < int(value) < 1_000:
            columns[column] = int(value)
        elif name == "has-header" and value.lower() in _BOOL:
            has_header = _BOOL[value.lower()]
        elif name != "obj-id-is-num" or value.lower() not in _BOOL:
            raise ConfigError(f"--params: {part!r}: {EXPECTED}")
    if "obj-id" not in columns:
        raise ConfigError(f"--params: no obj-id-col; {EXPECTED}")
    return CsvParams(columns, delimiter, has_header)


_DEFAULT = CsvParams({"time": 1, "obj-id": 2, "obj-size": 3})
_OURS = CsvParams({name: i + 1 for i, name in enumerate(_COLUMNS)}, ",", True)


def read_csv(paths: Iterable[Path], params: CsvParams | None, *, bucket: str) -> Trace:
    """The reads of all files together. params: None for what we write ourselves, by its header,
    and otherwise for time, object, size.

    bucket: of the names, unless they were written by us. Raises FormatError naming file and line.
    """
    builder = TraceBuilder()
    left_out = 0
    sources = [str(path) for path in paths]
    for source in sources:
        left_out += _read_file(Path(source), params, bucket, builder)
    if not len(builder):
        raise FormatError(f"{', '.join(sources)}: no read in it ({left_out} other requests)")
    facts: dict[str, object] = {"source": "CSV", "files": sources, "requests_left_out": left_out}
    return builder.build(facts)


def _read_file(path: Path, params: CsvParams | None, bucket: str, builder: TraceBuilder) -> int:
    """Returns the requests that are no reads."""
    rows = lines(path)
    first = next(rows, None)
    if first is None:
        raise FormatError(f"{path}: empty, expected lines of time, object, size")
    ours = params is None and first[1] == HEADER
    how = _OURS if ours else params or _DEFAULT
    delimiter = how.delimiter or _guess(path, first[1], how)
    row = _Row(path, how.columns, delimiter)
    header = how.has_header
    if header is None:  # a header has words where numbers belong
        numbers = [c for c in ("time", "obj-size") if c in how.columns]
        header = any(not _is_number(row.cell(*first, c)) for c in numbers)
    left_out = 0
    for number, text in rows if header else _again(first, rows):
        if not text.strip():
            continue
        if "op" in how.columns and row.cell(number, text, "op").lower() not in _READS:
            left_out += 1
            continue
        length = row.whole(number, text, "obj-size") if "obj-size" in how.columns else 1
        if length == 0:
            left_out += 1
            continue
        name = row.cell(number, text, "obj-id")
        builder.add(
            unquote(name) if ours else f"{bucket}/{name}",
            row.whole(number, text, "offset") if "offset" in how.columns else 0,
            length,
            at=row.seconds(number, text) if "time" in how.columns else float(number),
            client=row.cell(number, text, "client") if "client" in how.columns else 0,
            state=_state(text) if ours else NOT_KNOWN,
        )
    return left_out


def _again(first: tuple[int, str], rows: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rows


def _state(text: str) -> int:
    word = text.rpartition(",")[2]
    return next((code for code, state in STATES.items() if state == word), NOT_KNOWN)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _guess(path: Path, text: str, how: CsvParams) -> str:
    """The delimiter that gives all columns that are asked for."""
    wanted = max(how.columns.values())
    if wanted == 1:
        return ","
    for delimiter in _DELIMITERS:
        if len(text.split(delimiter)) >= wanted:
            return delimiter
    raise wrong(path, 1, f"{text[:60]!r}: expected {wanted} columns or more, by {_DELIMITERS!r}")


@dataclass(frozen=True, slots=True)
class _Row:
    """Cells of a line, by the name of the column."""

    path: Path
    columns: dict[str, int]
    delimiter: str

    def cell(self, number: int, text: str, column: str) -> str:
        cells = text.split(self.delimiter)
        at = self.columns[column]
        if at > len(cells):
            raise wrong(
                self.path, number, f"{len(cells)} columns, expected {column} in column {at}"
            )
        return cells[at - 1].strip()

    def whole(self, number: int, text: str, column: str) -> int:
        cell = self.cell(number, text, column)
        if not cell.isdecimal() or int(cell) >= _INT_MAX:
            raise wrong(self.path, number, f"{column} {cell!r}, expected a whole number of bytes")
        return int(cell)

    def seconds(self, number: int, text: str) -> float:
        cell = self.cell(number, text, "time")
        if not _is_number(cell) or not abs(float(cell)) < 1e12:
            raise wrong(self.path, number, f"time {cell!r}, expected seconds")
        return float(cell)


def write_csv(path: Path, trace: Trace) -> None:
    """With a header; a file that exists is replaced. Raises FormatError."""
    try:
        with path.open("w", encoding="ascii", newline="\n") as file:
            file.write(HEADER + "\n")
            file.writelines(_written(trace))
    except OSError as e:
        raise FormatError(f"{path}: cannot be written: {e.strerror}") from e


def _written(trace: Trace) -> Iterator[str]:
    names = [quote(name, safe="/") for name in trace.names]
    columns = (trace.at, trace.objects, trace.lengths, trace.offsets, trace.clients, trace.states)
    for i in range(0, len(trace), 4_096):  # as Python's numbers, a slice at a time
        for at, number, length, offset, client, state in zip(
            *(c[i : i + 4_096].tolist() for c in columns), strict=True
        ):
            word = STATES.get(state, "")
            yield f"{at:.6f},{names[number]},{length},read,{offset},{client},{word}\n"
