"""Warm jobs of a spoke: bring, drop or count what a person names, in the background.

    matching -> running -> done
        |          +-----> failed      (why: `failure`)
        +----------+-----> cancelled   (what has arrived stays)

A job outlives the process: its record lies in the state folder (warm_records.py), and at the next
start it begins anew and fetches only what is missing. A job is done when everything it means is
local, looked at after the last byte came: what changed or was dropped meanwhile is brought again.
Bounded: jobs at a time, finished ones remembered, for how long, errors kept.
"""

import asyncio
import logging
from typing import Any

from hubspoke.core.cache import PAGES_PER_BLOCK
from hubspoke.core.fetches import Punch
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.selection import Selection
from hubspoke.core.spoke import SpokeCore
from hubspoke.errors import HubSpokeError, HubUnavailable, Overloaded, StoreUnavailable
from hubspoke.ports import Clock, NamespaceStore
from hubspoke.spoke.filler import Filler
from hubspoke.spoke.follower import Follower
from hubspoke.spoke.survey import MANY_PATHS, Survey, Tally
from hubspoke.spoke.warm_fetch import JobFailed, WarmFetch, Window
from hubspoke.spoke.warm_job import PROBLEMS_KEPT, Action, EndedJob, Job, State
from hubspoke.spoke.warm_records import WarmRecords
from hubspoke.spoke.warm_tuning import WarmTuning

log = logging.getLogger(__name__)

RECORD_S_MAX = 5.0  # until a record is durable; after that the job goes on without
EVICT_PAGES = 64 * PAGES_PER_BLOCK  # punched in about 2 ms before others have their turn


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
        self._records = WarmRecords(namespace, tuning.jobs_max + tuning.finished_max)
        self._jobs: dict[str, Job | EndedJob] = {}  # oldest first
        self._number = 0
        self._open = False
        self._closing = False

    def open(self) -> None:
        """The cache's index is loaded: from now on, counts are true. Jobs of the former process
        go on."""
        self._open = True
        now, unix_ns = self._clock.now(), self._clock.unix_ns()
        for record in self._records.load():
            try:
                job = self._revived(record, now, unix_ns)
            except (KeyError, TypeError, ValueError, HubSpokeError) as e:
                log.warning("warm job of a former process cannot be read error=%r", e)
                continue
            self._number = max(self._number, job.number)
            self._jobs[job.id] = job
            if isinstance(job, Job):
                log.info("warm job goes on id=%s action=%s", job.id, job.action)
                job.task = asyncio.get_running_loop().create_task(self._run(job))
        self._forget_old()

    def _revived(self, record: dict[str, Any], now: float, unix_ns: int) -> Job | EndedJob:
        if "ended_unix_ns" in record:
            return EndedJob(record)
        started = int(record["started_unix_ns"])
        return Job(
            int(record["number"]), record["action"], Selection(record["paths"]),
            force=record["force"], threads=record["threads"],
            now=now - max(0, unix_ns - started) / 1e9, unix_ns=started,
        )  # fmt: skip

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
        document = job.document(now)
        await self._note(job)
        return document

    async def _note(self, job: Job) -> None:
        """Make the job as it is now outlive the process; a disk that does not take it costs only
        that."""
        record = job.record(self._clock.now())
        try:
            async with asyncio.timeout(RECORD_S_MAX):
                await self._records.put(job.id, record)
        except (StoreUnavailable, TimeoutError) as e:
            log.warning("warm job not noted, a restart will not know of it id=%s error=%r",
                        job.id, e)  # fmt: skip

    def _forget_old(self) -> None:
        """Ended jobs that are too many or too long ago."""
        ended = [job for job in self._jobs.values() if job.ended_unix_ns is not None]
        since = self._clock.unix_ns() - int(self._tuning.finished_s * 1e9)
        excess = len(ended) - self._tuning.finished_max
        for at, job in enumerate(ended):
            if at < excess or (job.ended_unix_ns or 0) < since:
                del self._jobs[job.id]
                self._records.forget(job.id)

    def jobs(self) -> list[dict[str, Any]]:
        """Newest first."""
        self._forget_old()
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
            if job.active:  # its task had not begun, so nothing of it ran, not even its end
                job.end("cancelled", self._clock.now(), self._clock.unix_ns())
                await self._note(job)
        return self.job(job_id)

    async def close(self) -> None:
        """Stop; what runs goes on after the next start."""
        self._closing = True
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
            job.end(state, self._clock.now(), self._clock.unix_ns())
            log.info(
                "warm job ended id=%s action=%s state=%s objects=%d bytes=%d failure=%s",
                job.id, job.action, state, job.tally.objects, job.tally.bytes, job.failure,
            )  # fmt: skip
        if not (self._closing and state == "cancelled"):
            await self._note(job)

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
            job.in_use_bytes += obj.local_bytes()
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
