"""The search process' other end: starts it when there is something to ask, and watches the loop.

A search of all seeds takes every processor that nobody else wants, but the scheduler does not know
that a read waits: so it is paused while the loop comes late to its own timer. A process that dies
has found nothing; it is started again for what is asked a minute later.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hubspoke
from hubspoke.adapters.order_messages import (
    LENGTH,
    Word,
    pack_cancel,
    pack_request,
    pack_word,
    unpack_answer,
)
from hubspoke.core.inference.documents import Documents
from hubspoke.core.inference.inference import Inference
from hubspoke.core.inference.question import Answer, Follow, Question, Request
from hubspoke.core.inference.windows import Windows

log = logging.getLogger(__name__)

LAG_MAX_S = 0.005
LAG_LOOK_S = 0.02
CALM_LOOKS = 10  # without lag, until a paused search goes on
RESTART_S = 60.0
IDLE_S = 600.0  # then the process and its 150 MB go

Answered = Callable[[int, Answer], None]


class OrderSearch:
    """Touched only on the loop. `start` before the first request, `close` at the end."""

    def __init__(self, module: str = "hubspoke.adapters.order_process") -> None:
        """module: what is run, for tests."""
        self._module = module
        self._answered: Answered = lambda number, answer: None
        self._open: dict[int, Request] = {}
        self._unsent: list[Request] = []
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._lag: asyncio.Task[None] | None = None
        self._ended_at = float("-inf")

    def start(self, answered: Answered) -> None:
        """answered: told of each request's answer, on the loop."""
        self._answered = answered

    def serve(self, inference: Inference) -> None:
        """Search for what it asks, and no more for what it does not need."""
        self.cancel(inference.needless())
        if requests := inference.requests():
            self.ask(requests)

    def ask(self, requests: Sequence[Request]) -> None:
        """Search for these."""
        for request in requests:
            self._open[request.number] = request
        if self._process is not None:
            self._send(requests)
            return
        self._unsent += requests
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            if loop.time() < self._ended_at + RESTART_S:
                loop.call_soon(self._nothing)
                return
            self._task = loop.create_task(self._run())

    def cancel(self, numbers: Sequence[int]) -> None:
        """Nobody waits for the answers of these any more."""
        for number in numbers:
            if self._open.pop(number, None) is None:
                continue
            self._unsent = [r for r in self._unsent if r.number != number]
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(pack_cancel(number))

    async def close(self) -> None:
        for task in (self._task, self._lag):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # -- the process --------------------------------------------------------------------------

    async def _run(self) -> None:
        package = str(Path(hubspoke.__file__).parent.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )
        log.info("order search started pid=%d", process.pid)
        self._process = process
        unsent, self._unsent = self._unsent, []
        self._send(unsent)
        self._lag = asyncio.get_running_loop().create_task(self._watch_lag())
        try:
            await self._read(process)
        finally:
            self._process = None
            self._lag.cancel()
            if process.returncode is None:
                process.kill()
            await process.wait()
        log.info("order search ended status=%s", process.returncode)
        if self._open:
            self._ended_at = asyncio.get_running_loop().time()
            self._nothing()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                async with asyncio.timeout(None if self._open else IDLE_S):
                    head = await process.stdout.readexactly(LENGTH.size)
                body = await process.stdout.readexactly(*LENGTH.unpack(head))
            except TimeoutError:
                if self._open:
                    continue
                return
            except asyncio.IncompleteReadError:
                return
            number, answer = unpack_answer(body)
            if self._open.pop(number, None) is not None:
                self._answered(number, answer)

    def _send(self, requests: Sequence[Request]) -> None:
        assert self._process is not None and self._process.stdin is not None
        for request in requests:
            self._process.stdin.write(pack_request(request))

    def _nothing(self) -> None:
        """Nobody searches."""
        numbers, self._open, self._unsent = list(self._open), {}, []
        for number in numbers:
            self._answered(number, None)

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        calm, paused = CALM_LOOKS, False
        while True:
            before = loop.time()
            await asyncio.sleep(LAG_LOOK_S)
            late = loop.time() - before - LAG_LOOK_S > LAG_MAX_S
            calm = 0 if late and self._long else min(calm + 1, CALM_LOOKS)
            if paused != (calm < CALM_LOOKS):
                paused = not paused
                self._tell("pause" if paused else "go on")

    @property
    def _long(self) -> bool:
        """Whether a search of all seeds is under way."""
        return any(
            isinstance(r, Follow | Windows | Documents) or (isinstance(r, Question) and r.thorough)
            for r in self._open.values()
        )

    def _tell(self, word: Word) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(pack_word(word))
