"""Traces of other tools: what is read in them, and what is told of what is wrong."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from hubspoke.errors import ConfigError, FormatError
from hubspoke.traces.convert import convert
from hubspoke.traces.csv_trace import HEADER, parse_params
from hubspoke.traces.format import read_trace, write_trace
from hubspoke.traces.trace import STATES, Trace

from .samples import SAMPLE, traces

Row = tuple[float, str, int, int, int, str | None]


def rows(trace: Trace) -> list[Row]:
    return [
        (at, trace.names[o], offset, length, client, STATES.get(state))
        for at, o, offset, length, client, state in zip(
            trace.at.tolist(), trace.objects.tolist(), trace.offsets.tolist(),
            trace.lengths.tolist(), trace.clients.tolist(), trace.states.tolist(), strict=True,
        )
    ]  # fmt: skip


def event(name: str, ts: int, pid: int = 7, tid: int = 7, ph: Any = "X", **args: Any) -> str:
    more = {"fhash": "f1", "hhash": "h", **args}
    return json.dumps(
        {"id": 1, "name": name, "cat": "POSIX", "pid": pid, "tid": tid, "ts": ts, "dur": 5,
         "ph": ph, "args": more}
    )  # fmt: skip


def file_hash(value: str | int, name: str, ph: Any = "M") -> str:
    args = {"name": name, "value": value}
    return json.dumps({"name": "FH", "cat": "dftracer", "pid": 7, "tid": 7, "ph": ph, "args": args})


RUN = [
    "[",
    event("open64", 1_000_000, ret=3, flags=0),
    event("read", 1_000_100, fd=3, count=4096, ret=4096),
    event("read", 1_000_200, fd=3, count=4096, ret=100),  # short: the position says so
    event("read", 1_000_300, fd=3, count=4096, ret=50),
    event("lseek", 1_000_400, fd=3, offset=-10, whence=2, ret=9_000),
    event("read", 1_000_500, fd=3, count=10, ret=10, tid=8),
    event("pread64", 1_000_600, fd=3, count=20, ret=20, offset=1 << 33),
    event("read", 1_000_700, fd=3, count=10, ret=0),  # the end of the file
    event("read", 1_000_750, fd=3, count=10, ret=-1),
    event("write", 1_000_800, fd=3, count=10, ret=10),
    event("open64", 1_000_850, ret=3, flags=0),  # the same descriptor anew
    event("read", 1_000_900, fd=3, count=7, ret=7),
    '{"name":"train","cat":"PYTHON","ph":"X","ts":1,"pid":7,"tid":7,"args":{}}',
    file_hash("f1", "/data/set/a.bin"),
    "]",
]
READS: list[Row] = [
    (0.0, "b/data/set/a.bin", 0, 4096, 0, None),
    (0.0001, "b/data/set/a.bin", 4096, 100, 0, None),
    (0.0002, "b/data/set/a.bin", 4196, 50, 0, None),
    (0.0004, "b/data/set/a.bin", 9000, 10, 1, None),
    (0.0005, "b/data/set/a.bin", 1 << 33, 20, 0, None),
    (0.0008, "b/data/set/a.bin", 0, 7, 0, None),
]


def converted(tmp_path: Path, text: str, name: str = "in.pfw", **options: Any) -> list[Row]:
    source, out = tmp_path / name, tmp_path / "out.hstrace"
    data = text.encode()
    source.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    convert([source], out, **{"bucket": "b", **options})
    return [(round(at, 6), *rest) for at, *rest in rows(read_trace(out))]  # type: ignore[misc]


@pytest.mark.parametrize("name", ["in.pfw", "in.pfw.gz"])
def test_reads_of_a_dftracer_run(tmp_path: Path, name: str) -> None:
    assert converted(tmp_path, "\n".join(RUN), name) == READS
    facts = read_trace(tmp_path / "out.hstrace").facts
    assert facts["source"] == "DFTracer" and facts["events_left_out"] == 2


def test_dftracers_newer_numbers_for_kinds_of_lines(tmp_path: Path) -> None:
    text = [file_hash("f1", "/x", ph=4), event("read", 5, fd=3, ret=9, ph=1)]
    assert converted(tmp_path, "\n".join(text)) == [(0.0, "b/x", 0, 9, 0, None)]


def test_dlios_older_lines_with_names_and_without_descriptors(tmp_path: Path) -> None:
    text = [
        event("open", 1, fname="/d/a", fhash=None),
        event("read", 2, fname="/d/a", size=10),
        event("read", 3, fname="/d/a", size=10),
        event("lseek", 4, fname="/d/a", offset=5, whence=0),
        event("read", 5, fname="/d/a", size=10),
        event("lseek", 6, fname="/d/a", offset=5, whence=1),
        event("read", 7, fname="/d/a", size=10),
        event("read", 8, fname="/d/a", size=10, pid=8),
        "{}",
    ]
    found = [row[1:5] for row in converted(tmp_path, "\n".join(text))]
    assert [(name, offset) for name, offset, *_ in found] == [
        ("b/d/a", 0), ("b/d/a", 10), ("b/d/a", 5), ("b/d/a", 20), ("b/d/a", 0),
    ]  # fmt: skip


def test_the_files_of_a_run_are_one_trace(tmp_path: Path) -> None:
    one, two, out = tmp_path / "1.pfw", tmp_path / "2.pfw.gz", tmp_path / "out.hstrace"
    one.write_text("\n".join([event("read", 30, fd=3, ret=1), event("read", 10, fd=3, ret=2)]))
    two.write_bytes(
        gzip.compress(
            "\n".join([event("read", 20, 9, fd=3, ret=4), file_hash("f1", "/a")]).encode()
        )
    )
    convert([one, two], out)
    assert [row[1:5] for row in rows(read_trace(out))] == [
        ("trace/a", 0, 2, 0), ("trace/a", 0, 4, 1), ("trace/a", 2, 1, 0),
    ]  # fmt: skip


def test_only_files_below_a_root(tmp_path: Path) -> None:
    text = [
        file_hash("in", "/data/set/x/a"), file_hash("out", "/data/settled/a"),
        event("read", 1, fhash="in", ret=1), event("read", 2, fhash="out", ret=1),
    ]  # fmt: skip
    found = converted(tmp_path, "\n".join(text), root="/data/set")
    assert [row[1] for row in found] == ["b/x/a"]
    with pytest.raises(FormatError, match=r"no read below /none \(2 elsewhere\) among 2 calls"):
        converted(tmp_path, "\n".join(text), root="/none")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{nonsense", r"'\{nonsense': expected an event of DFTracer"),
        ('{"ts": "soon"}', "expected an event of DFTracer: Expected `int . float . null`"),
        (event("pread", 1, ret=4), "pread without an offset: expected it in args"),
        (event("read", 1, fd=3), "read of unknown length: expected ret or count"),
        (event("read", 1, fhash=None, ret=1), "read of no file: expected args with fname or fhash"),
        (event("read", 1, ret="x", fd=3), "read returned 'x': expected a number"),
        ('{"name":"read","cat":"POSIX","ph":"X","args":{"fname":"a","ret":1}}', "expected ts"),
        ('{"name":"FH","ph":"M","args":{"name":5}}', "FH .*: expected args with name and value"),
        ("\x01" * (1 << 21), "more than 1048576 bytes, expected a line"),
    ],
)
def test_a_wrong_line_is_told_with_file_and_number(tmp_path: Path, line: str, what: str) -> None:
    with pytest.raises(FormatError, match=rf"in\.pfw: line 3: .*{what}"):
        converted(tmp_path, "\n".join([*RUN[:2], line, *RUN[2:]]))


def test_damaged_gzip_other_bytes_and_nothing_are_told(tmp_path: Path) -> None:
    path, out = tmp_path / "in.pfw.gz", tmp_path / "out.hstrace"
    path.write_bytes(gzip.compress("\n".join(RUN).encode())[:-20])
    with pytest.raises(FormatError, match=r"in\.pfw\.gz: line \d+: damaged gzip"):
        convert([path], out)
    path.write_bytes(b"{}\n\xff")
    with pytest.raises(FormatError, match="line 2: byte 0xff, expected text in UTF-8"):
        convert([path], out)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="no read among 0 calls"):
        convert([path], out)
    with pytest.raises(FormatError, match=r"none\.pfw: cannot be read: No such file"):
        convert([tmp_path / "none.pfw"], out)
    assert not out.exists()


LIB: list[Row] = [(0.0, "b/7", 0, 512, 0, None), (2.5, "b/x y", 0, 1024, 0, None)]


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("10,7,512\n12.5,x y,1024\n", None),
        ("time,id,size\n10,7,512\n12.5,x y,1024\n", None),
        ("10\t7\t512\n12.5\tx y\t1024\n", None),
        ("s;i;t\n512;7;10\n1024;x y;12.5\n", "time-col=3, obj-id-col=2, obj-size-col=1"),
        ("1,2,3\n10,7,512\n12.5,x y,1024\n",
         "time-col=1,obj-id-col=2,obj-size-col=3,delimiter=,,has-header=true,obj-id-is-num=1"),
        ("10,7,512,get\n11,9,9,set\n12.5,x y,1024,GET\n",
         "time-col=1,obj-id-col=2,obj-size-col=3,op-col=4"),
        ("10|7|512\n\n12.5|x y|1024\n11|z|0\n",
         "time-col=1,obj-id-col=2,obj-size-col=3,delimiter=|"),
    ],
)  # fmt: skip
def test_csv_as_libcachesim_reads_it(tmp_path: Path, text: str, params: str | None) -> None:
    assert converted(tmp_path, text, "in.csv", params=params) == LIB


def test_csv_without_time_or_size(tmp_path: Path) -> None:
    found = converted(tmp_path, "a\nb\na\n", "in.txt", params="obj-id-col=1,has-header=false")
    assert [row[1:4] for row in found] == [("b/a", 0, 1), ("b/b", 0, 1), ("b/a", 0, 1)]


@pytest.mark.parametrize(
    ("text", "params", "what"),
    [
        ("1,2,3\n1,2\n", None, "line 2: 2 columns, expected obj-size in column 3"),
        ("1,2,3\nx,2,3\n", None, "line 2: time 'x', expected seconds"),
        ("1,2,3\nnan,2,3\n", None, "line 2: time 'nan', expected seconds"),
        ("1,2,3\n1,2,-3\n", None, "line 2: obj-size '-3', expected a whole number of bytes"),
        ("1,2,3\n1,2,1e3\n", None, "line 2: obj-size '1e3', expected a whole number"),
        (f"1,2,3\n1,2,{1 << 63}\n", None, "line 2: obj-size '9223372036854775808'"),
        ("just words\n", None, "line 1: 'just words': expected 3 columns or more"),
        ("", None, "empty, expected lines of time, object, size"),
        ("1,2,3,set\n", "obj-id-col=2,op-col=4", "no read in it .1 other requests"),
    ],
)
def test_a_wrong_csv_is_told_with_file_and_line(
    tmp_path: Path, text: str, params: str | None, what: str
) -> None:
    with pytest.raises(FormatError, match=rf"in\.csv: {what}"):
        converted(tmp_path, text, "in.csv", params=params)


@pytest.mark.parametrize("text", ["time-col=1", "obj-id-col=0", "obj-id-col=x", "obj-id=1", "what"])
def test_wrong_params_are_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--params: .*expected such as time-col=1"):
        parse_params(text)


def test_delimiters_that_are_commas_or_tabs() -> None:
    assert parse_params("obj-id-col=1,delimiter=,,has-header=0").delimiter == ","
    assert parse_params(r"obj-id-col=1, delimiter=\t").delimiter == "\t"
    assert parse_params("delimiter=;,obj-id-col=4").columns == {"obj-id": 4}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(traces())
def test_ours_to_csv_and_back(tmp_path: Path, trace: Trace) -> None:
    """Offsets, clients and states included; what is not read is not in a CSV, nor are facts."""
    if not len(trace) or trace.lengths.max() >= 1 << 62 or trace.offsets.max() >= 1 << 62:
        return
    own, text, again = tmp_path / "a.hstrace", tmp_path / "a.csv", tmp_path / "b.hstrace"
    write_trace(own, trace)
    convert([own], text)
    convert([text], again)

    def comparable(t: Trace) -> list[Any]:
        clients: dict[int, int] = {}
        return [
            (round(at - t.at[0], 6), *row, clients.setdefault(client, len(clients)), state)
            for at, *row, client, state in rows(t)
        ]

    if trace.seconds < 1e6:
        assert comparable(read_trace(again)) == comparable(trace)


def test_our_csv_is_one_that_libcachesim_reads(tmp_path: Path) -> None:
    own, text = tmp_path / "a.hstrace", tmp_path / "a.csv"
    write_trace(own, SAMPLE)
    convert([own], text)
    lines = text.read_bytes().decode("ascii").splitlines()
    assert lines[0] == HEADER
    assert lines[1] == "0.000000,bkt/a,4096,read,0,0,miss"
    assert lines[3] == "0.001000,bkt/%C3%A9,10,read,0,7,"
    found = converted(
        tmp_path, text.read_text(), "lib.csv", params="time-col=1,obj-id-col=2,obj-size-col=3"
    )
    assert [row[1:4] for row in found][2] == ("b/bkt/%C3%A9", 0, 10)


@pytest.mark.parametrize(
    ("sources", "out", "options", "what"),
    [
        (["a.pfw"], "out.json", {}, "out.json: expected a name in .hstrace or .csv"),
        (["a.xyz"], "out.csv", {}, "a.xyz: expected a name in .hstrace, .pfw"),
        (["a.pfw", "a.csv"], "out.csv", {}, "2 formats, expected files of one"),
        (["a.pfw"], "out.csv", {"params": "obj-id-col=1"}, "--params is about CSV"),
        (["a.csv"], "out.csv", {"root": "/x"}, "--root is about DFTracer"),
        (["a.hstrace", "b.hstrace"], "out.csv", {}, "2 traces, expected one .hstrace"),
    ],
)
def test_names_and_options_that_do_not_fit(
    sources: list[str], out: str, options: dict[str, str], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        convert([Path(s) for s in sources], Path(out), **options)
