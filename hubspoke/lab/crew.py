"""The data loaders of all ranks: worker processes, and batches handed out as PyTorch does.

At the start prefetch_factor x workers batches of each rank are handed out, batch j to worker
j mod workers; one more is handed out as one is taken. Workers may finish in any order, a rank
gets its batches in order. The crew lives exactly as long as its `with` block: however that ends,
no process is left.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from hubspoke.errors import HubSpokeError
from hubspoke.lab.worker import BATCH, MESSAGE_BYTES_MAX

START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0


class JobFailed(HubSpokeError):
    """The training job could not go on: a worker failed or ended; the message says why."""


@contextmanager
def shared_memory(size: int) -> Iterator[int]:
    """A file without a name, of `size` bytes, to map in several processes."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("hubspoke-job", 0)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
        yield fd
    finally:
        os.close(fd)


class Crew:
    """ranks x workers processes, and the state of each rank's loader.

    setup: what every worker gets, less its rank (worker.py); steps: batches of each rank.
    """

    def __init__(
        self, setup: dict[str, Any], *, ranks: int, workers: int, prefetch_factor: int, steps: int
    ) -> None:
        self._setup = setup
        self._ranks = ranks
        self._workers = workers
        self._queued = prefetch_factor * workers
        self._steps = steps
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[socket.socket] = []  # index: rank * workers + worker
        self._selector = selectors.DefaultSelector()
        self._handed = [0] * ranks  # batches handed out so far
        self._arrived: list[set[int]] = [set() for _ in range(ranks)]

    def __enter__(self) -> "Crew":
        try:
            for index in range(self._ranks * self._workers):
                self._start(index)
            for index, channel in enumerate(self._channels):
                channel.settimeout(START_TIMEOUT_S)
                self._message(index, b"R")
                channel.settimeout(None)
                self._selector.register(channel, selectors.EVENT_READ, index)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _start(self, index: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channels.append(ours)
        with theirs:
            fd = theirs.fileno()
            setup = {**self._setup, "rank": index // self._workers}
            process = subprocess.Popen(
                [sys.executable, "-m", "hubspoke.lab.worker", str(fd)],
                stdin=subprocess.DEVNULL,
                pass_fds=(fd, setup["plan_fd"], setup["records_fd"]),
                start_new_session=True,  # a Ctrl-C goes to the job, which ends its workers
            )
        self._processes.append(process)
        ours.sendall(b"S" + json.dumps(setup).encode())

    def _message(self, index: int, expected: bytes) -> bytes:
        """The next message of worker `index`, of one of the kinds `expected`, with its letter."""
        what = f"worker {index % self._workers} of rank {index // self._workers}"
        channel = self._channels[index]
        try:
            try:
                message = channel.recv(MESSAGE_BYTES_MAX)
            except ConnectionResetError:
                # It ended with tasks unread, which Linux reports once before its last words.
                message = channel.recv(MESSAGE_BYTES_MAX)
        except TimeoutError as e:
            raise JobFailed(f"{what}: no answer for {START_TIMEOUT_S:g} s") from e
        if message[:1] == b"F":
            raise JobFailed(f"{what}: {message[1:].decode(errors='replace')}")
        if not message:
            raise JobFailed(f"{what}: the process ended")
        assert message[:1] in expected, (what, message[:100])
        return message

    def begin(self) -> None:
        """Hand out the first batches of every rank."""
        for batch in range(min(self._queued, self._steps)):
            for rank in range(self._ranks):
                self._hand_out(rank, batch)

    def _hand_out(self, rank: int, batch: int) -> None:
        index = rank * self._workers + batch % self._workers
        try:
            self._channels[index].sendall(b"T" + BATCH.pack(batch))
        except OSError:
            while True:  # its last words say more than a broken pipe, and end in JobFailed
                self._message(index, b"D")
        self._handed[rank] = batch + 1

    def take(self, step: int) -> bool:
        """All ranks take batch `step`; returns whether any of them had to be waited for.

        Raises JobFailed when a worker fails.
        """
        missing = set(range(self._ranks))
        self._collect(0)
        self._take_arrived(missing, step)
        waited = bool(missing)
        while missing:
            self._collect(None)
            self._take_arrived(missing, step)
        return waited

    def _take_arrived(self, missing: set[int], step: int) -> None:
        for rank in tuple(missing):
            if step in self._arrived[rank]:
                self._arrived[rank].discard(step)
                missing.discard(rank)
                if self._handed[rank] < self._steps:
                    self._hand_out(rank, self._handed[rank])

    def _collect(self, timeout: float | None) -> None:
        while ready := self._selector.select(timeout):
            for key, _ in ready:
                index: int = key.data
                (batch,) = BATCH.unpack_from(self._message(index, b"D"), 1)
                self._arrived[index // self._workers].add(batch)
            timeout = 0

    def hand_out_no_more(self) -> None:
        """Batches that are out already are still read; no further one is handed out."""
        self._steps = 0

    def finish(self) -> list[dict[str, Any]]:
        """End all workers in peace and return their summaries."""
        summaries = []
        for channel in self._channels:
            channel.sendall(b"Q")
        for index, channel in enumerate(self._channels):
            channel.settimeout(START_TIMEOUT_S)
            while (message := self._message(index, b"DE"))[:1] == b"D":
                pass  # a batch that nobody took
            summaries.append(json.loads(message[1:]))
        return summaries

    def _close(self) -> None:
        """Closing the channels ends idle workers at once; a reading one is terminated."""
        self._selector.close()
        for channel in self._channels:
            channel.close()
        _end(self._processes)


def _end(
    processes: list[subprocess.Popen[bytes]], now: Callable[[], float] = time.monotonic
) -> None:
    deadline = now() + 0.2
    for process in processes:
        try:
            process.wait(max(0.0, deadline - now()))
        except subprocess.TimeoutExpired:
            process.terminate()
    deadline = now() + _END_TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - now()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
