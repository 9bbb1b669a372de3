"""S3 clients that write down what they did and saw, for hubspoke.sim.linearizability to judge.

Every 8-byte word of an object says which name and which write it is of, so a body of two versions
is seen as torn, and GET, HEAD and LIST can each be said to have read one write: by its bytes, or
by the ETag. An answer that says itself that it may be stale (x-hubspoke-staleness) promises
nothing and is only counted.
"""

import asyncio
import hashlib
import itertools
import math
import struct
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from typing import Any, Literal, Protocol

import aiohttp
import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from hubspoke.sim.linearizability import Kind, Operation

BUCKET = "data"
WAIT_S = 60.0
Verb = Literal["get", "head", "list"]
VERBS: tuple[Verb, ...] = ("get", "head", "list")


def size_of(name: int) -> int:
    """Equal for all writes of a name. Every eighth has more than one frame."""
    return 600 << 10 if name % 8 == 0 else 16 << 10


def content(name: int, number: int) -> bytes:
    return struct.pack(">II", name, number) * (size_of(name) // 8)


def key_of(name: int) -> str:
    return f"k{name:03d}"


class Torn(AssertionError):
    """Bytes, or an ETag, of no one write of the name."""


class Unanswered(Exception):
    """No answer that says anything: an error status, a broken connection."""


class Answer:
    """status, headers (lower case) and body of one request, whatever client made it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Client(Protocol):
    """One S3 client on one door. Raises Unanswered."""

    async def put(self, key: str, body: bytes) -> int: ...
    async def delete(self, key: str) -> int: ...
    async def read(self, verb: Verb, key: str) -> Answer: ...
    async def close(self) -> None: ...


class PlainClient:
    """Bare HTTP: every header and byte as it came."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/{BUCKET}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=WAIT_S)
        )

    async def put(self, key: str, body: bytes) -> int:
        return (await self._ask("PUT", f"/{key}", body)).status

    async def delete(self, key: str) -> int:
        return (await self._ask("DELETE", f"/{key}")).status

    async def read(self, verb: Verb, key: str) -> Answer:
        if verb == "list":
            return await self._ask("GET", f"?list-type=2&prefix={key}")
        return await self._ask(verb.upper(), f"/{key}")

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        try:
            async with self._session.request(method, self._url + path, data=body) as answer:
                headers = {k.lower(): v for k, v in answer.headers.items()}
                return Answer(answer.status, headers, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise Unanswered(f"{method} {path}: {e!r}") from e

    async def close(self) -> None:
        await self._session.close()


class BotoClient:
    """What most users have. No retries: an answer is an answer."""

    def __init__(self, url: str, threads: int = 16) -> None:
        self._boto: Any = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
            config=Config(
                retries={"max_attempts": 1, "mode": "standard"},
                s3={"addressing_style": "path"},
                read_timeout=WAIT_S,
                max_pool_connections=threads,
            ),
        )

    async def put(self, key: str, body: bytes) -> int:
        return (await self._call("put_object", Key=key, Body=body)).status

    async def delete(self, key: str) -> int:
        return (await self._call("delete_object", Key=key)).status

    async def read(self, verb: Verb, key: str) -> Answer:
        if verb == "list":
            return await self._call("list_objects_v2", Prefix=key)
        return await self._call(f"{verb}_object", Key=key)

    async def _call(self, method: str, **arguments: Any) -> Answer:
        return await asyncio.to_thread(self._blocking, method, arguments)

    def _blocking(self, method: str, arguments: dict[str, Any]) -> Answer:
        try:
            answer = getattr(self._boto, method)(Bucket=BUCKET, **arguments)
            body = answer["Body"].read() if "Body" in answer else b""
            if method == "list_objects_v2":
                body = _as_xml(answer)
        except ClientError as e:
            answer, body = e.response, b""
        except (BotoCoreError, OSError) as e:
            raise Unanswered(f"{method} {arguments.get('Key')}: {e!r}") from e
        meta = answer["ResponseMetadata"]
        return Answer(meta["HTTPStatusCode"], meta.get("HTTPHeaders", {}), body)

    async def close(self) -> None:
        self._boto.close()


