"""Known heads: what leaves without the parser is byte for byte what leaves with it."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from hubspoke.frontends import direct_answers
from hubspoke.frontends.direct_answers import Again, AnswerNow, DirectAnswer, DirectAnswers, Headers
from hubspoke.frontends.s3 import S3App
from hubspoke.frontends.server import HttpServer, address, bind
from hubspoke.spoke.service import SpokeService
from tests.shell.test_spoke_service import NAME, Hub, a_hub, a_spoke, get

BODY = random.Random(1).randbytes(20_000)

PATH = f"/{NAME.bucket}/{NAME.key}"
LAST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@dataclass
class Door:
    port: int
    parsed: list[bytes]  # methods and urls that were answered directly through the parser


@asynccontextmanager
async def a_door(spoke: SpokeService, *, direct: bool = True) -> AsyncIterator[Door]:
    app = S3App(spoke, None, direct=spoke if direct else None)
    parsed: list[bytes] = []

    def answer_now(method: bytes, url: bytes, headers: Headers, client: str) -> DirectAnswer | None:
        answer = app.answer_now(method, url, headers, client)
        if answer is not None:
            parsed.append(method + b" " + url)
        return answer

    sock = bind("127.0.0.1", 0, "--listen")
    server = HttpServer(app, sock, "--listen", answer_now)
    await server.start()
    try:
        yield Door(int(address(sock).rsplit(":", 1)[1]), parsed)
    finally:
        await server.stop()


class Forgetful(DirectAnswers):
    """Knows no head, so that every request takes the parser's way."""

    def learn(self, data: bytes, headers: Headers, again: Again) -> None:
        pass


@asynccontextmanager
async def two_doors(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Hub, Door, Door]]:
    """One spoke with all of BODY read; its door, and one that knows no heads."""
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            await get(spoke, 0, len(BODY))
            async with a_door(spoke) as door:
                monkeypatch.setattr("hubspoke.frontends.server.DirectAnswers", Forgetful)
                async with a_door(spoke) as full:
                    for warm in (door, full):  # a name is answered directly from the second on
                        await talk(warm, head("bytes=0-0"), LAST)
                    yield hub, door, full


