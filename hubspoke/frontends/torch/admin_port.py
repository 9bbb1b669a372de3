"""A spoke's admin port as a training script sees it: may be slow, away or of no use at all.

Nothing that happens here reaches the script: it is said once, in a warning, and the loader goes on
without.
"""

import http.client
import json
import logging
import os
import sys
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger("hubspoke.torch")

SPOKE = "http://127.0.0.1:8081"
TIMEOUT_S = 5.0


class AdminPort:
    """One connection, opened when it is used; for one thread."""

    def __init__(self, spoke: str | None) -> None:
        """spoke: URL of the admin port; None: HUBSPOKE_ADMIN_URL, or the default port of this host.
        Raises ValueError for what is no URL."""
        self.url = spoke or os.environ.get("HUBSPOKE_ADMIN_URL") or SPOKE
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"spoke={self.url!r}: the URL of a spoke's admin port, as {SPOKE}")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else None
        self._make = kind or http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self._told = False

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
                    self.tell(
                        f"{self.url} answers HTTP {answer.status}, not as a spoke's admin port; "
                        f"expected its URL, as {SPOKE}"
                    )
                    return None
                return answer.status, found, float(retry) if retry.isdigit() else None
            except (OSError, http.client.HTTPException) as e:
                self.close()
                if fresh or not kept:  # a kept connection may have been closed meanwhile
                    self.tell(f"{self.url} does not answer ({e!r})")
                    return None
        return None

    def tell(self, what: str) -> None:
        """Warn, the first time."""
        if not self._told:
            self._told = True
            log.warning("%s: loading goes on without it", what)

    def close(self) -> None:
        """Close the connection; the next question opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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
