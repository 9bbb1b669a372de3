"""S3 clients that read at random all the time, compare every byte, and keep every latency."""

import random
import threading
import time
from typing import Any

import boto3
from botocore.config import Config

from tests.faults.conftest import MIB, OBJECTS

SIZES = (4096, 70_000, 300_000, MIB, 5 * MIB)


def client(url: str) -> Any:
    """boto3 without retries: a failed read is seen as one."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(
            retries={"max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": "path"},
            connect_timeout=10,
            read_timeout=40,
        ),
    )


class Readers:
    """Threads with a client each; `stop` ends them and gives what went wrong."""

    def __init__(self, url: str, threads: int = 3, sizes_max: int = SIZES[-1]) -> None:
        self.phase = "warm"
        self.latencies: dict[str, list[float]] = {}
        self.failures: list[str] = []
        self._sizes = [size for size in SIZES if size <= sizes_max]
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(url, i), daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, url: str, seed: int) -> None:
        rng, s3 = random.Random(seed), client(url)
        while not self._stop.is_set():
            key = rng.choice(list(OBJECTS))
            size = rng.choice(self._sizes)
            begin = rng.randrange(len(OBJECTS[key]) - size)
            phase, started = self.phase, time.monotonic()
            try:
                answer = s3.get_object(
                    Bucket="data", Key=key, Range=f"bytes={begin}-{begin + size - 1}"
                )
                body = answer["Body"].read()
            except Exception as e:
                self.failures.append(f"{phase}: {key} {begin}+{size}: {type(e).__name__}: {e}")
                continue
            if size <= MIB:
                self.latencies.setdefault(phase, []).append(time.monotonic() - started)
            if body != OBJECTS[key][begin : begin + size]:
                self.failures.append(f"{phase}: {key} {begin}+{size}: wrong bytes")
            time.sleep(0.002)

    def p99_s(self, phase: str) -> float:
        """Of the reads of up to 1 MiB that began in the phase."""
        found = sorted(self.latencies[phase])
        return found[min(len(found) - 1, len(found) * 99 // 100)]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)
