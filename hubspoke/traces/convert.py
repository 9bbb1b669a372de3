"""What `hubspoke trace convert` does: by the names of the files, from one format to another."""

from collections.abc import Sequence
from pathlib import Path

from hubspoke.errors import ConfigError
from hubspoke.traces.csv_trace import parse_params, read_csv, write_csv
from hubspoke.traces.dftracer import read_dftracer
from hubspoke.traces.format import SUFFIX, read_trace, write_trace
from hubspoke.traces.trace import Trace

_PFW, _CSV = (".pfw", ".pfw.gz"), (".csv", ".csv.gz", ".txt")
READS = (SUFFIX, *_PFW, *_CSV)
WRITES = (SUFFIX, ".csv")


def convert(
    sources: Sequence[Path],
    out: Path,
    *,
    bucket: str = "trace",
    root: str | None = None,
    params: str | None = None,
) -> Trace:
    """Read all sources, of one format, and write `out`; returns what was written.

    bucket, root: see read_dftracer. params: of CSV, see parse_params.
    Raises ConfigError for names and options that do not fit, FormatError for what is in a file.
    """
    if not out.name.endswith(WRITES):
        raise ConfigError(f"{out}: expected a name in {' or '.join(WRITES)}")
    kinds = {_kind(source) for source in sources}
    if len(kinds) != 1:
        raise ConfigError(f"{len(kinds)} formats, expected files of one")
    kind = kinds.pop()
    if params is not None and kind != "csv":
        raise ConfigError("--params is about CSV, expected such a file")
    if root is not None and kind != "pfw":
        raise ConfigError("--root is about DFTracer's files, expected .pfw")
    if kind == "pfw":
        trace = read_dftracer(sources, bucket=bucket, root=root)
    elif kind == "csv":
        trace = read_csv(sources, None if params is None else parse_params(params), bucket=bucket)
    elif len(sources) > 1:
        raise ConfigError(f"{len(sources)} traces, expected one {SUFFIX}")
    else:
        trace = read_trace(sources[0])
    write = write_csv if out.name.endswith(".csv") else write_trace
    write(out, trace)
    return trace


def _kind(path: Path) -> str:
    for kind, suffixes in (("own", (SUFFIX,)), ("pfw", _PFW), ("csv", _CSV)):
        if path.name.endswith(suffixes):
            return kind
    raise ConfigError(f"{path}: expected a name in {', '.join(READS)}")
