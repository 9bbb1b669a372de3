"""What was sent stays what it was, whatever becomes of the file before the client takes it."""

import asyncio
import os
import socket
from pathlib import Path

from hubspoke.adapters.holes import punch
from hubspoke.frontends.sending import Sending
from hubspoke.ports import FileSpan

KIB = 1 << 10
LENGTH, HOLE = 256 * KIB, 4 * KIB


async def test_a_hole_that_is_punched_behind_a_span_that_was_sent_changes_nothing(
    tmp_path: Path,
) -> None:
    """A page inside a large folio of the page cache would be zeroed in its place."""
    body = os.urandom(LENGTH)
    path = tmp_path / "file"
    with path.open("w+b", buffering=0) as file:
        file.write(body)
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LENGTH)
            loop = asyncio.get_running_loop()
            done: asyncio.Future[OSError | None] = loop.create_future()
            released: list[bool] = []
            span = FileSpan(file.fileno(), 0, LENGTH, lambda: released.append(True))
            Sending(loop, near, span, done.set_result).start()
            assert await asyncio.wait_for(done, 10) is None and released
            for at in range(HOLE, LENGTH, 4 * HOLE):
                punch(file.fileno(), at, HOLE)
            far.settimeout(10)
            got = b""
            while len(got) < LENGTH:
                got += far.recv(LENGTH)
    assert got == body
