"""A training job of torch alone: `DataLoader(shuffle=True)` over objects of an S3 endpoint.

    python torch_job.py URL COUNT WORKERS BATCH STEP_S STEPS[,STEPS...] OUT [SEED]

Nobody sets a seed, but for SEED of the process. Object i is `URL/{i:06}.bin`, got by plain HTTP in
`__getitem__`, as a job with boto3 would do it; each step computes for STEP_S. Writes one row for
each read to OUT: epoch, index, state, when it was asked for and how long it took, seconds of the
monotonic clock. Imports nothing of ours: it runs where torch is.
"""

import http.client
import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import torch
from torch.utils.data import DataLoader, Dataset

TIMEOUT_S = 60.0


class Objects(Dataset[Any]):  # type: ignore[misc]  # torch is not here when types are checked
    """What a worker reads; it opens a connection of its own."""

    def __init__(self, url: str, count: int) -> None:
        self._at = urlsplit(url)
        self._count = count
        self._connection: http.client.HTTPConnection | None = None
        self._of = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, str, float, float]:
        if self._connection is None or self._of != os.getpid():
            self._connection = http.client.HTTPConnection(self._at.netloc, timeout=TIMEOUT_S)
            self._of = os.getpid()
        began = time.monotonic()
        self._connection.request("GET", f"{self._at.path}/{index:06}.bin")
        answer = self._connection.getresponse()
        body = answer.read()
        took = time.monotonic() - began
        assert answer.status == 200, (index, answer.status, body[:300])
        assert int.from_bytes(body[:8], "little") == index, "another object's bytes"
        return index, str(answer.headers["x-hubspoke-cache"]), began, took


def main() -> None:
    url, count, workers, batch, step_s, steps, out, *seed = sys.argv[1:]
    if seed:
        torch.manual_seed(int(seed[0]))
    data = Objects(url, int(count))
    loader: Any = DataLoader(
        data, int(batch), shuffle=True, num_workers=int(workers), collate_fn=list
    )
    rows = []
    for epoch, last in enumerate(map(int, steps.split(","))):
        for step, samples in enumerate(loader, 1):
            rows += [(epoch, *sample) for sample in samples]
            time.sleep(float(step_s))
            if step == last:
                break
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"seed": torch.initial_seed(), "rows": rows}, file)


if __name__ == "__main__":
    main()
