"""One data-loader worker of the emulated training job: `python -m hubspoke.lab.worker FD`.

Reads the batches it is handed, in order, compares every byte with the source file (mapped into
memory) and writes a 16-byte record for each read into memory it shares with the job. FD is a
SOCK_SEQPACKET socket to the job; each message is one letter and its content:

    job -> worker:  'S' setup (JSON)   'T' batch number   'Q' finish
    worker -> job:  'R' connected      'D' batch number   'F' failure (text)   'E' end (JSON)

It decides nothing: which batch is read when is the job's business. End of file on the socket, or
another parent process, means that the job is gone, and the worker ends.
"""

import contextlib
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any

from hubspoke.errors import HubSpokeError
from hubspoke.lab.readers import Boto3Reader, JobGone, PathReader, Reader, S3Reader

# start: CLOCK_MONOTONIC seconds; latency: seconds; state; 1 if bytes were wrong; retries
RECORD = struct.Struct("<dfBBH")
BATCH = struct.Struct("<q")
MESSAGE_BYTES_MAX = 128 << 10
WRONG_KEPT = 20  # positions of wrong reads reported by one worker


class Worker:
    """setup: what the job says in 'S'; see job.py for its fields."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        self._parent = os.getppid()
        self._names: list[str] = setup["names"]
        self._places = struct.Struct(f"<{setup['per_rank']}q")
        self._plan = mmap.mmap(setup["plan_fd"], 0, access=mmap.ACCESS_READ)
        self._records = mmap.mmap(setup["records_fd"], 0)
        self._truth = [_map(os.path.join(setup["truth"], name)) for name in self._names]
        self._starts: list[int] = setup["starts"]  # first sequence of each file, and the end
        self._reader = self._make_reader()
        self._wrong_bytes = 0
        self._wrong: list[tuple[str, int, int]] = []
        self._usage = resource.getrusage(resource.RUSAGE_SELF)

    def _make_reader(self) -> Reader:
        source: str = self._setup["source"]
        retry_s: float = self._setup["retry_s"]
        match self._setup["client"]:
            case "path":
                return PathReader(source, self._names)
            case "boto3":
                return Boto3Reader(source, self._names, retry_s=retry_s)
            case _:
                return S3Reader(source, self._names, retry_s=retry_s, alive=self._check_parent)

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            raise JobGone(f"job process {self._parent} is gone")

    def connect(self) -> None:
        self._reader.connect()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)

    def batch(self, number: int) -> None:
        """Read and check batch `number` (step) of this worker's rank."""
        setup = self._setup
        per_rank: int = setup["per_rank"]
        sequence_bytes: int = setup["sequence_bytes"]
        read_bytes: int = setup["read_bytes"]
        pieces = sequence_bytes // read_bytes
        row = (number * setup["ranks"] + setup["rank"]) * per_rank
        record = row * pieces * RECORD.size
        for sequence in self._places.unpack_from(self._plan, row * 8):
            file = _file_of(self._starts, sequence)
            offset = (sequence - self._starts[file]) * sequence_bytes
            for at in range(offset, offset + sequence_bytes, read_bytes):
                self._read(file, at, read_bytes, record)
                record += RECORD.size

    def _read(self, file: int, offset: int, length: int, record: int) -> None:
        reader = self._reader
        retries = reader.retries
        begin = time.monotonic()
        data, state = reader.read(file, offset, length)
        latency = time.monotonic() - begin
        expected = self._truth[file][offset : offset + length]
        wrong = 0
        if data != expected:
            wrong = 1
            count = sum(a != b for a, b in zip(data, expected, strict=True))
            self._wrong_bytes += count
            if len(self._wrong) < WRONG_KEPT:
                first = next(i for i in range(length) if data[i] != expected[i])
                self._wrong.append((self._names[file], offset + first, count))
        tries = min(reader.retries - retries, 0xFFFF)
        RECORD.pack_into(self._records, record, begin, latency, state, wrong, tries)

    def summary(self) -> dict[str, Any]:
        """CPU seconds since `connect`, and what was wrong."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "user_s": usage.ru_utime - self._usage.ru_utime,
            "system_s": usage.ru_stime - self._usage.ru_stime,
            "wrong_bytes": self._wrong_bytes,
            "wrong": self._wrong,
        }

    def close(self) -> None:
        self._reader.close()


def _map(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _file_of(starts: list[int], sequence: int) -> int:
    file = 0
    while starts[file + 1] <= sequence:
        file += 1
    return file


def _serve(channel: socket.socket) -> None:
    message = channel.recv(MESSAGE_BYTES_MAX)
    if message[:1] != b"S":
        return
    worker = Worker(json.loads(message[1:]))
    try:
        worker.connect()
        channel.sendall(b"R")
        while message := channel.recv(MESSAGE_BYTES_MAX):
            if message[:1] == b"Q":
                channel.sendall(b"E" + json.dumps(worker.summary()).encode())
                return
            (number,) = BATCH.unpack_from(message, 1)
            worker.batch(number)
            channel.sendall(b"D" + BATCH.pack(number))
    finally:
        worker.close()


def _tell(channel: socket.socket, error: Exception) -> None:
    with contextlib.suppress(OSError):  # a job that is gone already needs no explanation
        channel.sendall(b"F" + f"{type(error).__name__}: {error}".encode()[:4096])


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job decides when a Ctrl-C ends its workers
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        try:
            _serve(channel)
        except JobGone:
            return 1
        except (HubSpokeError, OSError) as e:
            _tell(channel, e)
            return 1
        except Exception as e:  # a bug or a client library's own error: the job must hear of it
            _tell(channel, e)
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
