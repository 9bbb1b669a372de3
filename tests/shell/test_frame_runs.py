"""Frames that go to a disk in one call."""

import os
from pathlib import Path

import pytest

from hubspoke import wire
from hubspoke.adapters.frame_runs import RUN_FRAMES_MAX, checked, runs, write_all
from hubspoke.errors import CorruptFrame


def frame(offset: int, data: bytes, *, good: bool = True) -> wire.Frame:
    n, digest = len(data), wire.digest(data) if good else 1
    return wire.FrameHeader(wire.FRAME_DATA, 0, 0, offset, n, n, digest), data


def test_runs_are_cut_where_frames_do_not_meet() -> None:
    at = [0, 4, 8, 100, 200, 204]
    frames = [frame(offset, b"4444") for offset in at]
    assert [[h.offset for h, _ in run] for run in runs(frames)] == [[0, 4, 8], [100], [200, 204]]
    assert list(runs([])) == []


def test_runs_are_short() -> None:
    frames = [frame(4 * i, b"4444") for i in range(2 * RUN_FRAMES_MAX + 1)]
    assert [len(run) for run in runs(frames)] == [RUN_FRAMES_MAX, RUN_FRAMES_MAX, 1]


def test_a_run_is_sound_up_to_its_first_bad_frame() -> None:
    a, b = frame(0, b"aaaa"), frame(8, b"cccc")
    sound, error = checked([a, frame(4, b"bbbb", good=False), b], "b/k")
    assert sound == [(b"aaaa", a[0].digest)]
    assert isinstance(error, CorruptFrame) and "b/k: frame at 4+4" in str(error)
    assert checked([a, b], "b/k") == ([(b"aaaa", a[0].digest), (b"cccc", b[0].digest)], None)


def test_what_a_call_leaves_out_is_written_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(fd: int, parts: list[memoryview], offset: int) -> int:
        return os.pwrite(fd, b"".join(parts)[:3], offset)

    monkeypatch.setattr(os, "pwritev", short)
    with (tmp_path / "file").open("wb") as f:
        write_all(f.fileno(), [memoryview(b"0123"), memoryview(b"45"), memoryview(b"6789")], 2)
    assert (tmp_path / "file").read_bytes() == b"\0\0" + b"0123456789"
