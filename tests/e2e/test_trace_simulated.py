"""A trace recorded live and replayed in the simulator tells the same story."""

import random
import signal
import threading
import time
from pathlib import Path

import boto3
import numpy as np
from botocore.config import Config

from hubspoke.lab.stack import Service, Stack, WanConfig
from hubspoke.sim.prediction.run import Options, run_trace
from hubspoke.traces.format import read_trace
from hubspoke.traces.trace import STATES
from tests.e2e.test_trace import begun, recording

READ, THREADS, READS_EACH = 32 << 10, 8, 400
PAUSE_S = 0.02
SIZE = READ * THREADS * READS_EACH


def read_all(spoke: Service) -> None:
    """Eight threads take records in turn, in order, each at its pace."""
    taken = iter(range(THREADS * READS_EACH))
    lock = threading.Lock()
    failed: list[Exception] = []

    def worker() -> None:
        s3 = boto3.session.Session().client(
            "s3",
            endpoint_url=f"http://{spoke.data}",
            region_name="us-east-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
        )
        while True:
            with lock:
                number = next(taken, None)
            if number is None:
                return
            at = number * READ
            answer = s3.get_object(Bucket="data", Key="a", Range=f"bytes={at}-{at + READ - 1}")
            assert len(answer["Body"].read()) == READ
            time.sleep(PAUSE_S)

    def run() -> None:
        try:
            worker()
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_the_simulator_counts_hits_late_and_misses_as_the_live_run_did(tmp_path: Path) -> None:
    (tmp_path / "store" / "data").mkdir(parents=True)
    (tmp_path / "store" / "data" / "a").write_bytes(random.Random(1).randbytes(SIZE))
    out = tmp_path / "job.hstrace"
    with (
        Stack(
            tmp_path / "store", work=tmp_path, logs=tmp_path, wan=WanConfig(rtt_ms=60.0)
        ) as stack,
        stack.spoke("spoke", tmp_path / "cache") as spoke,
        recording(spoke, out) as process,
    ):
        begun(out)
        read_all(spoke)
        process.signal(signal.SIGINT)
        assert process.wait() == 0
    trace = read_trace(out)
    n = THREADS * READS_EACH
    assert len(trace) == n and trace.facts["prefetch"] is True
    simulated = run_trace(out, Options(), None)
    assert simulated["reads"] == n
    live = {word: int(np.sum(trace.states == code)) for code, word in STATES.items()}
    for word, key in (("hit", "hits"), ("late", "late"), ("miss", "misses")):
        assert abs(simulated[key] - live[word]) <= 0.01 * n, (simulated[key], live)