async def talk(door: Door, *parts: bytes) -> bytes:
    """All that comes back, until the door closes. Each part is sent when the one before was
    answered, or after a moment in which nothing came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    got = b""
    # What is sent while the door closes comes back as a reset. A head that goes on for ever is
    # answered by nothing.
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(5):
            for part in parts:
                if reader.at_eof():
                    break
                writer.write(part)
                before = len(got)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.03):
                        while (len(got) == before or not whole(got)) and not reader.at_eof():
                            got += await reader.read(1 << 20)
            while data := await reader.read(1 << 20):
                got += data
    writer.close()
    return re.sub(rb"(x-amz-request-id: |<RequestId>)[0-9A-F]+", rb"\1ID", got)


async def differing(door: Door, full: Door, talks: list[list[bytes]]) -> list[list[bytes]]:
    """Conversations that the two doors answer differently. What differs is talked once more by
    itself: on a busy machine a conversation may be given up before its end."""
    room = asyncio.Semaphore(8)

    async def same(parts: list[bytes]) -> bool:
        async with room:
            return await talk(door, *parts, LAST) == await talk(full, *parts, LAST)

    results = await asyncio.gather(*map(same, talks))
    different = [parts for parts, ok in zip(talks, results, strict=True) if not ok]
    return [parts for parts in different if not await same(parts)]


def whole(got: bytes) -> bool:
    """Whether the last of the answers has come to its end."""
    while got:
        head, end, got = got.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        if not end or found is None or len(got) < int(found[1]):
            return False
        got = got[int(found[1]) :]
    return True


def head(value: str, *more: str, name: str = "Range", line: str = f"GET {PATH} HTTP/1.1") -> bytes:
    lines = [line, "Host: x", *more, f"{name}: {value}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def corpus() -> list[list[bytes]]:
    """Conversations: what is sent one after the other on one connection."""
    rng = random.Random(5)
    size = len(BODY)

    def span(most: int = 9_000) -> str:
        first = rng.randrange(size)
        return f"bytes={first}-{first + rng.randrange(most)}"

    values = [
        *(span() for _ in range(12)), span(90_000), f"bytes={size - 1}-{size - 1}",
        f"bytes={size - 1}-{size + 5}", f"bytes={size}-{size}", "bytes=5-4", "bytes=0-", "bytes=-7",
        "bytes=0-0", "bytes=007-0011", "bytes=0-1,4-5", "bytes= 1-2", "bytes=1-2 ", "bytes=+1-2",
        "bytes=1_0-20", "bytes=1-2-3", "bytes=-", "bytes=", "byte=1-2", "Bytes=1-2",
        "bytes=1-99999999999999999999", "bytes=\u00b2-9", "bytes=0-9\r\nRange: bytes=3-4",
        "bytes=0-9\r\n 1-2", "bytes=0-9\r\nX: bytes=3-4", "bytes=0-9\r\nIf-Match: \"no\"",
        "bytes=0-9\nX: y", "bytes=0-9\r\nContent-Length: 0", "bytes=0-9\r\nConnection: close",
    ]  # fmt: skip
    shapes: list[dict[str, Any]] = [
        {}, {"name": "range"}, {"name": "RANGE"}, {"name": "Orange"}, {"name": "X-Range"},
        {"line": f"GET {PATH}?x-id=GetObject HTTP/1.1"}, {"line": f"GET {PATH}?a HTTP/1.1"},
        {"line": f"GET {PATH} HTTP/1.0"}, {"line": f"HEAD {PATH} HTTP/1.1"},
        {"line": f"GET {PATH}.not HTTP/1.1"}, {"line": f"get {PATH} HTTP/1.1"},
    ]  # fmt: skip
    more = [
        (), ("User-Agent: a", "Accept: */*"), ("X-Orange: bytes=1-2",), ("Orange: bytes=1-2",),
        ("X-Note: range: bytes=1-2",), ("If-None-Match: *",), ("Connection: keep-alive",),
        ("Expect: 100-continue",),
    ]  # fmt: skip
    talks = []
    for shape in shapes:
        for lines in more:
            known = head(span(), *lines, **shape)
            talks.append([known, *(head(v, *lines, **shape) for v in rng.sample(values, 6)), known])
    plain = head("bytes=0-9")
    for value in values:
        talks.append([plain, head(value), plain])
        # A head that comes in two parts, or with the next one behind it.
        other = head(value)
        cut = rng.randrange(1, len(other))
        talks.append([plain, other[:cut], other[cut:], plain])
        talks.append([plain, other + plain, plain])
        talks.append([plain, other + plain[:cut], plain[cut:]])
        talks.append([plain, plain[:-2] + b"X-Rest: ", other, plain])
        talks.append([plain, b"\r\n" + other, plain + b"\r\n", other])
    return talks


async def test_answers_are_those_of_the_parsers_way(monkeypatch: pytest.MonkeyPatch) -> None:
    talks = corpus()[::2]
    async with two_doors(monkeypatch) as (_, door, full):
        assert await differing(door, full, talks) == []
        # The one really took the short way: else this compares the parser with itself.
        parsed, all_of_them = (sum(p[:3] == b"GET" for p in d.parsed) for d in (door, full))
        assert 0 < 2 * parsed < all_of_them


async def test_a_known_head_is_answered_by_the_version_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_doors(monkeypatch) as (hub, door, _):
        request = head("bytes=10-19")
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        async with asyncio.timeout(20):
            for _ in range(3):
                writer.write(request)
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(10) == BODY[10:20]
            assert len(door.parsed) < 25  # the others were known; a busy machine cuts them apart
            await hub.put(NAME, b"another one, of other bytes")
            writer.write(request)
            assert b"/27\r\n" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(10) == b"e, of othe"
        writer.close()


async def test_reads_by_known_heads_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke, a_door(spoke) as door:
            await get(spoke, 0, len(BODY))
            before = spoke.ledger.requests_total, spoke.ledger.read_bytes
            parts = [head(f"bytes={i}-{i + 99}") for i in range(50)]
            await talk(door, *parts, LAST)
            assert len(door.parsed) == 1
            after = spoke.ledger.requests_total, spoke.ledger.read_bytes
            assert after == (before[0] + 50, before[1] + 5_000)
            (folder,) = (await spoke.facts()).cache.folders
            assert folder.objects == 1
            assert sum(s["accesses"] for s in spoke.streams()) >= 1


def learned(answers: DirectAnswers, data: bytes, digits: bytes) -> None:
    answers.learn(data, [(b"range", b"bytes=" + digits)], lambda first, last, client: None)


def test_heads_that_are_remembered_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_answers, "KNOWN_HEADS_MAX", 4)
    now: AnswerNow = lambda method, url, headers, client: None  # noqa: E731 - a type, not a name
    answers = DirectAnswers(now)
    for i in range(11):
        learned(answers, head("bytes=1-2", f"X: {i}"), b"1-2")
        assert len(answers) <= 4
    answers = DirectAnswers(now)
    learned(answers, head("bytes=1-2", "X: " + "y" * direct_answers.KNOWN_BYTES_MAX), b"1-2")
    assert len(answers) == 0
