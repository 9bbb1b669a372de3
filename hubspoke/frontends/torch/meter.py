"""A job's own meter: what only the job knows, beside the spoke's numbers (`/v1/jobs/NAME`)."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from hubspoke.frontends.torch.admin_port import AdminPort, checked

T = TypeVar("T")
EVERY_S = 5.0
END_S = 5.0


class Meter:
    """Measures how long a loop waits for its batches, and reports it every few seconds.

    for batch in meter(loader): ...

    What passes between two batches counts as computing: where a device computes by itself, wait
    for it inside the loop, or it is taken for waiting. Ranks of one job report under one name and
    are added up. Raises ValueError for what is no URL or name.
    """

    def __init__(
        self,
        job: str,
        *,
        spoke: str | None = None,
        samples: Callable[[Any], int] | int | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        """spoke: as for `hinted`. samples: of a batch; None: the length of its first tensor."""
        self._path = f"/v1/jobs/{checked(job)}"
        self._port = AdminPort(spoke, "meter")
        self._samples = samples
        self._every_s = every_s
        self._lock = threading.Lock()
        self._sums = [0.0, 0.0, 0.0]
        self._reporter: threading.Thread | None = None
        self._end = threading.Event()

    def __call__(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, measured."""
        self._start()
        source = iter(batches)
        try:
            while True:
                began = time.perf_counter()
                try:
                    batch = next(source)
                except StopIteration:
                    return
                got = time.perf_counter()
                yield batch
                self._add(self._count(batch), time.perf_counter() - got, got - began)
        finally:
            self._stop()

    def _count(self, batch: Any) -> int:
        if isinstance(self._samples, int):
            return self._samples
        return self._samples(batch) if self._samples is not None else count(batch)

    def _add(self, samples: int, compute_s: float, wait_s: float) -> None:
        with self._lock:
            for i, amount in enumerate((samples, compute_s, wait_s)):
                self._sums[i] += amount

    def _start(self) -> None:
        self._end.clear()
        self._reporter = threading.Thread(target=self._run, name="hubspoke meter", daemon=True)
        self._reporter.start()

    def _stop(self) -> None:
        self._end.set()
        if self._reporter is not None:
            self._reporter.join(END_S)

    def _run(self) -> None:
        # One of zeros before anything is read: a job's hit ratio counts from its first post.
        going = self._report()
        while going and not self._end.wait(self._every_s):
            going = self._report()
        if going:
            self._report()
        self._port.close()

    def _report(self) -> bool:
        with self._lock:
            sums, self._sums = self._sums, [0.0, 0.0, 0.0]
        names = ("samples", "compute_seconds", "wait_seconds")
        answer = self._port.ask("POST", self._path, dict(zip(names, sums, strict=True)))
        if answer is not None and answer[0] != 200:
            self._port.tell(f"{self._path} is refused: {answer[1]}")
        return answer is not None and answer[0] == 200


def count(batch: Any) -> int:
    """Samples of a collated batch: the length of its first tensor, or of the list it is."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, dict) and batch:
        return count(next(iter(batch.values())))
    if isinstance(batch, list | tuple) and batch:
        first = batch[0]
        return len(batch) if getattr(first, "shape", None) is None else count(first)
    return len(batch) if hasattr(batch, "__len__") else 1
