"""The recorder: chunks, bounds, and a file that ends properly whatever happens."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hubspoke.errors import FormatError
from hubspoke.traces import record as module
from hubspoke.traces.format import CHUNK_READS, FrameWriter, Reads, read_trace
from hubspoke.traces.record import Recorded, Recorder, RecordingFailed


class Spoke:
    """An answer of /v1/trace, a piece at each read."""

    def __init__(self) -> None:
        self._sink = io.BytesIO()
        self.writer = FrameWriter(self._sink, {"region": "eu"})
        self.writer.objects([(0, 1 << 40, "b/a")])
        self.pieces: list[bytes] = []
        self.failure: OSError | None = None
        self._reads = 0

    def reads(self, n: int = 10, at_s: float = 0.0) -> "Spoke":
        i = np.arange(self._reads, self._reads + n)
        self._reads += n
        zeros = np.zeros(n, np.int32)
        ticks, lengths = np.full(n, int(at_s * 1e6)), np.full(n, 4096)
        self.writer.reads(Reads(ticks, zeros, i * 4096, lengths, zeros, zeros.astype(np.uint8)))
        return self

    def look(self, seconds: float, dropped: int = 0) -> "Spoke":
        self.writer.facts({"seconds": seconds, "dropped_reads": dropped, "rate": 7.5})
        return self.cut()

    def cut(self) -> "Spoke":
        if data := self._sink.getvalue():
            self.pieces.append(data)
        self._sink.seek(0)
        self._sink.truncate()
        return self

    def read1(self, n: int, /) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        if self.failure is not None:
            raise self.failure
        return b""


def run(
    spoke: Spoke,
    out: Path,
    *,
    seconds: float | None = None,
    reads: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Recorded:
    spoke.cut()
    return Recorder(out, "spoke", seconds=seconds, reads=reads, stopped=stopped).run(spoke)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.hstrace"


def test_a_recording_that_its_spoke_ends(out: Path) -> None:
    spoke = Spoke().reads(10).look(0.25).reads(5).look(0.5, dropped=3)
    spoke.writer.end({"seconds": 0.75, "dropped_reads": 4, "ended": "the spoke stopped"})
    size = 0
    assert run(spoke, out) == Recorded(15, 4, 0.75, size := out.stat().st_size, "the spoke stopped")
    trace = read_trace(out)
    assert size and trace.offsets.tolist() == [4096 * i for i in range(15)]
    assert trace.facts == {
        "region": "eu", "rate": 7.5, "seconds": 0.75, "dropped_reads": 4,
        "ended": "the spoke stopped", "complete": True,
    }  # fmt: skip


def test_a_lost_connection_ends_the_file_and_is_told(out: Path) -> None:
    spoke = Spoke().reads(10).look(0.25)
    spoke.failure = ConnectionResetError("reset by peer")
    with pytest.raises(RecordingFailed, match=r"reset by peer; 10 reads are in .*out\.hstrace"):
        run(spoke, out)
    assert read_trace(out).facts["complete"] is True
    assert "connection lost" in str(read_trace(out).facts["ended"])


def test_damage_on_the_way_is_told_and_what_came_before_is_kept(out: Path) -> None:
    spoke = Spoke().reads(10).look(0.25)
    spoke.reads(10).cut()
    spoke.pieces[-1] = spoke.pieces[-1][:-1] + b"?"
    with pytest.raises(RecordingFailed, match=r"spoke: damaged at byte .* digest.*; 10 reads"):
        run(spoke, out)
    assert len(read_trace(out)) == 10


def test_nothing_that_looks_like_a_trace_makes_no_file(out: Path) -> None:
    spoke = Spoke()
    spoke.pieces = [b"<html>not found"]
    with pytest.raises(RecordingFailed, match="spoke: begins with b'<html>no'"):
        run(spoke, out)
    spoke.pieces = []
    with pytest.raises(RecordingFailed, match="before the trace"):
        Recorder(out, "spoke", seconds=None, reads=None, stopped=lambda: False).run(spoke)
    assert not out.exists()


def test_reads_beyond_a_bound_are_left_out(out: Path, tmp_path: Path) -> None:
    recorded = run(Spoke().reads(10).look(0.25), out, reads=7)
    assert (recorded.reads, recorded.ended) == (7, "7 reads")
    other = tmp_path / "seconds"
    spoke = Spoke().reads(4, at_s=0.1).look(0.2).reads(3, at_s=0.3).reads(3, at_s=0.4).look(0.5)
    recorded = run(spoke, other, seconds=0.3)
    assert (recorded.reads, recorded.seconds, recorded.ended) == (7, 0.3, "0.3 s")


def test_after_a_signal_the_reads_before_it_still_come(out: Path) -> None:
    looks: Iterator[bool] = iter([False, True, True])
    spoke = Spoke().reads(1).look(0.25).reads(2).look(0.5).reads(3).look(0.75).reads(4).look(1.0)
    recorded = run(spoke, out, stopped=lambda: next(looks))
    assert (recorded.reads, recorded.ended) == (6, "stopped")


def test_chunks_are_as_large_as_a_file_takes_them(out: Path) -> None:
    spoke = Spoke()
    for _ in range(CHUNK_READS // 50_000 + 2):
        spoke.reads(50_000).look(0.1)
    run(spoke, out, reads=150_000)
    assert read_trace(out).offsets.tolist() == [4096 * i for i in range(150_000)]


def test_a_slow_trace_is_written_every_few_seconds(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.0)
    on_disk: list[int] = []

    def stopped() -> bool:
        on_disk.append(len(read_trace(out)))
        return False

    with pytest.raises(RecordingFailed):
        run(Spoke().reads(1).look(0.25).reads(2).look(0.5), out, stopped=stopped)
    assert on_disk == [1, 3]


def test_a_file_that_exists_or_cannot_be_made_is_told(out: Path, tmp_path: Path) -> None:
    out.write_bytes(b"precious")
    with pytest.raises(RecordingFailed, match="exists; expected a name that is free"):
        run(Spoke().reads(1).look(0.25), out)
    assert out.read_bytes() == b"precious"
    with pytest.raises(RecordingFailed, match="cannot be written: No such file"):
        run(Spoke().reads(1).look(0.25), tmp_path / "none" / "out")
    with pytest.raises(FormatError, match="exists"):
        module.record("http://127.0.0.1:1", out, seconds=None, reads=None, stopped=lambda: False)
    with pytest.raises(RecordingFailed, match=r"http://127\.0\.0\.1:1/v1/trace: cannot be reached"):
        module.record(
            "http://127.0.0.1:1", tmp_path / "x", seconds=None, reads=None, stopped=lambda: False
        )
