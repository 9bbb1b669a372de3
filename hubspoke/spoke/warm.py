"""Warm jobs of a spoke: bring, drop or count what a person names, in the background.

    matching -> running -> done
        |          +-----> failed      (why: `failure`)
        +----------+-----> cancelled   (what has arrived stays)

Jobs live in memory and end with the process; run again, a job fetches only what is missing. A job
is done when everything it means is local, looked at after the last byte came: what changed or was
dropped meanwhile is brought again. Bounded: jobs at a time, finished ones remembered, errors kept.
"""

import asyncio
import logging
from typing import Any, Literal

from hubspoke.core.cache import PAGES_PER_BLOCK
from hubspoke.core.ids import PAGE_BYTES, ObjectName
from hubspoke.core.scheduler import Punch
from hubspoke.core.selection import Selection
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.warm import RateMeter
from hubspoke.errors import HubSpokeError, HubUnavailable, Overloaded
from hubspoke.ports import Clock, NamespaceStore
from hubspoke.report.report import rfc3339
from hubspoke.spoke.filler import Filler
from hubspoke.spoke.follower import Follower
from hubspoke.spoke.survey import MANY_PATHS, Survey, Tally
from hubspoke.spoke.warm_fetch import JobFailed, WarmFetch, Window
from hubspoke.spoke.warm_tuning import WarmTuning

log = logging.getLogger(__name__)

Action = Literal["warm", "check", "evict"]
State = Literal["matching", "running", "done", "failed", "cancelled"]

PROBLEMS_KEPT = 100
PATHS_SHOWN = 1_000
EVICT_PAGES = 64 * PAGES_PER_BLOCK  # punched in about 2 ms before others have their turn


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
        self._started = now
        self._started_unix_ns = unix_ns
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

    def end(self, state: State, now: float) -> None:
        self.state = state
        self.selection = None  # with 20,000 paths it is 5 MB
        self._ended = now

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
            "started": rfc3339(self._started_unix_ns),
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


