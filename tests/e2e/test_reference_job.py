"""The reference job on real processes, small: its ways, its counts, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hubspoke.errors import ConfigError
from hubspoke.lab.checks import evaluate
from hubspoke.lab.dataset import DatasetConfig, build_dataset
from hubspoke.lab.demo import DemoConfig, run_demo
from hubspoke.lab.guard import guard
from hubspoke.lab.job import JobConfig
from hubspoke.lab.stack import ProcessFailed, Stack, WanConfig, room_for
from hubspoke.lab.wan import TunWan
from hubspoke.lab.ways import WAYS, Runner

STEPS = 40
WAIT_S = 60.0


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for i in range(20):
        words = " ".join(f"word{(i * 7919 + j * 104729) % 9973}" for j in range(4_000))
        (folder / f"{i:02}.txt").write_text(words)
    return folder


@pytest.fixture(scope="module")
def dataset(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "tokens"
    config = DatasetConfig(sequences=STEPS * 24, files=2, vocabulary=2_000)
    build_dataset(folder, config, sources=[text])
    return folder


def test_all_ways_read_right_and_the_counts_agree(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    steps: list[tuple[str, int, int]] = []
    wan = WanConfig(rtt_ms=20.0)
    with Stack(dataset.parent, work=tmp_path, logs=tmp_path / "logs", wan=wan) as stack:
        runner = Runner(
            stack,
            JobConfig("test", dataset),
            caches=tmp_path,
            price=None,
            progress=lambda *step: steps.append(step),
        )
        results = runner.run(WAYS)
    assert list(results) == [way.name for way in WAYS]
    for name, result in results.items():
        assert result.job.wrong_bytes == 0 and result.job.retries == 0, name
        assert result.job.reads == result.job.steps * 24 == STEPS * 24, name
        assert (name, STEPS, STEPS) in steps
        json.dumps(result.to_json())
    exact = ("report's", "money", "wrong bytes", "WAN bytes", "bytes before")
    for check in evaluate(results):  # not the times: 40 steps are all warm-up, the machine is busy
        assert check.passed or not any(word in check.name for word in exact), check
    remote = results["remote"]
    assert remote.wan is not None and remote.wan.to_spoke_bytes > remote.job.unique_bytes
    assert remote.usd is not None and remote.usd > 0
    assert results["spoke-warm"].job.states["hit"] == STEPS * 24
    unpredicted = results["spoke-cold-no-prefetch"].job
    assert unpredicted.hit_ratio is not None and unpredicted.hit_ratio < 0.1


def test_a_process_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    stack = Stack(tmp_path / "no", work=tmp_path, logs=tmp_path / "logs", wan=WanConfig())
    before = {*_children(os.getpid()), guard().process.pid}  # other tests have left trackers
    with pytest.raises(ProcessFailed, match=r"hub ended, status 2: (?s:.*)No such file"), stack:
        pytest.fail("started without a store")
    assert set(_children(os.getpid())) <= before


def test_a_full_disk_is_told_before_anything_starts(tmp_path: Path) -> None:
    room_for(tmp_path, 1)
    with pytest.raises(ConfigError, match="MiB free, the demo needs"):
        room_for(tmp_path, 1 << 60)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rtt-ms", "5000"], "--rtt-ms: '5000': expected 0 to 2000 milliseconds"),
        (["--rtt-ms", "fast"], "--rtt-ms: 'fast': expected 0 to 2000 milliseconds"),
        (["--rtt-ms", "nan"], "--rtt-ms: 'nan': expected 0 to 2000 milliseconds"),
        (["--wan", "moon"], "--wan: 'moon': expected relay or tun"),
        (["--price", "-1"], "--price: "),
    ],
)
def test_a_wrong_setting_is_one_line_before_anything_is_built(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    command = [sys.executable, "-m", "hubspoke", "demo", "--data", str(tmp_path / "data")]
    demo = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=WAIT_S)
    assert demo.returncode == 2 and demo.stdout == ""
    assert demo.stderr.startswith(f"hubspoke demo: {message}") and demo.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_router_that_cannot_be_built_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TunWan, "available", staticmethod(lambda: "needs root"))
    assert run_demo(DemoConfig(data=tmp_path / "data", wan="tun")) == 2
    assert "--wan tun: needs root; --wan relay needs nothing" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_behind(
    text: Path, tmp_path: Path, how: signal.Signals
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # As in the background of a script, where a shell ignores SIGINT for it.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    command += [sys.executable, "-m", "hubspoke", "demo", "--text", str(text)]
    command += ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    demo = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # hub, guard, WAN and the first way's eight workers
        _wait_for(lambda: len(_children(demo.pid)) == 11)
        family = _children(demo.pid)
        assert len(list(temporary.iterdir())) == 1
        demo.send_signal(how)
        assert demo.wait(WAIT_S) == 130
    finally:
        demo.kill()
        demo.wait()
    _wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "out").exists()
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["tokens"], "kept for the next run"


def _children(pid: int) -> list[int]:
    try:
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S:g} s"
        time.sleep(0.02)
