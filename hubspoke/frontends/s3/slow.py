"""Answers to requests that may take longer than a client waits in silence.

S3 answers CompleteMultipartUpload and CopyObject with 200 before it knows the outcome, then sends
white space until it does, and the document, which may be an error. So does this door, after a
first wait. The work itself is never cancelled by the client's leaving: it is under way in the
store. A client that repeats such a request, because it lost the answer, gets the answer of the
work that is under way or was done.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from typing import Any

from hubspoke.errors import HubSpokeError
from hubspoke.frontends.s3.errors import S3Error, as_s3_error, error_document
from hubspoke.frontends.s3.response import Response
from hubspoke.frontends.s3.xml import DECLARATION

log = logging.getLogger(__name__)


_REMEMBERED_MAX = 256

Work = Callable[[], Coroutine[Any, Any, Response]]


class SlowAnswers:
    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._tasks: set[asyncio.Task[Response]] = set()
        self._remembered: OrderedDict[Hashable, asyncio.Task[Response]] = OrderedDict()

    async def answer(self, work: Work, resource: str, *, same: Hashable = None) -> Response:
        """The work's own response if it is there in time, or 200 and the document later.

        same: requests with an equal one ask for the same work, which is done once unless it
        failed; None if a repeated request is to be done again.
        """
        task = self._remembered.get(same)
        if task is None:
            task = asyncio.create_task(work())
            self._tasks.add(task)
            task.add_done_callback(self._done)
            if same is not None:
                self._remember(same, task)
        await asyncio.wait({task}, timeout=self._interval_s)
        if task.done():
            done = task.result()
            return Response(done.status, list(done.headers), done.body)
        return Response(200, [(b"content-type", b"application/xml")], self._later(task, resource))

    async def _later(self, task: asyncio.Task[Response], resource: str) -> AsyncIterator[bytes]:
        declaration = DECLARATION.encode()
        yield declaration
        while not task.done():
            await asyncio.wait({task}, timeout=self._interval_s)
            yield b" "
        try:
            body = task.result().body
            assert isinstance(body, bytes), "slow answers are documents"
        except HubSpokeError as e:
            body = error_document(as_s3_error(e), resource, "")
        except Exception:
            log.exception("request=%s failed after its answer began", resource)
            body = error_document(S3Error("InternalError", "internal error"), resource, "")
        yield body.removeprefix(declaration)

    def _remember(self, same: Hashable, task: asyncio.Task[Response]) -> None:
        def forget_failure(done: asyncio.Task[Response]) -> None:
            if (done.cancelled() or done.exception()) and self._remembered.get(same) is done:
                del self._remembered[same]

        self._remembered[same] = task
        task.add_done_callback(forget_failure)
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _done(self, task: asyncio.Task[Response]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the client that would have been told may be gone
