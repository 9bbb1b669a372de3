"""The search process: `python -m hubspoke.adapters.order_process`, requests in, answers out.

A process of its own because numba takes a second to import and a search all processors for half a
minute. What a job waits for (a default seed, the next epoch's order) is done at once. A search of
all seeds runs in threads at nice 19, in slices of 40 ms, between which it can be paused or ended,
and cheaper ones go first; it is given up after DEADLINE_S. The process ends with its input,
so it does not outlive the spoke, however that dies.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

from hubspoke.adapters.order_messages import LENGTH, Cancel, Word, pack_answer, unpack_request
from hubspoke.adapters.seed_search import SeedSearch
from hubspoke.core.inference.question import Answer, Request
from hubspoke.core.inference.search import rank, search

THREADS_MAX = 8
DEADLINE_S = 600.0  # of one search, pauses included

Message = Request | Cancel | Word


def _lowest_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def read_requests(source: BinaryIO, inbox: "queue.SimpleQueue[Message]") -> None:
    """Until the end of input, which ends the process."""
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        inbox.put(unpack_request(source.read(length)))
    os._exit(0)  # whatever a thread of ours is computing


@dataclass(slots=True)
class Running:
    """rank: which goes first. deadline: once it has begun."""

    rank: int
    steps: Iterator[Answer]
    deadline: float | None = None


class Searches:
    """Quick ones at once, the others between them, a slice of the cheapest at a time."""

    def __init__(self, inbox: "queue.SimpleQueue[Message]", target: BinaryIO) -> None:
        threads = min(os.cpu_count() or 1, THREADS_MAX)
        self._inbox, self._target = inbox, target
        self._quick = SeedSearch()
        self._low = ThreadPoolExecutor(1, initializer=_lowest_priority)
        pool = ThreadPoolExecutor(threads, initializer=_lowest_priority)
        self._slow = SeedSearch(pool, threads)
        self._running: dict[int, Running] = {}  # in the order of asking
        self._paused = False

    def run(self) -> None:
        while True:
            idle = not self._running or self._paused
            try:
                self._take(self._inbox.get(block=idle))
            except queue.Empty:
                self._slice()

    def _take(self, message: Message) -> None:
        match message:
            case "pause" | "go on":
                self._paused = message == "pause"
            case Cancel(number):
                self._running.pop(number, None)
            case _ if rank(message):
                self._running[message.number] = Running(rank(message), search(message, self._slow))
            case _:
                found = None
                for answer in search(message, self._quick):
                    found = answer or found
                self._answer(message.number, found)

    def _slice(self) -> None:
        number, one = min(self._running.items(), key=lambda each: each[1].rank)
        one.deadline = one.deadline or time.monotonic() + DEADLINE_S
        try:
            answer = self._low.submit(next, one.steps).result()
            if answer is None and time.monotonic() < one.deadline:
                return
        except StopIteration:
            answer = None
        del self._running[number]
        self._answer(number, answer)

    def _answer(self, number: int, answer: Answer) -> None:
        self._target.write(pack_answer(number, answer))
        self._target.flush()


def main() -> None:
    # An interrupt from the terminal is the spoke's. A group of its own and no session: where the
    # kernel shares processors out by session (autogroup), nice 19 would say nothing.
    os.setpgid(0, 0)
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    reader = threading.Thread(
        target=read_requests, args=(sys.stdin.buffer, inbox), daemon=True, name="requests"
    )
    reader.start()
    Searches(inbox, sys.stdout.buffer).run()


if __name__ == "__main__":
    main()
