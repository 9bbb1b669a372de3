"""Hits without a task: a ranged GET answered in the parser's callback.

Only what is plain is answered here: a name that the door has resolved before, no conditions, no
overrides, bytes that are local and in memory. Everything else gets None and the usual way, which
gives the same answer more slowly; nothing is refused here.
"""

from collections.abc import Callable

from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.errors import HubSpokeError
from hubspoke.frontends.asgi import Message, Send
from hubspoke.frontends.data_protocol import EXTENSION, DirectAnswer
from hubspoke.frontends.s3.conditions import CONDITIONS, parse_range
from hubspoke.frontends.s3.errors import S3Error
from hubspoke.frontends.s3.objects import entry_headers
from hubspoke.frontends.s3.response import copied
from hubspoke.ports import DirectReader

NOT_DIRECT = CONDITIONS | {b"expect", b"content-length", b"transfer-encoding", b"upgrade"}
_KEPT_MAX = 4_096
_TAIL = b"content-range: bytes %d-%d/%d\r\ncontent-length: %d\r\nx-amz-request-id: %b\r\n\r\n"
_PARTIAL = b"HTTP/1.1 206 Partial Content\r\n"


class DirectReads:
    """Over a reader that can answer at once."""

    def __init__(self, reader: DirectReader) -> None:
        self._reader = reader
        self._heads: dict[ObjectName, tuple[ObjectEntry, bytes]] = {}

    def get(
        self,
        name: ObjectName,
        header_range: bytes | None,
        client: str,
        request_id: Callable[[], bytes],
    ) -> DirectAnswer | None:
        """A 206 of a single range, or None. Whole objects have headers that depend on more."""
        if header_range is None:
            return None
        resolved = self._reader.resolve_now(name)
        if resolved is None:
            return None
        entry = resolved.entry
        try:
            span = parse_range(header_range, entry.size)
        except S3Error:
            return None
        if span is None or span[1] == 0:
            return None
        offset, length = span
        try:
            body = self._reader.read_now(resolved, offset, length, client)
        except HubSpokeError:
            return None
        if body is None:
            return None
        tail = _TAIL % (offset, offset + length - 1, entry.size, length, request_id())
        return DirectAnswer(self._head(name, entry) + tail, body)

    def _head(self, name: ObjectName, entry: ObjectEntry) -> bytes:
        kept = self._heads.get(name)
        if kept is not None and kept[0] is entry:
            return kept[1]
        if len(self._heads) >= _KEPT_MAX:
            self._heads.clear()
        lines = [*entry_headers(entry), (b"x-hubspoke-cache", b"hit")]
        head = _PARTIAL + b"".join(b"%b: %b\r\n" % line for line in lines)
        self._heads[name] = (entry, head)
        return head


def spans_copied(send: Send) -> Send:
    """For servers without the extension: spans are read and sent as bodies."""

    async def send_copy(message: Message) -> None:
        if message["type"] != EXTENSION:
            await send(message)
            return
        data = copied(message["file"])
        await send({"type": "http.response.body", "body": data, "more_body": True})

    return send_copy
