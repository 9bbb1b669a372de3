"""`hubspoke://BUCKET/KEY` for fsspec: the read side, over a spoke's data port.

Nothing is cached here, neither bytes nor listings: the spoke is the cache, is on the same host or
the same rack, and answers under a lease, so what is read here is never older than at its door.
An open file is one version: a read after the object has changed is an OSError ESTALE. The file
system survives a fork (a DataLoader's workers): the child opens connections of its own.
"""

import asyncio
import errno
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from fsspec.asyn import AsyncFileSystem, get_loop, sync
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import stringify_path

from hubspoke.frontends.fsspec.client import ENDPOINT, Endpoint, Slice
from hubspoke.frontends.fsspec.infos import (
    Info,
    directory,
    file_of_head,
    file_of_listing,
    with_directories,
)

ENVIRONMENT = "HUBSPOKE_ENDPOINT"
CLOSE_S = 0.5
COPY_BYTES = 1 << 20


class HubSpokeFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects of a hub, read through a spoke.

    endpoint_url: the spoke's data port; by default $HUBSPOKE_ENDPOINT or http://127.0.0.1:8080.
    Errors: FileNotFoundError, PermissionError, or OSError with ESTALE (changed while it was open),
    EROFS (a write), EIO (the hub is away and the policy is strict), ECONNREFUSED (no spoke there).
    """

    protocol = "hubspoke"
    root_marker = ""

    def __init__(self, endpoint_url: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("use_listings_cache", False)
        super().__init__(**kwargs)
        self.endpoint_url = (endpoint_url or os.environ.get(ENVIRONMENT) or ENDPOINT).rstrip("/")
        if not self.endpoint_url.startswith(("http://", "https://")):
            raise ValueError(
                f"endpoint_url={self.endpoint_url!r}; expected a URL such as {ENDPOINT}"
            )
        self._endpoints: dict[asyncio.AbstractEventLoop, Endpoint] = {}
        self._pid = os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Where synchronous calls run; in a forked child a new one, as the thread is not there."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._endpoints = {}  # the parent's sockets, which stay open there
            self._loop = None if self.asynchronous else get_loop()
        return self._loop

    async def _endpoint(self) -> Endpoint:
        _ = self.loop
        running = asyncio.get_running_loop()
        endpoint = self._endpoints.get(running)
        if endpoint is None:
            for loop in [loop for loop in self._endpoints if loop.is_closed()]:
                del self._endpoints[loop]
            endpoint = self._endpoints[running] = Endpoint(self.endpoint_url)
            weakref.finalize(self, _close, running, endpoint.session, os.getpid())
        return endpoint

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = stringify_path(path)
        if path.startswith("hubspoke://"):
            return path[len("hubspoke://") :].rstrip("/")
        return path.strip("/")

    # -- names --------------------------------------------------------------------------------

    async def _info(self, path: str, **_: Any) -> Info:
        path = self._strip_protocol(path)
        bucket, _slash, key = path.partition("/")
        if not bucket:
            return directory("")
        endpoint = await self._endpoint()
        if not key:
            async with endpoint.request("HEAD", bucket):
                return directory(bucket)
        try:
            async with endpoint.request("HEAD", path) as response:
                return file_of_head(path, response)
        except FileNotFoundError:
            contents, prefixes = await endpoint.listing(bucket, key + "/", most=1)
            if contents or prefixes:
                return directory(path)
            raise

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        bucket, _slash, key = path.partition("/")
        endpoint = await self._endpoint()
        if not bucket:
            found = [directory(name) for name in await endpoint.buckets()]
        else:
            prefix = key + "/" if key else ""
            contents, prefixes = await endpoint.listing(bucket, prefix, delimiter="/")
            found = [directory(f"{bucket}/{p[:-1]}") for p in prefixes]
            found += [f for c in contents if (f := file_of_listing(bucket, c, prefix)) is not None]
            if not found and not contents:
                found = await self._nothing_below(path)
        found.sort(key=lambda info: str(info["name"]))
        return found if detail else [info["name"] for info in found]

    async def _nothing_below(self, path: str) -> list[Info]:
        """Of a path that no other key begins with: the object itself, or an empty bucket."""
        info = await self._info(path)
        return [info] if info["type"] == "file" else []

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        prefix: str = "",
        **kwargs: Any,
    ) -> Any:
        """All objects below, by one listing without delimiters instead of one a directory."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError(f"maxdepth={maxdepth}; expected at least 1")
        path = self._strip_protocol(path)
        bucket, _slash, key = path.partition("/")
        if not bucket:
            found = await self._find_everywhere(maxdepth, withdirs, prefix)
        else:
            below = key + "/" if key else ""
            endpoint = await self._endpoint()
            contents, _prefixes = await endpoint.listing(bucket, below + prefix)
            files = [f for c in contents if (f := file_of_listing(bucket, c, below)) is not None]
            found = with_directories(path, files, maxdepth, withdirs)
            if not contents:
                with suppress(FileNotFoundError):
                    found = {i["name"]: i for i in await self._nothing_below(path) if not prefix}
        found = dict(sorted(found.items()))
        return found if kwargs.get("detail") else list(found)

    async def _find_everywhere(
        self, maxdepth: int | None, withdirs: bool, prefix: str
    ) -> dict[str, Info]:
        buckets = await (await self._endpoint()).buckets()
        found = {b: directory(b) for b in buckets if withdirs and b.startswith(prefix)}
        if maxdepth != 1:
            below = None if maxdepth is None else maxdepth - 1
            for bucket in [b for b in buckets if b.startswith(prefix)]:
                found |= await self._find(bucket, below, withdirs, detail=True)
        return found

    async def _isfile(self, path: str) -> bool:
        return await self._type(path) == "file"

    async def _isdir(self, path: str) -> bool:
        return await self._type(path) == "directory"

    async def _type(self, path: str) -> str | None:
        """None: it does not exist. A spoke that cannot tell is an error, not an absence."""
        try:
            return str((await self._info(path))["type"])
        except FileNotFoundError:
            return None

    def ukey(self, path: str) -> str:
        """The version: equal as long as the bytes are the same."""
        return str(self.info(path)["version"])

    def modified(self, path: str) -> datetime:
        """Raises FileNotFoundError; IsADirectoryError, since a prefix has no time."""
        info = self.info(path)
        if info["type"] != "file":
            raise IsADirectoryError(errno.EISDIR, "a prefix has no time", path)
        found: datetime = info["LastModified"]
        return found

    # -- bytes --------------------------------------------------------------------------------

    async def _cat_file(
        self,
        path: str,
        start: int | None = None,
        end: int | None = None,
        *,
        etag: str | None = None,
        **_: Any,
    ) -> bytes:
        """A slice of an object. etag: fail with ESTALE unless it is this version's."""
        path = self._strip_protocol(path)
        endpoint = await self._endpoint()
        headers = {} if etag is None else {"If-Match": f'"{etag}"'}
        first = start or 0
        if first < 0 or (end is not None and end <= first):
            [found] = await endpoint.ranges([(path, start, end)])
            if isinstance(found, OSError):
                raise found
            return found
        if first or end is not None:
            headers["Range"] = f"bytes={first}-{'' if end is None else end - 1}"
        try:
            return await endpoint.body(path, headers)
        except OSError as e:
            if e.errno == errno.EINVAL and first:  # 416: begins behind the last byte
                return b""
            raise

    async def _cat_ranges(
        self,
        paths: Sequence[str],
        starts: int | Iterable[int | None] | None,
        ends: int | Iterable[int | None] | None,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """One request for all; max_gap and batch_size are others' ways to send fewer."""
        if not isinstance(paths, list):
            raise TypeError(f"paths={type(paths).__name__}; expected a list")
        firsts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        stops = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if not len(paths) == len(firsts) == len(stops):
            raise ValueError(
                f"{len(paths)} paths, {len(firsts)} starts, {len(stops)} ends; "
                "expected as many of each"
            )
        wanted: list[Slice] = [
            (self._strip_protocol(p), None if a is None else int(a), None if b is None else int(b))
            for p, a, b in zip(paths, firsts, stops, strict=True)
        ]
        found = await (await self._endpoint()).ranges(wanted)
        if on_error != "return":
            for one in found:
                if isinstance(one, OSError):
                    raise one
        return found

    async def _cat(
        self,
        path: str | list[str],
        recursive: bool = False,
        on_error: str = "raise",
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Whole objects, all in one request: {path: bytes}, or the bytes of a single path."""
        single = isinstance(path, str) and not recursive and "*" not in path
        paths = await self._expand_path(path, recursive=recursive)
        if single and paths == [self._strip_protocol(path)]:
            return await self._cat_file(paths[0], **kwargs)
        if recursive:
            paths = [p for p in paths if await self._isfile(p)]
        ranges = await self._cat_ranges(paths, kwargs.get("start"), kwargs.get("end"))
        found = dict(zip(paths, ranges, strict=True))
        wrong = next((e for e in ranges if isinstance(e, OSError)), None)
        if wrong is not None and on_error == "raise":
            raise wrong
        if on_error == "omit":
            found = {p: body for p, body in found.items() if not isinstance(body, OSError)}
        return found

    async def _get_file(
        self, rpath: str, lpath: str, callback: Callback = DEFAULT_CALLBACK, **_: Any
    ) -> None:
        """Download beside the name, and give it the name when it is whole."""
        rpath = self._strip_protocol(rpath)
        if await self._isdir(rpath):
            await asyncio.to_thread(os.makedirs, lpath, exist_ok=True)
            return
        part = Path(f"{lpath}.{os.getpid()}.part")
        await asyncio.to_thread(part.parent.mkdir, parents=True, exist_ok=True)
        file = await asyncio.to_thread(part.open, "wb")
        try:
            async with (await self._endpoint()).request("GET", rpath) as response:
                callback.set_size(response.content_length)
                async for piece in response.content.iter_chunked(COPY_BYTES):
                    await asyncio.to_thread(file.write, piece)
                    callback.relative_update(len(piece))
            file.close()
            await asyncio.to_thread(part.replace, lpath)
        except aiohttp.ClientError as e:
            raise OSError(errno.EIO, f"the answer broke off: {e}", rpath) from e
        finally:
            file.close()
            await asyncio.to_thread(part.unlink, missing_ok=True)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> "HubSpokeFile":
        if mode != "rb":
            raise OSError(errno.EROFS, f"mode={mode!r}: a spoke is read-only; expected 'rb'", path)
        kwargs.setdefault("cache_type", "none")
        size = block_size if block_size is not None else "default"
        return HubSpokeFile(self, path, mode, size, cache_options=cache_options, **kwargs)

    # -- what a spoke does not do -------------------------------------------------------------

    async def _refuse(self, path: Any, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "a spoke is read-only; write at the hub", str(path))

    _rm_file = _pipe_file = _put_file = _cp_file = _mkdir = _makedirs = _refuse


class HubSpokeFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An open object: one version, exact ranges."""

    def __init__(self, fs: HubSpokeFileSystem, path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(fs, path, *args, **kwargs)
        if self.details["type"] != "file":
            raise IsADirectoryError(errno.EISDIR, "is a prefix, not an object", path)

    def _fetch_range(self, start: int, end: int) -> bytes:
        read = self.fs._cat_file
        body: bytes = sync(self.fs.loop, read, self.path, start, end, etag=self.details["ETag"])
        return body


def _close(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession, pid: int) -> None:
    """Close the connections of a file system that nobody has any more."""
    if pid != os.getpid() or session.closed:
        return
    with suppress(Exception):
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(session.close(), loop)
        elif session.connector is not None:
            session.connector._close()
