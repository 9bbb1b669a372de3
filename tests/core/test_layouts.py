"""Parsers of indexes: against what the real writers say, and against bytes that are wrong."""

import contextlib
import io
import json
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubspoke.core.layouts import probe
from hubspoke.core.layouts.layout import Layout, NoLayout, Span, finish
from hubspoke.core.layouts.probe import Look

GOLDEN = Path(__file__).parent.parent / "golden" / "layouts"
PARQUET = [p.stem for p in sorted(GOLDEN.glob("*.parquet"))]


def look_at(content: bytes, look: Look) -> Layout:
    """As the shell does: bytes for looks, until the layout is there."""
    for _ in range(2):
        start, length = look.span
        seen = finish(probe.read(look, content[start : start + length]))
        if isinstance(seen, Layout):
            return seen
        assert isinstance(seen, Look)
        look = seen
    raise AssertionError("a third look")


def safetensors(tensors: dict[str, bytes]) -> bytes:
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, body in tensors.items():
        head[name] = {"dtype": "U8", "shape": [len(body)], "data_offsets": [at, at + len(body)]}
        at += len(body)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensors.values())


def npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, x=np.arange(5_000), y=np.arange(3))
    return out.getvalue()


def big_npz() -> bytes:
    """Longer than what a read of its end brings along."""
    out = io.BytesIO()
    np.savez(out, x=np.arange(200_000), y=np.arange(50_000))
    return out.getvalue()


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("000.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    return out.getvalue()


def assert_told(folder: Path, name: str) -> None:
    """Column chunks lie where pyarrow says that they do."""
    content = (folder / f"{name}.parquet").read_bytes()
    told = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    layout = look_at(content, Look.tail(len(content)))
    assert layout.format == "parquet"
    assert list(layout.names) == told["names"]
    assert layout.offsets.tolist() == told["offsets"]
    assert layout.lengths.tolist() == told["lengths"]
    assert layout.index == (len(content) - 8 - told["footer_bytes"], told["footer_bytes"])


@pytest.mark.parametrize("name", PARQUET)
def test_column_chunks_lie_where_pyarrow_reads_them(name: str) -> None:
    assert_told(GOLDEN, name)


def test_members_of_an_npz_lie_where_zipfile_reads_them() -> None:
    content = npz()
    layout = look_at(content, Look.tail(len(content)))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        assert layout.offsets.tolist() == [[i.header_offset for i in infos]]
        assert list(layout.names) == [i.filename for i in infos] == ["x.npy", "y.npy"]
        assert layout.index.offset == archive.start_dir
    assert int(layout.lengths.sum()) == layout.index.offset


def test_directory_of_zip64_is_found() -> None:
    # zipfile writes the long form when it is told that a member may become long.
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for n in range(70_000):  # more than 16 bits count
            archive.writestr(zipfile.ZipInfo(f"{n:05}"), b"")
    content = out.getvalue()
    layout = look_at(content, Look.tail(len(content)))
    assert len(layout.names) == 70_000
    assert layout.names[-1] == "69999"


def test_member_beyond_4_gib_is_found() -> None:
    extra = (1).to_bytes(2, "little") + (16).to_bytes(2, "little")
    extra += (5 << 30).to_bytes(8, "little") + (6 << 30).to_bytes(8, "little")
    entry = zip_entry(b"big", 0xFFFFFFFF, size=0xFFFFFFFF, extra=b"\7\0\0\0" + extra)
    look = Look(12 << 30, Span(11 << 30, len(entry)), "zip")
    layout = finish(probe.read(look, entry))
    assert isinstance(layout, Layout)
    assert layout.offsets.tolist() == [[6 << 30]]
    lost = zip_entry(b"big", 0xFFFFFFFF, size=0xFFFFFFFF, extra=b"\1\0\0\0")
    with pytest.raises(NoLayout, match="nowhere"):
        finish(probe.read(Look(1 << 40, Span(0, len(lost)), "zip"), lost))


def zip_entry(name: bytes, offset: int, *, size: int = 0, extra: bytes = b"") -> bytes:
    return (
        b"PK\1\2"
        + bytes(16)
        + (0).to_bytes(4, "little")
        + size.to_bytes(4, "little")
        + len(name).to_bytes(2, "little")
        + len(extra).to_bytes(2, "little")
        + bytes(10)
        + offset.to_bytes(4, "little")
        + name
        + extra
    )


def test_tensors_lie_behind_the_header() -> None:
    content = safetensors({"a": b"x" * 10, "b": b"y" * 20})
    layout = look_at(content, Look.head(len(content)))
    assert layout.format == "safetensors"
    assert list(layout.names) == ["a", "b"]
    for name, start, length in zip(layout.names, layout.offsets[0], layout.lengths[0], strict=True):
        assert content[start : start + length] == {"a": b"x" * 10, "b": b"y" * 20}[name]


def test_tar_is_recognised_by_its_first_head() -> None:
    content = tar()
    assert look_at(content, Look.head(len(content))).format == "tar"
    wrong = bytearray(content)
    wrong[0] ^= 1
    with pytest.raises(NoLayout):
        look_at(bytes(wrong), Look.head(len(wrong)))


def test_reads_are_told_their_parts() -> None:
    content = safetensors({"a": b"x" * 10, "b": b"y" * 20, "c": b"z" * 5})
    layout = look_at(content, Look.head(len(content)))
    start = int(layout.offsets[0, 0])
    assert layout.touched(0, start) == []
    assert layout.touched(start, 1) == [0]
    assert layout.touched(start + 9, 2) == [0, 1]
    assert layout.touched(start + 10, 25) == [1, 2]
    assert layout.touched(len(content), 5) == []


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "missing|no format"),
        (bytes(600), "no safetensors"),
        (b"PK\5\6" + bytes(18), "beyond the end"),
        (b"x" * 40 + b"PK\5\6" + bytes(16) + b"\1\0", "comment"),
        (b"x" * 40 + b"PK\5\6" + b"\xff" * 16 + b"\0\0", "zip64"),
        (b"\xff\xff\xff\x00PAR1", "longer than the file"),
        (b"x" * 100 + b"\0\0\0\0PAR1", "longer than the file"),
    ],
)
def test_what_is_no_index_is_refused(content: bytes, wrong: str) -> None:
    for look in (Look.tail(len(content)), Look.head(len(content))):
        with pytest.raises(NoLayout):
            look_at(content, look)


