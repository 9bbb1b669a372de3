"""The admin port's door to traces: reads as they come, as the bytes of a trace file.

`curl -N .../v1/trace > a.hstrace` is a recording. It ends when the client goes or the spoke stops,
and is given up when the client takes nothing for a time; the spoke waits for no recorder.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import APIRouter, Response

from hubspoke.errors import Overloaded
from hubspoke.frontends.asgi import Receive, Scope, Send

log = logging.getLogger(__name__)

# A recorder that takes nothing for so long would hold a place for ever.
STALL_S = 60.0
MEDIA_TYPE = "application/vnd.hubspoke.trace"


class TraceView(Protocol):
    """What the admin port needs to see of the spoke's recorders."""

    def record(self) -> AsyncGenerator[bytes, None]: ...  # raises Overloaded


class TraceStream(Response):
    """Pieces until they end or the client goes; each is taken within `stall_s`."""

    media_type = MEDIA_TYPE

    def __init__(self, pieces: AsyncGenerator[bytes, None], stall_s: float = STALL_S) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._pieces = pieces
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        head = {"status": 200, "headers": self.raw_headers}
        try:
            async with aclosing(self._pieces) as pieces:
                await send({"type": "http.response.start", **head})
                async for piece in pieces:
                    if gone.done():
                        return
                    async with asyncio.timeout(self._stall_s):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            # Without its last piece the answer is cut off, which the recorder sees.
            log.info("recorder given up: it took nothing for %g s", self._stall_s)
        finally:
            gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_TRACE: dict[int | str, dict[str, Any]] = {
    200: {"description": "a trace file, .hstrace, that grows", "content": {MEDIA_TYPE: {}}},
    429: {"description": "too many recorders are at work"},
}


def trace_router(recorders: TraceView) -> APIRouter:
    """GET /v1/trace."""
    router = APIRouter()

    @router.get(
        "/v1/trace", summary="Record: every read from now on, until you go", responses=_TRACE
    )
    async def trace() -> Response:
        try:
            return TraceStream(recorders.record())
        except Overloaded as e:
            body = json.dumps({"detail": str(e)})
            return Response(body, 429, media_type="application/json")

    return router
