"""Answers to requests that may take longer than a client waits in silence.

S3 answers CompleteMultipartUpload and CopyObject with 200 before it knows the outcome, then sends
white space until it does, and the document, which may be an error. So does this door, after a
first wait. The work itself is never cancelled by the client's leaving: it is under way in the
store, and a repeated request finds it done.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from hubspoke.errors import HubSpokeError
from hubspoke.frontends.s3.errors import S3Error, as_s3_error, error_document
from hubspoke.frontends.s3.response import Response
from hubspoke.frontends.s3.xml import DECLARATION

log = logging.getLogger(__name__)


class SlowAnswers:
    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._tasks: set[asyncio.Task[Response]] = set()

    async def answer(self, work: Coroutine[Any, Any, Response], resource: str) -> Response:
        """The work's own response if it is there in time, or 200 and the document later."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        await asyncio.wait({task}, timeout=self._interval_s)
        if task.done():
            return task.result()
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

    def _done(self, task: asyncio.Task[Response]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the client that would have been told may be gone