def test_short_answer_is_refused() -> None:
    with pytest.raises(NoLayout, match="missing"):
        finish(probe.read(Look.head(1_000), b"short"))


def test_long_index_is_not_looked_at() -> None:
    tail = bytes(90) + (17 << 20).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(NoLayout, match="too long"):
        finish(probe.read(Look.tail(1 << 30), tail))


def footer(*fields: bytes) -> bytes:
    return b"".join(fields) + b"\0"


def read_footer(data: bytes, size: int = 1 << 20) -> Layout:
    look = Look(size, Span(size - 8 - len(data), len(data)), "parquet")
    layout = finish(probe.read(look, data))
    assert isinstance(layout, Layout)
    return layout


@pytest.mark.parametrize(
    "data",
    [
        footer(b"\x1c" * 64),  # structures in structures without end
        footer(b"\x19\xfc\xff\xff\xff\xff\x0f"),  # a list of 4 billion
        footer(b"\x1b\xff\xff\xff\xff\x0f\x88"),  # a map of as many
        footer(b"\x16" + b"\xff" * 12),  # a number without end
        footer(b"\x18\xff\x7f"),  # a text beyond the end
        footer(b"\x1d"),  # a type that is none
        footer(b"\x49\x15\x02"),  # row groups that are numbers
        footer(b"\x49\x1c" + b"\x19\x15\x02" + b"\0"),  # chunks that are numbers
        footer(b"\x49\x1c" + b"\x19\x1c" + b"\x18\x01x" + b"\0\0"),  # a chunk in another file
        footer(b"\x49\x1c" + b"\x19\x1c" + b"\x3c" + b"\x39\x15\x02" + b"\0\0\0"),  # a path of 1
        footer(b"\x49\x1c" + b"\x19\x1c" + b"\0" + b"\0"),  # a chunk that is nowhere
        footer(b"\x49\x2c" + b"\x19\x1c\0\0" + b"\x19\x2c\0\0\0"),  # groups of 1 and of 2
    ],
)
def test_hostile_footer_is_no_layout(data: bytes) -> None:
    with pytest.raises(NoLayout):
        read_footer(data)


