"""Answers without a task: a ranged GET of what is cached, or a HEAD, in the parser's callback.

Only what is plain is answered here: a name that is there, no conditions, no overrides, bytes that
are local and in memory. Everything else gets None and the usual way, which
gives the same answer more slowly; nothing is refused here.
"""

from collections.abc import Callable

from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.errors import HubSpokeError
from hubspoke.frontends.asgi import Message, Send
from hubspoke.frontends.data_protocol import EXTENSION
from hubspoke.frontends.direct_answers import DirectAnswer
from hubspoke.frontends.s3.conditions import CONDITIONS, parse_range
from hubspoke.frontends.s3.errors import S3Error
from hubspoke.frontends.s3.objects import entry_headers, object_checksum_headers
from hubspoke.frontends.s3.response import HeaderList, copied
from hubspoke.ports import DirectReader, Resolved

NOT_DIRECT = CONDITIONS | {b"expect", b"content-length", b"transfer-encoding", b"upgrade"}
_KEPT_MAX = 4_096
_TAIL = (
    b"content-range: bytes %%d-%%d/%d\r\ncontent-length: %%d\r\n"
    b"x-hubspoke-cache: hit\r\nx-amz-request-id: %%b\r\n\r\n"
)
_PARTIAL = b"HTTP/1.1 206 Partial Content\r\n"
_OK = b"HTTP/1.1 200 OK\r\n"


class DirectReads:
    """Over a reader that can answer at once."""

    def __init__(self, reader: DirectReader, request_id: Callable[[], bytes]) -> None:
        self._reader = reader
        self._request_id = request_id
        self._ranged: dict[ObjectName, _Ranged] = {}

    def get(self, name: ObjectName, header_range: bytes | None, client: str) -> DirectAnswer | None:
        """A 206 of a single range, or None. Whole objects have headers that depend on more."""
        if header_range is None:
            return None
        ranged = self._ranged.get(name)
        if ranged is None:
            if len(self._ranged) >= _KEPT_MAX:
                del self._ranged[next(iter(self._ranged))]
            ranged = self._ranged[name] = _Ranged(self._reader, name, self._request_id)
        return ranged.header(header_range, client)

    def head(self, name: ObjectName, *, checksums: bool) -> DirectAnswer | None:
        """A 200 of the whole object. Nothing is kept: a client asks once for each of many names,
        and what is kept for a second or two makes work for the search for reference cycles."""
        resolved = self._reader.resolve_now(name, keep=False)
        if resolved is None:
            return None
        entry = resolved.entry
        lines = entry_headers(entry)
        if checksums:
            lines += object_checksum_headers(entry.headers)
        lines += (
            (b"content-length", b"%d" % entry.size),
            (b"x-amz-request-id", self._request_id()),
        )
        return DirectAnswer(_OK + _written(lines) + b"\r\n", b"")


class _Ranged:
    """Answers ranged GETs of one name; keeps the head of its version."""

    __slots__ = ("_entry", "_head", "_name", "_reader", "_request_id", "_tail")

    def __init__(
        self, reader: DirectReader, name: ObjectName, request_id: Callable[[], bytes]
    ) -> None:
        self._reader = reader
        self._name = name
        self._request_id = request_id
        self._entry: ObjectEntry | None = None
        self._head = self._tail = b""

    def header(self, header_range: bytes, client: str) -> DirectAnswer | None:
        """By the value of a Range header."""
        resolved = self._reader.resolve_now(self._name)
        if resolved is None:
            return None
        try:
            span = parse_range(header_range, resolved.entry.size)
        except S3Error:
            return None
        return None if span is None else self._answer(resolved, *span, client)

    def again(self, first: int, last: int, client: str) -> DirectAnswer | None:
        """By the first and the last byte of the range."""
        resolved = self._reader.resolve_now(self._name)
        if resolved is None:
            return None
        end = min(last + 1, resolved.entry.size)
        return self._answer(resolved, first, end - first, client) if first <= last else None

    def _answer(
        self, resolved: Resolved, offset: int, length: int, client: str
    ) -> DirectAnswer | None:
        if length <= 0:
            return None
        try:
            body = self._reader.read_now(resolved, offset, length, client)
        except HubSpokeError:
            return None
        if body is None:
            return None
        if resolved.entry is not self._entry:
            self._keep(resolved.entry)
        tail = self._tail % (offset, offset + length - 1, length, self._request_id())
        return DirectAnswer(self._head + tail, body, self.again)

    def _keep(self, entry: ObjectEntry) -> None:
        self._head = _PARTIAL + _written(entry_headers(entry))
        self._tail = _TAIL % entry.size
        self._entry = entry


def _written(lines: HeaderList) -> bytes:
    return b"".join([b"%b: %b\r\n" % line for line in lines])


def spans_copied(send: Send) -> Send:
    """For servers without the extension: spans are read and sent as bodies."""

    async def send_copy(message: Message) -> None:
        if message["type"] != EXTENSION:
            await send(message)
            return
        data = copied(message["file"])
        await send({"type": "http.response.body", "body": data, "more_body": True})

    return send_copy
