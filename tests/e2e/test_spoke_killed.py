"""A spoke is killed in mid-run; the job goes on with right bytes and a warm cache."""

import threading
from pathlib import Path

import pytest

from hubspoke.lab.dataset import DatasetConfig, build_dataset
from hubspoke.lab.job import JobConfig, run_job
from hubspoke.lab.stack import Stack, WanConfig

STEPS = 150


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = tmp_path_factory.mktemp("text")
    for i in range(40):
        words = " ".join(f"word{(i * 7919 + j * 104729) % 9973}" for j in range(4_000))
        (text / f"{i:02}.txt").write_text(words)
    store = tmp_path_factory.mktemp("store")
    config = DatasetConfig(sequences=STEPS * 24, sequence_tokens=1024, files=4, vocabulary=2_000)
    build_dataset(store / "tokens", config, sources=[text])
    return store


@pytest.mark.parametrize("at_step", [5, 60])
def test_a_killed_spoke_restarts_warm_under_a_running_job(
    store: Path, tmp_path: Path, at_step: int
) -> None:
    logs, cache = tmp_path / "logs", tmp_path / "cache"
    logs.mkdir()
    cache.mkdir()
    with Stack(store, work=tmp_path, logs=logs, wan=WanConfig()) as stack:
        first = stack.spoke("first", cache)
        first.await_ready()
        there = threading.Event()

        def progress(done: int, _of: int) -> None:
            if done >= at_step:
                there.set()

        job = JobConfig("killed", store / "tokens", f"http://{first.data}/tokens", retry_s=60.0)
        results = []
        runner = threading.Thread(target=lambda: results.append(run_job(job, progress)))
        runner.start()
        assert there.wait(60)
        first.kill()
        with stack.spoke("second", cache, listen=first.data) as second:
            runner.join(120)
            assert not runner.is_alive()
            (result,) = results
            assert result.wrong_bytes == 0
            assert result.reads == STEPS * 24
            assert result.retries > 0
            report = second.ask("/v1/report")
            assert report["cache"]["corrupt_blocks"] == 0
        # All that either of them fetched is still there: a third one reads it without the hub.
        with stack.spoke("third", cache) as third:
            again = run_job(JobConfig("again", store / "tokens", f"http://{third.data}/tokens"))
            assert again.wrong_bytes == 0
            assert again.states["hit"] == again.reads
