"""A spoke's data port as a Python client sees it: requests, retries, errors.

Decides which answers are worth another attempt and what an error is called in Python. It keeps
nothing but connections: what may be remembered is the spoke's to decide, which is next to it.
"""

import asyncio
import errno
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote, unquote

import aiohttp
from yarl import URL

from hubspoke import wire

# Of a request that found the spoke busy, restarting or without its hub: 0.1, 0.2, ... 1.6 s.
ATTEMPTS = 6
BACKOFF_S = 0.1
CONNECT_S = 5.0
# A spoke gives a read up after 30 s.
SILENCE_S = 60.0
CONNECTIONS_MAX = 64
# As many in one request as a spoke takes, and in messages that it takes at once.
RANGES_AT_ONCE = 4_096

_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_REQUEST_ID = "x-amz-request-id"  # of each answer of a door, also of one without a body
ENDPOINT = "http://127.0.0.1:8080"  # a spoke's data port, unless its --listen says otherwise
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"

# One range: BUCKET/KEY and the bounds of a slice.
Slice = tuple[str, int | None, int | None]


class Endpoint:
    """One spoke, asked over kept connections. Use from one event loop."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
            timeout=timeout,
            auto_decompress=False,  # an object that is stored packed is read as it is
            skip_auto_headers=("Accept-Encoding",),
        )

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer below 400. path: BUCKET/KEY, not quoted.

        Raises FileNotFoundError, or OSError with the errno of what went wrong.
        """
        url = URL(f"{self.url}/{quote(path, safe='/~')}{query}", encoded=True)
        attempt = 0
        while True:
            attempt += 1
            try:
                response = await self.session.request(method, url, headers=headers, data=body)
            except (aiohttp.ClientError, TimeoutError) as e:
                if attempt == ATTEMPTS:
                    raise self._unreachable(e, path) from e
            else:
                if response.status < 400:
                    async with response:
                        yield response
                    return
                message = await _message(response)
                if response.status == 404 and _REQUEST_ID not in response.headers:
                    raise self._no_door(path)
                if response.status not in _RETRIED or attempt == ATTEMPTS:
                    raise error_of(response.status, path, message)
            await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))

    def _no_door(self, path: str) -> OSError:
        """Taken for a missing object, a wrong port would be an empty data set."""
        what = (
            f"{self.url} answers, but not as a spoke's data port; expected its URL, as {ENDPOINT}"
        )
        return OSError(errno.EPROTO, what, path)

    def _unreachable(self, cause: Exception, path: str) -> OSError:
        what = str(cause) or type(cause).__name__
        return ConnectionError(
            errno.ECONNREFUSED, f"{path}: no answer from {self.url} ({what}); is a spoke there?"
        )

    async def body(self, path: str, headers: dict[str, str] | None = None) -> bytes:
        """A whole answer of GET; a body that breaks off is asked for again."""
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self.request("GET", path, headers=headers) as response:
                    return await response.read()
            except (aiohttp.ClientError, TimeoutError) as e:
                if attempt == ATTEMPTS:
                    raise self._unreachable(e, path) from e
            await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))

    async def listing(
        self, bucket: str, prefix: str, *, delimiter: str = "", most: int = 0
    ) -> tuple[list["ElementTree.Element"], list[str]]:
        """Contents elements and common prefixes of a listing, all pages or the first `most`."""
        contents: list[ElementTree.Element] = []
        prefixes: list[str] = []
        token = ""
        while True:
            query = f"?list-type=2&encoding-type=url&prefix={quote(prefix, safe='')}"
            if delimiter:
                query += f"&delimiter={quote(delimiter, safe='')}"
            if most:
                query += f"&max-keys={most}"
            if token:
                query += f"&continuation-token={quote(token, safe='')}"
            async with self.request("GET", bucket, query=query) as response:
                root = ElementTree.fromstring(await response.read())
            contents += root.findall(f"{_XML}Contents")
            prefixes += [unquote(text(p, "Prefix")) for p in root.findall(f"{_XML}CommonPrefixes")]
            token = text(root, "NextContinuationToken")
            if not token or (most and len(contents) + len(prefixes) >= most):
                return contents, prefixes

    async def buckets(self) -> list[str]:
        """All of them."""
        async with self.request("GET", "") as response:
            root = ElementTree.fromstring(await response.read())
        return [text(b, "Name") for b in root.iter(f"{_XML}Bucket")]

    async def ranges(self, ranges: Sequence[Slice]) -> list[bytes | OSError]:
        """Bytes of each range, or why there are none; in requests of RANGES_AT_ONCE."""
        chunks = [ranges[at : at + RANGES_AT_ONCE] for at in range(0, len(ranges), RANGES_AT_ONCE)]
        found: list[bytes | OSError] = []
        for chunk in chunks:
            found += await self._chunk(chunk)
        return found

    async def _chunk(self, wanted: Sequence[Slice]) -> list[bytes | OSError]:
        """What came before a break is kept; the rest is asked for again."""
        found: dict[int, bytes | OSError] = {}
        attempt = 0
        while True:
            attempt += 1
            missing = [i for i in range(len(wanted)) if i not in found]
            broken: Exception | None = None
            try:
                body = json.dumps({"ranges": [wanted[i] for i in missing]}).encode()
                path = wire.PREFIX.strip("/") + "/ranges"
                async with self.request("POST", path, body=body) as response:
                    for i in missing:
                        head = await response.content.readexactly(wire.RANGE_RECORD.size)
                        status, length = wire.RANGE_RECORD.unpack(head)
                        data = await response.content.readexactly(length)
                        if status == 200:
                            found[i] = data
                        elif status not in _RETRIED or attempt == ATTEMPTS:
                            message = data.decode("utf-8", "replace")
                            found[i] = error_of(status, wanted[i][0], message)
            except (aiohttp.ClientError, asyncio.IncompleteReadError, TimeoutError) as e:
                broken = e
            if len(found) == len(wanted):
                return [found[i] for i in range(len(wanted))]
            if attempt == ATTEMPTS:
                assert broken is not None
                raise self._unreachable(broken, wanted[0][0]) from broken
            await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))


def text(element: ElementTree.Element, name: str) -> str:
    """The text of a child, "" if there is none."""
    return element.findtext(f"{_XML}{name}") or ""


async def _message(response: aiohttp.ClientResponse) -> str:
    """What an answer says went wrong."""
    async with response:
        body = await response.read()
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        return body.decode("utf-8", "replace")[:500]
    return root.findtext("Message") or root.findtext("Code") or ""


def error_of(status: int, path: str, message: str) -> OSError:
    """The door's one table: HTTP status -> OSError."""
    if status == 404:
        return FileNotFoundError(errno.ENOENT, message or "No such object", path)
    if status in (401, 403):
        return PermissionError(errno.EACCES, message, path)
    if status == 412:
        return OSError(errno.ESTALE, message or "changed since it was opened", path)
    number = {400: errno.EINVAL, 405: errno.EROFS, 416: errno.EINVAL, 501: errno.EROFS}
    return OSError(number.get(status, errno.EIO), f"HTTP {status}: {message}", path)
