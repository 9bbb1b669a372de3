"""Data sets behind a real hub and spoke, and jobs that read them in a given order over S3.

A reader is told of nothing but the order: its connections take whole batches in turn, some reads
come twice and some are left out, as page caches and restarts make it. What the spoke makes of it is
asked at its admin port.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from tests.processes import Running, get_json, hub, running, spoke

BUCKET = "data"
RECORD_BYTES = 4_096
FILE_BYTES = 2_048
WAIT_S = 60.0
MISSING = TWICE = 0.04
Order = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Items:
    """shards: records of each object; empty: `count` whole objects. named: by what number. index:
    of another file beside them, which is read first. head: bytes in front of the records of each
    object; step: from one to the next; length: what is read of each."""

    folder: str
    count: int
    shards: tuple[int, ...] = ()
    named: str = "{:06}"
    index: str = ""
    head: int = 0
    step: int = RECORD_BYTES
    length: int = RECORD_BYTES

    def write(self, store: Path) -> None:
        folder = store / BUCKET / self.folder
        folder.mkdir(parents=True)
        if self.index:
            (folder / self.index).write_bytes(bytes(FILE_BYTES))
        if not self.shards:
            for i in range(self.count):
                (folder / self.named.format(i)).write_bytes(
                    i.to_bytes(8, "little") * (FILE_BYTES // 8)
                )
        for number, count in enumerate(self.shards):
            with (folder / self.named.format(number)).open("wb") as file:
                file.truncate(self.head + count * self.step)

    def read(self, item: int) -> tuple[str, int, int]:
        """Path, offset and length of an item."""
        if not self.shards:
            return self.path(item), 0, FILE_BYTES
        ends = np.cumsum(self.shards)
        number = int(np.searchsorted(ends, item, "right"))
        at = item - int(ends[number]) + self.shards[number]
        return self.path(number), self.head + at * self.step, self.length

    def check(self, item: int, body: bytes) -> None:
        """Assert that this is the item: files tell which they are."""
        if not self.shards:
            assert int.from_bytes(body[:8], "little") == item

    def path(self, number: int) -> str:
        return f"/{BUCKET}/{self.folder}/{self.named.format(number)}"


class Readable(Protocol):
    """What a job reads, by number."""

    def read(self, item: int) -> tuple[str, int, int]:
        """Path, offset and length of an item."""
        ...

    def check(self, item: int, body: bytes) -> None:
        """Assert that this is the item."""
        ...


class Writable(Protocol):
    """What lies in the hub's store."""

    def write(self, store: Path) -> None: ...


class Job:
    """Reads by several connections, each a batch at a time; use it as a context manager."""

    def __init__(self, url: str, items: Readable, *, workers: int = 4, seed: int = 1) -> None:
        self._at = urlsplit(url).netloc
        self._items = items
        self._rng = np.random.default_rng(seed)
        self._batches: SimpleQueue[list[int] | None] = SimpleQueue()
        self._done: SimpleQueue[list[str] | BaseException] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]

    def __enter__(self) -> "Job":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *of: object) -> None:
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join(WAIT_S)

    def read(self, order: Order, *, batch: int = 8, faults: bool = True) -> list[str]:
        """Read these items; returns hit, late or miss of each. faults: some come twice or never."""
        numbers = [int(i) for i in order]
        batches = [numbers[at : at + batch] for at in range(0, len(numbers), batch)]
        for mine in batches:
            self._batches.put(self._spoiled(mine) if faults else mine)
        found: list[str] = []
        for _ in batches:
            done = self._done.get(timeout=WAIT_S)
            if isinstance(done, BaseException):
                raise done
            found += done
        return found

    def _work(self) -> None:
        connection = HTTPConnection(self._at, timeout=WAIT_S)
        try:
            while (mine := self._batches.get()) is not None:
                self._done.put([self._one(connection, item) for item in mine])
        except BaseException as e:
            self._done.put(e)
        finally:
            connection.close()

    def _spoiled(self, items: list[int]) -> list[int]:
        kept = [i for i in items if self._rng.random() >= MISSING]
        return [i for i in kept for _ in range(1 + (self._rng.random() < TWICE))]

    def _one(self, connection: HTTPConnection, item: int) -> str:
        path, offset, length = self._items.read(item)
        span = f"bytes={offset}-{offset + length - 1}"
        connection.request("GET", path, headers={"Range": span})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 206 and len(body) == length, (path, answer.status, body[:200])
        self._items.check(item, body)
        return str(answer.headers["x-hubspoke-cache"])


class Doors:
    """A spoke's addresses."""

    def __init__(self, process: Running) -> None:
        self.data, self.admin = process.data, process.admin

    def jobs(self, items: Items) -> list[dict[str, Any]]:
        """What is believed of the jobs on a data set."""
        status, document = get_json(self.admin + "/v1/streams")
        assert status == 200
        folder = f"{BUCKET}/{items.folder}/"
        sets = [s for s in document["data_sets"] if s["folder"] == folder]
        return list(sets[0]["jobs"]) if sets else []

    def answered(self, items: Items) -> list[dict[str, Any]]:
        """The same when no quick question is open."""
        deadline = time.monotonic() + WAIT_S
        while True:
            jobs = self.jobs(items)
            if all(job["inference"] != "likely seeds are tried" for job in jobs):
                return jobs
            assert time.monotonic() < deadline, jobs
            time.sleep(0.02)


@contextmanager
def doors(folder: Path, all_items: Sequence[Writable], *flags: str) -> Iterator[Doors]:
    """A hub over these data sets and a spoke on loopback."""
    for items in all_items:
        items.write(folder / "store")
    with running(*hub(folder / "store", folder / "state")) as a_hub:
        a_hub.ready()
        arguments = spoke(a_hub.data, folder / "cache", "--cache-size", "2GiB", *flags)
        with running(*arguments) as a_spoke:
            found = Doors(a_spoke.ready())
            deadline = time.monotonic() + WAIT_S
            while get_json(found.admin + "/readyz")[0] != 200:
                assert time.monotonic() < deadline, a_spoke.log
                time.sleep(0.02)
            yield found
