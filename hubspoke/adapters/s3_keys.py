"""Which unusual keys an S3-compatible server really keeps under their name.

Some servers clean paths: SeaweedFS 4.48 stores `a//b` as `a/b`, `/lead` as `lead`, `a\\b` as
`a/b`, and the multipart upload `dir/` as `dir/dir`; AWS keeps them all. Writing such a key could
overwrite another object, so before the first key of a kind is written, a probe of that kind is
written below a name of its own, looked for in a listing and removed.
"""

import secrets
from collections.abc import AsyncIterator

from hubspoke.adapters.s3_objects import S3Objects
from hubspoke.errors import HubSpokeError, InvalidKey, InvalidRequest, StoreUnavailable

_PROBE = ".hubspoke-probe"
_DOUBLE, _LEAD, _BACKSLASH, _DOTS, _END, _END_WITH_BYTES = (
    "with an empty path segment",
    "that begin with '/'",
    "with a backslash",
    "with a path segment '.' or '..'",
    "that end in '/'",
    "that end in '/' and have bytes",
)


def kinds_of(key: str, *, with_bytes: bool) -> list[str]:
    """Why a server may not keep the key as it is; empty for ordinary ones."""
    kinds = []
    if "//" in key:
        kinds.append(_DOUBLE)
    if key.startswith("/"):
        kinds.append(_LEAD)
    if "\\" in key:
        kinds.append(_BACKSLASH)
    if {".", ".."} & set(key.split("/")):
        kinds.append(_DOTS)
    if key.endswith("/"):
        kinds.append(_END_WITH_BYTES if with_bytes else _END)
    return kinds


class KeyProbe:
    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects
        self._kept: dict[str, bool] = {}

    async def check(self, key: str, *, with_bytes: bool) -> None:
        """Raises InvalidKey if this server would store the key under another name."""
        for kind in kinds_of(key, with_bytes=with_bytes):
            if kind not in self._kept:
                self._kept[kind] = await self._is_kept(kind)
            if not self._kept[kind]:
                raise InvalidKey(
                    f"{key:.200}: the object store behind this hub does not keep keys {kind}"
                )

    async def _is_kept(self, kind: str) -> bool:
        name = f"{_PROBE}-{secrets.token_hex(8)}"
        key = {
            _DOUBLE: f"{name}/a//b",
            _LEAD: f"/{name}",
            _BACKSLASH: f"{name}/a\\b",
            _DOTS: f"{name}/./b",
            _END: f"{name}/d/",
            _END_WITH_BYTES: f"{name}/d/",
        }[kind]
        try:
            await self._write(key, b"x" if kind == _END_WITH_BYTES else b"")
        except StoreUnavailable:
            # A 4xx or 5xx: either the key is refused, or the next real write says what is wrong.
            return False
        except (InvalidKey, InvalidRequest):
            return False
        found = {k async for k in self._below(name)} | {k async for k in self._below(f"/{name}")}
        for stored in found | {key}:
            try:
                await self._objects.delete(stored)
            except HubSpokeError:
                continue
        return found == {key}

    async def _write(self, key: str, data: bytes) -> None:
        if not data:
            await self._objects.put_empty(key, {})
            return
        upload_id = await self._objects.create_upload(key, {})
        etag = await self._objects.upload_part(key, upload_id, 1, data)
        await self._objects.complete(key, upload_id, [(1, etag)])

    async def _below(self, prefix: str) -> AsyncIterator[str]:
        async for page in self._objects.pages(prefix):
            for key, _ in page:
                yield key
