"""The file format: what version 1 is, what damage is told, what a kill leaves."""

import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hubspoke.errors import FormatError
from hubspoke.traces import format as fmt
from hubspoke.traces.format import FrameReader, FrameWriter, read_trace, write_trace
from hubspoke.traces.trace import Trace

from .samples import SAMPLE, same, trace, traces

GOLDEN = Path(__file__).with_name("trace_v1.hstrace")
TOGETHER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def stored(t: Trace, folder: Path) -> Path:
    path = folder / "a.hstrace"
    write_trace(path, t)
    return path


def test_a_file_of_version_1_is_read_as_ever() -> None:
    """Not its bytes: those depend on the version of zstd."""
    found = read_trace(GOLDEN)
    assert same(found, SAMPLE)
    assert found.facts == {**SAMPLE.facts, "complete": True}


@TOGETHER
@given(traces())
def test_what_was_written_is_read(tmp_path: Path, t: Trace) -> None:
    assert same(read_trace(stored(t, tmp_path)), t)


def test_more_reads_than_fit_into_one_chunk(tmp_path: Path) -> None:
    reads = [(3 * i, i % 2, i * 7 % 1000, 1 + i % 5, i % 64, 0) for i in range(fmt.CHUNK_READS + 9)]
    t = trace([("b/a", 2000), ("b/b", 2000)], reads)
    found = read_trace(stored(t, tmp_path))
    assert same(found, t)
    assert same(found.part(5, 9), trace([("b/a", 2000), ("b/b", 2000)], reads[5:9]))


@TOGETHER
@given(cut=st.floats(0, 1))
def test_a_file_cut_off_anywhere_has_its_whole_chunks(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "cut.hstrace"
    ends = growing(path)
    size = int(cut * ends[-1])
    path.write_bytes(path.read_bytes()[:size])
    if size < ends[0]:
        with pytest.raises(FormatError, match=r"cut.hstrace: ends at byte \d+, before any frame"):
            read_trace(path)
        return
    found = read_trace(path)
    whole = sum(end <= size for end in ends[2:-1])
    assert len(found) == 10 * whole
    assert found.facts["complete"] == (size == ends[-1])


def growing(path: Path) -> list[int]:
    """A file of facts, objects, 5 chunks of 10 reads, and its end; where each frame ends."""
    sink = io.BytesIO()
    writer = FrameWriter(sink, {"version": "1"})
    ends = [sink.tell()]
    writer.objects([(0, 1 << 20, "b/a")])
    ends.append(sink.tell())
    for i in range(5):
        writer.reads(chunk(start=i * 10))
        ends.append(sink.tell())
    writer.end({})
    path.write_bytes(sink.getvalue())
    return [*ends, sink.tell()]


def chunk(start: int, objects: int = 0) -> fmt.Reads:
    n = np.arange(10)
    return fmt.Reads(
        start + n,
        np.full(10, objects, np.int32),
        4096 * n,
        np.full(10, 4096),
        np.zeros(10, np.int32),
        np.zeros(10, np.uint8),
    )


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_is_found_and_its_place_told(
    tmp_path: Path, where: float, flip: int
) -> None:
    path = tmp_path / "flip.hstrace"
    ends = growing(path)
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    data[at] ^= flip
    path.write_bytes(data)
    with pytest.raises(FormatError) as e:
        read_trace(path)
    assert str(path) in str(e.value)
    if at >= len(fmt.MAGIC):
        begins = max([len(fmt.MAGIC), *(end for end in ends if end <= at)])
        assert f"damaged at byte {begins}:" in str(e.value)


@TOGETHER
@given(data=st.binary(max_size=200))
def test_any_bytes_behind_the_magic_give_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.hstrace"
    path.write_bytes(fmt.MAGIC + data)
    with pytest.raises(FormatError, match=r"any\.hstrace: "):
        read_trace(path)


@settings(max_examples=200, deadline=None)
@given(payload=st.binary(max_size=100), kind=st.sampled_from([b"OBJS", b"READ", b"ENDS", b"FACT"]))
def test_sealed_nonsense_gives_an_error_or_reads_and_nothing_else(
    payload: bytes, kind: bytes
) -> None:
    """Whoever makes the digests right can still not crash the reader."""
    reader = begun()
    try:
        for reads in reader.feed(frame(kind, zstandard.compress(payload), reader.place)):
            assert len(reads)
    except FormatError as e:
        assert str(e).startswith("x: damaged at byte")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_sealed_columns_of_any_content_give_a_trace_or_an_error(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    widths = data.draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=6, max_size=6))
    code = sum(w << 4 * i for i, w in enumerate(widths))
    columns = data.draw(st.binary(min_size=count * sum(widths), max_size=count * sum(widths)))
    payload = struct.pack("<II", count, code) + columns
    reader = begun()
    try:
        chunks = list(reader.feed(frame(b"READ", zstandard.compress(payload), reader.place)))
        t = fmt._joined(chunks, reader.contents, {})
    except FormatError:
        return
    assert (t.offsets + t.lengths <= t.sizes[t.objects]).all() and (t.offsets >= 0).all()


