"""The data port's HTTP/1.1 protocol: uvicorn's, plus three short ways out for the bytes of hits.

- *Direct answers*: a request that the application can answer at once from memory is answered in
  the parser's own callback, without a task, a scope or an event: `AnswerNow`.
- *Known heads*: a request that is, but for the digits of its range, byte for byte one that was
  answered directly before is answered without the parser: what the parser would say is known.
- *Spans*: bytes of an open file go from the page cache to the socket as the client takes them
  (`sending`), for direct answers and for tasks (ASGI extension `http.response.zerocopysend`). They
  are sent on a duplicate of the transport's descriptor, which the loop can watch; the transport's
  own buffer must be empty before, or bytes would overtake each other.

Decides nothing about HTTP that uvicorn decides; anything unusual takes uvicorn's way. A client
that stops reading holds one file descriptor and no memory, until SEND_STALL_S are over. Heads have
a bound, which uvicorn's have not; an expected error after the head ends the connection with one
line in the log; draining waits for requests that are still coming in only while bytes come.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from hubspoke.errors import HubSpokeError
from hubspoke.frontends import sending
from hubspoke.frontends.direct_answers import Again, DirectAnswer, DirectAnswers, DirectCycle
from hubspoke.frontends.sending import Sending
from hubspoke.ports import FileSpan

log = logging.getLogger(__name__)

EXTENSION = "http.response.zerocopysend"
# Our own: a piece of a chunked body as a list of buffers, which are not joined. The hub's frames
# would be copied twice on their way to the socket, which was a third of its time.
PARTS = "http.response.parts"
# Of one request, with its trailers. A key is 1 KiB at most, S3 metadata 2 KiB.
HEAD_BYTES_MAX = 64 << 10
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
# While an answer is under way: 1 MB. Without it a client that does not read took 440 MB.
PIPELINED_MAX = 256
# When the port drains, a request whose body stands still for so long is not waited for.
DRAIN_STALL_S = 0.5


class DataProtocol(HttpToolsProtocol):
    """One connection of the data port."""

    def __init__(self, direct: DirectAnswers | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._direct = direct
        self._begun = 0  # messages that the parser has seen the beginning of
        self._between = True  # the parser has no part of a message
        self._again: Again | None = None  # of the request under way
        self._running: RequestResponseCycle | None = None  # uvicorn knows the one that came last
        self._answered_at = 0.0
        self._duplicate: socket.socket | None = None
        self._sending: Sending | None = None
        self._client_name = ""
        self._received = 0  # bytes ever
        self._head_bytes = 0  # since the last head or part of a body that was complete
        self._head_may_be_long = False
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn's."""
        super().connection_made(transport)
        if self.client is not None:
            self._client_name = f"{self.client[0]}:{self.client[1]}"

    # -- bounds -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, for a head of bounded size: the parser keeps a header that does not end
        in memory of its own, and trailers in the head's list."""
        if self._refused:
            return
        if self._between and self._direct is not None and self._idle():
            answer = self._direct.answer(data, self._client_name)
            if answer is not None:
                self._answer_known(answer)
                return
        self._received += len(data)
        self._head_bytes += len(data)
        self._head_may_be_long = self._head_bytes > HEAD_BYTES_MAX
        alone, begun, self._again = self._between, self._begun, None
        super().data_received(data)
        if self._again is not None:
            if alone and self._between and self._begun == begun + 1 and self._direct is not None:
                self._direct.learn(data, self.headers, self._again)
            self._again = None
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._begun += 1
        self._between = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._between = True
        super().on_message_complete()

    def _idle(self) -> bool:
        """Nothing is under way, and the client takes what it is sent."""
        cycle = self.cycle
        return (
            (cycle is None or cycle.response_complete)
            and not self.pipeline
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def _keep_alive(self, delay_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            delay_s, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """As uvicorn's; known heads leave the timer alone, and the time of the last here."""
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._keep_alive(left)
        else:
            super().timeout_keep_alive_handler()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._head_bytes = 0
        super().on_body(body)

    def _head_too_long(self) -> bool:
        return len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > HEAD_BYTES_MAX

    def _refuse(self) -> None:
        """431, or just the end of the connection where an answer is under way."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        log.info("head of more than %d bytes refused client=%s", HEAD_BYTES_MAX, self._client_name)
        if self.cycle is None or self.cycle.response_complete:
            reason = b"a request's head may have %d bytes\n" % HEAD_BYTES_MAX
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
                b"content-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(reason), reason)
            )
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        # What the parser still has in hand belongs to nothing.
        self.cycle = DirectCycle()  # type: ignore[assignment]  # the parts of a cycle that are looked at
        self.transport.close()

    def shutdown(self) -> None:
        """The port drains: a running answer may end, a request may come in while it comes."""
        super().shutdown()
        if self.cycle is not None and not self.cycle.response_complete and self.cycle.more_body:
            self.loop.call_later(DRAIN_STALL_S, self._drain_stalled, self._received)

    def _drain_stalled(self, received_before: int) -> None:
        if self.transport.is_closing() or not self.cycle.more_body:
            return
        if self._received == received_before:
            log.info("request cut, its body stands still client=%s", self._client_name)
            self.transport.abort()
            return
        self.loop.call_later(DRAIN_STALL_S, self._drain_stalled, self._received)

    # -- direct answers -----------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        """Called by the parser when a request's head is complete."""
        self._head_bytes = 0
        if self._refused:
            return None
        if self._head_may_be_long and self._head_too_long():
            return self._refuse()
        if len(self.pipeline) >= PIPELINED_MAX:
            log.info("more than %d pipelined requests client=%s", PIPELINED_MAX, self._client_name)
            self._refused = True
            self.pipeline.clear()
            self.transport.abort()
            return None
        if self._direct is not None and self._idle() and self._plain():
            method = self.parser.get_method()
            answer = self._direct.answer_now(method, self.url, self.headers, self._client_name)
            if answer is not None:
                self._again = answer.again
                self._answer(answer)
                return
        super().on_headers_complete()

    def _plain(self) -> bool:
        return bool(
            self.parser.get_method() in (b"GET", b"HEAD")
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.expect_100_continue
        )

    def _answer_known(self, answer: DirectAnswer) -> None:
        """An answer to a request that the parser has not seen."""
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._keep_alive(self.timeout_keep_alive)
        if isinstance(answer.body, bytes):
            self._send(answer.head + answer.body)
        else:
            self._answer(answer)

    def _answer(self, answer: DirectAnswer) -> None:
        cycle = DirectCycle()
        self.cycle = cycle  # type: ignore[assignment]  # the parts of a cycle that are looked at
        body = answer.body
        if isinstance(body, bytes):
            self._send(answer.head + body)
            self.on_response_complete()
            return
        cycle.response_complete = False
        if self.transport.get_write_buffer_size():
            # A pipelined request behind an answer that is still in the buffer.
            self.loop.create_task(self._send_later(answer.head, body, cycle))
            return
        try:
            sent = self._socket().send(answer.head, socket.MSG_MORE)
        except BlockingIOError:
            sent = 0
        except OSError as e:
            body.release()
            self._cut(e)
            return
        if sent < len(answer.head):
            self.loop.create_task(self._send_later(answer.head[sent:], body, cycle))
            return
        self._begin(body, lambda error: self._direct_done(cycle, error))

    def _send(self, data: bytes) -> None:
        """Now and not, as the transport does it, at the end of the loop's turn."""
        if self.transport.get_write_buffer_size():
            self.transport.write(data)
            return
        try:
            sent = self._socket().send(data)
        except BlockingIOError:
            sent = 0
        except OSError as e:
            if e.errno not in _NO_DESCRIPTOR:
                self.transport.abort()
                return
            sent = 0  # the transport needs none
        if sent < len(data):
            self.transport.write(data[sent:])

    async def _send_later(self, head: bytes, span: FileSpan, cycle: DirectCycle) -> None:
        self.transport.write(head)
        try:
            await self._flushed()
            if cycle.disconnected or self.transport.is_closing():
                raise ConnectionResetError("connection lost")
        except (OSError, asyncio.CancelledError):
            span.release()
            self.transport.abort()
            return
        self._begin(span, lambda error: self._direct_done(cycle, error))

    def _direct_done(self, cycle: DirectCycle, error: OSError | None) -> None:
        cycle.response_complete = True
        if error is not None or not cycle.keep_alive:
            self.transport.abort() if error is not None else self.transport.close()
            return
        self.on_response_complete()

    # -- spans --------------------------------------------------------------------------------

    def _socket(self) -> socket.socket:
        if self._duplicate is None:
            own = self.transport.get_extra_info("socket")
            self._duplicate = socket.socket(fileno=os.dup(own.fileno()))
            self._duplicate.setblocking(False)
        return self._duplicate

    def _cut(self, error: OSError) -> None:
        if error.errno in _NO_DESCRIPTOR:
            log.warning("no descriptor to send from the cache with, connection cut: %s", error)
        self.transport.abort()

    async def _flushed(self) -> None:
        """Until the transport's own buffer is empty."""
        if not self.transport.get_write_buffer_size():
            return
        self.transport.set_write_buffer_limits(0, 0)
        try:
            while self.transport.get_write_buffer_size() and not self.transport.is_closing():
                await asyncio.wait_for(self.flow.drain(), sending.SEND_STALL_S)
                if self.transport.get_write_buffer_size():
                    await asyncio.sleep(0)  # written at the end of this turn of the loop
        finally:
            if not self.transport.is_closing():
                self.transport.set_write_buffer_limits()

    def _begin(self, span: FileSpan, done: Callable[[OSError | None], None]) -> None:
        def ended(error: OSError | None) -> None:
            self._sending = None
            done(error)

        try:
            sock = self._socket()
        except OSError as e:
            span.release()
            self._cut(e)
            done(e)
            return
        self._sending = Sending(self.loop, sock, span, ended)
        self._sending.start()

    async def _send_span(self, cycle: RequestResponseCycle, message: dict[str, Any]) -> None:
        span: FileSpan = message["file"]
        try:
            await self._flushed()
        except BaseException:
            span.release()
            raise
        if cycle.disconnected or self.transport.is_closing():
            cycle.disconnected = True  # which uvicorn says only when the connection is gone
            span.release()
            return
        cycle.expected_content_length -= span.length
        future: asyncio.Future[OSError | None] = self.loop.create_future()
        self._begin(span, lambda e: None if future.done() else future.set_result(e))
        try:
            error = await future
        except asyncio.CancelledError:
            if self._sending is not None:
                self._sending.cancel()
            self.transport.abort()
            raise
        if error is not None:
            cycle.disconnected = True
            self.transport.abort()

    async def _send_parts(
        self, cycle: RequestResponseCycle, parts: list[bytes | memoryview]
    ) -> None:
        assert cycle.response_started and cycle.chunked_encoding, "parts are for chunked bodies"
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if not cycle.disconnected:
            size = b"%x\r\n" % sum(map(len, parts))
            self.transport.writelines([size, *parts, b"\r\n"])

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["extensions"] = {EXTENSION: {}, PARTS: {}}
        self._running = cycle

        async def with_spans(scope: Any, receive: Any, send: Any) -> None:
            async def send_or_span(message: Any) -> None:
                if message["type"] == EXTENSION:
                    await self._send_span(cycle, message)
                elif message["type"] == PARTS:
                    await self._send_parts(cycle, message["parts"])
                else:
                    await send(message)

            try:
                await app(scope, receive, send_or_span)
            except (HubSpokeError, TimeoutError, asyncio.CancelledError) as e:
                told = cycle.response_started or cycle.disconnected
                if not told and not isinstance(e, asyncio.CancelledError):
                    raise
                # The client sees a body that is too short; uvicorn would log a traceback.
                log.info("answer broken off path=%s error=%r", scope["path"], e)
                cycle.disconnected = True
                self.transport.close()

        super()._start_asgi_task(cycle, with_spans)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sending is not None:
            self._sending.cancel()
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True  # also when others are pipelined behind it
            running.message_event.set()
        if self._duplicate is not None:
            self._duplicate.close()
            self._duplicate = None
