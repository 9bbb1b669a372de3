"""A bound on request bodies in front of an application that reads them whole.

Never hands on a body that is larger, or more than the bound of one that lies about its length.
"""

import asyncio

from hubspoke.frontends.asgi import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 1 << 20
BODY_S = 30.0  # from the head to the last byte of a body


class BodyLimit:
    """ASGI middleware: 413 beyond BODY_BYTES_MAX, 408 for a body that does not come."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        if _declared(scope) > BODY_BYTES_MAX:
            await _refuse(send, 413, f"a body may have {BODY_BYTES_MAX} bytes")
            return
        try:
            async with asyncio.timeout(BODY_S):
                body = await _whole(receive)
        except _Gone:
            return
        except TimeoutError:
            await _refuse(send, 408, f"the body did not come within {BODY_S:g} s")
            return
        if body is None:
            await _refuse(send, 413, f"a body may have {BODY_BYTES_MAX} bytes")
            return
        told = False

        async def replay() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)


def _declared(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)  # the parser has checked that it is a number
    return 0


class _Gone(Exception):
    """The client has gone away inside the body."""


async def _whole(receive: Receive) -> bytes | None:
    """None: too large. Raises _Gone."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Gone
        more = event.get("more_body", False)
        part = event.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            return None
        parts.append(part)
    return b"".join(parts)


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = b'{"detail":"%b"}' % reason.encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