class WarmJobs:
    """All jobs of a spoke; touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        filler: Filler,
        namespace: NamespaceStore,
        follower: Follower,
        clock: Clock,
        tuning: WarmTuning,
    ) -> None:
        self._survey = Survey(namespace, core.cache, clock)
        self._core = core
        self._filler = filler
        self._namespace = namespace
        self._follower = follower
        self._clock = clock
        self._tuning = tuning
        self._window = Window(tuning)
        self._jobs: dict[str, Job] = {}  # oldest first
        self._number = 0
        self._open = False

    def open(self) -> None:
        """The cache's index is loaded: from now on, counts are true."""
        self._open = True

    def _unknown(self) -> list[str]:
        """Reasons why names and bytes cannot be counted now."""
        if not self._open:
            return ["the cache's index is being loaded"]
        return [] if self._follower.complete() else self._follower.ready()

    async def usage(self, prefix: str, after: str, limit: int) -> dict[str, Any]:
        """See Survey.usage; raises HubUnavailable while names are not known."""
        if reasons := self._unknown():
            raise HubUnavailable("; ".join(reasons))
        return await self._survey.usage(prefix, after, limit)

    async def start(
        self, action: Action, paths: list[str], *, force: bool = False, threads: int | None = None
    ) -> dict[str, Any]:
        """A new job; returns its document before it has begun. Raises InvalidRequest,
        Overloaded."""
        if len(paths) > MANY_PATHS:
            selection = await asyncio.to_thread(Selection, paths)
        else:
            selection = Selection(paths)
        if sum(job.active for job in self._jobs.values()) >= self._tuning.jobs_max:
            raise Overloaded(f"{self._tuning.jobs_max} warm jobs are running; wait or cancel one")
        self._number += 1
        now = self._clock.now()
        job = Job(
            self._number, action, selection,
            force=force, threads=threads, now=now, unix_ns=self._clock.unix_ns(),
        )  # fmt: skip
        self._jobs[job.id] = job
        self._forget_old()
        job.task = asyncio.get_running_loop().create_task(self._run(job))
        return job.document(now)

    def _forget_old(self) -> None:
        finished = [job.id for job in self._jobs.values() if not job.active]
        for old in finished[: max(0, len(finished) - self._tuning.finished_max)]:
            del self._jobs[old]

    def jobs(self) -> list[dict[str, Any]]:
        """Newest first."""
        now = self._clock.now()
        return [job.document(now) for job in reversed(self._jobs.values())]

    def job(self, job_id: str) -> dict[str, Any] | None:
        """With its paths; None if there is none of this name, or no longer."""
        job = self._jobs.get(job_id)
        if job is None:
            return None
        return {**job.document(self._clock.now()), "paths": job.paths_document()}

    async def cancel(self, job_id: str) -> dict[str, Any] | None:
        """Stop a job; one that has ended stays as it is."""
        job = self._jobs.get(job_id)
        if job is not None and job.task is not None and job.active:
            job.task.cancel()
            await asyncio.wait({job.task})
        return self.job(job_id)

    async def close(self) -> None:
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- running ------------------------------------------------------------------------------

    async def _run(self, job: Job) -> None:
        state: State = "failed"
        try:
            await self._replica(job)
            await self._count(job)
            if not job.tally.objects:
                raise JobFailed("no_match", _no_match(job))
            job.begin(self._clock.now())
            if job.action == "warm":
                await self._warm(job)
            elif job.action == "evict":
                await self._evict(job)
            state = "done"
        except JobFailed as e:
            job.failure = e
        except asyncio.CancelledError:
            state = "cancelled"
        except HubSpokeError as e:
            job.failure = JobFailed("failed", str(e))
        except Exception as e:
            log.exception("warm job broke id=%s", job.id)
            job.failure = JobFailed("internal", f"{type(e).__name__}: {e}")
        finally:
            job.end(state, self._clock.now())
            log.info(
                "warm job ended id=%s action=%s state=%s objects=%d bytes=%d failure=%s",
                job.id, job.action, state, job.tally.objects, job.tally.bytes, job.failure,
            )  # fmt: skip

    async def _replica(self, job: Job) -> None:
        """Wait until the names are known."""
        since = self._clock.now()
        while reasons := self._unknown():
            if self._clock.now() - since > self._tuning.retry_s:
                raise JobFailed("hub_unavailable", f"no names to match: {'; '.join(reasons)}")
            await asyncio.sleep(self._tuning.retry_pause_s)

    async def _count(self, job: Job) -> None:
        selection = job.selection
        assert selection is not None, job.id
        tally, of_path = Tally(), [Tally() for _ in job.paths]
        matched = bytearray(job.path_count)
        if job.state == "matching":
            job.tally = tally  # shows how far it is
        async for record, matching in self._survey.walk(selection):
            cached = self._survey.cached_bytes(record)
            tally.add(record.entry.size, cached)
            for index in matching:
                matched[index] = 1
                if index < len(of_path):
                    of_path[index].add(record.entry.size, cached)
        job.tally, job.of_path = tally, of_path
        job.unmatched_count = matched.count(0)
        job.unmatched = _unmatched(selection, matched)

    async def _warm(self, job: Job) -> None:
        cache = self._core.cache
        capacity = min(cache.capacity, cache.limit)  # less while the disk has less
        too_large = job.tally.room > capacity
        if too_large and not job.force:
            raise JobFailed(
                "too_large",
                f"{job.tally.bytes} bytes in {job.tally.objects} objects, the cache holds "
                f"{capacity}; force brings as much as fits and drops what is there",
            )
        for _ in range(self._tuning.passes_max):
            if job.tally.complete:
                return
            share = int(capacity * self._tuning.forced_share)
            job.allow(share - job.tally.cached_bytes if too_large else None)
            rtt = self._follower.rtt_s()
            if rtt is not None:
                self._core.path.round_trip(rtt)
            await self._fetch(job).run()
            await self._count(job)
            if job.problem_count or job.skipped_bytes:
                break
        if not job.tally.complete:
            raise _incomplete(job, self._tuning.passes_max)

    def _fetch(self, job: Job) -> WarmFetch:
        return WarmFetch(
            job, self._core, self._filler, self._namespace, self._survey, self._clock,
            self._window, self._tuning,
        )  # fmt: skip

    async def _evict(self, job: Job) -> None:
        cache = self._core.cache
        assert job.selection is not None, job.id
        async for record, _ in self._survey.walk(job.selection):
            obj = cache.current(record.name)
            if obj is None:
                continue
            pages = -(-obj.size // PAGE_BYTES)
            for first in range(0, pages, EVICT_PAGES):
                punched, freed = cache.evict(obj, first, min(first + EVICT_PAGES, pages))
                self._filler.punch([Punch(*run) for run in punched])
                job.freed_bytes += freed
                if pages > EVICT_PAGES:
                    await asyncio.sleep(0)
            job.in_use_bytes += cache.local_bytes(obj)
        await self._count(job)


def _unmatched(selection: Selection, matched: bytearray) -> list[str]:
    """The first paths that mean no object."""
    found: list[str] = []
    at = matched.find(0)
    while at >= 0 and len(found) < PROBLEMS_KEPT:
        found.append(selection.paths[at])
        at = matched.find(0, at + 1)
    return found


def _no_match(job: Job) -> str:
    more = f" and {job.path_count - 3} more" if job.path_count > 3 else ""
    return f"no object matches {', '.join(map(repr, job.paths[:3]))}{more}"


def _incomplete(job: Job, passes: int) -> JobFailed:
    left = job.tally.bytes - job.tally.cached_bytes
    objects = job.tally.objects - job.tally.cached_objects
    head = f"{objects} objects with {left} bytes are not cached"
    if job.problem_count:
        return JobFailed("failed", f"{head}; {job.problem_count} could not be fetched")
    if job.skipped_bytes:
        return JobFailed("too_large", f"{head}: more does not fit")
    return JobFailed("incomplete", f"{head} after {passes} passes: dropped or changed meanwhile")
