"""Load on a spoke whose cache is small: readers at random, readers that hold long answers open
half-read, overwrites and deletes at the hub, warm jobs. Every byte is compared.

Each word of an object says which object, which version and which place it is, so that a range is
of one version or it is wrong, whatever the hub does meanwhile.
"""

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np

from tests.processes import put

MIB = 1 << 20
PLACE, VERSION = 32, 16  # bits of a word; the object's number has the rest
SIZES = (4096, 4096, 20_000, 70_000, 256 << 10, MIB, 3 * MIB)
BROKEN = (OSError, http.client.HTTPException)


def content(number: int, version: int, size: int) -> bytes:
    words = np.arange(size // 8, dtype=np.uint64)
    return (words | np.uint64((number << VERSION | version) << PLACE)).tobytes()


def version_of(data: bytes, number: int, offset: int) -> int | None:
    """The one version that all of the bytes are of; None if they are wrong."""
    words = np.frombuffer(data, np.uint64)
    first = int(words[0])
    expected = np.arange(len(words), dtype=np.uint64) + np.uint64(first)
    if not np.array_equal(words, expected) or first & (1 << PLACE) - 1 != offset // 8:
        return None
    return first >> PLACE & (1 << VERSION) - 1 if first >> PLACE + VERSION == number else None


@dataclass
class Churn:
    """Threads against one hub and one spoke, until `stop`. `wrong` stays empty if all is well."""

    hub: str
    spoke: str
    admin: str
    objects: int
    size: int
    held: int  # answers that are open at a time; their sizes add up to held * size
    wrong: list[str] = field(default_factory=list)
    answered: int = 0
    finished_late: int = 0  # answers that were held open and then read to their end
    overwritten: int = 0
    warmed: int = 0
    open_now: int = 0

    def __post_init__(self) -> None:
        self._versions = [1] * self.objects  # the last that was sent to the hub
        self._changing = [0] * self.objects  # how often a change of it began or ended
        self._absent = [False] * self.objects  # perhaps: its delete was sent
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        for n in range(self.objects):
            put(f"{self.hub}/data/{self.key(n)}", content(n, 1, self.size))

    def key(self, number: int) -> str:
        return f"part-{number % 4}/object-{number:03}"

    def start(self, readers: int) -> None:
        for i in range(readers):
            self._spawn(lambda rng: self._read(rng), i)
        for i in range(self.held):
            self._spawn(lambda rng: self._hold(rng), 1_000 + i)
        self._spawn(self._write, 2_000)
        self._spawn(self._warm, 3_000)

    def _spawn(self, work: Callable[[random.Random], None], seed: int) -> None:
        def run() -> None:
            try:
                work(random.Random(seed))
            except Exception as e:
                self.wrong.append(f"{work}: {type(e).__name__}: {e}")

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)

    # -- readers ------------------------------------------------------------------------------

    def _read(self, rng: random.Random) -> None:
        connection = _connection(self.spoke)
        while not self._stop.is_set():
            n = rng.randrange(self.objects)
            begin = rng.randrange(self.size // 8) * 8
            end = min(begin + rng.choice(SIZES) // 8 * 8, self.size)
            before = self._changing[n]
            try:
                headers = {"Range": f"bytes={begin}-{end - 1}"}
                connection.request("GET", f"/data/{self.key(n)}", headers=headers)
                answer = connection.getresponse()
                body = answer.read()
            except BROKEN as e:
                self._broken(n, before, e)
                connection.close()
                continue
            self._look(n, before, answer.status, body, begin, end)
        connection.close()

    def _hold(self, rng: random.Random) -> None:
        """Read half of an object, then nothing for a while, then the rest."""
        while not self._stop.is_set():
            n, before = 0, 0
            connection = _connection(self.spoke, buffer=64 << 10)
            try:
                n = rng.randrange(self.objects)
                before = self._changing[n]
                connection.request("GET", f"/data/{self.key(n)}")
                answer = connection.getresponse()
                body = answer.read(self.size // 2)
                if answer.status == 200:
                    self.open_now += 1
                    self._stop.wait(rng.uniform(0.1, 2.0))
                    self.open_now -= 1
                body += answer.read()
                self.finished_late += answer.status == 200
            except BROKEN as e:
                self._broken(n, before, e)
            else:
                self._look(n, before, answer.status, body, 0, self.size)
            finally:
                connection.close()

    def _look(self, n: int, before: int, status: int, body: bytes, begin: int, end: int) -> None:
        where = f"{self.key(n)} {begin}..{end}"
        if status == 404 and (self._absent[n] or self._changing[n] != before):
            return
        if status not in (200, 206) or len(body) != end - begin:
            self.wrong.append(f"{where}: status {status}, {len(body)} bytes: {body[:200]!r}")
            return
        if version_of(body, n, begin) is None:
            self.wrong.append(f"{where}: wrong bytes")
        self.answered += 1

    def _broken(self, n: int, before: int, error: Exception) -> None:
        """A body breaks off only where its version was replaced under it."""
        if self._changing[n] == before and before % 2 == 0 and not self._stop.is_set():
            self.wrong.append(f"{self.key(n)}: {type(error).__name__}: {error}")

    # -- changes ------------------------------------------------------------------------------

    def _write(self, rng: random.Random) -> None:
        while not self._stop.wait(rng.uniform(0.1, 0.5)):
            n = rng.randrange(self.objects)
            url = f"{self.hub}/data/{self.key(n)}"
            self._changing[n] += 1
            if rng.random() < 0.3:
                self._absent[n] = True
                with urlopen(Request(url, method="DELETE"), timeout=30):
                    pass
                self._stop.wait(rng.uniform(0.0, 0.3))
            self._versions[n] += 1
            put(url, content(n, self._versions[n], self.size))
            self._absent[n] = False
            self._changing[n] += 1
            self.overwritten += 1

    def _warm(self, rng: random.Random) -> None:
        while not self._stop.wait(rng.uniform(0.2, 1.0)):
            action = rng.choice(["warm", "warm", "evict", "check"])
            paths = [f"data/{self.key(rng.randrange(self.objects))}" for _ in range(2)]
            document = {"paths": paths, "action": action, "force": rng.random() < 0.5}
            headers = {"content-type": "application/json"}
            request = Request(f"{self.admin}/v1/warm", json.dumps(document).encode(), headers)
            with contextlib.suppress(OSError), urlopen(request, timeout=30):
                self.warmed += 1


def _connection(url: str, buffer: int | None = None) -> http.client.HTTPConnection:
    """buffer: what the kernel may take before the reader does."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 0
    connection = http.client.HTTPConnection(host, port, timeout=60)
    if buffer is not None:
        connection.sock = socket.socket()
        connection.sock.settimeout(60)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.sock.connect((host, port))
    return connection


def await_(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not {what} after {timeout_s} s"
        time.sleep(0.02)
