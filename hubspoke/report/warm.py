"""`hubspoke warm` against a spoke's admin port: read the list, start the job, follow it, judge it.

Decides what counts as success: everything that was named is there. It must never follow a job
without asking whether the spoke still has it.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hubspoke.errors import ConfigError, HubSpokeError
from hubspoke.report.source import AdminUnreachable, get_json

Action = Literal["warm", "check", "evict"]
Job = dict[str, Any]

_POLL_S = 0.2
_REFUSED = (404, 413, 422, 429)
_NO_ROUTE = "Not Found"  # a hub's admin port; a spoke names what it has not
_JOB_ID = re.compile(r"w[0-9]{1,18}")
_LIST_BYTES_MAX = 1_000_000  # the admin port takes 1 MiB, names of fields included


class WarmRefused(HubSpokeError):
    """The spoke does not start the job, or does not have it; its own words."""


class WrongPath(ConfigError):
    """A path makes no sense, or there is none."""


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """What the command line asked for."""

    action: Action
    paths: list[str]
    force: bool = False
    threads: int | None = None


def read_list(source: str) -> list[str]:
    """Paths from a file, or standard input for "-": one a line, UTF-8, nothing is a comment,
    because a key may begin with any character. Empty lines are skipped; blanks belong to the key.

    Raises ConfigError.
    """
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        text = data.decode()
    except OSError as e:
        raise ConfigError(f"--from: {source!r}: {e.strerror}; expected a file of paths") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"--from: {source!r}: expected UTF-8: {e}") from e
    # Not splitlines: a key may contain what Unicode calls a line's end.
    return [path for line in text.split("\n") if (path := line.removesuffix("\r"))]


class WarmClient:
    """Warm jobs of one spoke. All raise AdminUnreachable; `start` and `get` WarmRefused."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/v1/warm"

    def start(self, request: WarmRequest) -> Job:
        """Raises WrongPath too."""
        size = sum(len(json.dumps(path)) + 2 for path in request.paths)
        if size > _LIST_BYTES_MAX:
            raise WrongPath(
                f"{len(request.paths)} paths of {size} bytes: expected at most {_LIST_BYTES_MAX}; "
                "name folders or patterns, or warm them in parts"
            )
        body = {
            "paths": request.paths,
            "action": request.action,
            "force": request.force,
            "threads": request.threads,
        }
        return self._job(self._url, method="POST", body=body)

    def get(self, job_id: str) -> Job:
        return self._job(f"{self._url}/{job_id}")

    def cancel(self, job_id: str) -> Job:
        """Raises ConfigError too."""
        if not _JOB_ID.fullmatch(job_id):
            raise ConfigError(f"--cancel: {job_id!r}: expected a job's id, such as w1")
        return self._job(f"{self._url}/{job_id}", method="DELETE")

    def jobs(self) -> list[Job]:
        document = get_json(self._url, refused=(404,))
        if "jobs" not in document:
            raise AdminUnreachable(self._elsewhere())
        jobs: list[Job] = document["jobs"]
        return jobs

    def _elsewhere(self) -> str:
        return f"{self._url}: not there; expected a spoke's admin port, http://HOST:8081"

    def _job(self, url: str, **more: Any) -> Job:
        document = get_json(url, refused=_REFUSED, **more)
        if not isinstance(document, dict):
            raise AdminUnreachable(f"{url}: expected a job, as a spoke's admin port answers")
        detail = document.get("detail")
        if isinstance(detail, list):
            raise WrongPath("; ".join(str(d["message"]) for d in detail))
        if detail in (None, _NO_ROUTE) and "state" not in document:
            raise AdminUnreachable(self._elsewhere())
        if detail is not None:
            raise WarmRefused(str(detail))
        return document

    def follow(self, job: Job, seen: Callable[[Job], None], *, until_known: bool = False) -> Job:
        """Ask until the job has ended, and tell `seen` each time.

        until_known: only until its objects are counted. A job that is no longer there (the
        spoke was restarted) raises WarmRefused.
        """
        going_on = ("matching",) if until_known else ("matching", "running")
        while job["state"] in going_on:
            seen(job)
            time.sleep(_POLL_S)
            job = self.get(job["id"])
        seen(job)
        return self.get(job["id"])


def succeeded(job: Job) -> bool:
    """Whether all that was asked for is so: every path means something, and a warm or checked
    job's objects are all there."""
    if job["state"] != "done" or job["unmatched_count"]:
        return False
    return job["action"] == "evict" or bool(job["cached_objects"] == job["objects"])
