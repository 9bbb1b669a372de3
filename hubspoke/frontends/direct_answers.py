"""Answers without a task, and the heads of requests that were answered so.

Decides which requests need no parser: those that are, but for the digits of their range, byte for
byte one that the parser took as a whole and that was answered directly.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hubspoke.ports import FileSpan

# Of heads that are remembered: SDKs sign each request anew, so most heads are seen once.
KNOWN_HEADS_MAX = 4_096
KNOWN_BYTES_MAX = 1_024
_RANGE = b"ange: bytes="  # without its first letter, which clients write in two ways
_DIGITS_MAX = 15

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class DirectAnswer:
    """A whole response: the head with its empty line, and bytes or a span of a file.

    again: answers the same request for another range.
    """

    head: bytes
    body: bytes | FileSpan
    again: "Again | None" = None


# (first byte, last byte, client) -> the answer, or None to go the usual way.
Again = Callable[[int, int, str], DirectAnswer | None]
# (GET or HEAD, url, headers with lower-case names, client as "host:port") -> the answer, or None to
# go the usual way.
AnswerNow = Callable[[bytes, bytes, Headers, str], DirectAnswer | None]


class DirectCycle:
    """What uvicorn's protocol looks at in a cycle, for an answer without one."""

    def __init__(self) -> None:
        self.response_complete = True
        self.disconnected = False
        self.keep_alive = True
        self.more_body = False
        self.body = bytearray()
        self.message_event = asyncio.Event()


class DirectAnswers:
    """Who answers directly, and the heads that were answered so: shared by all connections.

    A known head is kept as what stands before and behind the digits of its range. It was one
    whole message that the parser took and a plain request; so is every head that differs from it
    in these digits alone.
    """

    def __init__(self, answer_now: AnswerNow) -> None:
        self.answer_now = answer_now
        self._known: dict[tuple[bytes, bytes], Again] = {}

    def __len__(self) -> int:
        return len(self._known)

    def answer(self, data: bytes, client: str) -> DirectAnswer | None:
        """The answer if the buffer is a known head."""
        before, _, rest = data.partition(_RANGE)
        digits, _, after = rest.partition(b"\r\n")
        again = self._known.get((before, after))
        if again is None:
            return None
        first, _, last = digits.partition(b"-")
        if not (first.isdigit() and last.isdigit() and len(digits) <= 2 * _DIGITS_MAX):
            return None
        return again(int(first), int(last), client)

    def learn(self, data: bytes, headers: Headers, again: Again) -> None:
        """The buffer was exactly one request, with these headers, and was answered directly."""
        before, _, rest = data.partition(_RANGE)
        digits, _, after = rest.partition(b"\r\n")
        first, _, last = digits.partition(b"-")
        if not (first.isdigit() and last.isdigit()) or len(data) > KNOWN_BYTES_MAX:
            return
        # The digits are the range's and not those of a header that ends alike.
        if before[-3:-1] != b"\r\n" or (b"range", b"bytes=" + digits) not in headers:
            return
        if len(self._known) >= KNOWN_HEADS_MAX:
            self._known.clear()
        self._known[before, after] = again