def _as_xml(answer: dict[str, Any]) -> bytes:
    entries = "".join(
        f"<Contents><Key>{c['Key']}</Key><ETag>{c['ETag']}</ETag><Size>{c['Size']}</Size></Contents>"
        for c in answer.get("Contents", [])
    )
    return f"<ListBucketResult>{entries}</ListBucketResult>".encode()


class Witness:
    """Makes requests, and keeps the history. `started` counts writes of each name: a value."""

    def __init__(self) -> None:
        self.history: list[Operation] = []
        self.counts: Counter[str] = Counter()
        self.put_s: list[float] = []  # of acknowledged writes
        self.failures: list[str] = []  # what the last requests without an answer said
        self._numbers: dict[int, itertools.count[int]] = {}
        self._numbers_of: dict[tuple[int, str], int] = {}  # by name and ETag

    async def put(self, client: Client, name: int) -> int | None:
        """The number of the write, None when it was not acknowledged."""
        number = next(self._numbers.setdefault(name, itertools.count(1)))
        body = content(name, number)
        self._numbers_of[name, hashlib.md5(body).hexdigest()] = number
        start = time.monotonic()
        end = await self._write(client.put(key_of(name), body), "put", 200)
        self._add(name, "write", number, start, end, "put")
        if end == math.inf:
            return None
        self.put_s.append(end - start)
        return number

    async def delete(self, client: Client, name: int) -> None:
        start = time.monotonic()
        end = await self._write(client.delete(key_of(name)), "delete", 204)
        self._add(name, "write", None, start, end, "delete")

    async def _write(self, answer: Any, verb: str, good: int) -> float:
        try:
            status = await answer
        except Unanswered as e:
            self._failed(verb, str(e))
            return math.inf
        if status != good:  # whatever the reason: it may yet come about
            self._failed(verb, f"status {status}")
            return math.inf
        self.counts[verb] += 1
        return time.monotonic()

    async def read(self, client: Client, verb: Verb, name: int, who: str = "") -> int | None:
        """The number of the write that was read, None for absent. Raises Unanswered, Torn."""
        start = time.monotonic()
        try:
            answer = await client.read(verb, key_of(name))
        except Unanswered as e:
            self._failed(verb, f"{who}: {e}")
            raise
        end = time.monotonic()
        value = None
        if answer.status == 200:
            value = self._value(verb, name, answer)
        elif answer.status != 404:
            self._failed(verb, f"{who}: status {answer.status} {answer.body[:200]!r}")
            raise Unanswered(answer.status)
        if "x-hubspoke-staleness" in answer.headers:
            self.counts[f"{verb} told stale"] += 1
            raise Unanswered("told stale")
        self.counts[verb] += 1
        self._add(name, "read", value, start, end, f"{verb} {who}")
        return value

    def _value(self, verb: Verb, name: int, answer: Answer) -> int | None:
        key, etag, size = key_of(name), "", 0
        if verb == "list":
            found = [c for c in _contents(answer.body) if c[0] == key]
            if not found:
                return None
            [(_, etag, size)] = found
        else:
            etag, size = answer.headers["etag"], int(answer.headers["content-length"])
        number = self._numbers_of.get((name, etag.strip('"')))
        if number is None or size != size_of(name):
            raise Torn(f"{verb} {key}: etag {etag} and size {size} are of no write of it")
        if verb == "get" and answer.body != content(name, number):
            words = sorted({struct.unpack_from(">II", answer.body, at)
                            for at in range(0, len(answer.body) - 7, 8)})  # fmt: skip
            raise Torn(f"get {key}: etag of write {number}, {len(answer.body)} bytes of {words}")
        return number

    def _failed(self, verb: str, why: str) -> None:
        self.counts[f"{verb} failed"] += 1
        self.failures = [*self.failures[-9:], f"{verb}: {why}"]

    def _add(
        self, name: int, kind: Kind, value: int | None, start: float, end: float, client: str
    ) -> None:
        self.history.append(Operation(key_of(name), kind, value, start, end, client))


def _contents(body: bytes) -> list[tuple[str, str, int]]:
    """(key, etag, size) of a listing."""
    root = ElementTree.fromstring(body)
    found = []
    for element in root:
        if element.tag.endswith("Contents"):
            field = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
            found.append((field["Key"], field["ETag"], int(field["Size"])))
    return found