def begun() -> FrameReader:
    sink = io.BytesIO()
    writer = FrameWriter(sink, {"a": 1})
    writer.objects([(0, 1 << 20, "b/a")])
    reader = FrameReader("x")
    assert list(reader.feed(sink.getvalue())) == []
    return reader


def frame(kind: bytes, body: bytes, place: int) -> bytes:
    head = kind + struct.pack("<I", len(body))
    check = xxhash.xxh32_intdigest(head, seed=place)
    digest = struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    return head + struct.pack("<I", check) + body + digest


def test_a_frame_that_inflates_to_more_than_any_real_one_is_refused() -> None:
    reader = begun()
    bomb = zstandard.compress(bytes(fmt.PAYLOAD_MAX + 1))
    with pytest.raises(FormatError, match="inflated, expected at most"):
        list(reader.feed(frame(b"READ", bomb, reader.place)))


Told = Callable[[FrameWriter], None]


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (lambda w: w.reads(chunk(0, objects=1)), "object 1 is read and not told of"),
        (lambda w: w.objects([(2, 5, "b/c")]), "object 2 is 'b/c', expected number 1"),
        (lambda w: w.objects([(0, 5, "b/c")]), "object 0 is 'b/c', expected number 1"),
        (lambda w: w.objects([(1, -5, "b/c")]), "object 'b/c' of size -5"),
        (lambda w: (w.end({}), w.end({})), "ENDS after ENDS, expected the end of the file"),
    ],
)
def test_frames_that_contradict_each_other_are_damage(told: Told, what: str) -> None:
    sink = io.BytesIO()
    writer = FrameWriter(sink, {"a": 1})
    writer.objects([(0, 1 << 20, "b/a")])
    told(writer)
    with pytest.raises(FormatError, match=f"x: damaged at byte .*{what}"):
        list(FrameReader("x").feed(sink.getvalue()))


def test_an_object_that_grew_has_its_last_size(tmp_path: Path) -> None:
    sink = io.BytesIO()
    writer = FrameWriter(sink, {"a": 1})
    writer.objects([(0, 4096, "b/a")])
    writer.objects([(0, 40960, "b/a"), (1, 0, "b/b")])
    writer.reads(chunk(0))
    path = tmp_path / "grown.hstrace"
    path.write_bytes(sink.getvalue())
    assert read_trace(path).sizes.tolist() == [40960, 0]


def test_reads_outside_their_object_name_the_file(tmp_path: Path) -> None:
    sink = io.BytesIO()
    writer = FrameWriter(sink, {"a": 1})
    writer.objects([(0, 4096, "b/a")])
    writer.reads(chunk(0))
    path = tmp_path / "outside.hstrace"
    path.write_bytes(sink.getvalue())
    with pytest.raises(
        FormatError, match=r"outside\.hstrace: read 1: offset 4096, expected a range"
    ):
        read_trace(path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"time,id\n1,2\n", "begins with b'time,id.n', expected b'hstrace1'.*convert"),
        (b"hstrace2....", "version b'2', this HubSpoke reads 1"),
        (b"", "ends at byte 0, before any frame"),
        (b"hstr", "ends at byte 4, before any frame"),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"other: {what}"):
        read_trace(path)
    with pytest.raises(FormatError, match="none: cannot be read: No such file"):
        read_trace(tmp_path / "none")


def test_a_trace_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be written: No such file"):
        write_trace(tmp_path / "none" / "a.hstrace", SAMPLE)
    path = stored(SAMPLE, tmp_path)
    write_trace(path, SAMPLE.part(0, 2))
    assert [p.name for p in tmp_path.iterdir()] == ["a.hstrace"]
    assert len(read_trace(path)) == 2
