"""One warm job: what was asked for, how far it is, and its record in the state folder.

A record outlives the process: of a job that runs, what was asked for, so that it can go on; of
one that has ended, what there is to tell of it.
"""

import asyncio
from typing import Any, Literal

from hubspoke.core.ids import ObjectName
from hubspoke.core.selection import Selection
from hubspoke.core.warm import RateMeter
from hubspoke.errors import HubSpokeError
from hubspoke.report.report import rfc3339
from hubspoke.spoke.survey import Tally
from hubspoke.spoke.warm_fetch import JobFailed

Action = Literal["warm", "check", "evict"]
State = Literal["matching", "running", "done", "failed", "cancelled"]

PROBLEMS_KEPT = 100
PATHS_SHOWN = 1_000


class Job:
    """What one request asked for, and how far it is. Times are seconds of the spoke's clock."""

    def __init__(
        self,
        number: int,
        action: Action,
        selection: Selection,
        *,
        force: bool,
        threads: int | None,
        now: float,
        unix_ns: int,
    ) -> None:
        self.id = f"w{number}"
        self.number = number
        self.action = action
        self.selection: Selection | None = selection  # until it has ended
        self.path_count = len(selection.paths)
        self.paths = selection.paths[:PATHS_SHOWN]
        self.force = force
        self.threads = threads
        self.state: State = "matching"
        self.failure: JobFailed | None = None
        self.tally = Tally()
        self.of_path = [Tally() for _ in self.paths]
        self.unmatched: list[str] = []
        self.unmatched_count = 0
        self.fetched_bytes = 0
        self.freed_bytes = 0
        self.in_use_bytes = 0
        self.skipped_bytes = 0  # of a forced job that means more than fits
        self.problems: dict[str, str] = {}
        self.problem_count = 0
        self.task: asyncio.Task[None] | None = None
        self.started_unix_ns = unix_ns
        self.ended_unix_ns: int | None = None
        self._started = now
        self._ended: float | None = None
        self._meter = RateMeter()
        self._budget: int | None = None  # bytes a forced job may still bring

    @property
    def active(self) -> bool:
        return self.state in ("matching", "running")

    def begin(self, now: float) -> None:
        """Its objects are counted."""
        self.state = "running"
        self._meter.add(0, now)

    def end(self, state: State, now: float, unix_ns: int) -> None:
        self.state = state
        self.selection = None  # with 20,000 paths it is 5 MB
        self._ended = now
        self.ended_unix_ns = unix_ns

    def allow(self, budget: int | None) -> None:
        """How much it may bring in the next pass; None: all of it."""
        self._budget = budget
        self.skipped_bytes = 0

    def fits(self, bytes_: int) -> bool:
        """Whether an object with so much missing is brought; takes it from the budget."""
        if self._budget is None:
            return True
        if bytes_ > self._budget:
            self.skipped_bytes += bytes_
            return False
        self._budget -= bytes_
        return True

    def arrived(self, bytes_: int, now: float) -> None:
        self.fetched_bytes += bytes_
        self.tally.cached_bytes += bytes_
        self._meter.add(bytes_, now)

    def problem(self, name: ObjectName, error: HubSpokeError) -> None:
        """The object could not be brought."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems[str(name)] = str(error)

    def document(self, now: float) -> dict[str, Any]:
        """As JSON, without the paths."""
        running = self.action == "warm" and self.active
        left = self.tally.bytes - self.tally.cached_bytes
        known = self.state != "matching"
        failure = self.failure
        return {
            "id": self.id,
            "action": self.action,
            "state": self.state,
            "started": rfc3339(self.started_unix_ns),
            "seconds": (self._ended or now) - self._started,
            "force": self.force,
            "threads": self.threads,
            **self.tally.document(),
            "fetched_bytes": self.fetched_bytes,
            "freed_bytes": self.freed_bytes,
            "in_use_bytes": self.in_use_bytes,
            "bytes_per_second": self._meter.rate(now) if running else None,
            "eta_seconds": self._meter.eta_s(left, now) if running and known else None,
            "path_count": self.path_count,
            "unmatched_count": self.unmatched_count if known else None,
            "unmatched": self.unmatched,
            "problem_count": self.problem_count,
            "problems": [{"object": k, "error": v} for k, v in self.problems.items()],
            "failure": {"code": failure.code, "message": str(failure)} if failure else None,
        }

    def paths_document(self) -> list[dict[str, Any]]:
        """How much of each path is local, as of the last look."""
        pairs = zip(self.paths, self.of_path, strict=True)
        return [{"path": path, **tally.document()} for path, tally in pairs]

    def record(self, now: float) -> dict[str, Any]:
        """Enough to go on with it, or to tell how it ended, after a restart."""
        record: dict[str, Any] = {"number": self.number, "started_unix_ns": self.started_unix_ns}
        if self.selection is not None:
            asked = {"action": self.action, "force": self.force, "threads": self.threads}
            return {**record, **asked, "paths": self.selection.paths}
        ended = {"ended_unix_ns": self.ended_unix_ns, "document": self.document(now)}
        return {**record, **ended, "paths": self.paths_document()}


class EndedJob:
    """A job of a former process, as it was told when it ended."""

    active = False
    task = None

    def __init__(self, record: dict[str, Any]) -> None:
        """Raises KeyError or TypeError when it is no such record."""
        self.number = int(record["number"])
        self.ended_unix_ns = int(record["ended_unix_ns"])
        self._document: dict[str, Any] = dict(record["document"])
        self._paths: list[dict[str, Any]] = list(record["paths"])
        self.id = str(self._document["id"])
        self.state: State = self._document["state"]

    def document(self, _: float) -> dict[str, Any]:
        """See Job."""
        return self._document

    def paths_document(self) -> list[dict[str, Any]]:
        """See Job."""
        return self._paths