def test_every_type_of_the_protocol_is_stepped_over() -> None:
    chunk = b"\x3c" + b"\x76\x14" + b"\x26\x08" + b"\0" + b"\0"  # length 10 at 4
    # Fields 1 to 3 and 5 to 9 of other types around field 4, row_groups.
    data = footer(
        b"\x11\x12\x13\x07",
        b"\x19\x1c\x19\x1c" + chunk + b"\0",
        b"\x17" + bytes(8),
        b"\x1b\x01\x88\x01a\x01b",
        b"\x1b\x00",
        b"\x1a\x21\x01\x02",
        b"\x1c\x06\x14\x02\x18\x01x\x11\x00",
    )
    layout = read_footer(data)
    assert layout.offsets.tolist() == [[4]]
    assert layout.lengths.tolist() == [[10]]


def headers() -> list[tuple[bytes, Look]]:
    found = []
    for content in (npz(), safetensors({"a": b"x" * 10, "b": b"y" * 20}), tar()):
        found += [(content, Look.tail(len(content))), (content, Look.head(len(content)))]
    for name in PARQUET:
        content = (GOLDEN / f"{name}.parquet").read_bytes()
        found.append((content, Look.tail(len(content))))
    return found


HEADERS = headers()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(HEADERS) - 1), st.integers(0, 1 << 32), st.integers(1, 40))
def test_flipped_bytes_give_a_layout_inside_the_file_or_none(
    which: int, seed: int, flips: int
) -> None:
    content, look = HEADERS[which]
    rng, broken = random.Random(seed), bytearray(content)
    start = max(0, len(broken) - 6_000) if look.span.offset else 0
    for _ in range(flips):
        broken[rng.randrange(start, min(len(broken), start + 6_000))] = rng.randrange(256)
    try:
        layout = look_at(bytes(broken), look)
    except NoLayout:
        return
    ends = layout.offsets + layout.lengths
    assert layout.parts == 0 or (int(layout.offsets.min()) >= 0 and int(ends.max()) <= len(broken))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(HEADERS) - 1), st.floats(0, 1))
def test_truncated_index_is_no_layout(which: int, share: float) -> None:
    content, look = HEADERS[which]
    try:
        start, length = look.span
        seen = finish(probe.read(look, content[start : start + length]))
    except NoLayout:
        return
    if isinstance(seen, Look):
        start, length = seen.span
        data = content[start : start + int(share * (length - 1))]
        cut = Look(seen.size, Span(start, len(data)), seen.format)
        if seen.format == "zip" and len(data) == length // 2:
            return  # between two members: the shorter directory is one too
        if not content[start + len(data) : start + length].strip():
            return  # safetensors pads its header with blanks
        with pytest.raises(NoLayout):
            finish(probe.read(cut, data))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=600), st.sampled_from(["parquet", "zip", "safetensors", None]))
def test_any_bytes_give_a_layout_or_none(data: bytes, format: str | None) -> None:
    with contextlib.suppress(NoLayout):
        finish(probe.read(Look(len(data), Span(0, len(data)), format), data))
