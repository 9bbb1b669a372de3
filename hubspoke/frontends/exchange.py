"""Request bodies and plain answers of the applications that are not S3."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hubspoke.errors import InvalidRequest
from hubspoke.frontends.asgi import Receive, Send


class Disconnected(Exception):
    """The client has gone away; nobody is left to answer."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """Raises InvalidRequest beyond `limit` bytes, Disconnected when the client is gone."""
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise Disconnected
        part = event.get("body", b"")
        size += len(part)
        if size > limit:
            raise InvalidRequest(f"request body of more than {limit} bytes")
        parts.append(part)
        if not event.get("more_body", False):
            return b"".join(parts)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and drop it as soon as the client is gone: `send` does not tell."""
    doing = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Disconnected
        await doing
    finally:
        for task in (doing, watching):
            task.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(send: Send, status: int, reason: str) -> None:
    """A whole answer of one line of text."""
    body = reason.encode("utf-8", "replace")
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
