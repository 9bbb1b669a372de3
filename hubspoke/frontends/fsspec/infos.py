"""What a spoke says of a name, as fsspec's dictionaries."""

from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote
from xml.etree.ElementTree import Element

import aiohttp

from hubspoke.frontends.fsspec.client import text

Info = dict[str, Any]


def directory(path: str) -> Info:
    """Of a prefix, a bucket or the root."""
    return {"name": path, "size": 0, "type": "directory"}


def file_of_head(path: str, response: aiohttp.ClientResponse) -> Info:
    """Of an object, by the answer to a HEAD."""
    headers = response.headers
    etag = headers["ETag"].strip('"')
    return {
        "name": path,
        "size": int(headers["Content-Length"]),
        "type": "file",
        "ETag": etag,
        "version": headers.get("x-hubspoke-version", etag),
        "LastModified": parsedate_to_datetime(headers["Last-Modified"]),
    }


def file_of_listing(bucket: str, contents: Element, below: str) -> Info | None:
    """None for the marker of the directory itself."""
    key = unquote(text(contents, "Key"))
    if key == below:
        return None
    etag = text(contents, "ETag").strip('"')
    return {
        "name": f"{bucket}/{key}",
        "size": int(text(contents, "Size")),
        "type": "file",
        "ETag": etag,
        "LastModified": datetime.fromisoformat(text(contents, "LastModified")),
    }


def with_directories(
    path: str, files: list[Info], maxdepth: int | None, withdirs: bool
) -> dict[str, Info]:
    """Files down to maxdepth, and the directories that lead to them."""
    found: dict[str, Info] = {}
    for info in files:
        name: str = info["name"]
        parts = name[len(path) + 1 :].split("/")
        if withdirs:
            for depth in range(1, len(parts)):
                if maxdepth is None or depth <= maxdepth:
                    name_of = f"{path}/{'/'.join(parts[:depth])}"
                    found.setdefault(name_of, directory(name_of))
        if (maxdepth is None or len(parts) <= maxdepth) and not name.endswith("/"):
            found[name] = info
    return found
