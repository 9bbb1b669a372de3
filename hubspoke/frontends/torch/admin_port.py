"""A spoke's admin port as a training script sees it: may be slow, away or of no use at all.

Nothing that happens here reaches the script: it is said once, in a warning, and the loader goes on
without. Once is once for the script: an epoch has a sender of its own, and each worker of a loader
is a new process every epoch, forked from one that may know nothing of it.
"""

import http.client
import json
import logging
import mmap
import os
import sys
import zlib
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger("hubspoke.torch")

SPOKE = "http://127.0.0.1:8081"
TIMEOUT_S = 5.0
# A byte for each thing that was said, shared with what is forked from here. Two things that share
# one are a warning less, two workers at the same microsecond one more.
TOLD = mmap.mmap(-1, mmap.PAGESIZE)


class AdminPort:
    """One connection, opened when it is used; for one thread."""

    def __init__(self, spoke: str | None, what: str = "") -> None:
        """spoke: URL of the admin port; None: HUBSPOKE_ADMIN_URL, or the default port of this host.
        what: it is used for. Raises ValueError for what is no URL."""
        self.url = spoke or os.environ.get("HUBSPOKE_ADMIN_URL") or SPOKE
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"spoke={self.url!r}: the URL of a spoke's admin port, as {SPOKE}")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else None
        self._make = kind or http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self._what = what

    def ask(
        self, method: str, path: str, document: Any = None
    ) -> tuple[int, Any, float | None] | None:
        """Status, the answer and Retry-After in seconds; None if no spoke answers."""
        body = None if document is None else json.dumps(document, separators=(",", ":"))
        headers = {} if body is None else {"content-type": "application/json"}
        for fresh in (False, True):
            kept = self._connection is not None
            try:
                if self._connection is None:
                    self._connection = self._make(self._host, self._port, timeout=TIMEOUT_S)
                self._connection.request(method, self._path + path, body, headers)
                answer = self._connection.getresponse()
                data = answer.read()
                retry = answer.headers.get("retry-after", "")
                try:
                    found = json.loads(data) if data else None
                except ValueError:  # an admin port answers in JSON, whatever it answers
                    _tell(
                        self.url,
                        f"{self.url} answers HTTP {answer.status}, not as a spoke's admin port; "
                        f"expected its URL, as {SPOKE}",
                    )
                    return None
                return answer.status, found, float(retry) if retry.isdigit() else None
            except (OSError, http.client.HTTPException) as e:
                self.close()
                if fresh or not kept:  # a kept connection may have been closed meanwhile
                    _tell(self.url, f"{self.url} does not answer ({e!r})")
                    return None
        return None

    def tell(self, text: str) -> None:
        """Warn of what this spoke is used for, the first time."""
        _tell(f"{self.url} {self._what}", text)

    def close(self) -> None:
        """Close the connection; the next question opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _tell(about: str, text: str) -> None:
    """Warn, unless something was said about this before."""
    at = zlib.crc32(about.encode()) % len(TOLD)
    if not TOLD[at]:
        TOLD[at] = 1
        log.warning("%s: loading goes on without it", text)


def checked(job: str) -> str:
    """A name that an admin port takes. Raises ValueError."""
    if not 0 < len(job) <= 100 or any(not "!" <= c <= "~" or c in "/?#%" for c in job):
        raise ValueError(f"job={job!r}: 1 to 100 printable ASCII characters but / ? # %")
    return job


def rank() -> int:
    """Of this process in a distributed job: torch's if it was set up, else RANK, else 0."""
    torch = _imported("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return int(torch.get_rank())
    given = os.environ.get("RANK", "")
    return int(given) if given.isdigit() else 0


def worker() -> int | None:
    """Number of the loader's worker that runs this; None in the main process."""
    data = _imported("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return None if info is None else int(info.id)


def _imported(name: str) -> Any:
    """A module that the script has imported; nothing is imported for us."""
    return sys.modules.get(name)
