"""The mount's own files, in a folder at its root that no listing shows.

A file is made when it is opened and stays as it was for that handle; it has no size beforehand
(as in /proc) and is read past the page cache. A handle of a process that is gone can only begin
anew: reading on in another text would be a mix, so that is refused.
"""

import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hubspoke.errors import VersionChanged
from hubspoke.frontends.admin import SpokeReport, json_bytes

Make = Callable[[], Awaitable[bytes]]
HANDLES_MAX = 1_024  # open at a time; the oldest must begin anew


def documents(report: SpokeReport, settings: Mapping[str, Any]) -> dict[str, Make]:
    """What a mount tells of its spoke, as JSON: the report, the streams, the settings."""

    async def reported() -> bytes:
        return json_bytes(await report.document())

    async def streams() -> bytes:
        return json_bytes(report.streams())

    async def config() -> bytes:
        return json_bytes(settings)

    return {"report": reported, "streams": streams, "config": config}


class OwnFiles:
    """By name. What is open is kept here, and nowhere else."""

    def __init__(self, files: Mapping[str, Make]) -> None:
        self._files = files
        self._open: dict[int, bytes] = {}
        self._numbers = itertools.count(secrets.randbits(62))  # not those of a former process

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def names(self) -> list[str]:
        return sorted(self._files)

    async def open(self, name: str) -> int:
        """A handle on the file as it is now."""
        content = await self._files[name]()
        handle = next(self._numbers)
        if len(self._open) >= HANDLES_MAX:
            del self._open[next(iter(self._open))]
        self._open[handle] = content
        return handle

    async def read(self, name: str, handle: int, offset: int, size: int) -> bytes:
        """Raises VersionChanged where the handle's text is gone."""
        content = self._open.get(handle)
        if content is None:
            if offset:
                raise VersionChanged(f"{name}: what this handle read before is gone")
            content = self._open[handle] = await self._files[name]()
        return content[offset : offset + size]

    def release(self, handle: int) -> None:
        self._open.pop(handle, None)
